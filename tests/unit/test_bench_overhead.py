"""`bench overhead`: what it times, and that the scheduler stays quick."""

from __future__ import annotations

import json

import pytest

from bench.overhead import main, step_times
from bench.stats import median


def test_all_requests_are_answered_and_each_step_is_timed() -> None:
    times = step_times(9, 4, tenants=2)
    assert len(times) >= 20  # as many steps as the shortest answer has tokens
    assert all(0 < took < 1000 for took in times)


def test_scheduling_64_requests_takes_no_more_than_a_sliver_of_a_step() -> None:
    # the target is 0.3; machines that run tests are slow and busy
    assert median(step_times(64, 16)) < 1.5


def test_the_figures_are_printed_for_each_number_of_rows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = main(["--requests", "6", "--rows", "2", "3", "--json"])
    result = json.loads(capsys.readouterr().out)
    assert [one["rows"] for one in result] == [2, 3]
    assert code == (0 if all(one["p50_ms"] <= 0.3 for one in result) else 1)
