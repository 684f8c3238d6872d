"""The last so many figures, in ascending order: for medians and other quantiles."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T", int, float)


class Recent(Generic[T]):
    """Keeps the last `memory` figures."""

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._arrived: deque[T] = deque()
        self.ascending: list[T] = []

    def add(self, figure: T) -> None:
        """One more; the oldest goes when there are too many."""
        self._arrived.append(figure)
        insort(self.ascending, figure)
        if len(self._arrived) > self._memory:
            del self.ascending[bisect_left(self.ascending, self._arrived.popleft())]
