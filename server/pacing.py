"""When tokens share a chunk.

The chat dialects parse the text generated so far for every chunk, so a chunk of a long answer costs
more than one of a short answer. While that cost is small each token gets its chunk. When it grows,
tokens that arrive while we hold back share one, so that formatting takes at most a tenth of the
time, and no token is held longer than 100 ms.
"""

from __future__ import annotations

CHEAP_S = 0.001  # a chunk that takes less is not worth delaying
SHARE = 10  # one part formatting, nine parts waiting
MAX_HOLD_S = 0.1


class Pacer:
    """Measures formatting and tells how long the next chunk may wait for company. Seconds."""

    def __init__(self, mergeable: bool):
        self.mergeable = mergeable
        self.cost = 0.0

    def measured(self, seconds: float, n_chunks: int) -> None:
        """Formatting of `n_chunks` chunks took `seconds`."""
        if n_chunks > 0:
            self.cost += 0.3 * (seconds / n_chunks - self.cost)

    @property
    def expensive(self) -> bool:
        """Whether chunks have become costly enough to merge and to move off the event loop."""
        return self.mergeable and self.cost > CHEAP_S

    @property
    def hold(self) -> float:
        """How long a token may wait for others to share its chunk."""
        return min(MAX_HOLD_S, self.cost * (SHARE - 1)) if self.expensive else 0.0
