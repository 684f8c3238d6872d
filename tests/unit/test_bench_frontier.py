"""The frontier compares settings at the same gap, and draws and prints what was measured."""

from __future__ import annotations

import dataclasses
import importlib
import json
from pathlib import Path
from typing import Any, cast

import pytest

from bench import frontier, plots, sides
from bench.frontier import OURS, THEIRS, Point, Setting
from bench.servers import Server
from tests.unit.test_bench_server import FakeServer, running


def _point(side: str, gap: float, ttft: float, name: str = "x", read: float = 100.0) -> Point:
    return Point(side, name, (), gap, 2 * gap, ttft, 9.0, read)


def test_the_settings_are_the_agreed_ones() -> None:
    chosen = frontier.settings(frontier.TARGETS_MS, frontier.BATCHES)
    assert [one.flags[1] for one in chosen if one.side == OURS] == [
        "75",
        "150",
        "300",
        "600",
        "1200",
    ]
    theirs = [one.flags for one in chosen if one.side == THEIRS]
    assert len(theirs) == 14
    assert theirs[:2] == [("-b", "8", "-fa", "on"), ("-b", "8", "-fa", "off")]


def test_only_unbeaten_settings_make_the_frontier() -> None:
    points = [_point(THEIRS, *one) for one in ((800, 5), (100, 20), (200, 25), (100, 30), (900, 5))]
    kept = [(point.gap_p99_ms, point.ttft_s) for point in frontier.best(points)]
    assert kept == [(100, 20), (800, 5)]


def test_between_two_settings_the_ttft_runs_over_the_gaps_logarithm() -> None:
    line = frontier.best([_point(THEIRS, 100, 20), _point(THEIRS, 400, 10)])
    assert frontier.ttft_at(line, 200) == pytest.approx(15.0)
    assert frontier.ttft_at(line, 100) == pytest.approx(20.0)
    assert frontier.ttft_at(line, 4000) == 10.0  # longer gaps than needed cost nothing
    assert frontier.ttft_at(line, 99) is None
    assert frontier.ttft_at([], 100) is None


def test_each_target_is_compared_at_its_gap() -> None:
    points = [
        _point(OURS, 200, 12, "150 ms", read=98.0), _point(OURS, 50, 30, "75 ms", read=99.0),
        _point(THEIRS, 100, 20, read=90.0), _point(THEIRS, 400, 10),
    ]  # fmt: skip
    middle, small = frontier.compare(points)
    assert middle.name == "150 ms"
    assert middle.ratio == pytest.approx(0.8)
    assert (small.name, small.ratio) == ("75 ms", None)
    assert frontier.read_ratio(points) == pytest.approx(0.985)
    assert frontier.read_ratio(points[:2]) is None


def _server(server: FakeServer) -> Server:
    return cast(Server, server)


def _run(tmp_path: Path, server: FakeServer) -> dict[str, Any]:
    chosen = [Setting(OURS, "150 ms", ("--itl-slo-ms", "150")), Setting(THEIRS, "-b 8", ("-b",))]
    servers = {OURS: _server(server), THEIRS: _server(server)}
    return frontier.run(servers, chosen, 300, 1, lambda line: None)


def test_a_setting_is_started_measured_and_stopped(tmp_path: Path) -> None:
    with running(name="both", token_s=100e-6, batch=32) as server:
        result = _run(tmp_path, server)
    assert server.started_with == [
        ("--itl-slo-ms", "150"), ("stopped",), ("-b",), ("stopped",),
    ]  # fmt: skip
    ours, theirs = result["points"]
    assert (ours["side"], theirs["side"]) == (OURS, THEIRS)
    assert 4.0 < ours["gap_p99_ms"] < 60.0
    assert ours["ttft_s"] > 0.03
    assert result["compared"][0]["name"] == "150 ms"
    assert json.loads(json.dumps(result))["points"][1]["name"] == "-b 8"


def test_a_setting_that_fails_is_named_and_the_others_count(tmp_path: Path) -> None:
    with running(pool=10) as server:
        result = _run(tmp_path, server)
    assert [one["name"] for one in result["failed"]] == ["150 ms", "-b 8"]
    assert "status 500" in result["failed"][0]["error"]
    assert (result["points"], result["compared"], result["read_ratio"]) == ([], [], None)
    assert "| strata-server | 150 ms | failed" in frontier.table(result)


def _result(points: list[Point]) -> dict[str, Any]:
    return {
        "started": "2026-01-02T03:04:05+00:00", "words": 2000, "failed": [],
        "machine": {"cpu": "C", "cores": 2, "memory_bytes": 1 << 30, "system": "S", "python": "3"},
        "points": [dataclasses.asdict(point) for point in points],
        "compared": [
            dataclasses.asdict(one) | {"ratio": one.ratio} for one in frontier.compare(points)
        ],
        "read_ratio": frontier.read_ratio(points),
    }  # fmt: skip


def test_the_table_says_what_was_met_and_missed() -> None:
    text = frontier.table(_result([
        _point(OURS, 200, 12, "150 ms", read=90.0), _point(OURS, 400, 11, "300 ms", read=90.0),
        _point(OURS, 50, 30, "75 ms", read=90.0),
        _point(THEIRS, 100, 20, "-b 8"), _point(THEIRS, 400, 10, "-b 64"),
    ]))  # fmt: skip
    assert "| 150 ms | 200 | 12.00 | 15.00 | × 0.800: met |" in text
    assert "| 300 ms | 400 | 11.00 | 10.00 | × 1.100: MISSED |" in text
    assert "| 75 ms | 50 | 30.00 | no setting has it | |" in text
    assert "× 0.900, ≥ × 0.97: MISSED" in text


def test_without_matplotlib_nothing_is_measured_and_the_message_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    monkeypatch.setattr(sides, "ours", lambda options: pytest.fail("a server was looked for"))
    assert frontier.main([]) == 1
    assert "pip install 'strata[bench]'" in capsys.readouterr().err


@pytest.mark.parametrize("bad", ["0", "-5"])
def test_a_target_below_one_is_refused(bad: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        frontier.main([f"--words={bad}"])
    assert "must be 1 or more" in capsys.readouterr().err


def test_the_plot_is_a_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "frontier.png"
    frontier.draw(
        [_point(OURS, 200, 12), _point(THEIRS, 100, 20), _point(THEIRS, 400, 30)], 2000, path
    )
    assert path.read_bytes().startswith(b"\x89PNG")
    plots.shares({"short": {"ours": [1.0, 2.0], "theirs": [3.0]}}, "s", tmp_path / "shares.png")
    assert (tmp_path / "shares.png").read_bytes().startswith(b"\x89PNG")
