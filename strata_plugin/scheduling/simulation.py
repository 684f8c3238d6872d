"""The scheduler on a virtual clock: what would have happened, on any machine, in milliseconds.

It calls the same scheduler in the same order as the engine does, so that, fed with the step times
that an engine measured, it makes the same plans (but that it knows of no KV cells that ended
requests leave filled).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .cost import CostModel
from .plan import RowPiece, StepPlan
from .scheduler import Scheduler
from .seating import fill
from .trace import TraceRequest, common_prefix


@dataclass
class Outcome:
    """What one request saw; seconds on the virtual clock."""

    request: TraceRequest
    cached: int = 0
    first_token_s: float | None = None  # None: it was cancelled before
    end_s: float | None = None
    gaps_s: list[float] = field(default_factory=list)
    last_token_s: float = 0.0

    @property
    def ttft_s(self) -> float | None:
        """Seconds from arrival to the first token."""
        if self.first_token_s is None:
            return None
        return self.first_token_s - self.request.arrival_s


class Simulation:
    """Runs a trace. `cost` says how long steps take (or `step_ms`, by plan, if it is given)."""

    def __init__(
        self,
        scheduler: Scheduler,
        trace: Sequence[TraceRequest],
        cost: CostModel,
        *,
        n_cells: int = 0,
        keep_prefixes: bool = True,
        step_ms: Callable[[StepPlan], float] | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.outcomes = [Outcome(request) for request in trace]
        self.now_s = 0.0
        self.plans: list[StepPlan] = []
        self.queue_length: list[tuple[float, int]] = []  # (seconds, requests), at each change
        self._cost = cost
        self._n_cells = n_cells
        self._keep = keep_prefixes
        self._step_ms = step_ms or self._predicted
        self._prefixes: dict[str, list[TraceRequest]] = {}  # what a tenant's caches hold
        self._next = 0
        self._left: dict[int, int] = {}  # tokens to write, of all that have come and not ended

    def run(self) -> list[Outcome]:
        """Until all requests of the trace have ended."""
        while self.step():
            pass
        return self.outcomes

    def step(self) -> bool:
        """One step, or a jump to the next arrival; False when all is done."""
        self._arrivals()
        if not self._left:
            if self._next == len(self.outcomes):
                return False
            self.now_s = max(self.now_s, self.outcomes[self._next].request.arrival_s)
            return True
        fill(self.scheduler, start=self._start, seated=_nobody_told, fits=self._fits)
        self._note_queue()
        plan = self.scheduler.plan()
        if plan is None:
            raise RuntimeError("requests are left, but nothing can be computed")
        self.plans.append(plan)
        took = self._step_ms(plan)
        self.now_s += took / 1e3
        rows = [p.request_id for p in plan.pieces if isinstance(p, RowPiece)]
        self.scheduler.complete(plan, took)
        for number in rows:
            self._sampled(number)
        self._cancels()
        return True

    # ---- inside ----------------------------------------------------------------------------------

    def _arrivals(self) -> None:
        while self._next < len(self.outcomes):
            outcome = self.outcomes[self._next]
            request = outcome.request
            if request.arrival_s > self.now_s:
                return
            self.scheduler.submit(
                self._next,
                n_prompt=request.n_prompt,
                arrival=request.arrival_s,
                tenant=request.tenant,
                n_predict=-1,
                expected=self._cached(request),
            )
            self._left[self._next] = max(1, request.n_output)
            self._next += 1

    def _cached(self, request: TraceRequest) -> int:
        known = self._prefixes.get(request.tenant, ())
        longest = max((common_prefix(request, other) for other in known), default=0)
        return min(longest, request.n_prompt - 1)

    def _start(self, number: int, slot: int | None) -> bool:
        outcome = self.outcomes[number]
        outcome.cached = self._cached(outcome.request)
        self.scheduler.admit(number, slot, outcome.cached)
        return True

    def _fits(self, number: int) -> bool:
        return self.scheduler.leaves_room(number, self._n_cells)

    def _sampled(self, number: int) -> None:
        outcome = self.outcomes[number]
        if outcome.first_token_s is None:
            outcome.first_token_s = self.now_s
            if self._keep:
                kept = self._prefixes.setdefault(outcome.request.tenant, [])
                mine = outcome.request
                kept[:] = [o for o in kept if common_prefix(mine, o) < o.n_prompt]
                kept.append(mine)
        else:
            outcome.gaps_s.append(self.now_s - outcome.last_token_s)
        outcome.last_token_s = self.now_s
        self._left[number] -= 1
        if self._left[number]:
            self.scheduler.sampled(number)
        else:
            self._end(number)

    def _cancels(self) -> None:
        for number in list(self._left):
            request = self.outcomes[number].request
            patience = request.cancel_after_s
            if patience is not None and self.now_s - request.arrival_s >= patience:
                self._end(number)

    def _end(self, number: int) -> None:
        self.outcomes[number].end_s = self.now_s
        self.scheduler.finish(number)
        del self._left[number]

    def _note_queue(self) -> None:
        length = len(self.scheduler.queued())
        if not self.queue_length or self.queue_length[-1][1] != length:
            self.queue_length.append((self.now_s, length))

    def _predicted(self, plan: StepPlan) -> float:
        return self._cost.predict(self.scheduler.plan_shape(plan))


def _nobody_told(request_id: int, slot: int) -> None:
    """In a simulation nobody has to know which row a request got."""
