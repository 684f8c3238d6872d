"""Starts and stops one server under test, and reads what its processes use.

A server counts as its whole process tree. It listens on a free port of 127.0.0.1, writes its log to
a file, and inherits no LLAMA_ARG_* variable, so that both sides run on their own defaults.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

READY_TIMEOUT_S = 180.0
POLL_S = 0.01


class ServerError(Exception):
    """The server didn't start, didn't get ready, or went away; the message has its last lines."""


@dataclass(frozen=True)
class Memory:
    """Bytes, summed over the processes. `pss` divides shared pages among those that map them."""

    rss: int
    pss: int
    processes: int


class Server:
    """One server under test; `start` and `stop` may be called again and again."""

    def __init__(self, name: str, command: tuple[str, ...], model: Path, log: Path) -> None:
        self.name = name
        self.command = command
        self.model = model
        self.port = 0
        self.leftovers = 0  # child processes that outlived their parent, over all stops
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._ended_cpu_s = 0.0

    def start(self, flags: tuple[str, ...] = (), *, again: bool = False) -> float:
        """Start it and wait until it serves; returns seconds from exec to 200 on /health.

        `again`: with the prompts that it has kept on disk, which are removed else.
        """
        if self._process is not None:
            raise ServerError(f"{self.name} is running already")
        self.port = _free_port()
        command = [
            *self.command, "-m", str(self.model), "--host", "127.0.0.1", "--port", str(self.port),
            *flags,
        ]  # fmt: skip
        kept = self.kept
        if not again:  # prompts are alike in every run: what earlier ones read must not be found
            shutil.rmtree(kept, ignore_errors=True)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("LLAMA_ARG_")}
        environment["STRATA_CACHE_DIR"] = str(kept)
        with self._log.open("ab") as log:
            started = time.perf_counter()
            try:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
                )
            except OSError as exc:
                raise ServerError(f"cannot start {self.name}: {exc}") from exc
        while time.perf_counter() - started < READY_TIMEOUT_S:
            if self._process.poll() is not None:
                code = self._process.returncode
                self._process = None
                raise ServerError(f"{self.name} ended with code {code} at start:\n{self._tail()}")
            if self._health() == 200:
                return time.perf_counter() - started
            time.sleep(POLL_S)
        self.stop()
        raise ServerError(f"{self.name} not ready in {READY_TIMEOUT_S:g} s:\n{self._tail()}")

    @property
    def kept(self) -> Path:
        """The folder of its disk tier."""
        return self._log.with_suffix(".prompts")

    def stop(self) -> None:
        """End it by its process id and wait until all its processes are gone; safe to repeat."""
        self._ended_cpu_s = self.cpu_s()
        process, self._process = self._process, None
        if process is None:
            return
        try:
            children = psutil.Process(process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            children = []
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        _, alive = psutil.wait_procs(children, timeout=5)
        self.leftovers += len(alive)
        for child in alive:
            child.kill()

    def kill(self) -> None:
        """End all its processes at once, as `kill -9` does."""
        processes = self._tree()
        self._ended_cpu_s = self.cpu_s()
        self._process = None
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, timeout=5)

    def check(self) -> None:
        """Raise `ServerError` where the process has ended."""
        if self._process is None or self._process.poll() is not None:
            raise ServerError(f"{self.name} is not running:\n{self._tail()}")

    def memory(self) -> Memory:
        """Resident memory of all its processes now."""
        rss = pss = count = 0
        for process in self._tree():
            try:
                full = process.memory_full_info()
            except psutil.NoSuchProcess:
                continue  # a helper process that just ended
            rss += full.rss
            pss += full.pss
            count += 1
        return Memory(rss, pss, count)

    def cpu_s(self) -> float:
        """CPU seconds that its processes have used so far, those of earlier starts too."""
        total = self._ended_cpu_s
        for process in self._tree() if self._process is not None else ():
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue  # a helper process that just ended
            total += times.user + times.system + times.children_user + times.children_system
        return total

    def first_process_cpu_s(self) -> float:
        """CPU seconds of the process that was started, without its children."""
        times = self._tree()[0].cpu_times()
        return float(times.user + times.system)

    def version(self) -> str:
        """What `--version` prints, in one line."""
        try:
            done = subprocess.run(
                [*self.command, "--version"], capture_output=True, text=True, timeout=60
            )
        except (OSError, subprocess.TimeoutExpired) as exc:
            return f"unknown ({exc})"
        lines = (done.stdout + done.stderr).splitlines()
        return "; ".join(line.strip() for line in lines if line.strip())

    def _tree(self) -> list[psutil.Process]:
        self.check()
        assert self._process is not None
        root = psutil.Process(self._process.pid)
        return [root, *root.children(recursive=True)]

    def _health(self) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return 0  # not listening yet; the caller watches the process and the clock
        finally:
            connection.close()

    def _tail(self) -> str:
        text = self._log.read_text("utf-8", "replace") if self._log.exists() else ""
        return "\n".join(text.splitlines()[-15:])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
