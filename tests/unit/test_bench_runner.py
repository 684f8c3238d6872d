"""The benchmark takes both servers in turns, repeats disturbed pairs and judges targets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from bench import machine, report, runner
from bench.scenario import Metric, Scenario, ScenarioError
from bench.servers import Server

SPEED = Metric("speed", "tokens/s", "tok/s", "higher", target=0.97)
MEMORY = Metric("memory", "RSS", "MB", "lower", "difference", 250.0)
REFUSED = Metric("refused", "refused", "", "lower", "value", 0.0)


class FakeServer:
    """Keeps a log of what was done to it; 'runs' without a process."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name
        self._log = log

    def start(self, flags: tuple[str, ...] = ()) -> float:
        self._log.append(f"start {self.name} {' '.join(flags)}".strip())
        return 0.0

    def stop(self) -> None:
        self._log.append(f"stop {self.name}")

    def cpu_s(self) -> float:
        return 0.0


class Bench:
    """A runner over two fake servers and the log of their runs."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.figures: dict[str, dict[str, float]] = {
            "A": {"speed": 99.0, "memory": 500.0, "refused": 0.0},
            "B": {"speed": 100.0, "memory": 400.0, "refused": 0.0},
        }
        ours, theirs = FakeServer("A", self.log), FakeServer("B", self.log)
        self.runner = runner.Runner(cast(Server, ours), cast(Server, theirs), lambda line: None)

    def measure(self, server: Server, seed: int) -> dict[str, float]:
        self.log.append(f"run {server.name} {seed}")
        return self.figures[server.name]

    def scenario(self, **changes: Any) -> Scenario:
        options: dict[str, Any] = {
            "name": "s", "title": "S", "run": self.measure, "metrics": (SPEED, MEMORY, REFUSED),
            "pairs": 3, "quick_pairs": 1,
        }  # fmt: skip
        return Scenario(**(options | changes))

    def runs(self) -> list[str]:
        return [line for line in self.log if line.startswith("run")]


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """CPU shares that other processes take in the coming runs; none where the list is empty."""
    shares: list[float] = []
    monkeypatch.setattr(
        machine.CpuWatch, "end", lambda self: (0.0, shares.pop(0) if shares else 0.0)
    )
    return shares


def test_each_pair_starts_both_servers_and_takes_them_in_turns_after_an_unmeasured_run(
    others: list[float],
) -> None:
    bench = Bench()
    result = bench.runner.run(bench.scenario(flags=("-np", "2")), 2)
    pairs = "\n".join(bench.log).split("stop A\nstop B")
    assert [pair.split("\n")[1:-1] for pair in pairs[1:-1]] == [
        ["start A -np 2", "start B -np 2", "run A -1", "run B -1",
         "run A 0", "run B 0", "run B 1", "run A 1"],
        ["start B -np 2", "start A -np 2", "run B -1", "run A -1",
         "run B 2", "run A 2", "run A 3", "run B 3"],
    ]  # fmt: skip
    assert bench.log[-2:] == ["stop A", "stop B"]
    assert [metric["compared"] for metric in result["metrics"]] == [0.99, 100.0, 0.0]
    assert [metric["met"] for metric in result["metrics"]] == [True, True, True]


def test_a_long_scenario_is_warmed_up_by_its_small_form(others: list[float]) -> None:
    bench = Bench()

    def warm_up(server: Server, seed: int) -> dict[str, float]:
        bench.log.append(f"run {server.name} small")
        return {}

    bench.runner.run(bench.scenario(warm_up=warm_up, rounds=1), 1)
    assert bench.runs() == ["run A small", "run B small", "run A 0", "run B 0"]


def test_a_pair_counts_with_the_mean_of_its_runs(others: list[float]) -> None:
    pair = runner.Pair(True, [{"speed": 80.0}, {"speed": 120.0}], [{"speed": 50.0}] * 2)
    assert runner.summarize_metric(SPEED, [pair])["compared"] == 2.0


def test_fresh_scenarios_never_have_two_servers_alive(others: list[float]) -> None:
    bench = Bench()
    bench.runner.run(bench.scenario(fresh=True), 2)
    for number, line in enumerate(bench.log):
        if line.startswith("run"):
            assert bench.log[number + 1] == f"stop {line.split()[1]}"
    assert not any(line.startswith("start") for line in bench.log)  # the scenario starts them


def test_pairs_disturbed_by_other_processes_are_taken_again_and_left_out(
    others: list[float],
) -> None:
    bench = Bench()
    others += [0.9, 0.9, 0.0, 0.0, 0.5]  # two unmeasured runs, then the first pair's third run
    result = bench.runner.run(bench.scenario(), 3)
    assert [pair["disturbed"] for pair in result["pairs"]] == [True, False, False, False]
    assert result["pairs_used"] == 3


def test_on_a_machine_that_stays_busy_the_run_ends_and_uses_all_pairs(others: list[float]) -> None:
    bench = Bench()
    others += [0.9] * 100
    result = bench.runner.run(bench.scenario(), 3)
    assert (len(result["pairs"]), result["pairs_used"]) == (6, 6)


def test_a_failing_scenario_stops_both_servers_and_the_next_one_loads_them_again(
    others: list[float],
) -> None:
    bench = Bench()

    def fail(server: Server, seed: int) -> dict[str, float]:
        raise ScenarioError("status 500")

    result = bench.runner.run(bench.scenario(run=fail), 1)
    assert (result["error"], result["metrics"]) == ("status 500", [])
    assert bench.log[-2:] == ["stop A", "stop B"]
    assert bench.runner.run(bench.scenario(), 1)["error"] == ""
    assert bench.log.count("start A") == 2


def test_one_refusal_in_any_run_misses_the_target() -> None:
    pairs = [
        runner.Pair(True, [{"refused": value}], [{"refused": 0.0}])
        for value in (0.0, 0.0, 1.0, 0.0)
    ]
    metric = runner.summarize_metric(REFUSED, pairs)
    assert (metric["compared"], metric["met"]) == (1.0, False)


@pytest.fixture
def result(others: list[float]) -> Iterator[dict[str, Any]]:
    bench = Bench()
    bench.figures["A"]["memory"] = 700.0
    yield {
        "started": "2026-01-02T03:04:05+00:00",
        "machine": {"cpu": "Some CPU", "cores": 2, "memory_bytes": 24 << 30, "system": "OS 1",
                    "python": "3.11"},
        "model": "m.gguf",
        "ours": {"name": "strata-server", "version": "1.0"},
        "theirs": {"name": "llama-server", "version": "b1"},
        "others": 0.2,
        "scenarios": [bench.runner.run(bench.scenario(), 2)],
    }  # fmt: skip


def test_the_table_says_what_was_met_and_missed(result: dict[str, Any]) -> None:
    assert report.rows(result) == [
        ("S", "tokens/s", "99 tok/s", "100 tok/s", "× 0.990", "0.990 to 0.990", "≥ × 0.97: met"),
        ("", "RSS", "700 MB", "400 MB", "+300 MB", "+300 MB to +300 MB", "≤ 250 MB: MISSED"),
        ("", "refused", "0", "0", "0", "", "≤ 0: met"),
    ]
    text = report.terminal(result)
    assert "Some CPU, 2 cores, 24 GiB, OS 1" in text
    assert "not idle" in text
    assert "medians of 2 pairs" in text


def test_a_failed_scenario_has_its_row(result: dict[str, Any]) -> None:
    result["scenarios"][0] |= {"error": "status 500\nmore", "metrics": [], "pairs": []}
    assert report.rows(result)[0][:2] == ("S", "failed: status 500")
    assert report.markdown(result).startswith("| scenario |")


def test_results_are_written_and_rendered_again(
    result: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = report.write(result, tmp_path)
    assert path.name == "2026-01-02T030405Z.json"
    assert report.main([str(tmp_path / "latest.json")]) == 0
    assert capsys.readouterr().out == (tmp_path / "latest.md").read_text()
    assert report.main([str(tmp_path / "none.json")]) == 1
