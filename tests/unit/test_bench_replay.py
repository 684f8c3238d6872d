"""A replay sends what the trace says, when it says it, and counts what came back."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import __main__ as command
from bench import agents, outcomes, replay, sides
from bench.client import Event, Reply
from bench.outcomes import Outcome
from bench.replay import Target
from bench.scale import Scale, block_for, prompt
from bench.servers import Server
from strata_plugin.scheduling.trace import BLOCK_TOKENS, TraceRequest, common_prefix, read_trace
from tests.unit.test_bench_server import FakeServer, running

TRACES = Path(replay.__file__).parent / "traces"
VOCABULARY = tuple(range(100))


def _request(at: float, n_prompt: int, *ids: int, n_output: int = 4, **more: Any) -> TraceRequest:
    return TraceRequest(at, n_prompt, n_output, ids, **more)


def _replay(trace: list[TraceRequest], scale: Scale, server: FakeServer) -> list[Outcome]:
    return asyncio.run(replay.replay(Target("fake", "127.0.0.1", server.port), trace, scale))


def _equal(one: list[int], other: list[int]) -> int:
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def test_prompts_share_exactly_what_the_trace_shares() -> None:
    one, other = _request(0, 1300, 1, 2, 3), _request(0, 1500, 1, 2, 4)
    scale = Scale()
    a, b = prompt(one, scale, VOCABULARY), prompt(other, scale, VOCABULARY)
    assert (len(a), len(b)) == (1300, 1500)
    assert common_prefix(one, other) <= _equal(a, b) < common_prefix(one, other) + 8
    assert prompt(one, scale, VOCABULARY) == a


@given(st.lists(st.integers(1, 200_000), min_size=1, max_size=8), st.integers(512, 10_000))
def test_scaled_prompts_fit_and_keep_their_proportions(lengths: list[int], max_prompt: int) -> None:
    trace = [_request(0, n, *range(-(-n // BLOCK_TOKENS))) for n in lengths]
    scale = Scale(block=block_for(trace, max_prompt))
    sent = [len(prompt(request, scale, VOCABULARY)) for request in trace]
    assert max(sent) <= max_prompt
    if max(lengths) > max_prompt:
        assert max(sent) >= max_prompt // 4 or scale.block == 1
    else:
        assert sent == lengths


def test_arrivals_follow_the_trace_divided_by_speed() -> None:
    trace = [_request(5.0 + number / 5, 20, number) for number in range(4)]
    with running() as server:
        found = _replay(trace, Scale(speed=2.0), server)
    gaps = [b.arrival_s - a.arrival_s for a, b in itertools.pairwise(found)]
    assert gaps == pytest.approx([0.1] * 3, abs=0.05)
    assert all(not one.error and one.status == 200 for one in found)


def test_what_was_read_before_is_a_hit() -> None:
    trace = [_request(0.0, 1000, 1, 2), _request(0.3, 1024, 1, 2), _request(0.6, 1024, 3, 4)]
    with running() as server:
        found = _replay(trace, Scale(), server)
    assert [one.cached for one in found] == [0, 1000, 0]
    assert outcomes.summary(found)["hit_rate"] == pytest.approx(1000 / 3048)


def test_a_cancelled_request_leaves_at_its_time_and_is_no_failure() -> None:
    trace = [_request(0.0, 20, 1, n_output=2000, cancel_after_s=0.4)]
    with running() as server:
        (one,) = _replay(trace, Scale(speed=2.0), server)
        assert 0.15 < one.end_s - one.arrival_s < 0.4
    assert (one.cancelled, one.error, one.cached) == (True, "", None)
    assert one.ttft_s is not None
    totals = outcomes.summary([one])
    assert (totals["cancelled"], totals["failed"], totals["refused"]) == (1, 0, 0)


def test_a_refusal_is_counted_as_one() -> None:
    with running(pool=100) as server:
        found = _replay([_request(0.0, 20, 1)], Scale(), server)
        assert not found[0].refused  # the first, unmeasured request was
        found = _replay([_request(0.0, 400, 1)], Scale(), server)
    totals = outcomes.summary(found)
    assert (totals["refused"], totals["failed"]) == (1, 0)
    assert totals["buckets"]["short"]["ttft_s"] is None


def test_tenants_send_their_keys() -> None:
    trace = [_request(0.0, 20, 1, tenant="a"), _request(0.0, 20, 2, tenant="b")]
    with running() as server:
        target = Target("fake", "127.0.0.1", server.port, {"a": "key-1", "b": "key-2"})
        asyncio.run(replay.replay(target, trace, Scale()))
        assert set(server.keys) == {"Bearer key-1", "Bearer key-2"}


def _outcome(**changes: Any) -> Outcome:
    fields: dict[str, Any] = {
        "arrival_s": 0.0, "late_s": 0.0, "n_prompt": 100, "tenant": "", "status": 200,
        "error": "", "cancelled": False, "ttft_s": 1.0, "end_s": 2.0,
    }  # fmt: skip
    return Outcome(**(fields | changes))


def test_the_error_of_predictions_is_relative_to_what_happened() -> None:
    found = [
        _outcome(predicted_ttft_s=1.1), _outcome(predicted_ttft_s=0.5), _outcome(),
        _outcome(ttft_s=2.0, predicted_ttft_s=2.0), _outcome(ttft_s=None, predicted_ttft_s=9.0),
    ]  # fmt: skip
    prediction = outcomes.summary(found)["prediction"]
    assert prediction["count"] == 3
    assert prediction["median"] == pytest.approx(0.1)
    assert prediction["p90"] == pytest.approx(0.42)
    assert outcomes.summary([_outcome()])["prediction"] is None


def test_the_prediction_is_read_from_its_header() -> None:
    with running(predicts_ms=250.0) as server:
        (one,) = _replay([_request(0.0, 20, 1)], Scale(), server)
    assert one.predicted_ttft_s == 0.25


@pytest.mark.parametrize(
    ("n_prompt", "bucket"),
    [(1, "short"), (1024, "short"), (1025, "medium"), (8192, "medium"), (8193, "long"),
     (32768, "long"), (32769, "extreme")],
)  # fmt: skip
def test_buckets_end_at_their_bounds(n_prompt: int, bucket: str) -> None:
    assert _outcome(n_prompt=n_prompt).bucket == bucket


def test_gaps_lie_between_tokens_and_the_closing_event_is_none() -> None:
    events = [
        Event(1.0, {"content": "a"}), Event(1.5, {"content": "b"}),
        Event(9.0, {"content": "", "stop": True, "timings": {"cache_n": 7}}),
    ]  # fmt: skip
    reply = Reply(0.0, 200, tuple(events), 1.0, 9.0)
    one = outcomes.outcome(reply, arrival_s=2.0, late_s=0.0, n_prompt=9, tenant="")
    assert (one.ttft_s, one.gaps_ms, one.cached, one.end_s) == (1.0, (500.0,), 7, 11.0)


def test_the_table_puts_servers_side_by_side() -> None:
    ours = outcomes.summary([_outcome(gaps_ms=(10.0, 20.0), cached=50)])
    theirs = outcomes.summary(
        [_outcome(n_prompt=9000, late_s=0.2), _outcome(status=503, error="x")]
    )
    memory = {"rss_mb": 600.0, "pss_mb": 500.0}
    text = outcomes.table({"ours": ours | {"memory": memory}, "theirs": theirs | {"memory": None}})
    assert "| figure | ours | theirs |" in text
    assert "| refused | 0 | 1 |" in text
    assert "| prompt tokens not read again | 50.0% | 0.0% |" in text
    assert "| most memory, RSS, MB | 600 | not ours to see |" in text
    assert "| short: gap, ms | 15 / 20 / 20 (2) |  |" in text
    assert "| long: TTFT, s |  | 1.00 / 1.00 / 1.00 (1) |" in text
    assert "sent up to 0.20 s late" in text


def _file(folder: Path, trace: list[TraceRequest]) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("".join(agents.line(request) + "\n" for request in trace))
    return path


def test_the_command_replays_against_a_running_server_and_writes_its_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _file(tmp_path, [_request(0.0, 2000, 1, 2, 3, 4), _request(0.1, 600, 1, 2)])
    with running() as server:
        arguments = ["replay", str(path), "--server", f"http://127.0.0.1:{server.port}",
                     "--no-plot", "--max-prompt", "1000", "--out", str(tmp_path)]  # fmt: skip
        assert command.main(arguments) == 0
    result = json.loads((tmp_path / "replay.json").read_text())
    assert [one["n_prompt"] for one in result["sides"][0]["requests"]] == [1000, 300]
    assert (tmp_path / "replay.md").read_text() in capsys.readouterr().out


def test_servers_of_ours_are_started_with_the_flags_and_keys_and_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    path = _file(tmp_path, [_request(0.0, 20, 1, tenant="a"), _request(0.0, 20, 1, tenant="b")])
    with running(name="ours") as ours, running(name="theirs") as theirs:
        monkeypatch.setattr(sides, "ours", lambda options: cast(Server, ours))
        monkeypatch.setattr(sides, "theirs", lambda options: cast(Server, theirs))
        arguments = ["replay", str(path), "--ours", "--theirs", "--flags=-np 8",
                     "--out", str(tmp_path)]  # fmt: skip
        assert command.main(arguments) == 0
    flags = ("-np", "8", "--api-key", "replay-1,replay-2")
    assert ours.started_with == theirs.started_with == [flags, ("stopped",)]
    result = json.loads((tmp_path / "replay.json").read_text())
    assert [side["summary"]["memory"]["rss_mb"] for side in result["sides"]] == [200.0, 200.0]
    for name in ("replay-ttft.png", "replay-gap.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--server", "ftp://x"], "looks like http://127.0.0.1:8080"),
        (["--server", "http://127.0.0.1:1", "--server", "http://127.0.0.1:1"], "the same one"),
        (["--server", "http://127.0.0.1:1"], "cannot connect"),
    ],
)
def test_a_server_that_cannot_be_used_is_named(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _file(tmp_path, [_request(0.0, 20, 1)])
    assert command.main(["replay", str(path), "--no-plot", *arguments]) == 1
    assert message in capsys.readouterr().err


def test_a_damaged_trace_is_refused_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _file(tmp_path, [_request(5.0, 20, 1), _request(4.0, 20, 1)])
    arguments = ["replay", str(path), "--no-plot", "--server", "http://127.0.0.1:1"]
    assert command.main(arguments) == 1
    assert capsys.readouterr().err == (
        f"bench: {path}: line 2: timestamps go back, from 5000 to 4000 ms\n"
    )


@pytest.mark.parametrize("bad", ["--speed=0", "--speed=nan", "--limit=0", "--max-prompt=-1"])
def test_options_that_make_no_sense_are_refused(bad: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        command.main(["replay", str(tmp_path), "--server", "http://127.0.0.1:1", bad])


def test_a_generated_trace_is_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["trace", "--agents", "3", "--turns", "30", "--seed", "7"]) == 0
    trace = read_trace(capsys.readouterr().out.splitlines())
    assert len(trace) == 90
    assert {request.tenant for request in trace} == {"agent-1", "agent-2", "agent-3"}
    for name in ("agent-1", "agent-2", "agent-3"):
        mine = [request for request in trace if request.tenant == name]
        for before, after in itertools.pairwise(mine):  # each turn begins with the one before
            assert common_prefix(before, after) == before.n_prompt
            resent = before.cancel_after_s is not None
            assert (after.n_prompt == before.n_prompt) == resent
    assert common_prefix(trace[0], trace[-1]) >= agents.SHARED_TOKENS


def test_another_seed_gives_another_trace_and_the_same_seed_the_same() -> None:
    assert agents.agent_trace(2, 5, 1) == agents.agent_trace(2, 5, 1)
    assert agents.agent_trace(2, 5, 1) != agents.agent_trace(2, 5, 2)


def test_the_trace_that_comes_along_is_the_generated_one() -> None:
    lines = (TRACES / "agents.jsonl").read_text().splitlines()
    trace = agents.agent_trace(agents=8, turns=20, seed=1)
    assert lines == [agents.line(request) for request in trace]
    assert read_trace(lines) == trace
    assert 0.93 < agents.resent_share(trace) < 0.97
    assert any(request.cancel_after_s is not None for request in trace)


def test_resent_tokens_are_counted_to_the_token() -> None:
    trace = [_request(0, 600, 1, 2), _request(1, 1000, 1, 2), _request(2, 300, 9)]
    assert agents.resent_share(trace) == pytest.approx(600 / 1900)
