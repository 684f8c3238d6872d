"""The yield discipline by flags: so many large chunks without rows, then so many decode steps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class YieldTurns:
    """Whose turn it is while both rows and prompts wait. 0 chunks and steps: not forced."""

    chunks: int = 0
    steps: int = 0
    _chunks_done: int = 0
    _steps_done: int = 0

    @property
    def forced(self) -> bool:
        """Whether flags fix the turns; one flag alone leaves the other number at 1."""
        return self.chunks > 0 or self.steps > 0

    @property
    def reads_next(self) -> bool:
        """Whether the next step is a chunk of prompts."""
        return self._chunks_done < max(1, self.chunks)

    def settle(self, read: bool) -> None:
        """A step was carried out while both waited."""
        if read:
            self._chunks_done += 1
            return
        self._steps_done += 1
        if self._steps_done >= max(1, self.steps):
            self.reset()

    def reset(self) -> None:
        """Nobody waits for the other any more."""
        self._chunks_done = self._steps_done = 0
