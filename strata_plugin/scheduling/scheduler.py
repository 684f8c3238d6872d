"""Who gets a row and what each step computes: first come, first served, many prompts in a step.

Pure: no clock (arrivals and step times are arguments), no I/O, no knowledge of what a token is. The
engine asks for a plan, carries it out, reports it with `complete`, and tells what was sampled. The
same calls give the same plans.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from .admission import assign_slots
from .budget import MIN_PROMPT_SHARE, BudgetPolicy, StepBudget
from .plan import BatchClass, Piece, ReadPiece, RowPiece, StepPlan
from .request import ScheduledRequest, Stage


@dataclass(frozen=True)
class Limits:
    """What the llama context was made with."""

    n_rows: int  # requests that hold a slot at once
    n_batch: int  # tokens of one step at most
    n_ubatch: int  # tokens of one pass over the weights

    def __post_init__(self) -> None:
        if min(self.n_rows, self.n_batch, self.n_ubatch) < 1:
            raise ValueError(f"limits must be positive: {self}")


def _order(request: ScheduledRequest) -> tuple[float, int]:
    return request.order


class Scheduler:
    """The requests of one engine. Every call takes time linear in rows and queue at most."""

    def __init__(self, limits: Limits, budget: BudgetPolicy) -> None:
        self.limits = limits
        self._budget = budget
        self._requests: dict[int, ScheduledRequest] = {}
        self._queue: list[ScheduledRequest] = []  # by order
        self._running: list[ScheduledRequest] = []  # those with a slot, parked ones too, by order
        self._slots: list[int | None] = [None] * limits.n_rows  # request id
        self._n_submitted = 0
        self._step = 0

    # ---- a request's life ------------------------------------------------------------------------

    def submit(
        self,
        request_id: int,
        *,
        n_prompt: int,
        arrival: float,
        batch_class: BatchClass | None = None,
        stop_positions: Iterable[int] = (),
        id_slot: int = -1,
        fork_of: int | None = None,
    ) -> None:
        """Queue a request of `n_prompt` tokens that came at `arrival` (seconds).

        `id_slot` < 0 means any slot, others are taken modulo the number of slots. A parent
        (`fork_of`) that is not known any more is no reason to wait. Raises ValueError for an empty
        prompt or an id in use.
        """
        if n_prompt < 1:
            raise ValueError(f"request {request_id} has an empty prompt")
        if request_id in self._requests:
            raise ValueError(f"request {request_id} is already known")
        request = ScheduledRequest(
            request_id=request_id,
            batch_class=batch_class or BatchClass(),
            arrival=arrival,
            sequence=self._n_submitted,
            n_prompt=n_prompt,
            known=n_prompt,
            stop_positions=tuple(sorted({p for p in stop_positions if p > 0})),
            id_slot=id_slot % self.limits.n_rows if id_slot >= 0 else -1,
            fork_of=fork_of if fork_of in self._requests else None,
        )
        self._n_submitted += 1
        self._requests[request_id] = request
        insort(self._queue, request, key=_order)

    def admissible(self) -> list[tuple[int, int]]:
        """Pairs (request id, slot) to be given a row now, in the order of the queue.

        First come, first served, but no slot stays free while anybody could use it. A fork waits
        until its parent's prompt is in the KV cache, so that they share it.
        """
        free = [slot for slot, holder in enumerate(self._slots) if holder is None]
        if not free or not self._queue:
            return []
        waiting = {r.request_id for r in self._queue if not self._parent_is_ready(r)}
        return [(r.request_id, slot) for r, slot in assign_slots(self._queue, waiting, free)]

    def admit(self, request_id: int, slot: int, computed: int) -> None:
        """Give a queued request its row; its first `computed` tokens are in the KV cache already.

        At least one prompt token is always left to compute, as only that yields logits. Raises
        ValueError otherwise, or when the slot is not free or not the one it is pinned to.
        """
        request = self.request(request_id)
        if request.stage is not Stage.QUEUED:
            raise ValueError(f"request {request_id} is {request.stage.value}, not queued")
        if not 0 <= slot < self.limits.n_rows or self._slots[slot] is not None:
            raise ValueError(f"slot {slot} is not free for request {request_id}")
        if request.id_slot not in (-1, slot):
            raise ValueError(f"request {request_id} insists on slot {request.id_slot}, not {slot}")
        if not 0 <= computed < request.n_prompt:
            raise ValueError(f"{computed} computed tokens for a prompt of {request.n_prompt}")
        self._queue.remove(request)
        request.slot = slot
        request.computed = computed
        request.turn = request.served = self._step
        self._slots[slot] = request_id
        insort(self._running, request, key=_order)

    def sampled(self, request_id: int, n: int = 1) -> None:
        """`n` tokens were sampled after the last known one.

        Raises ValueError while known tokens are still to be computed: such a request has no logits
        to sample from.
        """
        request = self._active(request_id)
        if request.pending:
            raise ValueError(f"request {request_id} has {request.pending} tokens to compute first")
        if n < 1:
            raise ValueError(f"sampled {n} tokens")
        request.known += n

    def rollback(self, request_id: int, computed: int) -> None:
        """Only the first `computed` tokens are still in the KV cache; the rest is read again."""
        request = self._active(request_id)
        self._set_back(request, computed)

    def park(self, request_id: int) -> None:
        """Leave a request out of the plans; it keeps its slot. Its state is the caller's to save.

        Raises ValueError between `complete` and `sampled`: what was computed would be lost.
        """
        request = self._active(request_id)
        if not request.pending:
            raise ValueError(f"request {request_id} is to be sampled first")
        request.parked = True

    def unpark(self, request_id: int, computed: int) -> None:
        """A parked request goes on with its first `computed` tokens in the KV cache.

        That may be more than it had computed itself: others may have read the same further.
        """
        request = self.request(request_id)
        if request.stage is not Stage.PARKED:
            raise ValueError(f"request {request_id} is {request.stage.value}, not parked")
        if not 0 <= computed < request.known:
            raise ValueError(f"{computed} computed tokens for {request}")
        request.computed = computed
        request.parked = False
        request.turn = request.served = self._step

    def finish(self, request_id: int) -> ScheduledRequest:
        """Forget a request in any stage and free its slot; forks of it wait no more."""
        request = self.request(request_id)
        del self._requests[request_id]
        if request.slot is None:
            self._queue.remove(request)
        else:
            self._running.remove(request)
            self._slots[request.slot] = None
        for other in self._queue:
            if other.fork_of == request_id:
                other.fork_of = None
        request.finished = True
        return request

    def cancel(self, request_id: int) -> ScheduledRequest:
        """As `finish`: to the scheduler an end is an end."""
        return self.finish(request_id)

    # ---- steps -----------------------------------------------------------------------------------

    def plan(self) -> StepPlan | None:
        """What to compute next, None when nothing can be computed now. Changes nothing.

        One batch class per step: that which has waited longest since its last turn. Its decoding
        rows first, then its prompts in order of arrival as far as the budget goes, at most one
        piece per request.
        """
        runnable = [r for r in self._running if r.pending and not r.parked]
        if not runnable:
            return None
        batch_class = min(runnable, key=lambda r: r.turn).batch_class
        rows: list[ScheduledRequest] = []
        prompts: list[ScheduledRequest] = []
        for request in runnable:
            if request.batch_class == batch_class:
                (rows if request.writing else prompts).append(request)
        if len(rows) + bool(prompts) > self.limits.n_batch:
            rows, prompts = self._take_turns(rows, prompts)
        pieces: list[Piece] = [RowPiece(r.request_id, r.computed, 1) for r in rows]
        if prompts:
            budget = self._prompt_budget(len(rows))
            for request in prompts:
                count = budget.take(request.reach)
                if not count:
                    break
                piece = RowPiece if count == request.pending else ReadPiece
                pieces.append(piece(request.request_id, request.computed, count))
        return StepPlan(batch_class, tuple(pieces))

    def complete(self, plan: StepPlan, elapsed_ms: float) -> None:
        """The plan was carried out in `elapsed_ms` milliseconds, until its results were there.

        Requests that ended in the meantime are passed over. Raises ValueError, and changes nothing,
        for a plan that does not continue where a request is.
        """
        known = self._requests
        pieces = [(p, known[p.request_id]) for p in plan.pieces if p.request_id in known]
        for piece, request in pieces:
            if request.computed != piece.start or piece.count > request.pending or request.parked:
                raise ValueError(f"{piece} does not continue request {request}")
        n_rows = sum(1 for _, request in pieces if request.writing)
        n_prompt_tokens = sum(p.count for p, request in pieces if not request.writing)
        self._step += 1
        for piece, request in pieces:
            request.computed += piece.count
            request.served = self._step
        for request in self._running:
            if request.batch_class == plan.batch_class:
                request.turn = self._step
        self._budget.observe(n_prompt_tokens, n_rows, elapsed_ms)

    # ---- questions -------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """No request at all."""
        return not self._requests

    def request(self, request_id: int) -> ScheduledRequest:
        """The request; KeyError when it is unknown or has ended."""
        return self._requests[request_id]

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._requests

    def holder(self, slot: int) -> int | None:
        """The request that holds `slot`."""
        return self._slots[slot]

    def queued(self) -> tuple[int, ...]:
        """Those without a row, in the order in which they will get one, pins and forks aside."""
        return tuple(request.request_id for request in self._queue)

    def running(self) -> tuple[int, ...]:
        """Those that are reading or writing, oldest first."""
        return tuple(request.request_id for request in self._running if not request.parked)

    def parked(self) -> tuple[int, ...]:
        """Those that are parked, oldest first."""
        return tuple(request.request_id for request in self._running if request.parked)

    def queue_position(self, request_id: int) -> int | None:
        """How many queued requests are before it; None when it isn't queued."""
        return next((i for i, r in enumerate(self._queue) if r.request_id == request_id), None)

    def counts(self) -> Counter[Stage]:
        """Number of requests in each stage."""
        return Counter(request.stage for request in self._requests.values())

    def youngest(self, exclude: Collection[int] = ()) -> int | None:
        """The request to park when room is short: the last come of those reading or writing."""
        for request in reversed(self._running):
            if not request.parked and request.request_id not in exclude:
                return request.request_id
        return None

    def check_integrity(self) -> None:
        """Raise AssertionError naming the first broken invariant."""
        queue, running = self._queue, self._running
        assert queue == sorted(queue, key=_order), "queue is out of order"
        assert running == sorted(running, key=_order), "running requests are out of order"
        listed = Counter(request.request_id for request in (*queue, *running))
        assert listed == Counter(self._requests.keys()), "a request is lost or listed twice"
        held = {slot: holder for slot, holder in enumerate(self._slots) if holder is not None}
        assert held == {r.slot: r.request_id for r in running}, "slots and running requests differ"
        for key, r in self._requests.items():
            name = f"request {key}"
            assert key == r.request_id and not r.finished, f"{name} has ended or has another id"
            assert r.n_prompt >= 1 and r.n_prompt <= r.known, f"{name} knows less than its prompt"
            assert 0 <= r.computed <= r.known, f"{name} computed {r.computed} of {r.known}"
            assert r.id_slot == -1 or r.slot in (None, r.id_slot), f"{name} is in a wrong slot"
            assert r.served <= r.turn <= self._step, f"{name} was served in the future"
            if r.slot is None:
                assert not r.computed and not r.parked, f"{name} has state but no slot"
                assert r.fork_of is None or r.fork_of in self._requests, f"{name} waits for nobody"
            else:
                assert not r.parked or r.pending, f"{name} was parked before it was sampled"

    # ---- inside ----------------------------------------------------------------------------------

    def _active(self, request_id: int) -> ScheduledRequest:
        request = self.request(request_id)
        if request.stage not in (Stage.READING, Stage.WRITING):
            raise ValueError(f"request {request_id} is {request.stage.value}, not running")
        return request

    def _set_back(self, request: ScheduledRequest, computed: int) -> None:
        # all tokens computed and none sampled would be a request that no step ever touches again
        if not 0 <= computed <= request.computed or computed >= request.known:
            raise ValueError(f"can't go back to {computed} tokens in request {request}")
        request.computed = computed

    def _parent_is_ready(self, request: ScheduledRequest) -> bool:
        if request.fork_of is None:
            return True
        parent = self._requests[request.fork_of]
        # a parked parent's prompt is not in the KV cache; it comes back without this one's help
        return parent.slot is not None and not parent.parked and parent.computed >= parent.n_prompt

    def _prompt_budget(self, n_rows: int) -> StepBudget:
        room = self.limits.n_batch - n_rows
        budget = self._budget.step_budget(n_rows)
        budget.take(n_rows)
        # prompts go on, however little, where the rows alone use the budget up
        return StepBudget(min(budget.left or MIN_PROMPT_SHARE, room))

    def _take_turns(
        self, rows: list[ScheduledRequest], prompts: list[ScheduledRequest]
    ) -> tuple[list[ScheduledRequest], list[ScheduledRequest]]:
        """A batch too small for all rows and a prompt token goes to those served longest ago."""
        chosen = sorted(rows + prompts[:1], key=lambda r: r.served)[: self.limits.n_batch]
        return [r for r in chosen if r.writing], [r for r in chosen if not r.writing]
