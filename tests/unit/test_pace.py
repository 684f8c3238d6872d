"""Step sizes on machines of several kinds, those of the issue's table among them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_plugin.scheduling.config import SchedulingConfig
from strata_plugin.scheduling.cost import AnalyticCost, CostModel, LearnedCost, StepShape
from strata_plugin.scheduling.pace import FIRST_CHUNK, MOST_CREDIT, Pace
from strata_plugin.scheduling.yielding import YieldTurns

from .factories import FakeEngine, Machine, make_scheduler
from .test_cost_model import DEPTHS, TABLES, Table, at, surface

TARGETS = pytest.mark.parametrize("target_ms", [75.0, 150.0, 300.0, 600.0, 1200.0])


@dataclass
class Known:
    """A cost model that is right."""

    machine: Machine

    def predict(self, shape: StepShape) -> float:
        return self.machine(shape)

    def spread(self, shape: StepShape) -> float:
        return 0.0

    def knows(self, tokens: int) -> bool:
        return True

    def observe(self, shape: StepShape, elapsed_ms: float) -> None:
        """It knows all already."""


def make_pace(cost: CostModel, n_batch: int = 2048, n_ubatch: int = 512, **config: float) -> Pace:
    return Pace(SchedulingConfig(**config), cost, n_batch, n_ubatch)  # type: ignore[arg-type]


def on_table(table: Table, depth: int) -> Known:
    truth = surface(table)
    return Known(lambda shape: truth(shape.prompt_tokens, depth))


def prompt(n: int) -> StepShape:
    """n tokens of a prompt, nobody decodes."""
    return StepShape(0, n, n, n * n / 2)


def beside_row(n: int) -> StepShape:
    return at(n, 1000)


@dataclass
class Stream:
    """What the rows and the prompts had of a while together."""

    gaps_ms: list[float]
    reading_ms: float  # of the steps that read: beyond what rows alone take
    largest_ms: float = 0.0
    n_read: int = 0

    @property
    def mean_ms(self) -> float:
        return sum(self.gaps_ms) / len(self.gaps_ms)

    @property
    def share(self) -> float:
        return self.reading_ms / sum(self.gaps_ms)


def run(
    pace: Pace,
    target_ms: float,
    n_steps: int = 400,
    *,
    wanted: int = 2047,
    short: bool = False,
    shape_of: Callable[[int], StepShape] = beside_row,
) -> Stream:
    """An endless prompt beside rows, as the scheduler settles it."""
    stream = Stream([], 0.0)
    rows_ms = pace.cost.predict(shape_of(0))
    waited = 0.0
    for _ in range(n_steps):
        grant = pace.beside(shape_of, target_ms, wanted, short)
        assert 0 <= grant.tokens <= wanted
        shape = shape_of(grant.tokens)
        took = pace.cost.predict(shape if grant.with_rows else shape._replace(rows=0))
        waited += took
        pace.settle(grant.credit_ms)
        if grant.tokens:
            stream.reading_ms += took - (rows_ms if grant.with_rows else 0.0)
            stream.largest_ms = max(stream.largest_ms, took)
            stream.n_read += grant.tokens
        if grant.with_rows:
            stream.gaps_ms.append(waited)
            waited = 0.0
    return stream


# ---- beside rows ---------------------------------------------------------------------------------


@TARGETS
@TABLES
@pytest.mark.parametrize("depth", DEPTHS)
def test_on_measured_machines_the_target_is_met(table: Table, depth: int, target_ms: float) -> None:
    pace = make_pace(on_table(table, depth), itl_slo_ms=target_ms)
    stream = run(pace, target_ms)
    assert stream.mean_ms <= target_ms * 1.01
    assert stream.largest_ms <= 2.0 * target_ms
    assert stream.share >= 0.10
    # a step with one token more than one that fits wouldn't be much quicker: nothing is wasted
    fits = [n for n in range(1, 257) if pace.cost.predict(beside_row(n)) <= target_ms]
    best = max(n / pace.cost.predict(beside_row(n)) for n in fits)
    assert stream.n_read / sum(stream.gaps_ms) >= 0.8 * best


@TARGETS
@TABLES
@pytest.mark.parametrize("depth", DEPTHS)
def test_a_larger_target_never_reads_slower(table: Table, depth: int, target_ms: float) -> None:
    def speed(target: float) -> float:
        stream = run(make_pace(on_table(table, depth), itl_slo_ms=target), target)
        return stream.n_read / sum(stream.gaps_ms)

    assert speed(2.0 * target_ms) >= 0.97 * speed(target_ms)


def test_an_unsure_model_keeps_a_distance_from_the_target() -> None:
    @dataclass
    class Unsure(Known):
        def spread(self, shape: StepShape) -> float:
            return 0.5

    def machine(shape: StepShape) -> float:
        return 20.0 + 1.0 * shape.prompt_tokens

    sure, unsure = make_pace(Known(machine)), make_pace(Unsure(machine))
    assert sure.beside(beside_row, 150.0, 1000, False).tokens == 128
    assert unsure.beside(beside_row, 150.0, 1000, False).tokens == 96


def test_sizes_that_the_machine_dislikes_are_avoided() -> None:
    """As measured: 32 tokens take four times what 24 take."""

    def machine(shape: StepShape) -> float:
        n = shape.prompt_tokens
        return (20.0 + n) * (4.0 if 30 <= n < 60 else 1.0)

    pace = make_pace(Known(machine))
    assert pace.beside(beside_row, 75.0, 1000, False).tokens == 24
    assert pace.beside(beside_row, 100.0, 1000, False).tokens == 64


def test_no_more_is_granted_than_is_wanted() -> None:
    pace = make_pace(Known(lambda shape: 1.0))
    assert pace.beside(beside_row, 150.0, 7, False).tokens == 7


# ---- little is known -----------------------------------------------------------------------------


def test_the_first_chunk_beside_rows_is_small() -> None:
    pace = make_pace(LearnedCost(512))
    assert pace.beside(beside_row, 150.0, 5000, False).tokens == FIRST_CHUNK
    assert pace.beside(beside_row, 150.0, 5, False).tokens == 5


@pytest.mark.parametrize("short", [True, False])
def test_chunks_grow_step_by_step_beyond_what_was_measured(short: bool) -> None:
    model = LearnedCost(512)
    pace = make_pace(model, itl_slo_ms=1000.0)
    for _ in range(5):
        model.observe(beside_row(0), 10.0)
    sizes = [FIRST_CHUNK]
    for _ in range(60):
        grant = pace.beside(beside_row, 1000.0, 2047, short)
        pace.settle(grant.credit_ms)
        assert grant.tokens <= 3 * max(sizes)  # of what counts as known, twice as many
        sizes.append(grant.tokens)
        model.observe(beside_row(grant.tokens), 10.0 + 0.01 * grant.tokens)
    assert sizes[1] <= FIRST_CHUNK
    assert max(sizes) >= (128 if short else 1024), "it does grow, as far as the time allows"


def test_a_machine_that_is_learnt_on_the_way_keeps_the_target() -> None:
    """Nothing known at the start; each step's own noise; a prompt beside a row that writes."""
    rng = random.Random(1)
    engine = FakeEngine(
        make_scheduler(2, 2048, 512, prefill_budget=0, itl_slo_ms=150.0),
        lambda shape: (15.0 + 4.0 * shape.prompt_tokens) * rng.lognormvariate(0.0, 0.1),
    )
    engine.submit(20, 100_000)
    engine.step()
    engine.step()
    engine.submit(3000, 1)
    while 2 not in engine.finished:
        engine.step()
    gaps = sorted(took for shape, took in engine.steps if shape.rows)
    assert gaps[int(0.99 * len(gaps))] < 1.5 * 150.0
    assert gaps[-1] < 2.0 * 150.0
    assert sum(gaps) < 1.6 * 3000 * 4.0, "and reads at no less than most of the speed"


# ---- short reads ---------------------------------------------------------------------------------


@TABLES
@pytest.mark.parametrize("depth", DEPTHS)
def test_a_short_read_lengthens_the_mean_gap_by_a_quarter_at_most(table: Table, depth: int) -> None:
    pace = make_pace(on_table(table, depth))
    rows_ms = pace.cost.predict(beside_row(0))
    stream = run(pace, 150.0, wanted=64, short=True)
    assert stream.n_read > 0
    if pace.cost.predict(beside_row(1)) <= 1.25 * rows_ms:
        assert stream.mean_ms <= 1.26 * rows_ms
    else:  # not one token fits, however few: at least most gaps are as without it
        assert sorted(stream.gaps_ms)[len(stream.gaps_ms) * 6 // 10] <= 1.01 * rows_ms
        long = run(make_pace(on_table(table, depth)), 150.0, wanted=64)
        assert 0.25 * long.n_read <= stream.n_read <= long.n_read


def test_a_short_read_too_dear_for_the_target_waits_no_longer_than_a_long_one() -> None:
    """Not one token fits the target beside rows that meet it easily."""
    machine = Known(lambda shape: 17.0 * bool(shape.rows) + 200.0 * shape.prompt_tokens)
    short = run(make_pace(machine), 150.0, wanted=64, short=True)
    long = run(make_pace(machine), 150.0, wanted=64)
    assert short.n_read == long.n_read > 0


def test_a_short_read_takes_the_largest_window_that_nobody_notices() -> None:
    pace = make_pace(Known(lambda shape: 40.0 + 0.5 * shape.prompt_tokens))
    grant = pace.beside(beside_row, 150.0, 64, True)
    assert grant.tokens == 16
    assert grant.credit_ms == 0.0
    assert pace.beside(beside_row, 150.0, 7, True).tokens == 7
    assert pace.beside(beside_row, 150.0, 64, False).tokens == 64


# ---- credit --------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.05, 0.1, 0.3])
@pytest.mark.parametrize("rows_ms", [160.0, 400.0, 3000.0])
@pytest.mark.parametrize("token_ms", [1.0, 30.0, 500.0])
def test_where_rows_alone_miss_the_target_prompts_get_their_share_of_the_time(
    share: float, rows_ms: float, token_ms: float
) -> None:
    pace = make_pace(
        Known(lambda shape: shape.rows * rows_ms + shape.prompt_tokens * token_ms + 1.0),
        prefill_min_share=share,
    )
    grants = [pace.beside(beside_row, 150.0, 10_000, False)]
    stream = run(pace, 150.0, 2000)
    assert not grants[0].feasible
    assert 0.85 * share <= stream.share <= 1.15 * share


@TARGETS
@pytest.mark.parametrize("pass_ms", [400.0, 2000.0, 15_000.0])
def test_experts_that_are_streamed_for_each_pass_are_read_in_full_passes(
    pass_ms: float, target_ms: float
) -> None:
    """A pass with prompt tokens takes the same time whatever its size; rows alone need few."""
    pace = make_pace(
        Known(lambda shape: pass_ms * passes(shape.prompt_tokens) or 50.0), itl_slo_ms=target_ms
    )
    stream = run(pace, target_ms, 2000)
    assert stream.n_read >= 3 * 512, "they are read, dear as they are"
    assert stream.n_read / stream.reading_ms >= 0.9 * 512 / (pass_ms - 50.0)
    assert stream.mean_ms <= 1.05 * target_ms


def test_tokens_that_cost_nothing_ride_with_every_step() -> None:
    """All experts are streamed anyway: the rows can't be quicker without the prompt."""
    pace = make_pace(Known(lambda shape: 400.0))
    grant = pace.beside(beside_row, 150.0, 512, False)
    assert (grant.tokens, grant.with_rows, grant.feasible) == (512, True, False)


def test_where_mixed_steps_are_computed_as_two_the_rows_are_left_out_of_large_chunks() -> None:
    pace = make_pace(Known(lambda shape: 120.0 * bool(shape.rows) + 3.0 * shape.prompt_tokens))
    stream_grants = []
    for _ in range(200):
        grant = pace.beside(beside_row, 100.0, 10_000, False)
        pace.settle(grant.credit_ms)
        stream_grants.append(grant)
    assert any(grant.tokens for grant in stream_grants)
    assert not any(grant.with_rows for grant in stream_grants if grant.tokens)


def test_credit_is_bounded_both_ways() -> None:
    pace = make_pace(Known(lambda shape: 1.0), itl_slo_ms=150.0, prefill_quantum_ms=500.0)
    for _ in range(10_000):
        pace.settle(100.0)
    assert pace.credit_ms == MOST_CREDIT * 500.0
    pace.settle(-1e9)
    assert pace.credit_ms == 0.0


# ---- nobody decodes ------------------------------------------------------------------------------


def alone(machine: Callable[[int], float], n_batch: int = 2048, n_ubatch: int = 512) -> int:
    """The step of a prompt alone, where `machine(n)` is the time of n tokens."""
    pace = make_pace(Known(lambda shape: machine(shape.tokens)), n_batch, n_ubatch)
    return pace.alone(prompt)


def passes(n: int) -> int:
    return -(-n // 512)


def test_the_first_step_is_one_micro_batch() -> None:
    assert make_pace(LearnedCost(512)).alone(prompt) == 512
    assert make_pace(LearnedCost(512), n_batch=100).alone(prompt) == 100


def test_whole_micro_batches_are_taken_where_they_fit() -> None:
    assert alone(lambda n: n / 3.35) == 1536
    assert alone(lambda n: n / 0.6) == 512, "one takes 853 ms: parts would read slower"


def test_a_fast_machine_is_bound_by_the_batch_size() -> None:
    assert alone(lambda n: n / 100.0) == 2048


def test_a_batch_that_is_no_multiple_is_filled_with_whole_micro_batches() -> None:
    assert alone(lambda n: n / 100.0, n_batch=700) == 512


def test_a_slow_machine_reads_parts_of_a_micro_batch_that_fit_the_quantum() -> None:
    assert alone(lambda n: n / 0.2) == 96
    assert alone(lambda n: n / 0.01) == 4


def test_the_slowest_machine_reads_on_token_by_token() -> None:
    assert 1 <= alone(lambda n: n * 2000.0) <= 2


def test_steps_do_not_shrink_where_that_saves_no_time() -> None:
    """Experts streamed over PCIe: a pass takes 2 s, be it of 20 tokens or of 512."""
    assert alone(lambda n: 2000.0 * passes(n) + 0.1 * n) == 512


def test_a_learnt_machine_is_followed_when_it_changes() -> None:
    """Steps of 512 take as long as ever, but now it is the tokens: a quarter would do."""
    model = LearnedCost(512)
    pace = make_pace(model)

    def read(machine: Callable[[int], float], n_steps: int) -> list[int]:
        sizes = []
        for _ in range(n_steps):
            sizes.append(pace.alone(prompt))
            model.observe(prompt(sizes[-1]), machine(sizes[-1]))
        return sizes

    assert read(lambda n: 2000.0 + 0.1 * n, 10)[-1] == 512
    assert read(lambda n: n * 4.0, 60)[-1] <= 192


def test_a_fixed_budget_is_taken_as_it_is() -> None:
    pace = make_pace(Known(lambda shape: 1e6), prefill_budget=48)
    assert pace.alone(prompt) == 48
    assert pace.beside(beside_row, 1.0, 1000, False).tokens == 48
    assert pace.beside(beside_row, 1.0, 30, True).tokens == 30
    assert make_pace(Known(lambda shape: 1.0), n_batch=32, prefill_budget=48).alone(prompt) == 32


@settings(max_examples=80, deadline=None)
@given(
    n_batch=st.integers(1, 4096),
    n_ubatch=st.integers(1, 4096),
    steps=st.lists(
        st.tuples(st.integers(0, 8), st.integers(0, 4096), st.floats(0.0, 1e9)), max_size=20
    ),
    wanted=st.integers(1, 5000),
    short=st.booleans(),
)
def test_any_history_gives_a_step_within_bounds(
    n_batch: int,
    n_ubatch: int,
    steps: list[tuple[int, int, float]],
    wanted: int,
    short: bool,
) -> None:
    model = LearnedCost(min(n_ubatch, n_batch))
    pace = make_pace(model, n_batch, n_ubatch)
    for rows, n, elapsed in steps:
        model.observe(StepShape(rows, n, n + rows, float(n * n)), elapsed)
        tokens = pace.alone(prompt)
        assert 1 <= tokens <= n_batch
        u = min(n_ubatch, n_batch)
        assert tokens <= u or tokens % u == 0
        assert 0 <= pace.beside(beside_row, 150.0, wanted, short).tokens <= wanted


# ---- turns by flags ------------------------------------------------------------------------------


def reads_while_somebody_writes(**config: int) -> list[bool]:
    """Which steps read, with a row and a long prompt; True: reads, and leaves the row out."""
    engine = FakeEngine(
        make_scheduler(
            2, 64, 64, cost=AnalyticCost(1.0, 0.1, n_ubatch=64), prefill_budget=0, **config
        )
    )
    engine.submit(4, 1000)
    engine.step()
    engine.submit(64 * 20, 1)
    turns = []
    for _ in range(12):
        plan = engine.step()
        assert plan is not None
        shape = engine.steps[-1][0]
        assert not (shape.rows and shape.prompt_tokens), "never both"
        turns.append(shape.rows == 0)
    return turns


def test_flags_give_so_many_chunks_and_then_so_many_steps_of_the_rows() -> None:
    turns = reads_while_somebody_writes(yield_chunks=2, yield_steps=3)
    assert turns == [True, True, False, False, False] * 2 + [True, True]
    assert reads_while_somebody_writes(yield_chunks=1, yield_steps=1) == [True, False] * 6
    assert reads_while_somebody_writes(yield_chunks=3) == [True, True, True, False] * 3
    assert reads_while_somebody_writes(yield_steps=2) == [True, False, False] * 4


def test_turns_begin_anew_when_nobody_waits() -> None:
    turns = YieldTurns(chunks=2, steps=2)
    turns.settle(read=True)
    turns.reset()
    assert turns == YieldTurns(2, 2)
    assert not YieldTurns().forced
