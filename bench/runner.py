"""Runs scenarios on two servers in turns (A B B A ...) and sums the pairs up.

Both servers stay loaded while they take turns, so that the two runs of a pair are seconds apart;
that is fair only while an idle server takes no CPU, which the scenario `idle` measures. Scenarios
marked `fresh` (start-up, memory) have one server alive at a time, since two that map the same model
file would share its pages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.machine import CpuWatch
from bench.scenarios import Metric, Scenario, ScenarioError
from bench.servers import Server, ServerError
from bench.stats import summarize

DISTURBED = 0.10  # share of all cores used by others from which a pair is taken again


@dataclass
class Pair:
    """One run of each server, side by side; `others` is the worse of both runs."""

    ours_first: bool
    ours: dict[str, float] = field(default_factory=dict)
    theirs: dict[str, float] = field(default_factory=dict)
    others: float = 0.0

    @property
    def disturbed(self) -> bool:
        """Whether other processes took too much CPU, judged without a look at the figures."""
        return self.others > DISTURBED


class Runner:
    """Owns the two servers for the length of the benchmark; use it as a context manager."""

    def __init__(self, ours: Server, theirs: Server, say: Callable[[str], None]) -> None:
        self._ours = ours
        self._theirs = theirs
        self._say = say
        self._flags: tuple[str, ...] | None = None  # of the loaded pair

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self._unload()

    def run(self, scenario: Scenario, pairs: int) -> dict[str, Any]:
        """All pairs of one scenario and their summary, ready for JSON."""
        result: dict[str, Any] = {
            "name": scenario.name,
            "title": scenario.title,
            "flags": list(scenario.flags),
            "error": "",
            "pairs": [],
            "metrics": [],
        }
        try:
            self._prepare(scenario)
            taken = self._pairs(scenario, pairs)
        except (ScenarioError, ServerError) as exc:
            self._unload()
            self._say(f"  failed: {exc}")
            result["error"] = str(exc)
            return result
        result["pairs"] = [asdict(pair) | {"disturbed": pair.disturbed} for pair in taken]
        calm = [pair for pair in taken if not pair.disturbed]
        used = calm if len(calm) >= min(pairs, 3) else taken
        result["pairs_used"] = len(used)
        result["metrics"] = [summarize_metric(metric, used) for metric in scenario.metrics]
        return result

    def _prepare(self, scenario: Scenario) -> None:
        """Load what the scenario needs and run it once per server unmeasured."""
        if scenario.fresh:
            self._unload()
        elif self._flags != scenario.flags:
            self._unload()
            self._ours.start(scenario.flags)
            self._theirs.start(scenario.flags)
            self._flags = scenario.flags
        for server in (self._ours, self._theirs):
            try:
                scenario.run(server, -1)
            finally:
                if scenario.fresh:
                    server.stop()

    def _pairs(self, scenario: Scenario, wanted: int) -> list[Pair]:
        taken: list[Pair] = []
        while len(taken) < 2 * wanted and sum(not pair.disturbed for pair in taken) < wanted:
            pair = Pair(ours_first=len(taken) % 2 == 0)
            order = (self._ours, self._theirs) if pair.ours_first else (self._theirs, self._ours)
            for server in order:
                figures, others = self._once(scenario, server, seed=len(taken))
                pair.others = max(pair.others, others)
                (pair.ours if server is self._ours else pair.theirs).update(figures)
            taken.append(pair)
            self._say(f"  {_brief(scenario.metrics[0], pair)}")
        return taken

    def _once(
        self, scenario: Scenario, server: Server, seed: int
    ) -> tuple[dict[str, float], float]:
        watch = CpuWatch((self._ours, self._theirs))
        before = server.cpu_s()
        watch.begin()
        try:
            figures = dict(scenario.run(server, seed))
            figures["server_cpu_s"] = server.cpu_s() - before
            figures["client_cpu_s"], others = watch.end()
        finally:
            if scenario.fresh:
                server.stop()
        return figures, others

    def _unload(self) -> None:
        self._flags = None
        self._ours.stop()
        self._theirs.stop()


def summarize_metric(metric: Metric, pairs: Sequence[Pair]) -> dict[str, Any]:
    """The metric's description and its figures over `pairs`; `compared` is what has a target."""
    ours = [pair.ours[metric.key] for pair in pairs]
    theirs = [pair.theirs[metric.key] for pair in pairs]
    summary = summarize(ours, theirs, difference=metric.compare != "ratio")
    # a bound on our own figure holds for every run, not for the middle one
    worst = min(ours) if metric.better == "higher" else max(ours)
    compared = worst if metric.compare == "value" else summary.center
    return asdict(metric) | asdict(summary) | {"compared": compared, "met": metric.met(compared)}


def _brief(metric: Metric, pair: Pair) -> str:
    a, b = pair.ours[metric.key], pair.theirs[metric.key]
    relation = f"ratio {a / b:.3f}" if metric.compare == "ratio" else f"difference {a - b:+.3g}"
    note = f"  (others used {pair.others:.0%} of the CPU: again)" if pair.disturbed else ""
    return f"{metric.label}: {a:.4g} | {b:.4g} {metric.unit}  {relation}{note}"
