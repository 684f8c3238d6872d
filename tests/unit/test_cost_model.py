"""What the cost model learns, what it does not fall for, and what it never says."""

from __future__ import annotations

import copy
import json
import math
import random
import time
from bisect import bisect_right
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_plugin.scheduling.cost import AnalyticCost, Fixed, LearnedCost, StepShape

# Milliseconds of a step of one row and n prompt tokens, measured on 2 CPU cores (issue 3)
SIZES = (0, 4, 16, 32, 64, 128, 256)
DEPTHS = (512, 4096)
FLASH = ((13, 51, 159, 292, 563, 828, 2419), (17, 202, 580, 1226, 1553, 2622, 4646))
PLAIN = ((21, 46, 130, 271, 512, 899, 2263), (38, 94, 270, 449, 971, 1557, 3449))
TABLES = pytest.mark.parametrize("table", [FLASH, PLAIN], ids=["flash", "plain"])
Table = tuple[tuple[int, ...], tuple[int, ...]]


def at(n: int, depth: int) -> StepShape:
    """A row and n prompt tokens, all at this depth."""
    return StepShape(1, n, depth + n + 1, (n + 1) * (depth + n / 2))


def surface(table: Table) -> Callable[[int, int], float]:
    """Between the measured points the logarithms are interpolated."""
    xs = [math.log(1 + n) for n in SIZES]

    def along(column: tuple[int, ...], n: int) -> float:
        x = math.log(1 + n)
        i = min(bisect_right(xs, x), len(xs) - 1)
        w = (x - xs[i - 1]) / (xs[i] - xs[i - 1])
        return math.log(column[i - 1]) * (1 - w) + math.log(column[i]) * w

    def truth(n: int, depth: int) -> float:
        w = math.log(depth / DEPTHS[0]) / math.log(DEPTHS[1] / DEPTHS[0])
        return math.exp(along(table[0], n) * (1 - w) + along(table[1], n) * w)

    return truth


def used(table: Table, seed: int = 0) -> LearnedCost:
    """A model after some thousand steps of conversations, of which most decode."""
    return copy.deepcopy(_learnt(table, seed))


@lru_cache
def _learnt(table: Table, seed: int) -> LearnedCost:
    rng = random.Random(seed)
    truth = surface(table)
    model = LearnedCost(512)
    depth = 300
    for _ in range(6000):
        n = rng.choice((*SIZES[1:], 8, 24, 48, 96, 192)) if rng.random() < 0.12 else 0
        elapsed = truth(n, depth) * rng.lognormvariate(0.0, 0.1)
        if rng.random() < 0.01:
            elapsed *= rng.choice((5.0, 20.0))  # somebody else needed the machine
        model.observe(at(n, depth), elapsed)
        depth += 1 + n
        if depth > 5000:
            depth = 300
    return model


@TABLES
@pytest.mark.parametrize("seed", range(3))
def test_measured_surfaces_are_learnt_from_steps_most_of_which_decode(
    table: Table, seed: int
) -> None:
    model = used(table, seed=seed)
    truth = surface(table)
    for depth in DEPTHS:
        for n in SIZES:
            # at the border of two octaves of depth, in which the steepest surface grows by 60 %
            assert abs(math.log(model.predict(at(n, depth)) / truth(n, depth))) < math.log(1.3)
    inside = [model.predict(at(n, 1500)) / truth(n, 1500) for n in SIZES]
    assert inside == pytest.approx([1.0] * len(SIZES), rel=0.15)


@TABLES
def test_what_is_seldom_seen_is_not_forgotten(table: Table) -> None:
    model = used(table)
    truth = surface(table)
    for i in range(5000):
        depth = 300 + i % 4500
        model.observe(at(0, depth), truth(0, depth))
    for depth in DEPTHS:
        for n in SIZES[1:]:
            assert abs(math.log(model.predict(at(n, depth)) / truth(n, depth))) < math.log(1.3)


def test_what_was_never_seen_is_judged_by_what_a_token_and_a_pass_cost() -> None:
    model = LearnedCost(512)
    for n in (1, 8, 32, 100):
        for _ in range(10):
            model.observe(StepShape(0, n, n, n * n / 2), 20.0 + 2.0 * n)
    assert model.predict(StepShape(0, 300, 300, 45_000)) == pytest.approx(620.0, rel=0.25)
    assert model.predict(StepShape(0, 1024, 1024, 524_288)) == pytest.approx(2088.0, rel=0.25)


def test_it_knows_how_sure_it_is() -> None:
    rng = random.Random(0)
    calm, wild = LearnedCost(512), LearnedCost(512)
    for _ in range(300):
        calm.observe(at(16, 1000), 100.0 * rng.lognormvariate(0.0, 0.02))
        wild.observe(at(16, 1000), 100.0 * rng.lognormvariate(0.0, 0.3))
    assert calm.spread(at(16, 1000)) < 0.05
    assert 0.15 < wild.spread(at(16, 1000)) < 0.5
    assert calm.spread(at(256, 1000)) > 0.3, "nothing like it was measured"
    assert calm.knows(17)
    assert calm.knows(25)
    assert not calm.knows(26)
    assert not LearnedCost(512).knows(1)


# ---- outliers and changes ------------------------------------------------------------------------


@TABLES
@pytest.mark.parametrize("factor", [50.0, 0.02])
def test_one_step_that_was_far_off_hardly_moves_it(table: Table, factor: float) -> None:
    for shape in (at(0, 1000), at(16, 1000), at(256, 3000)):
        model = used(table)
        others = [at(n, depth) for n in SIZES for depth in DEPTHS]
        before, all_before = model.predict(shape), [model.predict(x) for x in others]
        model.observe(shape, before * factor)
        assert model.predict(shape) == pytest.approx(before, rel=0.15)
        assert [model.predict(x) for x in others] == pytest.approx(all_before, rel=0.15)


@TABLES
@pytest.mark.parametrize("factor", [0.1, 0.5, 2.0, 10.0])
def test_a_lasting_change_is_believed_within_ten_steps(table: Table, factor: float) -> None:
    # in the middles of what is measured together: elsewhere unchanged neighbours have a say
    for shape in (at(0, 724), at(15, 724), at(255, 2896)):
        model = used(table)
        now = model.predict(shape) * factor
        for _ in range(10):
            model.observe(shape, now)
        # unchanged neighbours still have a say
        assert model.predict(shape) == pytest.approx(now, rel=0.4)


# ---- any history ---------------------------------------------------------------------------------

shapes = st.builds(
    StepShape,
    st.integers(0, 64),
    st.integers(0, 4096),
    st.integers(0, 10**7),
    st.floats(0.0, 1e12),
)
times = st.one_of(
    st.floats(1e-3, 1e5),
    st.floats(),
    st.sampled_from([0.0, -1.0, 1e-320, 1e308, math.inf, -math.inf, math.nan]),
)


def is_sensible(model: LearnedCost, shape: StepShape) -> bool:
    took, spread = model.predict(shape), model.spread(shape)
    return took > 0.0 and math.isfinite(took) and spread >= 0.0 and math.isfinite(spread)


@settings(max_examples=60, deadline=None)
@given(
    n_ubatch=st.sampled_from([1, 16, 512]),
    steps=st.lists(st.tuples(shapes, times), max_size=40),
    asked=st.lists(shapes.filter(lambda s: s.tokens > 0), min_size=1, max_size=8),
)
def test_no_history_makes_it_predict_nonsense(
    n_ubatch: int, steps: list[tuple[StepShape, float]], asked: list[StepShape]
) -> None:
    model = LearnedCost(n_ubatch)
    for shape, elapsed in steps:
        model.observe(shape, elapsed)
        if model.n_shapes:
            assert all(is_sensible(model, x) for x in asked)
    if model.n_shapes:
        other = LearnedCost(n_ubatch)
        other.load(json.loads(json.dumps(model.saved())))
        assert all(is_sensible(other, x) for x in asked)


@pytest.mark.parametrize("elapsed", [0.0, -5.0, 1e300, math.inf, -math.inf, math.nan])
def test_steps_without_a_sensible_time_say_nothing(elapsed: float) -> None:
    model = LearnedCost(512)
    model.observe(at(4, 100), elapsed)
    assert model.n_shapes == 0
    assert model.predict(at(4, 100)) == 0.0
    assert not model.knows(1)


# ---- kept between runs ---------------------------------------------------------------------------


@TABLES
def test_what_was_saved_predicts_the_same_after_loading(table: Table) -> None:
    model, other = used(table), LearnedCost(512)
    saved = json.loads(json.dumps(model.saved()))
    other.load(saved)
    for depth in DEPTHS:
        for n in SIZES:
            # only the fit is made anew, from the same figures
            assert other.predict(at(n, depth)) == pytest.approx(
                model.predict(at(n, depth)), rel=0.1
            )
    assert other.n_shapes == model.n_shapes
    assert other.knows(257)
    again = other.saved()
    assert [b[:6] for b in again["buckets"]] == [b[:6] for b in saved["buckets"]]


def test_what_was_loaded_counts_little_against_new_steps() -> None:
    model, other = used(FLASH), LearnedCost(512)
    other.load(model.saved())
    shape = at(0, 1000)
    now = other.predict(shape) * 1.8
    for _ in range(10):
        other.observe(shape, now)
    assert other.predict(shape) == pytest.approx(now, rel=0.35)


def set_at(path: tuple[Any, ...], value: Any) -> Callable[[Any], Any]:
    def damage(data: Any) -> Any:
        inner = data
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
        return data

    return damage


def without(key: str) -> Callable[[Any], Any]:
    return lambda data: {k: v for k, v in data.items() if k != key}


FIGURES = [("most_tokens",), *(("buckets", 1, k) for k in (1, 2, 4, 5, 6)), ("buckets", 1, 3, 2)]
NO_FIGURES: list[Any] = [
    math.nan, math.inf, -math.inf, -1000, 1e300, 10**400, "7", "", None, [], [1.0], {}, True,
]  # fmt: skip
DAMAGES: list[Callable[[Any], Any]] = [
    *(set_at(path, value) for path in FIGURES for value in NO_FIGURES),
    *(without(key) for key in ("format", "n_ubatch", "most_tokens", "buckets")),
    *(set_at(("format",), value) for value in (0, 2, "1", None, [], math.nan)),
    *(set_at(("n_ubatch",), value) for value in (0, 256, "512", None, {}, math.nan)),
    *(set_at(("buckets",), v) for v in ([], {}, None, 5, "abcdefg", ["abcdefg"], [[]], [None])),
    *(set_at(("buckets", 0), v) for v in ({}, "", [True, 1, 1], {str(k): 0 for k in range(7)})),
    *(set_at(("buckets", 0, 0), value) for value in (0, 1, "true", None, [])),
    *(set_at(("buckets", 0, 3), v) for v in ([], [1.0], "123456", {}, None, [1.0] * 5, [1.0] * 7)),
    *((lambda data, whole=whole: whole) for whole in (None, 3, "x", [], [1, 2], {}, math.nan)),
]


@pytest.mark.parametrize("damage", DAMAGES, ids=str)
def test_a_damaged_form_is_refused_and_changes_nothing(damage: Callable[[Any], Any]) -> None:
    model = LearnedCost(512)
    for n in (1, 8, 32, 100):
        model.observe(at(n, 100), 10.0 + n)
    data = damage(json.loads(json.dumps(model.saved())))
    before = copy.deepcopy(vars(model))
    with pytest.raises(ValueError, match="cost model"):
        model.load(data)
    assert vars(model) == before


# ---- its own time --------------------------------------------------------------------------------


def quickest(call: Callable[[], object], repeat: int = 5) -> float:
    """Seconds of the quickest of several tries: others use the machine as well."""
    tries = []
    for _ in range(repeat):
        start = time.perf_counter()
        call()
        tries.append(time.perf_counter() - start)
    return min(tries)


def test_learning_and_asking_take_next_to_no_time() -> None:
    model = used(FLASH)
    asked = [at(n, depth) for n in range(0, 400, 8) for depth in range(300, 5000, 500)]

    def learn() -> None:
        for shape in asked:
            model.observe(shape, 100.0)

    def ask() -> None:
        for shape in asked:
            model.predict(shape)

    # measured 0.09 and 0.004 ms; ten times the goal, for slow and busy machines
    assert quickest(learn) / len(asked) < 1.5e-3
    assert quickest(ask) / len(asked) < 1e-4


# ---- models that do not learn --------------------------------------------------------------------


def test_a_described_machine_takes_what_it_was_said_to_take() -> None:
    machine = AnalyticCost(pass_ms=10.0, token_ms=0.5, attention_ms=0.1, n_ubatch=512)
    assert machine.predict(StepShape(4, 0, 100, 400)) == 10.0
    assert machine.predict(StepShape(1, 100, 100, 5000)) == 2.5 + 50.0 + 0.5
    assert machine.predict(StepShape(0, 1024, 0, 0)) == 2.5 + 512.0
    assert machine.knows(10**6)
    assert machine.spread(at(1, 1)) == 0.0


def test_a_fixed_model_says_the_same_and_learns_nothing() -> None:
    model = used(FLASH)
    fixed = Fixed(model)
    shape = at(16, 1000)
    before = (model.predict(shape), model.spread(shape), model.knows(300))
    fixed.observe(shape, 1e6)
    fixed.observe(shape, 1e6)
    assert (fixed.predict(shape), fixed.spread(shape), fixed.knows(300)) == before
    assert (model.predict(shape), model.spread(shape), model.knows(300)) == before
