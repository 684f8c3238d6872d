"""The simulator: traces on described machines, and that it plans as the engine does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strata_plugin.scheduling.plan import StepPlan
from strata_plugin.scheduling.simulate_cli import main
from strata_plugin.scheduling.simulation import Simulation
from strata_plugin.scheduling.trace import TraceRequest

from .factories import make_scheduler
from .fake_engine import FakeEngine

SEED = Path(__file__).parents[2] / "bench/traces/eight-agents.jsonl"
ON_A_4090D = ("--rows", "8", "--itl-slo-ms", "100", "--gpu", "4090D: 3350 tok/s, 9.4 ms")


def report(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    assert main([str(SEED), *ON_A_4090D, "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_eight_agents_with_150k_tokens_do_not_keep_a_short_question_waiting(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The figures that the README gives."""
    was, now = report(capsys, "--scheduler", "upstream"), report(capsys)
    assert was["short"]["ttft_s"][0] == pytest.approx(210, abs=1)
    assert now["short"]["ttft_s"][0] == pytest.approx(0.3, abs=0.01)
    longest = [max(r[n]["longest_gap_ms"] for n in ("short", "extreme")) for r in (was, now)]
    assert longest == pytest.approx([613, 79], abs=1)
    agents = [r["extreme"]["ttft_s"][0] for r in (was, now)]
    assert agents == pytest.approx([225, 236], abs=1)


def test_the_simulator_plans_as_the_engine_does_when_fed_its_step_times() -> None:
    trace = [
        TraceRequest(arrival_s=0.0, n_prompt=n, n_output=out, hash_ids=(i,))
        for i, (n, out) in enumerate([(150, 9), (12, 20), (70, 3), (33, 12), (5, 60), (90, 6)])
    ]
    engine = FakeEngine(n_ctx=4000, n_rows=3, n_batch=64, n_spare=2)
    plans, times = [], []
    book = engine.core._book

    def watched(plan: StepPlan, elapsed_ms: float) -> None:
        plans.append(plan)
        times.append(elapsed_ms)
        book(plan, elapsed_ms)

    engine.core._book = watched  # type: ignore[method-assign]
    for i, request in enumerate(trace):
        engine.submit(i, [i + 1, *range(2, request.n_prompt + 1)], n=request.n_output)
    engine.run()

    left = iter(times)
    simulation = Simulation(
        make_scheduler(3, 64, 16, n_spare=2, prefill_budget=0),
        trace,
        engine.scheduler.cost,
        step_ms=lambda _: next(left),
    )
    simulation.run()
    assert len(plans) > 50
    # not the credit: the simulator knows of no cells that ended requests leave filled
    assert [plan.pieces for plan in simulation.plans] == [plan.pieces for plan in plans]


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ("", "no requests"),
        ("nonsense\n", "line 1"),
        ('{"timestamp": 0, "input_length": -1, "output_length": 1, "hash_ids": []}\n', "line 1"),
    ],
)
def test_a_trace_that_is_damaged_gets_a_clear_message(
    lines: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(lines)
    assert main([str(path)]) == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    "gpu", ["fast", "4090D: 0 tok/s, 9.4 ms", "x: 1 tok/s", "a: 1e tok/s, 1 ms"]
)
def test_a_machine_that_can_not_be_understood_is_refused(
    gpu: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([str(SEED), "--gpu", gpu])
    assert "expected a machine as in" in capsys.readouterr().err
