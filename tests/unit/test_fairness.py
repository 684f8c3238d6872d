"""Computing time between tenants, and what prompts get beside rows, on whole schedulers."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_plugin.scheduling.cost import AnalyticCost, StepShape
from strata_plugin.scheduling.plan import StepPlan

from .factories import LORA, PLAIN, FakeEngine, make_scheduler
from .test_pace import Known


class Meter:
    """Whose computing the time went to, by the books of the fake engine: rows what they take alone,
    prompts the rest.
    """

    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.used: Counter[str] = Counter()
        self.tenants: dict[int, str] = {}

    def step(self) -> StepPlan:
        self.engine.admit()
        jobs = dict(self.engine.jobs)
        depths = {key: job.computed for key, job in jobs.items()}
        writing = {key for key, job in jobs.items() if job.writing}
        plan = self.engine.step()
        assert plan is not None
        shape, took = self.engine.steps[-1]
        rows = [p.request_id for p in plan.pieces if p.request_id in writing]
        reads = {p.request_id: p.count for p in plan.pieces if p.request_id not in writing}
        pairs = sum(depths[key] for key in rows)
        alone = self.engine.machine(StepShape(len(rows), 0, shape.cells, pairs)) if rows else 0.0
        for key in rows:
            self.used[jobs[key].tenant] += (alone if reads else took) / len(rows)
        for key, count in reads.items():
            self.used[jobs[key].tenant] += (took - alone) * count / sum(reads.values())
        return plan


def machine_of(pass_ms: float, token_ms: float, attention_ms: float = 0.0) -> AnalyticCost:
    return AnalyticCost(pass_ms, token_ms, attention_ms, n_ubatch=64)


def keep_busy(engine: FakeEngine, wanted: dict[str, int], rng: random.Random, size: int) -> None:
    """So many requests of each tenant, always; the more a tenant sends, the smaller they are."""
    there = Counter(job.tenant for job in engine.jobs.values())
    for tenant, n in wanted.items():
        for _ in range(n - there[tenant]):
            engine.submit(rng.randint(1, size), rng.randint(1, 12), tenant=tenant)


@settings(max_examples=6, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    n_rows=st.integers(1, 4),
    n_spare=st.integers(0, 3),
    pass_ms=st.sampled_from([1.0, 20.0]),
    token_ms=st.sampled_from([0.2, 3.0]),
    attention_ms=st.sampled_from([0.0, 1.0]),
    few=st.integers(1, 4),
)
def test_tenants_who_always_want_something_get_equal_time(
    seed: int,
    n_rows: int,
    n_spare: int,
    pass_ms: float,
    token_ms: float,
    attention_ms: float,
    few: int,
) -> None:
    """However many requests they send: within 10 %, and what one request takes."""
    rng = random.Random(seed)
    cost = machine_of(pass_ms, token_ms, attention_ms)
    engine = FakeEngine(
        make_scheduler(n_rows, 64 + n_rows, 64, n_spare=n_spare, budget=64, cost=cost),
        cost.predict,
    )
    wanted = {"few": few + n_rows + n_spare, "many": 15}
    meter = Meter(engine)
    for _ in range(1200):
        keep_busy(engine, wanted, rng, 100)
        meter.step()
    few_ms, many_ms = meter.used["few"], meter.used["many"]
    assert abs(few_ms - many_ms) <= 0.1 * max(few_ms, many_ms), meter.used


def test_one_with_fifty_requests_does_not_hold_up_one_with_one() -> None:
    cost = machine_of(10.0, 1.0)
    engine = FakeEngine(make_scheduler(4, 68, 64, budget=64, cost=cost), cost.predict)
    for _ in range(50):
        engine.submit(400, 50, tenant="agent")
    for _ in range(20):
        engine.step()
    person = engine.submit(400, 5, tenant="person")
    start = engine.now_ms
    while person in engine.jobs:
        engine.step()
    # a row has to be free first (50 tokens of an answer), then its own 400 are read before others
    assert engine.now_ms - start < 2.5 * (400 * 1.0 + 50 * 77.0)
    assert len(engine.finished) < 8


def test_who_comes_to_a_tenant_that_lags_waits_for_few_of_its_requests() -> None:
    """The agent is owed all the time that its queue had to wait; a person need not wait for that.
    """
    cost = machine_of(1.0, 1.0)
    engine = FakeEngine(make_scheduler(1, 66, 64, budget=64, cost=cost), cost.predict)
    engine.submit(40_000, 1, tenant="busy")
    engine.step()
    for _ in range(50):
        engine.submit(400, 1, tenant="agent")
    while engine.now_ms < 20_000.0:
        engine.step()
    person = engine.submit(400, 1, tenant="person")
    while person in engine.jobs:
        engine.step()
    assert engine.finished.index(person) <= 3


def test_one_whose_many_prompts_were_read_ahead_does_not_get_all_the_rows() -> None:
    cost = machine_of(10.0, 0.1)
    scheduler = make_scheduler(1, 66, 64, budget=64, n_spare=12, cost=cost)
    engine = FakeEngine(scheduler, cost.predict)
    for _ in range(10):
        engine.submit(40, 50, tenant="agent")
    for _ in range(30):
        engine.step()
    person = engine.submit(40, 50, tenant="person")
    while person in engine.jobs:
        engine.step()
    assert engine.finished.index(person) == 1, "after the answer that was being written"


def test_rows_do_not_pay_for_the_prompts_that_are_read_beside_them() -> None:
    """At depth the pairs of a prompt's tokens make a step long: that is the prompt's own time."""
    cost = AnalyticCost(pass_ms=10.0, token_ms=0.1, attention_ms=1.0, n_ubatch=512)
    engine = FakeEngine(make_scheduler(2, 600, 512, budget=500, cost=cost), cost.predict)
    engine.submit(4, 1000, tenant="writer")
    engine.step()
    reader = engine.submit(20_000, 1, tenant="reader")
    meter = Meter(engine)
    before = engine.scheduler.shares.used("writer")
    for _ in range(20):
        meter.step()
    assert meter.used["writer"] < 0.1 * meter.used["reader"]
    assert engine.scheduler.shares.used("writer") - before == pytest.approx(
        meter.used["writer"], rel=0.2
    )
    assert engine.scheduler.request(reader).compute_ms == pytest.approx(
        meter.used["reader"], rel=0.05
    )


def test_a_long_prompt_is_read_however_many_new_tenants_come_with_short_ones() -> None:
    """Nobody who comes starts behind what those there have waited for."""
    cost = machine_of(1.0, 1.0)
    engine = FakeEngine(make_scheduler(2, 66, 64, budget=64, n_spare=6, cost=cost), cost.predict)
    long = engine.submit(2000, 1, tenant="patient")
    for _ in range(3000):
        while len(engine.jobs) < 9:
            engine.submit(30, 1, tenant=f"new {engine.n_submitted}")
        engine.step()
        if long not in engine.jobs:
            break
    # with 7 others at any time equal shares give it an eighth: 2,000 tokens in 16,000 ms
    assert long in engine.finished
    assert engine.now_ms < 2 * 16_000.0


def test_a_long_prompt_is_read_however_often_other_tenants_come_back_with_short_ones() -> None:
    """What they had is not forgotten while they are away, so their turns come to an end."""
    cost = machine_of(1.0, 1.0)
    engine = FakeEngine(make_scheduler(2, 66, 64, budget=64, n_spare=6, cost=cost), cost.predict)
    long = engine.submit(2000, 1, tenant="patient")
    while long in engine.jobs:
        while len(engine.jobs) < 8:
            engine.submit(30, 1, tenant=f"key {engine.n_submitted % 8}")
        engine.step()
        # equal shares of nine tenants: 2,000 tokens in 18,000 ms
        assert engine.now_ms < 1.2 * 18_000.0


def test_a_higher_priority_goes_first_whatever_its_tenant_has_used() -> None:
    cost = machine_of(10.0, 1.0)
    engine = FakeEngine(make_scheduler(1, 65, 64, budget=64, cost=cost), cost.predict)
    for _ in range(6):
        engine.submit(100, 3, tenant="a")
    for _ in range(8):
        engine.step()
    urgent = engine.submit(500, 3, tenant="a", priority=1)
    engine.submit(5, 3, tenant="b")
    n_before = len(engine.finished)
    while urgent in engine.jobs:
        engine.step()
    assert len(engine.finished) <= n_before + 2, "only who had a row already"


# ---- prompts beside rows -------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.1, 0.25])
@pytest.mark.parametrize("rows_ms", [300.0, 2000.0])
@pytest.mark.parametrize("token_ms", [2.0, 100.0])
def test_prompts_get_their_share_where_rows_alone_miss_the_target(
    share: float, rows_ms: float, token_ms: float
) -> None:
    cost = Known(lambda shape: rows_ms * bool(shape.rows) + token_ms * shape.prompt_tokens + 1.0)
    engine = FakeEngine(
        make_scheduler(
            2, 512, 512, cost=cost, prefill_budget=0, itl_slo_ms=150.0, prefill_min_share=share
        ),
        cost.predict,
    )
    engine.submit(4, 10**6)
    engine.step()
    engine.submit(10**6, 1)
    n_steps = 1500
    for _ in range(n_steps):
        engine.step()
    steps = engine.steps[1:]
    total = sum(took for _, took in steps)
    reading = sum(took - (rows_ms if shape.rows else 0.0) for shape, took in steps) - n_steps
    assert 0.85 * share <= reading / total <= 1.2 * share


@pytest.mark.parametrize("pass_ms", [400.0, 15_000.0])
def test_prompts_are_read_even_where_a_pass_takes_many_times_the_target(pass_ms: float) -> None:
    """Experts streamed from RAM: any prompt token costs a whole pass."""
    cost = Known(lambda shape: pass_ms if shape.prompt_tokens else 50.0)
    engine = FakeEngine(
        make_scheduler(2, 512, 512, cost=cost, prefill_budget=0, itl_slo_ms=150.0), cost.predict
    )
    engine.submit(4, 10**6)
    engine.step()
    reader = engine.submit(1024, 1)
    while reader in engine.jobs:
        engine.step()
        assert engine.now_ms < 12 * pass_ms + 20_000.0
    steps = engine.steps[1:]
    assert sum(took for _, took in steps) / len(steps) <= 1.1 * 150.0


def test_classes_that_share_no_step_share_the_steps() -> None:
    engine = FakeEngine(make_scheduler(n_rows=4, budget=16))
    engine.submit(8, 300, batch_class=PLAIN)
    engine.submit(2000, 3, batch_class=LORA)
    for _ in range(100):
        engine.step()
    served = Counter(plan.batch_class for plan in engine.plans)
    assert abs(served[PLAIN] - served[LORA]) <= 1
