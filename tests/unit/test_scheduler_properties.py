"""Random lives of many requests: the fake engine checks every plan against its own books."""

from __future__ import annotations

import random
from math import ceil

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from strata_plugin.scheduling.cost import StepShape
from strata_plugin.scheduling.plan import BatchClass, StepPlan

from .factories import EMBEDDING, LORA, PLAIN, TURNS, FakeEngine, Machine, make_scheduler

classes = st.sampled_from([PLAIN, PLAIN, PLAIN, EMBEDDING, LORA])
stop_positions = st.lists(st.integers(0, 120), max_size=6).map(tuple)
policies = st.sampled_from([{}, {"yield_chunks": 2, "yield_steps": 3}, {"prefill_budget": 0}])


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """A machine of any speed; some have sizes that they like or dislike."""
    pass_ms = draw(st.floats(0.1, 3000.0))
    row_ms = draw(st.floats(0.0, 50.0))
    token_ms = draw(st.floats(0.0, 100.0))
    depth_ms = draw(st.floats(0.0, 0.1))
    bumps = draw(st.lists(st.floats(0.3, 3.0), min_size=1, max_size=8))

    def machine(shape: StepShape) -> float:
        smooth = pass_ms + shape.rows * row_ms + shape.prompt_tokens * token_ms
        return (smooth + shape.pairs * depth_ms) * bumps[shape.tokens % len(bumps)]

    return machine


class SchedulerMachine(RuleBasedStateMachine):
    """Anything that an engine may do, in any order; in the end all requests must come to theirs."""

    engine: FakeEngine

    @initialize(
        n_rows=st.integers(1, 5),
        room=st.integers(1, 60),
        budget=st.integers(1, 80),
        n_spare=st.integers(0, 4),
        machine=machines(),
        policy=policies,
    )
    def start(
        self,
        n_rows: int,
        room: int,
        budget: int,
        n_spare: int,
        machine: Machine,
        policy: dict[str, int],
    ) -> None:
        n_batch = n_rows + room
        scheduler = make_scheduler(
            n_rows, n_batch, 16, n_spare=n_spare, **{"prefill_budget": budget} | policy
        )
        self.engine = FakeEngine(scheduler, machine)

    def pick(self, data: st.DataObject, parked: bool) -> int:
        jobs = self.engine.jobs.values()
        able = [j.request_id for j in jobs if j.held and j.parked == parked]
        return data.draw(st.sampled_from(able))

    def any_running(self) -> bool:
        return any(j.held and not j.parked for j in self.engine.jobs.values())

    def any_parked(self) -> bool:
        return any(j.parked for j in self.engine.jobs.values())

    @rule(
        n_prompt=st.integers(1, 100),
        n_predict=st.integers(1, 8),
        batch_class=classes,
        stops=stop_positions,
        pin=st.integers(-4, 6),
        tenant=st.sampled_from("aab"),
        priority=st.sampled_from([0, 0, 0, 1, -1]),
        itl_slo_ms=st.sampled_from([0.0, 0.0, 20.0, 2000.0]),
        data=st.data(),
    )
    def submit(
        self,
        n_prompt: int,
        n_predict: int,
        batch_class: BatchClass,
        stops: tuple[int, ...],
        pin: int,
        tenant: str,
        priority: int,
        itl_slo_ms: float,
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
            tenant=tenant,
            priority=priority,
            itl_slo_ms=itl_slo_ms,
        )

    @rule(cached=st.integers(0, 60))
    def admit(self, cached: int) -> None:
        self.engine.admit(cached)

    @rule()
    def step(self) -> None:
        self.engine.step()

    @rule(elapsed_ms=st.floats(0.0, 1e5))
    def stumble(self, elapsed_ms: float) -> None:
        """A step that takes a time of its own."""
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
    max_examples=50, stateful_step_count=40, deadline=None
)
TestAnyLife = SchedulerMachine.TestCase


def random_life(seed: int) -> tuple[list[StepPlan], list[int]]:
    """Plans and admissions of a run whose every decision comes from `seed`."""
    rng = random.Random(seed)
    n_rows = rng.randint(1, 6)
    engine = FakeEngine(
        make_scheduler(
            n_rows,
            n_batch=rng.randint(n_rows + 16, 200),
            n_ubatch=32,
            n_spare=rng.randint(0, 4),
            prefill_budget=0,
            prefill_quantum_ms=50.0,
            itl_slo_ms=rng.choice((5.0, 50.0)),
        )
    )
    while engine.n_submitted < 25:
        for _ in range(rng.randint(0, 3)):
            engine.submit(
                rng.randint(1, 300),
                rng.randint(1, 20),
                batch_class=rng.choice((PLAIN, PLAIN, LORA)),
                stops=tuple(rng.sample(range(300), 3)),
                pin=rng.choice((-1, -1, rng.randint(0, 9))),
                parent=rng.choice((None, rng.randint(1, engine.n_submitted + 1))),
                tenant=rng.choice("abc"),
                priority=rng.choice((0, 0, 1)),
            )
        engine.step(rng.lognormvariate(3, 1))
    engine.run()
    return engine.plans, engine.admitted


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_the_same_input_gives_the_same_plans(seed: int) -> None:
    assert random_life(seed) == random_life(seed)


def state(scheduler: object) -> str:
    """All that a scheduler holds, requests included, as text."""
    return repr(
        [
            (key, {r: repr(request) for r, request in value.items()})
            if key == "_requests"
            else (key, vars(value) if key in ("shares", "_turns", "pace", "cost") else repr(value))
            for key, value in vars(scheduler).items()
        ]
    )


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32), ahead=st.integers(1, 30))
def test_planning_changes_nothing_and_a_copy_goes_its_own_way_and_learns_nothing(
    seed: int, ahead: int
) -> None:
    rng = random.Random(seed)
    scheduler = make_scheduler(2, 64, 32, n_spare=2, prefill_budget=0, itl_slo_ms=30.0)
    engine = FakeEngine(scheduler)
    for _ in range(8):
        engine.submit(rng.randint(1, 200), rng.randint(1, 9), tenant=rng.choice("ab"))
    for _ in range(rng.randint(1, 20)):
        engine.step(rng.lognormvariate(3, 1))
    engine.admit()
    before = state(scheduler)
    plan = scheduler.plan()
    scheduler.seats(), scheduler.admissible(), scheduler.ahead()
    scheduler.outlook(), scheduler.queued(), scheduler.counts(), scheduler.youngest()
    assert state(scheduler) == before

    other = scheduler.copy()
    assert other.plan() == plan
    for request_id in other.known():
        if rng.random() < 0.3:
            other.finish(request_id)
    other.submit(999, n_prompt=50, arrival=0.0, tenant="new")
    for _ in range(ahead):
        for request_id, slot in other.seats():
            other.seat(request_id, slot)
        for request_id, slot in other.admissible():
            other.admit(request_id, slot, 0)
        for request_id in other.ahead():
            other.admit(request_id, None, 0)
        its_plan = other.plan()
        if its_plan is None:
            break
        other.complete(its_plan, 1000.0)
        for piece in its_plan.pieces:
            if not other.request(piece.request_id).pending:
                other.sampled(piece.request_id)
    other.check_integrity()
    assert state(scheduler) == before
    assert scheduler.plan() == plan


@settings(max_examples=25, deadline=None)
@given(prompts=st.lists(st.integers(1, 300), min_size=1, max_size=12), budget=st.integers(20, 96))
def test_every_prompt_token_is_computed_exactly_once(prompts: list[int], budget: int) -> None:
    engine = FakeEngine(make_scheduler(4, 96, 32, budget=budget, n_spare=2))
    for n_prompt in prompts:
        engine.submit(n_prompt, n_predict=5)
    engine.run()
    # the token sampled last is never computed
    assert sum(plan.n_tokens for plan in engine.plans) == sum(prompts) + 4 * len(prompts)


@settings(max_examples=25, deadline=None)
@given(
    prompts=st.lists(st.integers(1, 200), min_size=1, max_size=16),
    n_rows=st.integers(1, 4),
    budget=st.integers(8, 128),
)
def test_equal_prompts_come_in_order_of_arrival(
    prompts: list[int], n_rows: int, budget: int
) -> None:
    engine = FakeEngine(make_scheduler(n_rows, 128 + n_rows, 16, budget=budget))
    ids = [engine.submit(prompts[0]) for _ in prompts]
    engine.run()
    assert engine.admitted == ids


# ---- nobody starves ------------------------------------------------------------------------------


def longest_stay(
    n_rows: int, n_spare: int, room: int, n_prompt: int, n_predict: int, older: int
) -> int:
    """Steps in which a request ends, whoever comes after it: the bound that ageing gives.

    For one class, tenant and priority, prompts of up to `n_prompt` tokens, answers of up to
    `n_predict`, steps that always read (a fixed budget) with room for at least `room` prompt
    tokens, and `older` requests that came before.

    - The oldest that reads has every fourth reading step to itself, so it is read within
      TURNS * ceil(n_prompt / room) steps. Then it takes the first row that is free; if none is and
      nobody who reads can lose one, all rows write, and one ends within n_predict steps. Then it
      writes, a token in each step. Call the sum `held`.
    - So within `held` steps the oldest of those with a sequence ends and leaves it to another.
      Every fourth of these grants goes to the oldest in the queue, so each of the older ones, and
      then the request itself, leaves the queue within TURNS * held steps.
    - By then at most n_rows + n_spare - 1 older ones have a sequence. Each ends within `held` steps
      once it is the oldest, and then it is the request's turn.
    """
    held = TURNS * ceil(n_prompt / room) + 2 * n_predict
    return TURNS * held * (older + 1) + held * (n_rows + n_spare)


@settings(max_examples=12, deadline=None)
@given(
    n_rows=st.integers(1, 3),
    n_spare=st.integers(0, 2),
    budget=st.integers(16, 64),
    older=st.integers(0, 2),
    n_predict=st.integers(1, 3),
    machine=machines(),
    seed=st.integers(0, 2**32),
)
def test_a_long_prompt_ends_in_time_however_many_short_ones_keep_coming(
    n_rows: int,
    n_spare: int,
    budget: int,
    older: int,
    n_predict: int,
    machine: Machine,
    seed: int,
) -> None:
    rng = random.Random(seed)
    engine = FakeEngine(
        make_scheduler(n_rows, budget + n_rows, 16, budget=budget, n_spare=n_spare), machine
    )

    def crowd() -> None:
        """More short ones than can be served, at any time."""
        while len(engine.jobs) < 2 * (n_rows + n_spare) + 4 + older:
            engine.submit(rng.randint(1, 40), rng.randint(1, n_predict))

    for _ in range(10):
        crowd()
        engine.step()
    ahead = len(engine.jobs) + older
    for _ in range(older + 1):
        long = engine.submit(400, n_predict)
    bound = engine.n_steps + longest_stay(n_rows, n_spare, budget, 400, n_predict, ahead)
    while long in engine.jobs:
        crowd()
        engine.step()
        assert engine.n_steps <= bound, f"{engine.jobs[long]} after {engine.n_steps} steps"


def test_rows_that_end_together_do_not_let_the_oldest_wait_for_ever() -> None:
    """Two rows are free at a time: were that one turn, the oldest's would never come."""
    engine = FakeEngine(make_scheduler(n_rows=2, budget=64))
    long = engine.submit(100, 2)
    for _ in range(6):
        engine.submit(8, 2)
    for _ in range(100):
        engine.step()
        if long not in engine.jobs:
            break
        while len(engine.jobs) < 6:
            engine.submit(8, 2)
    assert long in engine.finished


def test_one_who_waits_for_a_busy_slot_does_not_use_up_the_turns_of_the_oldest() -> None:
    engine = FakeEngine(make_scheduler(n_rows=2, budget=64))
    engine.submit(8, 10**6, pin=1)
    engine.step()
    engine.submit(8, 1, pin=1)  # waits for ever
    engine.step()
    long = engine.submit(300, 1)
    for _ in range(200):
        while len(engine.jobs) < 8:
            engine.submit(8, 2)
        engine.step()
    assert long in engine.finished


def test_the_oldest_of_each_class_has_its_turns() -> None:
    """Two classes that take turns must not take the turns of the oldest as well."""
    engine = FakeEngine(make_scheduler(n_rows=4, n_spare=4, budget=8))
    long = [engine.submit(200, 1, batch_class=c) for c in (PLAIN, LORA)]
    for _ in range(1000):
        if not set(long) & set(engine.jobs):
            break
        for batch_class in (PLAIN, LORA):
            while sum(j.batch_class == batch_class for j in engine.jobs.values()) < 4:
                engine.submit(20, 1, batch_class=batch_class)
        engine.step()
    assert set(long) <= set(engine.finished)


@settings(max_examples=20, deadline=None)
@given(machine=machines(), seed=st.integers(0, 2**32), slo_ms=st.sampled_from([5.0, 150.0, 1200.0]))
def test_whatever_the_machine_all_requests_end(machine: Machine, seed: int, slo_ms: float) -> None:
    rng = random.Random(seed)
    engine = FakeEngine(
        make_scheduler(3, 256, 64, n_spare=2, prefill_budget=0, itl_slo_ms=slo_ms), machine
    )
    for _ in range(10):
        engine.submit(rng.randint(1, 200), rng.randint(1, 40), tenant=rng.choice("ab"))
        for _ in range(rng.randint(0, 5)):
            engine.step()
    engine.run(20_000)  # on the slowest of them a step may read a single token
