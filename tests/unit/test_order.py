"""Who goes first: priorities, shares, lengths, ages."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from strata_plugin.scheduling.order import AGEING_TURN, FairShares, by_turns, count_turn, in_order
from strata_plugin.scheduling.plan import BatchClass
from strata_plugin.scheduling.request import ScheduledRequest

PLAIN = BatchClass()


def request(
    request_id: int, n_prompt: int, arrival: float = 0.0, tenant: str = "", priority: int = 0
) -> ScheduledRequest:
    return ScheduledRequest(
        request_id=request_id,
        batch_class=PLAIN,
        arrival=arrival,
        sequence=request_id,
        n_prompt=n_prompt,
        known=n_prompt,
        tenant=tenant,
        priority=priority,
    )


def shares_of(requests: list[ScheduledRequest], **used: float) -> FairShares:
    shares = FairShares()
    for r in requests:
        shares.enter(r.tenant)
    for tenant, milliseconds in used.items():
        shares.charge(tenant, milliseconds)
    return shares


def ids(requests: list[ScheduledRequest]) -> list[int]:
    return [r.request_id for r in requests]


def test_the_shortest_goes_first_and_the_earliest_of_equals() -> None:
    requests = [request(1, 50, 2.0), request(2, 90, 0.0), request(3, 50, 1.0), request(4, 50, 1.0)]
    assert ids(in_order(requests, shares_of(requests))) == [3, 4, 1, 2]


def test_what_is_computed_or_expected_in_a_cache_does_not_count_as_length() -> None:
    requests = [request(1, 50), request(2, 90), request(3, 80)]
    requests[1].held, requests[1].computed = True, 60
    requests[2].expected = 40
    assert ids(in_order(requests, shares_of(requests))) == [2, 3, 1]


def test_priority_goes_before_all_else() -> None:
    requests = [
        request(1, 5, 0.0, "a"),
        request(2, 500, 9.0, "b", priority=1),
        request(3, 5, 0.0, "a", priority=-1),
    ]
    requests[0].passed_over = 99
    assert ids(in_order(requests, shares_of(requests, b=1e6))) == [2, 1, 3]


def test_the_tenant_whose_answer_is_due_first_goes_first() -> None:
    requests = [request(1, 10, 0.0, "a"), request(2, 100, 0.0, "b"), request(3, 300, 0.0, "b")]
    # a: 95 + 10; b: 0 + 100
    assert ids(in_order(requests, shares_of(requests, a=95.0))) == [2, 3, 1]
    assert ids(in_order(requests, shares_of(requests, a=85.0))) == [1, 2, 3]
    assert ids(in_order(requests, shares_of(requests, a=95.0), ms_per_token=0.1)) == [2, 3, 1]
    assert ids(in_order(requests, shares_of(requests, a=95.0), ms_per_token=2.0)) == [1, 2, 3]


def test_one_that_was_passed_over_often_enough_goes_before_its_tenants_others_only() -> None:
    requests = [
        request(1, 900, 0.0, "a"),
        request(2, 10, 1.0, "a"),
        request(3, 800, 0.0, "b"),
        request(4, 10, 1.0, "b"),
    ]
    requests[0].passed_over = AGEING_TURN - 1
    shares = shares_of(requests, b=1.0)
    assert ids(in_order(requests, shares)) == [1, 2, 4, 3]
    assert ids(in_order(requests, shares, ageing=False)) == [2, 1, 4, 3]


def test_turns_are_counted_for_the_oldest_of_each_tenant_that_was_served() -> None:
    old, young, other = request(1, 9, 0.0), request(2, 5, 1.0), request(3, 9, 0.0, "x")
    waiting = [young, other, old]
    count_turn(waiting, [young, old])
    count_turn(waiting, [young], 2)
    assert (old.passed_over, young.passed_over, other.passed_over) == (3, 0, 0)
    count_turn(waiting, [other])
    assert (old.passed_over, other.passed_over) == (3, 0)
    count_turn(waiting, [old, young])
    assert old.passed_over == 0
    count_turn(waiting, [])
    assert old.passed_over == 0


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 100), min_size=1, max_size=30),
    passed=st.integers(0, AGEING_TURN),
    seed=st.integers(0, 1000),
)
def test_in_a_list_of_turns_the_oldest_has_every_fourth(
    lengths: list[int], passed: int, seed: int
) -> None:
    rng = random.Random(seed)
    requests = [
        request(i, n, float(i), rng.choice("ab"), rng.choice((0, 1))) for i, n in enumerate(lengths)
    ]
    requests[0].passed_over = passed
    plain = in_order(requests, shares_of(requests), ageing=False)
    turns = by_turns(plain)
    assert sorted(ids(turns)) == sorted(ids(plain))
    groups = [(r.priority, r.tenant) for r in turns]
    assert groups == [(r.priority, r.tenant) for r in plain], "shares and priorities stay"
    for group in set(groups):
        left = [r for r in requests if (r.priority, r.tenant) == group]
        missed = left[0].passed_over
        for r in [r for r in turns if (r.priority, r.tenant) == group]:
            if r is left[0]:
                missed = 0
            else:
                assert missed < AGEING_TURN - 1, "the oldest misses its turn"
                assert r.unread == min(x.unread for x in left), "else the shortest"
                missed += 1
            left.remove(r)


# ---- shares --------------------------------------------------------------------------------------


def test_time_is_charged_to_tenants() -> None:
    shares = FairShares()
    shares.enter("a")
    shares.enter("b")
    shares.charge("a", 5.0)
    shares.charge("a", 2.0)
    assert (shares.used("a"), shares.used("b")) == (7.0, 0.0)


def test_who_comes_or_comes_back_starts_where_an_equal_share_would_have_led() -> None:
    shares = FairShares()
    shares.enter("a")
    shares.enter("b")
    shares.charge("a", 100.0)
    shares.charge("b", 70.0)
    shares.enter("new")
    assert shares.used("new") == 85.0, "170 ms between two"
    shares.leave("b")
    shares.charge("new", 500.0)
    shares.enter("b")
    assert shares.used("b") == 335.0, "time away is no claim"
    shares.leave("new")
    shares.enter("new")
    assert shares.used("new") == 585.0, "nor is coming back a way to forget"


def test_a_newcomer_comes_right_after_the_next_answer_of_one_who_lags_behind() -> None:
    shares = FairShares()
    shares.enter("busy")
    shares.enter("batch")
    shares.charge("busy", 40_000.0)
    shares.enter("person", first_due=300.0)
    assert shares.used("person") == 300.0, "not 20,000: all that the other has to catch up on"
    shares.leave("person")
    shares.charge("busy", 1000.0)
    shares.enter("person", first_due=200.0)
    assert shares.used("person") == 300.0, "coming back is no way to forget"


def test_of_several_requests_the_last_to_end_leaves() -> None:
    shares = FairShares()
    shares.enter("a")
    shares.enter("a")
    shares.leave("a")
    shares.charge("a", 3.0)
    assert shares.used("a") == 3.0
    shares.leave("a")
    shares.enter("b")
    assert shares.used("b") == 0.0, "nobody is left to compare with"


def test_a_copy_of_the_shares_is_independent() -> None:
    shares = FairShares()
    shares.enter("a")
    other = shares.copy()
    other.charge("a", 9.0)
    other.leave("a")
    other.enter("b")
    assert shares.used("a") == 0.0
    shares.leave("a")
