"""The benchmark's arithmetic: paired ratios, medians and their intervals."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import stats

_VALUES = st.lists(st.floats(0.001, 1e6), min_size=1, max_size=40)


def test_quantiles_interpolate_between_neighbours() -> None:
    assert stats.quantile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
    assert stats.quantile([4.0, 1.0, 3.0, 2.0], 0.25) == 1.75
    assert stats.quantile([10.0, 20.0], 0.95) == pytest.approx(19.5)
    assert stats.quantile([7.0], 0.99) == 7.0


@given(_VALUES, st.floats(0.0, 1.0))
def test_quantile_lies_within_the_values_and_ignores_their_order(
    values: list[float], q: float
) -> None:
    result = stats.quantile(values, q)
    assert min(values) * (1 - 1e-12) <= result <= max(values) * (1 + 1e-12)
    assert stats.quantile(sorted(values, reverse=True), q) == result


@pytest.mark.parametrize(("values", "q"), [([], 0.5), ([1.0], -0.1), ([1.0], 1.1)])
def test_quantile_refuses_what_has_no_answer(values: list[float], q: float) -> None:
    with pytest.raises(ValueError):
        stats.quantile(values, q)


def test_ratio_of_medians_is_not_taken_but_the_median_of_paired_ratios() -> None:
    # the machine slows down threefold over time; each pair sees the same slow-down
    theirs = [90.0, 60.0, 30.0]
    ours = [99.0, 66.0, 33.0]
    assert stats.paired_ratios(ours, theirs) == pytest.approx([1.1, 1.1, 1.1])
    summary = stats.summarize(ours, theirs, difference=False)
    assert summary.center == pytest.approx(1.1)
    assert (summary.quartile_low, summary.quartile_high) == pytest.approx((1.1, 1.1))
    assert (summary.ours, summary.theirs, summary.pairs) == (66.0, 60.0, 3)


def test_one_disturbed_pair_does_not_move_the_summary() -> None:
    summary = stats.summarize(
        [10.0, 1.0, 10.0, 10.0, 10.0], [10.0, 10.0, 10.0, 10.0, 10.0], difference=False
    )
    assert summary.center == 1.0
    assert summary.interval_low == 0.1


def test_differences_keep_their_sign() -> None:
    summary = stats.summarize([1.0, 2.0, 3.0], [2.0, 4.0, 9.0], difference=True)
    assert summary.center == -2.0
    assert (summary.interval_low, summary.interval_high) == (-6.0, -1.0)


@pytest.mark.parametrize(
    ("ours", "theirs"), [([1.0], [1.0, 2.0]), ([], []), ([1.0], [0.0]), ([1.0], [-1.0])]
)
def test_ratios_refuse_what_is_not_paired_or_not_positive(
    ours: list[float], theirs: list[float]
) -> None:
    with pytest.raises(ValueError):
        stats.paired_ratios(ours, theirs)


@pytest.mark.parametrize(
    ("count", "dropped"), [(1, 0), (5, 0), (6, 0), (8, 0), (9, 1), (11, 1), (12, 2), (15, 3)]
)
def test_interval_drops_as_many_extremes_as_95_percent_allow(count: int, dropped: int) -> None:
    values = [float(i) for i in range(count)]
    random.Random(1).shuffle(values)
    assert stats.median_interval(values) == (float(dropped), float(count - 1 - dropped))


@pytest.mark.parametrize("count", range(6, 60))
def test_interval_covers_the_median_at_its_level_and_is_no_wider_than_needed(count: int) -> None:
    low, high = stats.median_interval([float(i) for i in range(count)])
    dropped = int(low)
    assert high == count - 1 - dropped

    def miss(drop: int) -> float:
        """P(median outside) when `drop` values are dropped at each end."""
        return 2.0 * sum(math.comb(count, k) for k in range(drop + 1)) / 2.0**count

    assert miss(dropped) <= 0.05 < miss(dropped + 1)
