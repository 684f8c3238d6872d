"""When tokens share a chunk.

The chat dialects parse the text generated so far for every chunk, so a chunk of a long answer
costs more than one of a short answer: 8,000 tokens of a tool's arguments, each in a chunk of its
own, would take seconds of CPU. Each token gets its chunk until an answer has cost `FREE_S` in all:
most never do. Then as many tokens share one as keep the cost of each small, but none waits longer
than 100 ms.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .choice import Choice
    from .ports import Event

FREE_S = 0.25  # CPU time of an answer's chunks before any is made to wait
CHEAP_S = 0.00015  # a chunk that takes less is not worth delaying
TOKEN_S = 0.00006  # what each token may cost in chunks that take more
LONG_S = 0.001  # a chunk that takes more would hold up other streams
MAX_HOLD_S = 0.1


class Pacer:
    """Formats, measures its own cost, and tells how much company the next chunk waits for.

    Cost is the thread's CPU time in seconds: a busy machine must not look like a long answer.
    """

    def __init__(self, mergeable: bool):
        self.mergeable = mergeable
        self.cost = 0.0  # of a chunk, lately
        self.spent = 0.0  # for all chunks so far

    def pieces(self, choice: Choice, events: Sequence[Event], merge: bool) -> bytes:
        """`choice.pieces`, measured. May run in a worker thread."""
        began, calls = time.thread_time(), choice.calls
        data = choice.pieces(events, merge)
        if choice.calls > calls:
            took = time.thread_time() - began
            self.spent += took
            average = took / (choice.calls - calls)
            self.cost += 0.3 * (average - self.cost)
        return data

    @property
    def company(self) -> int:
        """How many tokens are to share the next chunk; fewer where not so many come in time."""
        if not self.mergeable or self.cost <= CHEAP_S or self.spent <= FREE_S:
            return 1
        return math.ceil(self.cost / TOKEN_S)

    @property
    def long(self) -> bool:
        """Whether chunks take so long that they have to be formatted off the event loop."""
        return self.mergeable and self.cost > LONG_S
