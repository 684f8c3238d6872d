"""When tokens share a chunk.

The chat dialects parse the text generated so far for every chunk, so a chunk of a long answer costs
more than one of a short answer. While that cost is small each token gets its chunk. When it grows,
tokens that arrive while we hold back share one, so that formatting takes at most a tenth of the
time, and no token is held longer than 100 ms.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .choice import Choice
    from .ports import Event

CHEAP_S = 0.001  # a chunk that takes less is not worth delaying
SHARE = 10  # one part formatting, nine parts waiting
MAX_HOLD_S = 0.1


class Pacer:
    """Formats, measures its own cost, and tells how long the next chunk may wait for company.

    Cost is the thread's CPU time in seconds: a busy machine must not look like a long answer.
    """

    def __init__(self, mergeable: bool):
        self.mergeable = mergeable
        self.cost = 0.0

    def pieces(self, choice: Choice, events: Sequence[Event], merge: bool) -> bytes:
        """`choice.pieces`, measured. May run in a worker thread."""
        began, calls = time.thread_time(), choice.calls
        data = choice.pieces(events, merge)
        if choice.calls > calls:
            average = (time.thread_time() - began) / (choice.calls - calls)
            self.cost += 0.3 * (average - self.cost)
        return data

    @property
    def expensive(self) -> bool:
        """Whether chunks have become costly enough to merge and to move off the event loop."""
        return self.mergeable and self.cost > CHEAP_S

    @property
    def hold(self) -> float:
        """How long a token may wait for others to share its chunk."""
        return min(MAX_HOLD_S, self.cost * (SHARE - 1)) if self.expensive else 0.0
