"""Predictions of first tokens: lengths of answers, the look ahead, and how far it was off."""

from __future__ import annotations

import random

import pytest

from strata_plugin.scheduling.cost import AnalyticCost, LearnedCost
from strata_plugin.scheduling.forecast import Accuracy, first_tokens
from strata_plugin.scheduling.lengths import MEMORY, UNKNOWN, OutputLengths

from .factories import FakeEngine, make_scheduler

COST = AnalyticCost(pass_ms=10.0, token_ms=1.0, attention_ms=0.2, n_ubatch=128)


def engine_of(n_rows: int = 2, n_spare: int = 4) -> FakeEngine:
    scheduler = make_scheduler(n_rows, 512, 128, n_spare=n_spare, cost=COST, prefill_budget=0)
    return FakeEngine(scheduler, COST.predict)


def lengths_of(*seen: int) -> OutputLengths:
    lengths = OutputLengths()
    for n in seen:
        lengths.observe(n)
    return lengths


# ---- lengths of answers --------------------------------------------------------------------------


def test_without_any_answer_a_guess_stands_for_the_length() -> None:
    assert OutputLengths().left(0) == UNKNOWN
    assert OutputLengths().left(500) == 500, "longer than the guess: as long again"


def test_what_is_left_is_the_median_of_answers_that_were_longer() -> None:
    lengths = lengths_of(10, 20, 30, 400, 500)
    assert lengths.left(0) == 30
    assert lengths.left(30) == 470, "of 400 and 500 the upper"
    assert lengths.left(500) == 500


def test_a_limit_is_never_exceeded_and_something_is_always_left() -> None:
    lengths = lengths_of(100)
    assert lengths.left(0, 7) == 7
    assert lengths.left(7, 7) == 1
    assert lengths.left(0, 0) == 1


def test_old_answers_are_forgotten() -> None:
    lengths = lengths_of(*[1000] * MEMORY, *[10] * MEMORY)
    assert lengths.left(0) == 10


# ---- looking ahead -------------------------------------------------------------------------------


def actual(engine: FakeEngine, requests: list[int]) -> dict[int, float]:
    """Milliseconds from now until each first token, by carrying out the plans."""
    start = engine.now_ms
    found: dict[int, float] = {}
    while len(found) < len(requests):
        engine.step()
        for request_id in requests:
            job = engine.jobs.get(request_id)
            if request_id not in found and (job is None or job.n_sampled):
                found[request_id] = engine.now_ms - start
    return found


def test_nothing_is_predicted_while_nothing_is_known() -> None:
    scheduler = make_scheduler(2, cost=LearnedCost(128))
    scheduler.submit(1, n_prompt=10, arrival=0.0)
    assert first_tokens(scheduler, OutputLengths()) == {}


def test_looking_ahead_changes_nothing() -> None:
    engine = engine_of()
    for n in (300, 5000, 40):
        engine.submit(n, 30)
    engine.step()
    before = engine.scheduler.plan()
    first_tokens(engine.scheduler, lengths_of(30))
    engine.scheduler.check_integrity()
    assert engine.scheduler.plan() == before


def test_one_prompt_alone_is_predicted_by_what_its_steps_take() -> None:
    engine = engine_of()
    request = engine.submit(3000, 5)
    engine.admit()
    predicted = first_tokens(engine.scheduler, lengths_of(5))
    assert predicted[request] == pytest.approx(actual(engine, [request])[request], rel=0.1)


def test_with_lengths_as_expected_predictions_come_true() -> None:
    """Whoever queues, reads or writes."""
    off: list[float] = []
    for seed in range(30):
        rng = random.Random(seed)
        engine = engine_of(n_rows=rng.choice([1, 2, 4]), n_spare=rng.choice([0, 4]))
        for _ in range(rng.randint(3, 10)):
            engine.submit(int(10 ** rng.uniform(1, 4)), 40, tenant=rng.choice("abc"))
        for _ in range(rng.randint(0, 30)):
            engine.step()
        waiting = [key for key, job in engine.jobs.items() if not job.n_sampled]
        predicted = first_tokens(engine.scheduler, lengths_of(40))
        came = actual(engine, waiting)
        off += [abs(predicted[key] / came[key] - 1.0) for key in waiting]
    off.sort()
    assert len(off) > 100
    assert off[len(off) // 2] <= 0.05
    assert off[len(off) * 9 // 10] <= 0.25


def behind_a_writer(n_spare: int, n_prompt: int, n_out: int) -> tuple[FakeEngine, int]:
    """One who writes in the only row, and the number of one who waits."""
    engine = engine_of(n_rows=1, n_spare=n_spare)
    writer = engine.submit(n_prompt, n_out)
    while not engine.jobs[writer].n_sampled:
        engine.step()
    return engine, engine.submit(n_prompt, 5)


def test_the_writers_unknown_rest_is_taken_from_answers_seen() -> None:
    engine, second = behind_a_writer(0, 100, 200)
    soon = first_tokens(engine.scheduler, lengths_of(20))[second]
    late = first_tokens(engine.scheduler, lengths_of(200))[second]
    assert late - soon == pytest.approx(180 * COST.pass_ms, rel=0.05)


def test_a_queue_beyond_what_is_looked_at_is_still_told_a_time() -> None:
    engine = engine_of(n_rows=1, n_spare=0)
    requests = [engine.submit(50, 3) for _ in range(700)]
    predicted = first_tokens(engine.scheduler, lengths_of(3))
    assert set(predicted) == set(requests)
    assert all(ms > 0 for ms in predicted.values())


def test_cells_that_are_short_delay_those_who_would_be_read_ahead() -> None:
    engine, second = behind_a_writer(4, 1000, 400)
    plenty = first_tokens(engine.scheduler, lengths_of(400))[second]
    scarce = first_tokens(engine.scheduler, lengths_of(400), 1500)[second]
    assert plenty <= scarce


# ---- how far it was off --------------------------------------------------------------------------


def test_the_range_holds_four_of_five() -> None:
    rng = random.Random(1)
    accuracy = Accuracy()
    inside = 0
    for n in range(400):
        truth = 1000.0 * rng.lognormvariate(0.3, 0.4)
        low, high = accuracy.around(1000.0)
        assert low <= 1000.0 <= high
        inside += n >= 100 and low <= truth <= high
        accuracy.observe(1000.0, truth)
    assert 0.7 <= inside / 300 <= 0.9


def test_the_range_is_wide_while_little_was_seen_and_narrows() -> None:
    accuracy = Accuracy()
    first = accuracy.around(1000.0)
    for _ in range(20):
        accuracy.observe(1000.0, 1010.0)
    later = accuracy.around(1000.0)
    assert first[0] < later[0] and later[1] < first[1]
    assert later[1] == pytest.approx(1010.0)
