"""A `strata-server` process for tests: random port, the default model, stopped at the end."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

import httpx
import pytest

from strata_plugin.runtime.native_library import NativeUnavailable, library

START_S = 60


def need_native_library() -> None:
    """Skip where the patched build is missing."""
    try:
        library()
    except NativeUnavailable as error:
        pytest.skip(str(error))


class ServerProcess:
    """A running server; a context manager."""

    def __init__(self, *args: str, env: dict[str, str] | None = None, wait: bool = True) -> None:
        self.args = args
        self.folder = Path(tempfile.mkdtemp(prefix="strata-test-"))
        self.out, self.err = self.folder / "out", self.folder / "err"
        environ = {k: v for k, v in os.environ.items() if not k.startswith("LLAMA_ARG_")}
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "strata_server", "--port", "0", *args],
                stdout=out,
                stderr=err,
                env={**environ, "STRATA_CACHE_DIR": str(self.folder / "prompts"), **(env or {})},
            )
        self.url = ""
        if wait:
            self.wait_ready()

    def wait_ready(self) -> None:
        """Until the server says on stdout that it serves; its address is then in `url`."""
        deadline = time.monotonic() + START_S
        while not (match := re.search(r" at (\S+) ", self.out.read_text())):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise AssertionError(f"no server: {self.err.read_text()[-2000:]}")
            time.sleep(0.02)
        self.url = match[1]

    def client(self) -> httpx.Client:
        """A client of this server."""
        return httpx.Client(base_url=self.url, timeout=60)

    def stop(self) -> int:
        """Ask it to stop, and make it if it takes too long; returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
        return self.process.wait()

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def run_to_end(
    *args: str, env: dict[str, str] | None = None, seconds: float = 60
) -> tuple[int, str, str]:
    """Run a server that should not start: exit code, stdout, stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "strata_server", *args],
        capture_output=True,
        text=True,
        timeout=seconds,
        env={**os.environ, **(env or {})},
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def alive(pids: Sequence[int]) -> list[int]:
    """Which of `pids` are still there (zombies are not)."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            stat = Path(f"/proc/{pid}/stat").read_text()
            if stat.rpartition(")")[2].split()[0] != "Z":
                found.append(pid)
    return found


def children(pid: int) -> list[int]:
    """Child processes of `pid`."""
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextlib.contextmanager
def listening_port() -> Iterator[int]:
    """A port that somebody else listens on."""
    import socket

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]
