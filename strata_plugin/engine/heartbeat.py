"""A word of memory that both processes see: since when the engine is at the step it is at."""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
import time

_FORM = struct.Struct("<dd")  # when the step began (0: none runs), its predicted duration in ms
AT_LEAST = 20  # times the predicted duration


class Heartbeat:
    """Made by one process, opened by the other with the file descriptor. Clock: CLOCK_MONOTONIC,
    which all processes of a machine share.
    """

    def __init__(self, fd: int) -> None:
        self._memory = mmap.mmap(fd, mmap.PAGESIZE)

    @classmethod
    def create(cls) -> tuple[Heartbeat, int]:
        """A fresh one and the file descriptor to hand on; the caller closes that."""
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("strata-heartbeat")
        else:
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
        os.ftruncate(fd, mmap.PAGESIZE)
        return cls(fd), fd

    def begin(self, predicted_ms: float = 0.0) -> None:
        """A step begins."""
        _FORM.pack_into(self._memory, 0, time.monotonic(), predicted_ms)

    def end(self) -> None:
        """No step runs."""
        _FORM.pack_into(self._memory, 0, 0.0, 0.0)

    def overdue(self, now: float, limit_s: float) -> bool:
        """Whether a step takes longer than `limit_s` and than `AT_LEAST` times what was predicted.

        `now` is time.monotonic().
        """
        began, predicted_ms = _FORM.unpack_from(self._memory, 0)
        return bool(began and now - began > max(limit_s, AT_LEAST * predicted_ms / 1e3))

    def close(self) -> None:
        """Let the memory go."""
        self._memory.close()
