"""What a scenario is: something to do with one server, and the figures it gives."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from bench.servers import Server


class ScenarioError(Exception):
    """A server gave a wrong or incomplete answer, so there is nothing to compare."""


@dataclass(frozen=True)
class Metric:
    """One figure of a scenario and how both sides are compared.

    `target` bounds the compared value: a ratio (ours/theirs), a difference (ours - theirs), or
    with `value` our own figure. From below where higher is better, else from above.
    """

    key: str
    label: str
    unit: str
    better: Literal["higher", "lower"]
    compare: Literal["ratio", "difference", "value"] = "ratio"
    target: float | None = None

    def met(self, value: float) -> bool | None:
        """Whether the compared `value` reaches the target; None where there is no target."""
        if self.target is None:
            return None
        return value >= self.target if self.better == "higher" else value <= self.target


def untargeted(metrics: tuple[Metric, ...]) -> tuple[Metric, ...]:
    """The same figures, of which nothing is asked."""
    return tuple(dataclasses.replace(metric, target=None) for metric in metrics)


Measurement = Mapping[str, float]


@dataclass(frozen=True)
class Scenario:
    """`rounds` runs of each server make one pair.

    `fresh`: `run` starts the server itself, and no other is alive; else both are loaded. `warm_up`
    is what the unmeasured run before the others does: a smaller form of `run`, where that is long.
    """

    name: str
    title: str
    run: Callable[[Server, int], Measurement]
    metrics: tuple[Metric, ...]
    pairs: int
    quick_pairs: int
    flags: tuple[str, ...] = ()
    rounds: int = 2
    fresh: bool = False
    warm_up: Callable[[Server, int], Measurement] | None = None  # None: `run` itself
