"""An engine without a model: it carries out plans on a virtual clock and checks each of them.

It keeps its own books, so that the scheduler is never compared with itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from strata_plugin.scheduling.config import SchedulingConfig
from strata_plugin.scheduling.cost import CostModel, LearnedCost, StepShape
from strata_plugin.scheduling.plan import BatchClass, Piece, RowPiece, StepPlan
from strata_plugin.scheduling.scheduler import Limits, Scheduler

PLAIN = BatchClass()
EMBEDDING = BatchClass(kind="embedding")
LORA = BatchClass(lora=((0, 1.0),))

TURNS = 4  # the oldest gets at least every so many reading steps and grants

Machine = Callable[[StepShape], float]  # milliseconds that a step takes


def make_scheduler(
    n_rows: int = 4,
    n_batch: int = 512,
    n_ubatch: int = 128,
    budget: int | None = None,
    n_spare: int = 0,
    cost: CostModel | None = None,
    **config: Any,
) -> Scheduler:
    """A scheduler whose steps read `budget` prompt tokens (None: as many as fit a batch).

    `prefill_budget=0` leaves it to the pace.
    """
    config.setdefault("prefill_budget", budget or n_batch)
    return Scheduler(
        Limits(n_rows, n_batch, n_ubatch, n_spare),
        SchedulingConfig(**config),
        cost or LearnedCost(n_ubatch),
    )


@dataclass
class Job:
    """What the fake engine knows of a request."""

    request_id: int
    n_prompt: int
    n_predict: int
    order: tuple[float, int]
    batch_class: BatchClass = PLAIN
    stops: tuple[int, ...] = ()
    pin: int = -1
    parent: int | None = None
    tenant: str = ""
    priority: int = 0
    held: bool = False
    slot: int | None = None
    computed: int = 0
    n_sampled: int = 0
    parked: bool = False
    last_turn: int = 0  # step at which its class was served last, or it became able to run
    passed_over: int = 0  # steps or grants in a row that went to younger ones, while the oldest
    lost_row: bool = False  # in this round of admissions; it reads on and gets one in the next

    @property
    def known(self) -> int:
        return self.n_prompt + self.n_sampled

    @property
    def unread(self) -> int:
        return max(0, self.n_prompt - self.computed)

    @property
    def writing(self) -> bool:
        return self.computed >= self.n_prompt and self.computed == self.known - 1

    @property
    def reach(self) -> int:
        """Tokens to the next stop position, or to the end; the last one needs a row."""
        end = self.known if self.slot is not None else self.known - 1
        return min([s for s in self.stops if self.computed < s < end] + [end]) - self.computed

    @property
    def runnable(self) -> bool:
        return self.held and not self.parked and self.reach > 0

    @property
    def may_lose_slot(self) -> bool:
        """Whether it still reads, and so needs its row less than one who is done reading."""
        fresh = not self.parked and not self.n_sampled and self.unread > 1
        return self.slot is not None and self.pin < 0 and fresh


@dataclass
class FakeEngine:
    """Runs a scheduler step by step; every broken promise is an AssertionError."""

    scheduler: Scheduler
    machine: Machine = lambda shape: 10.0
    jobs: dict[int, Job] = field(default_factory=dict)
    finished: list[int] = field(default_factory=list)
    admitted: list[int] = field(default_factory=list)
    plans: list[StepPlan] = field(default_factory=list)
    steps: list[tuple[StepShape, float]] = field(default_factory=list)
    now_ms: float = 0.0
    n_submitted: int = 0
    n_classes: int = 0

    @property
    def n_steps(self) -> int:
        return len(self.plans)

    @property
    def forced(self) -> bool:
        """Whether flags say when rows are left out."""
        return self.scheduler.config.yield_chunks + self.scheduler.config.yield_steps > 0

    def submit(
        self,
        n_prompt: int,
        n_predict: int = 3,
        *,
        batch_class: BatchClass = PLAIN,
        stops: tuple[int, ...] = (),
        pin: int = -1,
        parent: int | None = None,
        tenant: str = "",
        priority: int = 0,
        itl_slo_ms: float = 0.0,
    ) -> int:
        self.n_submitted += 1
        request_id = self.n_submitted
        arrival = self.now_ms / 1000.0
        self.scheduler.submit(
            request_id,
            n_prompt=n_prompt,
            arrival=arrival,
            batch_class=batch_class,
            stop_positions=stops,
            id_slot=pin,
            fork_of=parent,
            tenant=tenant,
            priority=priority,
            itl_slo_ms=itl_slo_ms,
        )
        n_rows = self.scheduler.limits.n_rows
        order = (arrival, request_id)
        job = Job(request_id, n_prompt, n_predict, order, batch_class, stops)
        job.pin = pin % n_rows if pin >= 0 else -1
        job.parent = parent if parent in self.jobs else None
        job.tenant, job.priority = tenant, priority
        self.jobs[request_id] = job
        self.n_classes = len({job.batch_class for job in self.jobs.values()})
        return request_id

    def admit(self, cached: int = 0) -> None:
        """Rows and sequences for all who can have one, each with up to `cached` tokens."""
        self._seat()
        for request_id, slot in self.scheduler.admissible():
            assert self._free(slot), f"slot {slot} is not free"
            self._start(self.jobs[request_id], slot, cached)
        for request_id in self.scheduler.ahead():
            self._start(self.jobs[request_id], None, cached)
        self._check_nobody_waits_in_vain()

    def step(self, elapsed_ms: float | None = None) -> StepPlan | None:
        """Admit, plan, compute, sample; None when there was nothing to compute.

        It takes `elapsed_ms`, or as long as the machine takes.
        """
        self.admit()
        plan = self.scheduler.plan()
        assert plan == self.scheduler.plan(), "planning twice gives two plans"
        if plan is None:
            assert not self._runnable(), f"no plan for {self._runnable()}"
            return None
        self._check(plan)
        shape = self.shape(plan)
        took = self.machine(shape) if elapsed_ms is None else elapsed_ms
        self.plans.append(plan)
        self.steps.append((shape, took))
        self.now_ms += took
        for piece in plan.pieces:
            self.jobs[piece.request_id].computed += piece.count
        for job in self.jobs.values():
            if job.held and job.batch_class == plan.batch_class:
                job.last_turn = self.n_steps
        self.scheduler.complete(plan, took)
        for piece in plan.pieces:
            if isinstance(piece, RowPiece):
                self._sample(self.jobs[piece.request_id])
        self.scheduler.check_integrity()
        self._compare()
        return plan

    def run(self, max_steps: int = 10_000) -> None:
        """Until all have ended; AssertionError when they don't within `max_steps`."""
        for _ in range(max_steps):
            if self.step() is None:
                break
        assert self.scheduler.idle and not self.jobs, f"never ended: {list(self.jobs.values())}"

    def shape(self, plan: StepPlan) -> StepShape:
        """What the plan computes, by the engine's own books."""
        jobs = [self.jobs[piece.request_id] for piece in plan.pieces]
        rows = sum(job.writing for job in jobs)
        cells = sum(job.computed for job in self.jobs.values() if not job.parked)
        pairs = sum(p.count * (p.start + p.count / 2) for p in plan.pieces)
        return StepShape(rows, plan.n_tokens - rows, cells + plan.n_tokens, pairs)

    def park(self, request_id: int) -> None:
        self.scheduler.park(request_id)
        self.jobs[request_id].parked = True

    def unpark(self, request_id: int, computed: int) -> None:
        self.scheduler.unpark(request_id, computed)
        job = self.jobs[request_id]
        job.parked, job.computed, job.last_turn = False, computed, self.n_steps
        job.passed_over = 0

    def rollback(self, request_id: int, computed: int) -> None:
        self.scheduler.rollback(request_id, computed)
        self.jobs[request_id].computed = computed

    def cancel(self, request_id: int) -> None:
        self.scheduler.cancel(request_id)
        self._forget(request_id)

    # ---- promises about rows and sequences -------------------------------------------------------

    def _seat(self) -> None:
        """Rows for those that are read already; nobody else but long readers loses one."""
        pairs = self.scheduler.seats()
        assert len({slot for _, slot in pairs}) == len(pairs), "a row is given twice"
        losers: list[Job] = []
        for request_id, slot in pairs:
            job = self.jobs[request_id]
            assert job.held and job.slot is None and not job.parked, f"{job} needs no row"
            assert job.pin in (-1, slot), f"{job} got slot {slot}"
            for holder in [j for j in self.jobs.values() if j.slot == slot]:
                assert job.reach == 0 and holder.may_lose_slot, f"{holder} loses its row to {job}"
                losers.append(holder)
        readers = [job for job in self.jobs.values() if job.may_lose_slot]
        spared = [job.unread for job in readers if job not in losers]
        if losers and all(self.jobs[request_id].pin < 0 for request_id, _ in pairs):
            least = min(job.unread for job in losers)
            assert max(spared, default=0) <= least, f"{losers} lost their rows before {readers}"
        for job in self.jobs.values():
            job.lost_row = job in losers
            job.slot = None if job in losers else job.slot
        for request_id, slot in pairs:
            self.scheduler.seat(request_id, slot)
            self.jobs[request_id].slot = slot
            self.jobs[request_id].last_turn = self.n_steps

    def _start(self, job: Job, slot: int | None, cached: int) -> None:
        assert not job.held and self._parent_is_ready(job), f"{job} was not to be admitted"
        assert slot is None or job.pin in (-1, slot), f"{job} got slot {slot}"
        limits = self.scheduler.limits
        held = sum(other.held for other in self.jobs.values())
        assert held < limits.n_rows + limits.n_spare, f"no sequence is left for {job}"
        grantable = self._grantable(slot is None)
        if all(other.pin < 0 for other in grantable):
            self._count_turns(grantable, [job], "grants")
        job.held, job.slot = True, slot
        job.computed = min(cached, job.n_prompt - 1)
        job.last_turn, job.passed_over = self.n_steps, 0
        self.scheduler.admit(job.request_id, slot, job.computed)
        self.admitted.append(job.request_id)

    def _grantable(self, ahead: bool) -> list[Job]:
        return [
            job
            for job in self.jobs.values()
            if not job.held
            and self._parent_is_ready(job)
            and (ahead or job.pin < 0 or self._free(job.pin))
        ]

    def _count_turns(self, waiting: list[Job], served: list[Job], what: str) -> None:
        """Of the turns that a tenant gets, every fourth is its oldest's."""
        top = max(job.priority for job in waiting)
        assert served[0].priority == top, f"{served[0]} goes before those of a higher priority"
        for group in {_group(job) for job in served}:
            level = [job for job in waiting if _group(job) == group]
            first = next(job for job in served if _group(job) == group)
            oldest = min(level, key=lambda job: job.order)
            count = 0 if oldest is first else oldest.passed_over + 1
            for job in level:
                job.passed_over = count if job is oldest else 0
            assert count < TURNS, f"{what} pass over {oldest}"

    def _check_nobody_waits_in_vain(self) -> None:
        for job in self.jobs.values():
            able_to_run = job.held and not job.parked and not job.lost_row
            if job.slot is None and (able_to_run or (not job.held and self._parent_is_ready(job))):
                able = [
                    slot
                    for slot in range(self.scheduler.limits.n_rows)
                    if self._free(slot) and job.pin in (-1, slot)
                ]
                assert not able, f"{job} waits in vain for one of {able}"
            if not job.held and self._parent_is_ready(job):
                assert not self._spare(), f"{job} could be read ahead"

    def _parent_is_ready(self, job: Job) -> bool:
        parent = self.jobs.get(job.parent) if job.parent is not None else None
        return parent is None or (
            parent.slot is not None and not parent.parked and parent.computed >= parent.n_prompt
        )

    def _free(self, slot: int) -> bool:
        return all(job.slot != slot for job in self.jobs.values())

    def _spare(self) -> bool:
        """Whether one more can be read ahead: those without a row leave the rows' sequences."""
        without_row = sum(job.held and job.slot is None for job in self.jobs.values())
        reads_ahead = self.scheduler.config.policy != "upstream"
        return reads_ahead and without_row < self.scheduler.limits.n_spare

    # ---- promises about steps --------------------------------------------------------------------

    def _check(self, plan: StepPlan) -> None:
        limits = self.scheduler.limits
        jobs = [self.jobs[piece.request_id] for piece in plan.pieces]
        assert len({job.request_id for job in jobs}) == len(jobs) > 0, "two pieces of one request"
        assert plan.n_tokens <= limits.n_batch, f"{plan.n_tokens} tokens in a step"
        assert {job.batch_class for job in jobs} == {plan.batch_class}, "classes are mixed"
        for piece, job in zip(plan.pieces, jobs, strict=True):
            end = piece.start + piece.count
            assert job.runnable, f"{job} can't run"
            assert piece.start == job.computed, f"{piece} skips or repeats tokens of {job}"
            assert 1 <= piece.count <= job.reach, f"{piece} goes too far in {job}"
            assert isinstance(piece, RowPiece) == (end == job.known), f"{piece} of {job}"
        n_writing = sum(job.writing for job in jobs)
        assert all(job.writing for job in jobs[:n_writing]), "rows come first"
        runnable = [job for job in self._runnable() if job.batch_class == plan.batch_class]
        rows = [job for job in runnable if job.writing]
        waiting = [job for job in runnable if not job.writing]
        if len(rows) + bool(waiting) <= limits.n_batch:
            assert n_writing in (0, len(rows)), "a decoding row was left out"
            assert n_writing or not rows or len(jobs) > n_writing, "nobody computes"
            self._check_prompts(plan.pieces[n_writing:], waiting, len(rows), n_writing)
        else:
            for job in waiting:
                job.passed_over = 0  # batches this small are shared by turns of their own
        for job in self._runnable():
            if job.batch_class != plan.batch_class:
                waited = self.n_steps - job.last_turn
                assert waited <= self.n_classes, f"the class of {job} starves"

    def _check_prompts(
        self, pieces: tuple[Piece, ...], waiting: list[Job], n_rows: int, n_writing: int
    ) -> None:
        """In their order, each as far as it may go, and only the last one cut."""
        jobs = [self.jobs[piece.request_id] for piece in pieces]
        for piece, job in zip(pieces[:-1], jobs[:-1], strict=True):
            assert piece.count == job.reach, f"{piece} leaves tokens to others"
        if pieces:
            self._check_order(jobs, waiting)
            self._count_turns(waiting, jobs, "steps")
        budget = self.scheduler.config.prefill_budget
        if not budget or self.forced or not waiting:
            return
        assert n_writing == n_rows, "rows are left out though the budget is fixed"
        room = min(budget, self.scheduler.limits.n_batch - n_rows)
        n_tokens = sum(piece.count for piece in pieces)
        assert n_tokens <= room, "the budget is exceeded"
        if n_tokens < min(room, sum(job.reach for job in waiting)):
            # without rows a step may end where a prompt does, so that nobody waits for the rest
            last, job = pieces[-1], jobs[-1]
            assert not n_rows and last.start + last.count == job.known, "tokens are left"

    def _check_order(self, served: list[Job], waiting: list[Job]) -> None:
        """Shortest first or oldest first, within each priority and tenant."""
        for group in {_group(job) for job in served}:
            level = [job for job in waiting if _group(job) == group]
            mine = [job for job in served if _group(job) == group]
            by_length = sorted(level, key=lambda job: (job.unread, job.order))[: len(mine)]
            by_age = sorted(level, key=lambda job: job.order)[: len(mine)]
            assert mine in (by_length, by_age), f"{mine} are out of order: {level}"
        priorities = [job.priority for job in served]
        assert priorities == sorted(priorities, reverse=True), "a lower priority goes first"
        for job in waiting:
            if job.priority > served[-1].priority:
                assert job in served, f"{job} has to wait for those of a lower priority"

    def _compare(self) -> None:
        for request_id, job in self.jobs.items():
            seen = self.scheduler.request(request_id)
            assert (seen.known, seen.computed) == (job.known, job.computed), f"{seen} is {job}"
            assert (seen.slot, seen.parked) == (job.slot, job.parked), f"{seen} is {job}"
            assert seen.held == job.held, f"{seen} is {job}"

    # ---- inside ----------------------------------------------------------------------------------

    def _sample(self, job: Job) -> None:
        job.n_sampled += 1
        if job.n_sampled >= job.n_predict or job.batch_class.kind == "embedding":
            self.scheduler.finish(job.request_id)
            self.finished.append(job.request_id)
            self._forget(job.request_id)
        else:
            self.scheduler.sampled(job.request_id)

    def _forget(self, request_id: int) -> None:
        del self.jobs[request_id]
        for job in self.jobs.values():
            if job.parent == request_id:
                job.parent = None

    def _runnable(self) -> list[Job]:
        return [job for job in self.jobs.values() if job.runnable]


def _group(job: Job) -> tuple[int, str]:
    return job.priority, job.tenant
