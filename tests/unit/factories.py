"""An engine without a model: it carries out plans on a virtual clock and checks each of them.

It keeps its own books, so that the scheduler is never compared with itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from strata_plugin.scheduling.config import SchedulingConfig
from strata_plugin.scheduling.cost import CostModel, LearnedCost
from strata_plugin.scheduling.plan import BatchClass, RowPiece, StepPlan
from strata_plugin.scheduling.scheduler import Limits, Scheduler

PLAIN = BatchClass()
EMBEDDING = BatchClass(kind="embedding")
LORA = BatchClass(lora=((0, 1.0),))


def make_scheduler(
    n_rows: int = 4,
    n_batch: int = 512,
    n_ubatch: int = 128,
    budget: int | None = None,
    n_spare: int = 0,
    cost: CostModel | None = None,
    **config: Any,
) -> Scheduler:
    """A scheduler whose steps take `budget` prompt tokens (None: as many as fit a batch)."""
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
    slot: int | None = None
    computed: int = 0
    n_sampled: int = 0
    parked: bool = False
    last_turn: int = 0  # step at which its class was served last, or it became able to run

    @property
    def known(self) -> int:
        return self.n_prompt + self.n_sampled

    @property
    def writing(self) -> bool:
        return self.computed >= self.n_prompt and self.computed == self.known - 1


class FakeEngine:
    """Runs a scheduler step by step; every broken promise is an AssertionError."""

    def __init__(self, scheduler: Scheduler, budget: int) -> None:
        self.scheduler = scheduler
        self.budget = budget
        self.jobs: dict[int, Job] = {}
        self.finished: list[int] = []
        self.admitted: list[int] = []
        self.plans: list[StepPlan] = []
        self.now_ms = 0.0
        self.n_steps = 0
        self.n_submitted = 0

    def submit(
        self,
        n_prompt: int,
        n_predict: int = 3,
        *,
        batch_class: BatchClass = PLAIN,
        stops: tuple[int, ...] = (),
        pin: int = -1,
        parent: int | None = None,
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
        )
        n_rows = self.scheduler.limits.n_rows
        order = (arrival, request_id)
        job = Job(request_id, n_prompt, n_predict, order, batch_class, stops)
        job.pin = pin % n_rows if pin >= 0 else -1
        job.parent = parent if parent in self.jobs else None
        self.jobs[request_id] = job
        return request_id

    def admit(self, cached: int = 0) -> None:
        """Rows for all who can have one, each with up to `cached` tokens from a cache."""
        for request_id, slot in self.scheduler.admissible():
            job = self.jobs[request_id]
            assert self._may_be_admitted(job), f"{job} was not to be admitted"
            assert job.pin in (-1, slot), f"{job} got slot {slot}"
            assert all(other.slot != slot for other in self.jobs.values()), "slot given twice"
            job.computed = min(cached, job.n_prompt - 1)
            job.slot = slot
            job.last_turn = self.n_steps
            self.scheduler.admit(request_id, slot, job.computed)
            self.admitted.append(request_id)
        self._check_nobody_waits_in_vain()

    def step(self, elapsed_ms: float = 10.0) -> StepPlan | None:
        """Admit, plan, compute, sample; None when there was nothing to compute."""
        self.admit()
        plan = self.scheduler.plan()
        assert plan == self.scheduler.plan(), "planning twice gives two plans"
        if plan is None:
            assert not self._runnable(), f"no plan for {self._runnable()}"
            return None
        self._check(plan)
        self.plans.append(plan)
        self.n_steps += 1
        self.now_ms += elapsed_ms
        for piece in plan.pieces:
            self.jobs[piece.request_id].computed += piece.count
        for job in self._runnable_or_sampled():
            if job.batch_class == plan.batch_class:
                job.last_turn = self.n_steps
        self.scheduler.complete(plan, elapsed_ms)
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

    def park(self, request_id: int) -> None:
        self.scheduler.park(request_id)
        self.jobs[request_id].parked = True

    def unpark(self, request_id: int, computed: int) -> None:
        self.scheduler.unpark(request_id, computed)
        job = self.jobs[request_id]
        job.parked, job.computed, job.last_turn = False, computed, self.n_steps

    def rollback(self, request_id: int, computed: int) -> None:
        self.scheduler.rollback(request_id, computed)
        self.jobs[request_id].computed = computed

    def cancel(self, request_id: int) -> None:
        self.scheduler.cancel(request_id)
        del self.jobs[request_id]

    # ---- promises --------------------------------------------------------------------------------

    def _check(self, plan: StepPlan) -> None:
        limits = self.scheduler.limits
        jobs = [self.jobs[piece.request_id] for piece in plan.pieces]
        assert len({job.request_id for job in jobs}) == len(jobs) > 0, "two pieces of one request"
        assert plan.n_tokens <= limits.n_batch, f"{plan.n_tokens} tokens in a step"
        assert {job.batch_class for job in jobs} == {plan.batch_class}, "classes are mixed"
        for piece, job in zip(plan.pieces, jobs, strict=True):
            end = piece.start + piece.count
            assert job.slot is not None and not job.parked, f"{job} can't run"
            assert piece.start == job.computed, f"{piece} skips or repeats tokens of {job}"
            assert piece.count >= 1 and end <= job.known, f"{piece} of {job}"
            assert not any(piece.start < stop < end for stop in job.stops), f"{piece} crosses {job}"
            assert isinstance(piece, RowPiece) == (end == job.known), f"{piece} of {job}"
        n_writing = sum(job.writing for job in jobs)
        assert all(job.writing for job in jobs[:n_writing]), "rows come first"
        runnable = [job for job in self._runnable() if job.batch_class == plan.batch_class]
        if limits.n_batch > limits.n_rows:
            assert n_writing == sum(job.writing for job in runnable), "a decoding row was left out"
            self._check_prompts(plan, [job for job in runnable if not job.writing], n_writing)
        for job in self._runnable():
            if job.batch_class != plan.batch_class:
                assert self.n_steps - job.last_turn <= limits.n_rows, f"the class of {job} starves"

    def _check_prompts(self, plan: StepPlan, waiting: list[Job], n_writing: int) -> None:
        """The oldest prompts, each as far as it may go, and only the last one cut by the budget."""
        pieces = plan.pieces[n_writing:]
        n_tokens = sum(piece.count for piece in pieces)
        waiting.sort(key=lambda job: job.order)
        assert [p.request_id for p in pieces] == [j.request_id for j in waiting[: len(pieces)]]
        reaches = [_reach(job) for job in waiting]
        for piece, reach in zip(pieces[:-1], reaches, strict=False):
            assert piece.count == reach, f"{piece} leaves tokens to others"
        if n_writing < self.budget:
            assert n_tokens <= self.budget - n_writing, "the budget is exceeded"
            enough = sum(reaches) <= self.budget - n_writing
            assert n_tokens == (sum(reaches) if enough else self.budget - n_writing), "tokens left"
        assert pieces or not waiting, "prompts starve"

    def _may_be_admitted(self, job: Job) -> bool:
        parent = self.jobs.get(job.parent) if job.parent is not None else None
        ready = parent is None or (
            parent.slot is not None and not parent.parked and parent.computed >= parent.n_prompt
        )
        return job.slot is None and ready

    def _check_nobody_waits_in_vain(self) -> None:
        taken = {job.slot for job in self.jobs.values()}
        free = set(range(self.scheduler.limits.n_rows)) - taken
        for job in self.jobs.values():
            if self._may_be_admitted(job):
                assert not free if job.pin < 0 else job.pin not in free, f"{job} waits in vain"

    def _compare(self) -> None:
        for request_id, job in self.jobs.items():
            seen = self.scheduler.request(request_id)
            assert (seen.known, seen.computed) == (job.known, job.computed), f"{seen} is {job}"
            assert (seen.slot, seen.parked) == (job.slot, job.parked), f"{seen} is {job}"

    # ---- inside ----------------------------------------------------------------------------------

    def _sample(self, job: Job) -> None:
        job.n_sampled += 1
        if job.n_sampled >= job.n_predict or job.batch_class.kind == "embedding":
            self.scheduler.finish(job.request_id)
            self.finished.append(job.request_id)
            del self.jobs[job.request_id]
        else:
            self.scheduler.sampled(job.request_id)

    def _runnable(self) -> list[Job]:
        return [job for job in self._runnable_or_sampled() if job.computed < job.known]

    def _runnable_or_sampled(self) -> list[Job]:
        return [job for job in self.jobs.values() if job.slot is not None and not job.parked]


def _reach(job: Job) -> int:
    return min([stop for stop in job.stops if stop > job.computed] + [job.known]) - job.computed
