"""Scenarios in which requests meet: on a server with the fault the figure shows it, else not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from bench import scheduling, weaknesses
from bench.scenario import Measurement, ScenarioError
from bench.scenarios import SCENARIOS
from bench.scheduling import Run
from bench.servers import Server
from tests.unit.test_bench_server import FakeServer, running


def _play(run: Run, **behaviour: Any) -> tuple[Measurement, FakeServer]:
    with running(**behaviour) as server:
        return run(cast(Server, server), 0), server


def test_a_stall_shows_in_the_gaps_and_small_steps_take_it_away() -> None:
    run = scheduling.stall(2000)
    coarse, _ = _play(run, token_s=100e-6)  # one step of 200 ms
    fine, _ = _play(run, token_s=100e-6, batch=64)
    assert coarse["gap_max_ms"] >= 200.0
    assert coarse["stream_tokens"] <= 5
    assert fine["gap_max_ms"] < 100.0
    assert fine["stream_tokens"] >= 25
    assert fine["ttft_s"] >= 0.2
    assert fine["gap_alone_ms"] < fine["gap_p99_ms"] <= fine["gap_max_ms"]


def test_short_prompts_are_late_where_nobody_overtakes() -> None:
    run = scheduling.overtake(4000, after_s=0.1)
    behaviour = {"token_s": 150e-6, "batch": 256, "slots": 8}
    behind, _ = _play(run, **behaviour, order="arrival")
    ahead, server = _play(run, **behaviour, order="short")
    assert behind["short_p50_s"] > 0.4
    assert ahead["short_p50_s"] <= ahead["short_max_s"] < 0.25
    assert 0.8 < ahead["long_relative"] < 1.6
    assert ahead["long_relative"] == pytest.approx(ahead["long_ttft_s"] / ahead["alone_ttft_s"])
    assert [len(body["prompt"].split()) for body in server.seen] == [4000, 4000, *[40] * 4]


def test_a_read_too_short_to_be_overtaken_is_refused() -> None:
    with pytest.raises(ScenarioError, match="too few"):
        _play(scheduling.overtake(100, after_s=0.2))


def test_an_append_slows_the_streams_by_what_it_costs_and_is_read_from_its_history() -> None:
    run = scheduling.append(1500)
    cheap, _ = _play(run, slots=5)
    assert cheap["reused_tokens"] == 1500
    assert cheap["ttft_s"] < 0.2
    dear, _ = _play(run, slots=5, token_s=500e-6, batch=16)  # 10 ms for 16 tokens
    assert dear["growth_percent"] > 100.0
    assert dear["gap_during_ms"] > dear["gap_before_ms"]


def test_a_cut_prompt_goes_on_where_it_stopped() -> None:
    run = scheduling.cut(2000, pause_s=0.05)
    kept, server = _play(run, token_s=200e-6, batch=64)
    assert kept["reused_tokens"] >= 600
    assert kept["again_relative"] < 0.8
    prompts = [body["prompt"] for body in server.seen]
    assert prompts[1] == prompts[2] != prompts[0]


def test_the_other_streams_are_cut_and_the_server_is_idle_afterwards() -> None:
    with running() as server:
        scheduling.stall(500)(cast(Server, server), 0)
        assert not server._rows
        assert not server._queue


def test_a_stream_that_breaks_is_the_scenarios_error() -> None:
    with pytest.raises(ScenarioError, match="fake: status 500"):
        _play(scheduling.stall(500), pool=10)


def test_w2_a_short_prompt_waits_in_the_higher_slot_only_where_slots_decide() -> None:
    run = weaknesses.behind(3000, after_s=0.05)
    by_slot, server = _play(run, token_s=100e-6, batch=512)
    fair, _ = _play(run, token_s=100e-6, batch=512, order="short")
    assert by_slot["worse_s"] == by_slot["higher_s"] > 0.2
    assert by_slot["lower_s"] < 0.15
    assert fair["worse_s"] < 0.15
    assert [body["id_slot"] for body in server.seen] == [0, 3, 3, 0]


def test_w3_headers_come_with_the_slot_or_at_once() -> None:
    silent, _ = _play(weaknesses.silence(60))
    told, _ = _play(weaknesses.silence(60), early_headers=True)
    assert silent["headers_s"] > 0.08
    assert told["headers_s"] < 0.05
    assert told["ttft_s"] > 0.08


def test_w4_a_free_slot_stands_idle_behind_a_head_that_waits_for_another() -> None:
    stuck, _ = _play(weaknesses.idle_slot(60, 160), sticky_head=True)
    moving, _ = _play(weaknesses.idle_slot(60, 160))
    assert stuck["idle_s"] > 0.1
    assert moving["idle_s"] < 0.05


def test_w4_needs_the_slot_to_be_busy_when_the_others_come() -> None:
    with pytest.raises(ScenarioError, match="more tokens are needed"):
        _play(weaknesses.idle_slot(2, 160))


def test_w8_counts_who_was_answered() -> None:
    run = weaknesses.overflow(3, 700)
    assert _play(run)[0]["answered"] == 3
    assert _play(run, pool=2048)[0]["answered"] == 0


def test_w9_the_slot_of_one_who_left_is_freed_or_works_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weaknesses, "LONGEST_WAIT_S", 1.0)
    assert _play(weaknesses.abandoned(1000))[0]["freed_s"] < 0.3
    assert _play(weaknesses.abandoned(1000), deaf=True)[0]["freed_s"] == 1.0


def test_w10_a_disturbed_output_is_noticed_from_its_first_wrong_character() -> None:
    run = weaknesses.intruder(100, 60)
    calm, server = _play(run)
    assert dict(calm) == {"equal": 1.0, "equal_percent": 100.0}
    assert [body["id_slot"] for body in server.seen] == [0] * 6
    spoilt, _ = _play(run, corrupt=True)
    assert spoilt["equal"] == 0.0
    assert 10.0 < spoilt["equal_percent"] < 90.0


@pytest.fixture
def metrics() -> Iterator[dict[str, dict[str, float | None]]]:
    yield {one.name: {m.key: m.target for m in one.metrics} for one in SCENARIOS}


def test_targets_are_those_that_were_agreed(
    metrics: dict[str, dict[str, float | None]],
) -> None:
    wanted = {
        ("stall", "gap_p99_ms"): 300.0, ("stall", "gap_max_ms"): 600.0,
        ("overtake", "short_max_s"): 2.5, ("overtake", "long_relative"): 1.15,
        ("append", "growth_percent"): 25.0, ("cut", "again_relative"): 0.45,
        ("clients-12", "ttft_p50_s"): 0.7, ("clients-12", "makespan_s"): 1.05,
        ("clients-64", "ttft_p50_s"): None, ("clients-64", "makespan_s"): None,
        ("w8", "answered"): 3.0, ("w10", "equal"): 1.0,
    }  # fmt: skip
    assert {place: metrics[place[0]][place[1]] for place in wanted} == wanted


def test_every_scenario_has_its_own_name() -> None:
    names = [one.name for one in SCENARIOS]
    assert len(set(names)) == len(names)
    assert {"w1", "w2", "w3", "w4", "w8", "w9", "w10", "stall", "append", "cut"} <= set(names)
