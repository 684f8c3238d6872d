"""What a person sees of a download: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

SILENCE_S = 30.0  # between two lines where there is no terminal
UNITS = ("B", "kB", "MB", "GB", "TB")

Say = Callable[[str], None]


def say(text: str) -> None:
    """Print one line on stderr."""
    print(f"strata-server: {text}", file=sys.stderr, flush=True)


def size_text(n_bytes: float) -> str:
    """`n_bytes` in decimal units: 4.7 GB."""
    power = 0
    while n_bytes >= 1000 and power < 4:
        n_bytes, power = n_bytes / 1000, power + 1
    return f"{n_bytes:.{1 if power else 0}f} {UNITS[power]}"


def _is_terminal() -> bool:
    """Whether stderr has columns for a bar; terminals of containers may have none."""
    try:
        return sys.stderr.isatty() and os.get_terminal_size(sys.stderr.fileno()).columns > 0
    except (OSError, ValueError):
        return False


class Progress:
    """How much of a file is there. `total` and `done` are bytes, `total` None if nobody knows."""

    def __init__(self, name: str, total: int | None, done: int, tell: Say = say):
        from tqdm import tqdm

        self._name, self._total, self._done, self._tell = name, total, done, tell
        self._told = time.monotonic()
        self._bar = tqdm(
            desc=name,
            total=total,
            initial=done,
            unit="B",
            unit_scale=True,
            file=sys.stderr,
            dynamic_ncols=True,
            leave=False,
            disable=not _is_terminal(),
        )

    def advance(self, n_bytes: int) -> None:
        """`n_bytes` more are on disk."""
        self._done += n_bytes
        if not self._bar.disable:
            self._bar.update(n_bytes)
        elif time.monotonic() - self._told >= SILENCE_S:
            self._told = time.monotonic()
            share = f" ({100 * self._done // self._total} %)" if self._total else ""
            self._tell(f"{self._name}: {size_text(self._done)}{share}")

    def close(self) -> None:
        """Remove the bar."""
        self._bar.close()
