"""Random lives of many requests: the fake engine checks every plan against its own books."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from strata_plugin.scheduling.budget import QuantumBudget
from strata_plugin.scheduling.plan import BatchClass, StepPlan
from strata_plugin.scheduling.scheduler import Limits, Scheduler

from .factories import EMBEDDING, LORA, PLAIN, FakeEngine, FixedBudget

classes = st.sampled_from([PLAIN, PLAIN, PLAIN, EMBEDDING, LORA])
stop_positions = st.lists(st.integers(0, 120), max_size=6).map(tuple)


class SchedulerMachine(RuleBasedStateMachine):
    """Anything that an engine may do, in any order; in the end all requests must come to theirs."""

    engine: FakeEngine

    @initialize(n_rows=st.integers(1, 5), spare=st.integers(1, 60), budget=st.integers(1, 80))
    def start(self, n_rows: int, spare: int, budget: int) -> None:
        limits = Limits(n_rows, n_batch=n_rows + spare, n_ubatch=16)
        budget = min(budget, limits.n_batch)
        self.engine = FakeEngine(Scheduler(limits, FixedBudget(budget)), budget)

    def pick(self, data: st.DataObject, parked: bool) -> int:
        jobs = self.engine.jobs.values()
        able = [j.request_id for j in jobs if j.slot is not None and j.parked == parked]
        return data.draw(st.sampled_from(able))

    def any_running(self) -> bool:
        return any(j.slot is not None and not j.parked for j in self.engine.jobs.values())

    def any_parked(self) -> bool:
        return any(j.parked for j in self.engine.jobs.values())

    @rule(
        n_prompt=st.integers(1, 100),
        n_predict=st.integers(1, 8),
        batch_class=classes,
        stops=stop_positions,
        pin=st.integers(-4, 6),
        data=st.data(),
    )
    def submit(
        self,
        n_prompt: int,
        n_predict: int,
        batch_class: BatchClass,
        stops: tuple[int, ...],
        pin: int,
        data: st.DataObject,
    ) -> None:
        known = [None, *range(1, self.engine.n_submitted + 1)]
        self.engine.submit(
            n_prompt,
            n_predict,
            batch_class=batch_class,
            stops=stops,
            pin=pin,
            parent=data.draw(st.sampled_from(known)),
        )

    @rule(cached=st.integers(0, 60))
    def admit(self, cached: int) -> None:
        self.engine.admit(cached)

    @rule(elapsed_ms=st.floats(0.0, 1000.0))
    def step(self, elapsed_ms: float) -> None:
        self.engine.step(elapsed_ms)

    @precondition(any_running)
    @rule(data=st.data())
    def park(self, data: st.DataObject) -> None:
        self.engine.park(self.pick(data, parked=False))

    @precondition(any_parked)
    @rule(data=st.data())
    def unpark(self, data: st.DataObject) -> None:
        request_id = self.pick(data, parked=True)
        computed = self.engine.jobs[request_id].computed
        self.engine.unpark(request_id, data.draw(st.integers(0, computed)))

    @precondition(any_running)
    @rule(data=st.data())
    def rollback(self, data: st.DataObject) -> None:
        """A failed decode: the plan is never completed, and some tokens are gone."""
        self.engine.scheduler.plan()
        request_id = self.pick(data, parked=False)
        computed = self.engine.jobs[request_id].computed
        self.engine.rollback(request_id, data.draw(st.integers(0, computed)))

    @precondition(lambda self: self.engine.jobs)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.engine.cancel(data.draw(st.sampled_from(sorted(self.engine.jobs))))

    @invariant()
    def intact(self) -> None:
        self.engine.scheduler.check_integrity()

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            for job in [job for job in self.engine.jobs.values() if job.parked]:
                self.engine.unpark(job.request_id, job.computed)
            self.engine.run()


SchedulerMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
TestAnyLife = SchedulerMachine.TestCase


def random_life(seed: int) -> tuple[list[StepPlan], list[int]]:
    """Plans and admissions of a run whose every decision comes from `seed`."""
    rng = random.Random(seed)
    n_rows = rng.randint(1, 8)
    limits = Limits(n_rows, n_batch=rng.randint(n_rows + 16, 200), n_ubatch=32)
    budget = QuantumBudget(limits.n_batch, limits.n_ubatch, quantum_ms=50.0)
    engine = FakeEngine(Scheduler(limits, budget), budget=0)  # sizes vary: not checked here
    while engine.n_submitted < 30:
        for _ in range(rng.randint(0, 3)):
            engine.submit(
                rng.randint(1, 300),
                rng.randint(1, 20),
                batch_class=rng.choice((PLAIN, PLAIN, LORA)),
                stops=tuple(rng.sample(range(300), 3)),
                pin=rng.choice((-1, -1, rng.randint(0, 9))),
                parent=rng.choice((None, rng.randint(1, engine.n_submitted + 1))),
            )
        engine.step(rng.lognormvariate(3, 1))
    engine.run()
    return engine.plans, engine.admitted


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_the_same_input_gives_the_same_plans(seed: int) -> None:
    first, second = random_life(seed), random_life(seed)
    assert first == second


@settings(max_examples=25, deadline=None)
@given(
    prompts=st.lists(st.integers(1, 200), min_size=1, max_size=20),
    n_rows=st.integers(1, 4),
    budget=st.integers(8, 128),
)
def test_without_pins_rows_and_first_tokens_come_in_order_of_arrival(
    prompts: list[int], n_rows: int, budget: int
) -> None:
    scheduler = Scheduler(Limits(n_rows, n_batch=128, n_ubatch=16), FixedBudget(budget))
    engine = FakeEngine(scheduler, budget)
    ids = [engine.submit(n_prompt) for n_prompt in prompts]
    engine.run()
    first_step: dict[int, int] = {}
    for number, plan in enumerate(engine.plans):
        for piece in plan.pieces:
            first_step.setdefault(piece.request_id, number)
    assert engine.admitted == ids
    assert [first_step[i] for i in ids] == sorted(first_step.values())


@settings(max_examples=25, deadline=None)
@given(prompts=st.lists(st.integers(1, 300), min_size=1, max_size=12), budget=st.integers(20, 96))
def test_every_prompt_token_is_computed_exactly_once(prompts: list[int], budget: int) -> None:
    engine = FakeEngine(Scheduler(Limits(4, 96, 32), FixedBudget(budget)), budget)
    for n_prompt in prompts:
        engine.submit(n_prompt, n_predict=5)
    engine.run()
    # the token sampled last is never computed
    assert sum(plan.n_tokens for plan in engine.plans) == sum(prompts) + 4 * len(prompts)
