"""Runs a long build step: whole output to a log file, progress to the terminal, tail on failure."""

import os
import re
import shutil
import signal
import subprocess
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

from .errors import BuildError

TAIL_LINES = 40
_NINJA = re.compile(r"^\[(\d+)/(\d+)\] (.*)$")


class Progress:
    """Turns ninja's "[n/m] ..." lines into one changing line; without a tty, into ten lines."""

    def __init__(self, label: str, out: TextIO, tty: bool | None = None) -> None:
        self.label = label
        self.out = out
        self.tty = out.isatty() if tty is None else tty
        self.started = time.monotonic()
        self._tenth = -1
        self._shown = False

    def feed(self, line: str) -> None:
        """Takes one line of the build's output."""
        match = _NINJA.match(line)
        if match is None:
            return
        done, total = int(match[1]), int(match[2])
        seconds = time.monotonic() - self.started
        text = f"{self.label}: {100 * done // total:3d} % ({done}/{total}, {seconds:.0f} s)"
        if self.tty:
            width = shutil.get_terminal_size().columns - 1
            text = f"{text} {match[3].rpartition('/')[2]}"[:width]
            self.out.write(f"\r{text:<{width}}")
            self._shown = True
        elif 10 * done // total > self._tenth:
            self._tenth = 10 * done // total
            self.out.write(text + "\n")
        self.out.flush()

    def close(self) -> None:
        """Ends the changing line."""
        if self._shown:
            self.out.write("\n")
            self.out.flush()


def run_logged(
    command: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    log: Path,
    progress: Progress,
) -> None:
    """Runs a command, appending all it prints to the log; raises BuildError with the log's tail."""
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    with open(log, "a", encoding="utf-8") as file:
        file.write(f"$ {' '.join(command)}\n")
        file.flush()
        # a session of its own, so that stopping us stops compilers that ninja started too
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            assert process.stdout is not None
            for line in process.stdout:
                file.write(line)
                tail.append(line)
                progress.feed(line)
            status = process.wait()
        except BaseException:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
            raise
        finally:
            progress.close()
    if status != 0:
        raise BuildError(
            f"{progress.label} failed with status {status}. The last lines of {log}:\n"
            + "".join(tail).rstrip()
        )
