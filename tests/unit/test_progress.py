"""What is seen of a download, on a terminal and in a log."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

from strata_server.download import progress
from strata_server.download.progress import Progress, size_text

pty = pytest.importorskip("pty")


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (4_700_000_000, "4.7 GB"), (3e15, "3000.0 TB")],
)
def test_sizes(n_bytes: float, text: str) -> None:
    assert size_text(n_bytes) == text


@pytest.mark.parametrize(("total", "line"), [(400, "m: 200 B (50 %)"), (None, "m: 200 B")])
def test_a_log_gets_a_line_now_and_then(
    total: int | None, line: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    told: list[str] = []
    shown = Progress("m", total, 100, told.append)
    for seconds in (1.0, 31.0, 32.0):
        now[0] = seconds
        shown.advance(50)
    shown.close()
    assert told == [line]
    assert capsys.readouterr().err == ""


def terminal(columns: int) -> tuple[int, Any]:
    import fcntl
    import struct
    import termios

    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    return master, os.fdopen(slave, "w")


def all_of(master: int) -> str:
    """What was written to a terminal that is closed by now."""
    parts: list[bytes] = []
    try:
        while part := os.read(master, 10_000):
            parts.append(part)
    except OSError:  # what Linux says at the end
        os.close(master)
    return b"".join(parts).decode()


def test_a_terminal_gets_a_bar_that_goes_when_all_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    master, stderr = terminal(80)
    monkeypatch.setattr(sys, "stderr", stderr)
    told: list[str] = []
    shown = Progress("m.gguf", 2000, 1000, told.append)
    shown.advance(1000)
    shown.close()
    stderr.close()
    text = all_of(master)
    assert "m.gguf:  50%|" in text and "1.00k/2.00k" in text
    assert text.endswith("\r") and text.rstrip("\r").endswith(" ")
    assert told == []


def test_a_terminal_without_columns_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal(0)[1])
    monkeypatch.setattr(progress, "SILENCE_S", 0.0)
    told: list[str] = []
    Progress("m", 200, 0, told.append).advance(100)
    assert told == ["m: 100 B (50 %)"]
