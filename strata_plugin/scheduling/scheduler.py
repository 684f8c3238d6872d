"""Who gets a row and what each step computes.

A request needs a sequence to be read and a row (a slot) to be written. Rows are few, so reading
does not wait for one: while sequences and cells last, prompts are read ahead, and who has read all
but the last token gets the next row, if need be that of one who will not write for long yet.

Pure: no clock (arrivals and step times are arguments), no I/O, no knowledge of what a token is. The
engine asks for a plan, carries it out, reports it with `complete`, and tells what was sampled. The
same calls give the same plans.
"""

from __future__ import annotations

import copy
from bisect import insort
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from .admission import assign_slots
from .config import SchedulingConfig
from .cost import CostModel, Fixed, StepShape
from .order import AGEING_TURN, FairShares, by_turns, count_turn, first_due, in_order
from .pace import Grant, Pace, ShapeOf
from .plan import BatchClass, Piece, ReadPiece, RowPiece, StepPlan
from .request import ScheduledRequest, Stage
from .yielding import YieldTurns

WORTH_WAITING = 0.92  # a step goes on beyond a finished prompt if that reads this much quicker


@dataclass(frozen=True)
class Limits:
    """What the llama context was made with."""

    n_rows: int  # requests that are written at once
    n_batch: int  # tokens of one step at most
    n_ubatch: int  # tokens of one pass over the weights
    n_spare: int = 0  # sequences beside those of the rows: so many prompts may be read ahead

    def __post_init__(self) -> None:
        if min(self.n_rows, self.n_batch, self.n_ubatch) < 1 or self.n_spare < 0:
            raise ValueError(f"limits must be positive: {self}")


def _order(request: ScheduledRequest) -> tuple[float, int]:
    return request.order


class Scheduler:
    """The requests of one engine. Every call takes time linear in requests at most, times the
    logarithm where it sorts.
    """

    def __init__(self, limits: Limits, config: SchedulingConfig, cost: CostModel) -> None:
        self.limits = limits
        self.config = config
        self.cost = cost
        self.other_cells = 0  # KV cells that no request of ours fills: kept prefixes
        self.pace = Pace(config, cost, limits.n_batch, limits.n_ubatch)
        self.shares = FairShares()
        self._upstream = config.policy == "upstream"
        self._turns = YieldTurns(config.yield_chunks, config.yield_steps)
        self._requests: dict[int, ScheduledRequest] = {}
        self._queue: list[ScheduledRequest] = []  # by order of arrival
        self._running: list[ScheduledRequest] = []  # those with a sequence, parked ones too
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
        tenant: str = "",
        priority: int = 0,
        itl_slo_ms: float = 0.0,
        n_predict: int = -1,
        expected: int = 0,
    ) -> None:
        """Queue a request of `n_prompt` tokens that came at `arrival` (seconds).

        `id_slot` < 0 means any slot, others are taken modulo the number of slots. A parent
        (`fork_of`) that is not known any more is no reason to wait. `expected` tokens will probably
        be found in a cache. Raises ValueError for an empty prompt or an id in use.
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
            tenant=tenant,
            priority=priority,
            itl_slo_ms=itl_slo_ms,
            n_predict=n_predict,
            expected=min(expected, n_prompt - 1),
        )
        if self.shares.knows(tenant):
            self.shares.enter(tenant)
        else:
            there = self._requests.values()
            self.shares.enter(tenant, first_due(there, self.shares, self._ms_per_token()))
        self._n_submitted += 1
        self._requests[request_id] = request
        insort(self._queue, request, key=_order)

    def seats(self) -> list[tuple[int, int]]:
        """Pairs (request id, slot) of requests that are read without a row and are to get one now.

        Free slots first, to those read already, by fair shares. One that has been read takes the
        slot of the reader with the most left, who reads on without.
        """
        waiting = [r for r in self._running if r.slot is None and not r.parked]
        if not waiting:
            return []
        waiting = sorted(self._served(waiting), key=lambda r: not r.read)
        free = self._free_slots()
        pairs = assign_slots(waiting, (), free)
        left = [r for r in waiting if r.read and all(r is not other for other, _ in pairs)]
        if left:
            readers = [r for r in self._running if self._may_lose_slot(r)]
            readers.sort(key=lambda r: -r.unread)
            slots = [r.slot for r in readers if r.slot is not None]
            for request in left:
                suits = [slot for slot in slots if request.id_slot in (-1, slot)]
                if suits:
                    slots.remove(suits[0])
                    pairs.append((request, suits[0]))
        return [(request.request_id, slot) for request, slot in pairs]

    def seat(self, request_id: int, slot: int) -> None:
        """Give a row to one that is read without. Raises ValueError where `admit` would."""
        request = self.request(request_id)
        if not request.held or request.slot is not None:
            raise ValueError(f"request {request_id} is not waiting for a row")
        holder = self._slots[slot] if 0 <= slot < self.limits.n_rows else None
        if holder is not None and self._may_lose_slot(self._requests[holder]):
            self._requests[holder].slot = None
            self._slots[slot] = None
        self._take_slot(request, slot)

    def admissible(self) -> list[tuple[int, int]]:
        """Pairs (request id, slot) to be given a sequence and a row now.

        No slot stays free while anybody could use it. A fork waits until its parent's prompt is in
        the KV cache, so that they share it.
        """
        free = self._free_slots()
        if not free or not self._queue:
            return []
        able = self._able(ahead=False)
        ids = {r.request_id for r in able}
        rest = [r for r in self._queue if r.request_id not in ids]  # others get their slots last
        waiting = {r.request_id for r in rest}
        pairs = assign_slots([*self._served(able), *rest], waiting, free)
        return [(r.request_id, slot) for r, slot in pairs]

    def ahead(self) -> list[int]:
        """Queued requests to be given a sequence without a row, so that they are read ahead."""
        room = self.limits.n_spare - sum(r.slot is None for r in self._running)
        if self._upstream or room <= 0 or not self._queue:
            return []
        return [r.request_id for r in self._served(self._able(ahead=True))[:room]]

    def admit(self, request_id: int, slot: int | None, computed: int) -> None:
        """Give a queued request its sequence, which holds its first `computed` tokens already.

        With a row, or without one (`slot` is None) to be read ahead. At least one prompt token is
        always left to compute, as only that yields logits. Raises ValueError otherwise, or when the
        slot is not free or not the one it is pinned to.
        """
        request = self.request(request_id)
        if request.stage is not Stage.QUEUED:
            raise ValueError(f"request {request_id} is {request.stage.value}, not queued")
        if not 0 <= computed < request.n_prompt:
            raise ValueError(f"{computed} computed tokens for a prompt of {request.n_prompt}")
        able = self._able(ahead=slot is None)
        if slot is not None:
            self._take_slot(request, slot)
        if not self._upstream:
            count_turn(able, (request,))
        self._queue.remove(request)
        request.passed_over = 0
        request.held = True
        request.computed = computed
        request.short = request.pending <= self.config.short_read
        request.turn = request.served = self._step
        insort(self._running, request, key=_order)

    def expect(self, request_id: int, expected: int) -> None:
        """Of a request's prompt `expected` tokens will probably be found in a cache; of no account
        once it has a sequence.
        """
        request = self.request(request_id)
        if not request.held:
            request.expected = min(expected, request.n_prompt - 1)

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
        (self._running if request.held else self._queue).remove(request)
        if request.slot is not None:
            self._slots[request.slot] = None
        self.shares.leave(request.tenant)
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
        rows first, then its prompts in their order as far as the pace allows, at most one piece per
        request.
        """
        runnable = self._runnable()
        if not runnable:
            return None
        batch_class = min(runnable, key=lambda r: r.turn).batch_class
        rows, prompts = _split(runnable, batch_class)
        if len(rows) + bool(prompts) > self.limits.n_batch:
            rows, prompts = self._take_turns(rows, prompts)
        credit, left = 0.0, 0
        if prompts:
            prompts = self._in_order(prompts)
            grant = self._grant(rows, prompts)
            credit, left = grant.credit_ms, grant.tokens
            if not grant.with_rows:
                rows = []
        pieces: list[Piece] = [RowPiece(r.request_id, r.computed, 1) for r in rows]
        for request in prompts:
            count = min(request.reach, left)
            if not count:
                break
            left -= count
            piece = RowPiece if count == request.pending else ReadPiece
            pieces.append(piece(request.request_id, request.computed, count))
        return StepPlan(batch_class, tuple(pieces), credit)

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
        rows, reads = _by_kind(pieces)
        shape = self.plan_shape(plan)
        waiting = _split(self._runnable(), plan.batch_class)
        self._settle(plan, *waiting, read=bool(reads))
        self._charge(rows, reads, shape, elapsed_ms)
        count_turn(waiting[1], (r for _, r in reads))
        self._advance(plan, pieces, 1)
        self.cost.observe(shape, elapsed_ms)

    def leap(self, plan: StepPlan, times: int, elapsed_ms: float) -> None:
        """As `times` rounds of `complete` and `sampled` with the same plan, for looking ahead.

        The caller sees to it that no piece passes the end of what is known, or of its answer. The
        turn passes to the oldest, or away from it.
        """
        pieces = [(p, self._requests[p.request_id]) for p in plan.pieces]
        rows, reads = _by_kind(pieces)
        self._charge(rows, reads, self.plan_shape(plan), elapsed_ms * times)
        waiting = _split(self._runnable(), plan.batch_class)[1]
        count_turn(waiting, (r for _, r in reads), AGEING_TURN - 1)
        self._advance(plan, pieces, times)
        for request in rows:
            request.known += times

    def plan_shape(self, plan: StepPlan, times: int = 1) -> StepShape:
        """The shape of a step that is about to be computed: of `times` equal ones the middle one.

        Requests that have ended count for nothing.
        """
        pieces = [p for p in plan.pieces if p.request_id in self._requests]
        tokens = sum(p.count for p in pieces)
        rows = sum(self._requests[p.request_id].writing for p in pieces)
        pairs = sum(p.count * (p.start + p.count * times / 2) for p in pieces)
        return StepShape(rows, tokens - rows, self.cells() + tokens * (times + 1) // 2, pairs)

    def predict_ms(self, plan: StepPlan) -> float:
        """How long a step should take."""
        return self.cost.predict(self.plan_shape(plan))

    def copy(self) -> Scheduler:
        """An independent copy that learns nothing: for looking ahead."""
        other = copy.copy(self)
        other.cost = Fixed(self.cost)
        other.pace = replace(self.pace, cost=other.cost)
        other.shares = self.shares.copy()
        other._turns = copy.copy(self._turns)
        other._requests = {key: copy.copy(r) for key, r in self._requests.items()}
        other._queue = [other._requests[r.request_id] for r in self._queue]
        other._running = [other._requests[r.request_id] for r in self._running]
        other._slots = list(self._slots)
        return other

    # ---- questions -------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """No request at all."""
        return not self._requests

    def request(self, request_id: int) -> ScheduledRequest:
        """The request; KeyError when it is unknown or has ended."""
        return self._requests[request_id]

    def known(self) -> tuple[int, ...]:
        """All requests that have not ended."""
        return tuple(self._requests)

    def cells(self) -> int:
        """KV cells in use, those that sequences share counted as several."""
        used = self.other_cells
        for request in self._running:
            if not request.parked:
                used += request.computed
        return used

    def leaves_room(self, request_id: int, n_cells: int, margin: int = 0) -> bool:
        """Whether a queued request fits into `n_cells` KV cells (0: any number of them) beside what
        those with a sequence know, with `margin` cells to spare.
        """
        needed = sum(r.known for r in self._running) + self._requests[request_id].known
        return not n_cells or needed + margin <= n_cells

    def oldest_is_next(self) -> bool:
        """Whether the next reading step belongs to one that was passed over for long enough."""
        return any(r.passed_over >= AGEING_TURN - 1 for r in self._running if not r.writing)

    def several_read(self) -> bool:
        """Whether more than one prompt waits to be read on."""
        return sum(not r.writing and r.reach > 0 for r in self._running) > 1

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._requests

    def holder(self, slot: int) -> int | None:
        """The request that holds `slot`."""
        return self._slots[slot]

    def queued(self) -> tuple[int, ...]:
        """Those for which nothing is computed yet, in the order in which they will be served."""
        return tuple(request.request_id for request in self._served(self._queue))

    def running(self) -> tuple[int, ...]:
        """Those that are reading or writing, oldest first."""
        return tuple(request.request_id for request in self._running if not request.parked)

    def parked(self) -> tuple[int, ...]:
        """Those that are parked, oldest first."""
        return tuple(request.request_id for request in self._running if request.parked)

    def queue_position(self, request_id: int) -> int | None:
        """How many queued requests are before it; None when it isn't queued."""
        order = self.queued()
        return order.index(request_id) if request_id in order else None

    def target_ms(self, rows: Iterable[ScheduledRequest] = ()) -> float:
        """The inter-token target: the strictest of `rows`, or the scheduler's own."""
        default = self.config.itl_slo_ms
        return min((r.itl_slo_ms or default for r in rows), default=default)

    def outlook(self) -> tuple[int, float, bool]:
        """Decoding rows, the time in ms that a step of them alone takes, whether that is within
        the target.
        """
        rows = [r for r in self._running if r.writing and not r.parked]
        took = self.cost.predict(self._shape(rows, 0, 0)) if rows else 0.0
        return len(rows), took, took <= self.target_ms(rows)

    def counts(self) -> Counter[Stage]:
        """Number of requests in each stage."""
        return Counter(request.stage for request in self._requests.values())

    def youngest(self, exclude: Collection[int] = ()) -> int | None:
        """The request to park when room is short: the last come, first of those without a row."""
        able = [r for r in self._running if not r.parked and r.request_id not in exclude]
        for request in sorted(able, key=lambda r: (r.slot is None, r.order), reverse=True):
            if request.pending:
                return request.request_id
        return None

    def check_integrity(self) -> None:
        """Raise AssertionError naming the first broken invariant."""
        queue, running = self._queue, self._running
        assert queue == sorted(queue, key=_order), "queue is out of order"
        assert running == sorted(running, key=_order), "running requests are out of order"
        listed = Counter(request.request_id for request in (*queue, *running))
        assert listed == Counter(self._requests.keys()), "a request is lost or listed twice"
        taken = {slot: holder for slot, holder in enumerate(self._slots) if holder is not None}
        seated = {r.slot: r.request_id for r in running if r.slot is not None}
        assert taken == seated, "slots and running requests differ"
        assert not any(r.held for r in queue) and all(r.held for r in running), "held or queued?"
        assert len(running) <= self.limits.n_rows + self.limits.n_spare, "too many sequences"
        for key, r in self._requests.items():
            name = f"request {key}"
            assert key == r.request_id and not r.finished, f"{name} has ended or has another id"
            assert r.n_prompt >= 1 and r.n_prompt <= r.known, f"{name} knows less than its prompt"
            assert 0 <= r.computed <= r.known, f"{name} computed {r.computed} of {r.known}"
            assert r.id_slot == -1 or r.slot in (None, r.id_slot), f"{name} is in a wrong slot"
            assert r.served <= r.turn <= self._step, f"{name} was served in the future"
            if not r.held:
                assert not r.computed and not r.parked, f"{name} has state but no sequence"
                assert r.fork_of is None or r.fork_of in self._requests, f"{name} waits for nobody"
            else:
                assert not r.parked or r.pending, f"{name} was parked before it was sampled"
                assert r.slot is not None or r.computed < r.n_prompt, f"{name} writes without a row"

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

    def _free_slots(self) -> list[int]:
        return [slot for slot, holder in enumerate(self._slots) if holder is None]

    def _take_slot(self, request: ScheduledRequest, slot: int) -> None:
        name = f"request {request.request_id}"
        if not 0 <= slot < self.limits.n_rows or self._slots[slot] is not None:
            raise ValueError(f"slot {slot} is not free for {name}")
        if request.id_slot not in (-1, slot):
            raise ValueError(f"{name} insists on slot {request.id_slot}, not {slot}")
        request.slot = slot
        self._slots[slot] = request.request_id

    def _may_lose_slot(self, request: ScheduledRequest) -> bool:
        reading = request.slot is not None and request.computed < request.n_prompt - 1
        fresh = request.known == request.n_prompt and not request.parked
        return reading and fresh and request.id_slot < 0 and not self._upstream

    def _able(self, *, ahead: bool) -> list[ScheduledRequest]:
        """The queued ones that may begin now: with a row, or `ahead` without one."""
        return [
            r
            for r in self._queue
            if self._parent_is_ready(r)
            and (ahead or r.id_slot < 0 or self._slots[r.id_slot] is None)
        ]

    def _served(self, queue: Iterable[ScheduledRequest]) -> list[ScheduledRequest]:
        """The order in which rows and sequences are given, one a turn."""
        return list(queue) if self._upstream else by_turns(self._in_order(queue, ageing=False))

    def _in_order(
        self, requests: Iterable[ScheduledRequest], *, ageing: bool = True
    ) -> list[ScheduledRequest]:
        if self._upstream:
            return sorted(requests, key=lambda r: (-1 if r.slot is None else r.slot, r.order))
        return in_order(requests, self.shares, self._ms_per_token(), ageing=ageing)

    def _ms_per_token(self) -> float:
        """Time to read a token of a prompt; 1 while nothing is known."""
        whole = self._shape((), self.limits.n_ubatch, 0)
        return self.cost.predict(whole) / self.limits.n_ubatch or 1.0

    def _runnable(self) -> list[ScheduledRequest]:
        return [r for r in self._running if not r.parked and r.pending and r.reach > 0]

    def _shape(self, rows: Sequence[ScheduledRequest], n: int, depth: int) -> StepShape:
        """A step of `rows` and n tokens of a prompt that is `depth` tokens deep."""
        pairs = sum(r.computed for r in rows) + n * (depth + n / 2)
        return StepShape(len(rows), n, self.cells() + len(rows) + n, pairs)

    def _grant(self, rows: list[ScheduledRequest], prompts: list[ScheduledRequest]) -> Grant:
        """Prompt tokens for the step."""
        room = self.limits.n_batch - len(rows)
        if self._upstream:
            return Grant(room)
        base, depth = self._shape(rows, 0, 0), prompts[0].computed

        def shape_of(n: int) -> StepShape:
            pairs = base.pairs + n * (depth + n / 2)
            return StepShape(base.rows, n, base.cells + n, pairs)

        if not rows:
            tokens = min(self.pace.alone(shape_of), room)
            return Grant(self._whole_prompts(prompts, tokens, shape_of))
        if self._turns.forced:
            if not self._turns.reads_next:
                return Grant(0)
            without = self.pace.alone(lambda n: shape_of(n)._replace(rows=0))
            return Grant(min(without, self.limits.n_batch), with_rows=False)
        wanted = min(room, sum(r.reach for r in prompts))
        target = self.target_ms(rows)
        if all(r.slot is None for r in prompts):
            # none could write yet: what delays the rows delays the one that ends as well
            return self.pace.unnoticed(shape_of, target, wanted)
        # where as many could write at once as do, sparing those costs more than it saves
        able = min(len(prompts), self.limits.n_rows - len(rows))
        short = able < len(rows) and all(r.short for r in prompts)
        return self.pace.beside(shape_of, target, wanted, short)

    def _whole_prompts(
        self, prompts: list[ScheduledRequest], tokens: int, shape_of: ShapeOf
    ) -> int:
        """`tokens`, or as many as finish some prompts where the rest would only keep them waiting.
        """
        if not self.cost.knows(1):
            return tokens
        tokens = min(tokens, sum(r.reach for r in prompts))
        rate = tokens / max(self.cost.predict(shape_of(tokens)), 1e-6)
        done = 0
        for request in prompts:
            done += request.reach
            if done >= tokens:
                break
            if request.slot is None or request.reach < request.pending:
                continue
            if done / max(self.cost.predict(shape_of(done)), 1e-6) >= WORTH_WAITING * rate:
                return done
        return tokens

    def _advance(
        self, plan: StepPlan, pieces: Sequence[tuple[Piece, ScheduledRequest]], times: int
    ) -> None:
        """The plan was computed `times` times, each time further on."""
        self._step += times
        for piece, request in pieces:
            request.computed += piece.count * times
            request.served = self._step
        for request in self._running:
            if request.batch_class == plan.batch_class:
                request.turn = self._step

    def _settle(
        self,
        plan: StepPlan,
        rows: Sequence[ScheduledRequest],
        prompts: Sequence[ScheduledRequest],
        *,
        read: bool,
    ) -> None:
        """Book turns and credit between the rows and prompts that could be computed."""
        if rows and prompts:
            self._turns.settle(read=read)
            self.pace.settle(plan.credit_ms)
        elif not prompts:
            self._turns.reset()
            self.pace.credit_ms = 0.0

    def _charge(
        self,
        rows: Sequence[ScheduledRequest],
        reads: Sequence[tuple[Piece, ScheduledRequest]],
        shape: StepShape,
        elapsed_ms: float,
    ) -> None:
        """Divide a step's time: the rows what they take alone, the prompts the rest by tokens."""
        for_rows = elapsed_ms if rows else 0.0
        if rows and reads:
            alone = shape._replace(prompt_tokens=0, pairs=float(sum(r.computed for r in rows)))
            for_rows = min(elapsed_ms, self.cost.predict(alone))
        for request in rows:
            self.shares.charge(request.tenant, for_rows / len(rows))
        for piece, request in reads:
            part = (elapsed_ms - for_rows) * piece.count / shape.prompt_tokens
            request.compute_ms += part
            self.shares.charge(request.tenant, part)

    def _take_turns(
        self, rows: list[ScheduledRequest], prompts: list[ScheduledRequest]
    ) -> tuple[list[ScheduledRequest], list[ScheduledRequest]]:
        """A batch too small for all rows and a prompt token goes to those served longest ago."""
        chosen = sorted(rows + prompts[:1], key=lambda r: r.served)[: self.limits.n_batch]
        return [r for r in chosen if r.writing], [r for r in chosen if not r.writing]


def _by_kind(
    pieces: Sequence[tuple[Piece, ScheduledRequest]],
) -> tuple[list[ScheduledRequest], list[tuple[Piece, ScheduledRequest]]]:
    """The rows of a step, and what it reads."""
    rows = [request for _, request in pieces if request.writing]
    return rows, [(piece, request) for piece, request in pieces if not request.writing]


def _split(
    runnable: Iterable[ScheduledRequest], batch_class: BatchClass
) -> tuple[list[ScheduledRequest], list[ScheduledRequest]]:
    """Those of a class that decode, and those that read."""
    rows: list[ScheduledRequest] = []
    prompts: list[ScheduledRequest] = []
    for request in runnable:
        if request.batch_class == batch_class:
            (rows if request.writing else prompts).append(request)
    return rows, prompts
