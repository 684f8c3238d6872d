"""Paired statistics: what the runs of two servers, taken in turns, say about their ratio.

A run of one server is compared only with the run of the other that was taken right beside it, so
slow drift of the machine (clock, heat, neighbours) cancels out; medians keep a single disturbed
pair from deciding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Summary:
    """One metric over all pairs; `center` and its bounds are in the unit of the comparison."""

    pairs: int
    ours: float  # median, in the metric's unit
    theirs: float  # median, in the metric's unit
    center: float  # median of the paired ratios or differences
    quartile_low: float
    quartile_high: float
    interval_low: float  # 95 % interval of that median
    interval_high: float


def quantile(values: Sequence[float], q: float) -> float:
    """The `q`-quantile (0..1) of `values`, linear between neighbours; raises on no values."""
    if not values:
        raise ValueError("quantile of no values")
    if not 0.0 <= q <= 1.0:
        raise ValueError(f"q must be within 0..1, not {q}")
    ordered = sorted(values)
    position = q * (len(ordered) - 1)
    low = math.floor(position)
    high = math.ceil(position)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def median(values: Sequence[float]) -> float:
    """The middle of `values`."""
    return quantile(values, 0.5)


def paired_ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """ours/theirs for each pair; raises where lengths differ or theirs is not positive."""
    _check_pairs(ours, theirs)
    if any(value <= 0 for value in theirs):
        raise ValueError("a ratio needs positive values to divide by")
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def paired_differences(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """ours - theirs for each pair; raises where lengths differ."""
    _check_pairs(ours, theirs)
    return [a - b for a, b in zip(ours, theirs, strict=True)]


def median_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Bounds between which the true median lies with at least `level` confidence.

    Order statistics, so nothing is assumed about how the values are spread. Fewer than six values
    can't give 95 %; then the whole range is returned.
    """
    if not values:
        raise ValueError("interval of no values")
    ordered = sorted(values)
    n = len(ordered)
    tail = (1.0 - level) / 2.0
    below = 0.0  # P(at most `skip` of n values fall below the median)
    skip = 0
    for k in range(n // 2):
        below += math.comb(n, k) / 2.0**n
        if below > tail:
            break
        skip = k + 1
    drop = max(skip - 1, 0)
    return ordered[drop], ordered[n - 1 - drop]


def summarize(ours: Sequence[float], theirs: Sequence[float], *, difference: bool) -> Summary:
    """Medians of both sides and of their paired ratios (or differences)."""
    compare = paired_differences if difference else paired_ratios
    compared = compare(ours, theirs)
    low, high = median_interval(compared)
    return Summary(
        pairs=len(compared),
        ours=median(ours),
        theirs=median(theirs),
        center=median(compared),
        quartile_low=quantile(compared, 0.25),
        quartile_high=quantile(compared, 0.75),
        interval_low=low,
        interval_high=high,
    )


def _check_pairs(ours: Sequence[float], theirs: Sequence[float]) -> None:
    if len(ours) != len(theirs):
        raise ValueError(f"{len(ours)} runs of ours against {len(theirs)} of theirs")
    if not ours:
        raise ValueError("no pairs")
