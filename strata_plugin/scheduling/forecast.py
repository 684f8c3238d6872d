"""When each waiting request will see its first token: the scheduler, run ahead on the cost model.

A copy of the scheduler plans step after step. Steps that only repeat the last one are taken in
leaps, so a look ahead over minutes costs some dozens of plans. How long others will write is not
known; the median of what was seen stands for it. How far off such predictions were in the past
gives the range that goes with them.
"""

from __future__ import annotations

from math import exp, log

from .lengths import OutputLengths
from .order import AGEING_TURN
from .plan import RowPiece, StepPlan
from .recent import Recent
from .scheduler import Scheduler
from .seating import fill

MOST_PLANS = 600  # after that the rest of the queue is extrapolated
DEPTH_STEP = 0.25  # a leap makes a prompt at most this much deeper (its cost changes with depth)


def first_tokens(
    scheduler: Scheduler, lengths: OutputLengths, n_cells: int = 0
) -> dict[int, float]:
    """Milliseconds from now to the first token of each request that has none yet.

    Empty while the cost model knows nothing. `n_cells` is the size of the KV cache, 0: no limit.
    """
    if not scheduler.cost.knows(1):
        return {}
    return _Ahead(scheduler.copy(), lengths, n_cells).run()


class _Ahead:
    def __init__(self, scheduler: Scheduler, lengths: OutputLengths, n_cells: int) -> None:
        self.s = scheduler
        self.n_cells = n_cells
        self.now = 0.0
        self.left: dict[int, int] = {}  # tokens still to be written
        self.waiting: set[int] = set()
        for request_id in scheduler.known():
            request = scheduler.request(request_id)
            written = request.known - request.n_prompt
            self.left[request_id] = lengths.left(written, request.n_predict)
            if not written:
                self.waiting.add(request_id)
            if request.parked:  # as if it came back at once, with what it had
                scheduler.unpark(request_id, min(request.computed, request.known - 1))
        self.found: dict[int, float] = {}
        self._others_turn = 0  # times that the oldest may repeat its turn, after a leap of others

    def run(self) -> dict[int, float]:
        for _ in range(MOST_PLANS):
            if not self.waiting:
                break
            fill(self.s, start=self._start, seated=_nothing, fits=self._fits)
            plan = self.s.plan()
            if plan is None:
                break
            self._carry_out(plan)
        for number, request_id in enumerate(sorted(self.waiting)):
            self.found[request_id] = self.now * (1.0 + 0.1 * (number + 1))
        return self.found

    def _start(self, request_id: int, slot: int | None) -> bool:
        request = self.s.request(request_id)
        self.s.admit(request_id, slot, request.expected)
        return True

    def _fits(self, request_id: int) -> bool:
        return self.s.leaves_room(request_id, self.n_cells)

    def _carry_out(self, plan: StepPlan) -> None:
        times = self._repeats(plan)
        took = self.s.cost.predict(self.s.plan_shape(plan, times))
        self.now += took * times
        rows = [p.request_id for p in plan.pieces if isinstance(p, RowPiece)]
        if times > 1:
            self.s.leap(plan, times, took)
        else:
            self.s.complete(plan, took)
        for request_id in rows:
            if request_id in self.waiting:
                self.waiting.remove(request_id)
                self.found[request_id] = self.now
            self.left[request_id] -= times
            if self.left[request_id] <= 0:
                self.s.finish(request_id)
            elif times == 1:
                self.s.sampled(request_id)

    def _repeats(self, plan: StepPlan) -> int:
        """How often the plan can be repeated as it is."""
        if plan.credit_ms:
            return 1
        times = 1 << 30
        reading = 0
        for piece in plan.pieces:
            request = self.s.request(piece.request_id)
            if request.writing:
                times = min(times, self.left[piece.request_id])
                continue
            reading += 1
            times = min(times, (request.reach - 1) // piece.count)
            times = min(times, 1 + int((DEPTH_STEP * piece.start + 2048) / piece.count))
        if not reading:
            times = min(times, 64)  # somebody may come to be read
        elif self.s.several_read():
            if self.s.oldest_is_next():
                times = min(times, max(1, self._others_turn))
            else:
                self._others_turn = max(1, times // (AGEING_TURN - 1))
        return max(1, times)


def _nothing(request_id: int, slot: int) -> None:
    """A forecast tells nobody."""


class Accuracy:
    """How far predictions were off, and so how far the next one may be."""

    _MEMORY = 64
    _SHARE = 0.8  # of the predictions are to end up within the range
    _UNKNOWN = 0.5  # logarithm of the factor, while little was seen

    def __init__(self) -> None:
        self._off = Recent[float](self._MEMORY)

    def observe(self, predicted_ms: float, actual_ms: float) -> None:
        """A first token came; times count from the request's arrival."""
        self._off.add(log(max(actual_ms, 1.0) / max(predicted_ms, 1.0)))

    def around(self, predicted_ms: float) -> tuple[float, float]:
        """The range in which four of five such requests got their first token."""
        off = self._off.ascending
        n = len(off)
        margin = (1.0 - self._SHARE) / 2.0
        if n < 8:
            low, high = -self._UNKNOWN, self._UNKNOWN
        else:
            low = min(0.0, off[int(margin * n)])
            high = max(0.0, off[min(n - 1, int((1.0 - margin) * n))])
        return predicted_ms * exp(low), predicted_ms * exp(high)
