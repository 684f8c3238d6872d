"""Runs scenarios on two servers in turns and sums the pairs up.

A pair starts both servers anew, in an order that changes from pair to pair, and then runs A B B A:
where a process happens to lie in memory makes it several percent faster or slower for its whole
life, so more runs of the same two processes would only measure that luck more exactly. Both stay
loaded through the four runs, which are then seconds apart; that is fair only while an idle server
takes no CPU, which the scenario `idle` measures. In scenarios marked `fresh` (start-up, memory)
each run starts its own server and no other is alive, since two that map the same model file would
share its pages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from bench.machine import CpuWatch
from bench.scenario import Measurement, Metric, Scenario, ScenarioError
from bench.servers import Server, ServerError
from bench.stats import summarize

DISTURBED = 0.10  # share of all cores used by others from which a pair is taken again


@dataclass
class Pair:
    """Runs of both servers side by side; `others` is the worst share of CPU that others took."""

    ours_first: bool
    ours_runs: list[dict[str, float]] = field(default_factory=list)
    theirs_runs: list[dict[str, float]] = field(default_factory=list)
    others: float = 0.0

    @property
    def disturbed(self) -> bool:
        """Whether other processes took too much CPU, judged without a look at the figures."""
        return self.others > DISTURBED

    def ours(self, key: str) -> float:
        """Our figure: the mean over this pair's runs."""
        return fmean(run[key] for run in self.ours_runs)

    def theirs(self, key: str) -> float:
        """Their figure: the mean over this pair's runs."""
        return fmean(run[key] for run in self.theirs_runs)


class Runner:
    """Owns the two servers for the length of the benchmark; use it as a context manager."""

    def __init__(self, ours: Server, theirs: Server, say: Callable[[str], None]) -> None:
        self._ours = ours
        self._theirs = theirs
        self._say = say

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
            taken = self._pairs(scenario, pairs)
        except (ScenarioError, ServerError) as exc:
            self._say(f"  failed: {exc}")
            result["error"] = str(exc)
            return result
        finally:
            self._unload()
        result["pairs"] = [asdict(pair) | {"disturbed": pair.disturbed} for pair in taken]
        calm = [pair for pair in taken if not pair.disturbed]
        used = calm if len(calm) >= min(pairs, 3) else taken
        result["pairs_used"] = len(used)
        result["metrics"] = [summarize_metric(metric, used) for metric in scenario.metrics]
        return result

    def _pairs(self, scenario: Scenario, wanted: int) -> list[Pair]:
        taken: list[Pair] = []
        while len(taken) < 2 * wanted and sum(not pair.disturbed for pair in taken) < wanted:
            pair = self._pair(scenario, number=len(taken))
            taken.append(pair)
            self._say(f"  {_brief(scenario.metrics[0], pair)}")
        return taken

    def _pair(self, scenario: Scenario, number: int) -> Pair:
        pair = Pair(ours_first=number % 2 == 0)
        first, second = self._order(pair.ours_first)
        if not scenario.fresh:
            self._unload()
            for server in (first, second):
                server.start(scenario.flags)
        if not scenario.fresh or number == 0:
            for server in (first, second):
                self._once(scenario, server, -1, scenario.warm_up)  # a first run is slower
        for turn in range(scenario.rounds):
            for server in (first, second) if turn % 2 == 0 else (second, first):
                figures, others = self._once(scenario, server, number * scenario.rounds + turn)
                pair.others = max(pair.others, others)
                runs = pair.ours_runs if server is self._ours else pair.theirs_runs
                runs.append(figures)
        return pair

    def _order(self, ours_first: bool) -> tuple[Server, Server]:
        return (self._ours, self._theirs) if ours_first else (self._theirs, self._ours)

    def _once(
        self,
        scenario: Scenario,
        server: Server,
        seed: int,
        run: Callable[[Server, int], Measurement] | None = None,
    ) -> tuple[dict[str, float], float]:
        watch = CpuWatch((self._ours, self._theirs))
        before = server.cpu_s()
        watch.begin()
        try:
            figures = dict((run or scenario.run)(server, seed))
            figures["server_cpu_s"] = server.cpu_s() - before
            figures["client_cpu_s"], others = watch.end()
        finally:
            if scenario.fresh:
                server.stop()
        return figures, others

    def _unload(self) -> None:
        self._ours.stop()
        self._theirs.stop()


def summarize_metric(metric: Metric, pairs: Sequence[Pair]) -> dict[str, Any]:
    """The metric's description and its figures over `pairs`; `compared` is what has a target."""
    ours = [pair.ours(metric.key) for pair in pairs]
    theirs = [pair.theirs(metric.key) for pair in pairs]
    summary = summarize(ours, theirs, difference=metric.compare != "ratio")
    # a bound on our own figure holds for every run, not for the middle one
    worst = min(ours) if metric.better == "higher" else max(ours)
    compared = worst if metric.compare == "value" else summary.center
    return asdict(metric) | asdict(summary) | {"compared": compared, "met": metric.met(compared)}


def _brief(metric: Metric, pair: Pair) -> str:
    a, b = pair.ours(metric.key), pair.theirs(metric.key)
    relation = f"ratio {a / b:.3f}" if metric.compare == "ratio" else f"difference {a - b:+.3g}"
    note = f"  (others used {pair.others:.0%} of the CPU: again)" if pair.disturbed else ""
    return f"{metric.label}: {a:.4g} | {b:.4g} {metric.unit}  {relation}{note}"
