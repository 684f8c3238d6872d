"""How long answers are: unknown for each request, but learnt from those that have ended."""

from __future__ import annotations

from bisect import bisect_right

from .recent import Recent

UNKNOWN = 128  # tokens, while nothing was seen
MEMORY = 256  # answers that are remembered


class OutputLengths:
    """The lengths of recent answers, in tokens."""

    def __init__(self) -> None:
        self._recent = Recent[int](MEMORY)

    def observe(self, n_tokens: int) -> None:
        """An answer has ended by itself after `n_tokens`."""
        self._recent.add(n_tokens)

    def left(self, n_written: int, n_predict: int = -1) -> int:
        """Tokens that one of `n_written` tokens will still get: the median of longer answers.

        At least 1; at most what `n_predict` (-1: no limit) leaves.
        """
        seen = self._recent.ascending
        longer = seen[bisect_right(seen, n_written) :]
        if longer:
            expected = longer[len(longer) // 2] - n_written
        else:  # longer than all that was seen: as long again
            expected = max(n_written, UNKNOWN if not seen else 0)
        if n_predict >= 0:
            expected = min(expected, n_predict - n_written)
        return max(1, expected)
