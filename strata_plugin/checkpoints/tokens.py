"""Token ids of one sequence in a buffer that grows, and how far they agree with a prompt."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Tokens: TypeAlias = npt.NDArray[np.int32]

_FIRST_CHUNK = 256  # tokens; most sequences that differ do so early
_LAST_CHUNK = 65536


def common_prefix(a: Tokens, b: Tokens) -> int:
    """Length of the longest common prefix, compared in chunks that grow."""
    end = min(len(a), len(b))
    start, chunk = 0, _FIRST_CHUNK
    while start < end:
        stop = min(start + chunk, end)
        differs = a[start:stop] != b[start:stop]
        first = int(differs.argmax())
        if differs[first]:
            return start + first
        start = stop
        chunk = min(chunk * 4, _LAST_CHUNK)
    return end


class TokenBuffer:
    """An int32 array that grows at its end; appending costs constant time on average."""

    __slots__ = ("_data", "_n")

    def __init__(self, tokens: Tokens) -> None:
        self._data: Tokens = np.array(tokens, dtype=np.int32)
        if self._data.ndim != 1:
            raise ValueError(f"token ids must be a flat array, got shape {self._data.shape}")
        self._n = len(self._data)

    def __len__(self) -> int:
        return self._n

    def view(self) -> Tokens:
        """The tokens, read-only and without copying: valid until the buffer changes."""
        view = self._data[: self._n]
        view.flags.writeable = False
        return view

    def extend(self, tokens: Tokens) -> None:
        """Append `tokens`."""
        n = self._n + len(tokens)
        if n > len(self._data):
            grown = np.empty(max(n, 2 * len(self._data), 64), dtype=np.int32)
            grown[: self._n] = self._data[: self._n]
            self._data = grown
        self._data[self._n : n] = tokens
        self._n = n

    def truncate(self, n: int) -> None:
        """Keep the first `n` tokens; ValueError when there are fewer."""
        if not 0 <= n <= self._n:
            raise ValueError(f"can't cut {self._n} tokens to {n}")
        self._n = n
