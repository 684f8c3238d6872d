"""Which requests are tried alone after a crash, and when no other engine is started."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from strata_plugin.engine.quarantine import MOST_FAILURES, WITHIN_S, Quarantine, Restarts


def test_those_that_were_worked_on_are_tried_one_by_one() -> None:
    quarantine = Quarantine()
    assert quarantine.crashed([1, 2]) is None
    assert quarantine.next() == 1
    assert quarantine.next() is None  # until the first has got further
    assert quarantine.passed(1)
    assert quarantine.next() == 2 and quarantine.active
    assert quarantine.passed(2)
    assert quarantine.next() is None and not quarantine.active


def test_who_brings_it_down_alone_is_guilty_and_the_others_remain() -> None:
    quarantine = Quarantine()
    quarantine.crashed([1, 2, 3])
    quarantine.next()
    assert quarantine.crashed([1]) == 1
    assert quarantine.next() == 2
    quarantine.passed(2)
    assert quarantine.next() == 3


def test_a_crash_without_work_makes_nobody_suspect() -> None:
    quarantine = Quarantine()
    assert quarantine.crashed([]) is None
    assert not quarantine.active


def test_a_suspect_that_is_cancelled_makes_room_for_the_next() -> None:
    quarantine = Quarantine()
    quarantine.crashed([1, 2, 3])
    quarantine.next()
    assert not quarantine.passed(2)
    assert quarantine.passed(1)
    assert quarantine.next() == 3


@given(st.lists(st.integers(0, 9), unique=True, max_size=6), st.sets(st.integers(0, 9)))
def test_all_poisonous_ones_are_found_and_no_others(requests: list[int], bad: set[int]) -> None:
    quarantine, condemned, alive = Quarantine(), set(), list(requests)
    quarantine.crashed(alive)
    for _ in range(100):
        chosen = quarantine.next()
        if chosen is None:
            break
        if chosen in bad:
            guilty = quarantine.crashed([chosen])
            assert guilty == chosen
            condemned.add(guilty)
        else:
            quarantine.passed(chosen)
    assert not quarantine.active
    assert condemned == bad & set(requests)


def test_engines_are_started_again_after_ever_longer_pauses_and_not_for_ever() -> None:
    restarts = Restarts()
    delays = [restarts.failed(float(i), in_quarantine=False) for i in range(MOST_FAILURES)]
    assert delays[-1] is None
    known = [delay for delay in delays if delay is not None]
    assert known == sorted(known) and known[0] < known[-1]
    assert restarts.total == MOST_FAILURES


def test_failures_long_ago_and_those_of_single_requests_count_for_nothing() -> None:
    restarts = Restarts()
    for i in range(3 * MOST_FAILURES):
        assert restarts.failed(i * WITHIN_S / 3, in_quarantine=False) is not None
        assert restarts.failed(i * WITHIN_S / 3, in_quarantine=True) is not None
