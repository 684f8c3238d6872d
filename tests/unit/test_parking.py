"""The parking lot's bound holds at every moment, and only whole states come back."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_plugin.checkpoints.parking import ParkedState, ParkingLot, RamParkingLot, Reservation


def reserve(lot: ParkingLot, n_bytes: int) -> Reservation:
    reservation = lot.reserve(n_bytes)
    assert reservation is not None
    return reservation


def test_a_state_comes_back_as_it_went_and_only_once() -> None:
    lot = RamParkingLot(100)
    lot.commit(reserve(lot, 8), 7, b"whatever", n_tokens=3)
    assert 7 in lot
    assert lot.take(7) == ParkedState(7, 3, b"whatever")
    assert lot.take(7) is None
    assert lot.used_bytes == 0


def test_reservations_count_before_anything_is_allocated() -> None:
    lot = RamParkingLot(100)
    first = reserve(lot, 60)
    assert lot.reserve(41) is None
    assert lot.used_bytes == 60
    lot.cancel(first)
    assert lot.reserve(100) is not None


def test_a_reservation_is_not_a_state() -> None:
    lot = RamParkingLot(100)
    reserve(lot, 60)
    assert lot.take(1) is None
    assert len(lot) == 0


def test_what_a_state_does_not_fill_is_free_again() -> None:
    lot = RamParkingLot(100)
    lot.commit(reserve(lot, 100), 1, bytearray(30), n_tokens=1)
    assert lot.used_bytes == 30
    assert lot.reserve(70) is not None


def test_a_state_larger_than_its_reservation_is_refused_and_may_be_tried_again() -> None:
    lot = RamParkingLot(100)
    reservation = reserve(lot, 10)
    with pytest.raises(ValueError, match="11 bytes do not fit into 10"):
        lot.commit(reservation, 1, bytes(11), n_tokens=1)
    lot.commit(reservation, 1, bytes(10), n_tokens=1)
    assert lot.used_bytes == 10


def test_a_reservation_is_used_once_and_in_its_own_lot() -> None:
    lot, other = RamParkingLot(100), RamParkingLot(100)
    reservation = reserve(lot, 10)
    with pytest.raises(ValueError, match="not open in this lot"):
        other.commit(reservation, 1, b"x", n_tokens=1)
    lot.commit(reservation, 1, b"x", n_tokens=1)
    with pytest.raises(ValueError, match="not open in this lot"):
        lot.commit(reservation, 2, b"x", n_tokens=1)
    with pytest.raises(ValueError, match="not open in this lot"):
        lot.cancel(reservation)


def test_equal_reservations_are_two() -> None:
    lot = RamParkingLot(100)
    first, second = reserve(lot, 10), reserve(lot, 10)
    lot.cancel(first)
    assert lot.used_bytes == 10
    lot.cancel(second)
    lot.check_integrity()


def test_one_state_per_request() -> None:
    lot = RamParkingLot(100)
    lot.commit(reserve(lot, 10), 1, b"x", n_tokens=1)
    with pytest.raises(ValueError, match="request 1 is parked already"):
        lot.commit(reserve(lot, 10), 1, b"y", n_tokens=1)


def test_dropping_says_whether_there_was_something() -> None:
    lot = RamParkingLot(100)
    lot.commit(reserve(lot, 10), 1, b"x", n_tokens=1)
    assert lot.drop(1)
    assert not lot.drop(1)
    assert lot.used_bytes == 0


def test_bytes_are_counted_whatever_the_items_of_a_view() -> None:
    lot = RamParkingLot(100)
    lot.commit(reserve(lot, 80), 1, memoryview(bytearray(80)).cast("q"), n_tokens=1)
    assert lot.used_bytes == 80


def test_a_lot_of_no_size_takes_nothing() -> None:
    assert RamParkingLot(0).reserve(1) is None
    with pytest.raises(ValueError, match="negative"):
        RamParkingLot(-1)
    with pytest.raises(ValueError, match="can't reserve 0 bytes"):
        RamParkingLot(1).reserve(0)


def test_parked_states_do_not_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ParkedState(1, 1, b"").n_tokens = 2  # type: ignore[misc]


def test_the_integrity_check_finds_lost_bytes() -> None:
    lot = RamParkingLot(100)
    reserve(lot, 10)
    lot._used = 9
    with pytest.raises(AssertionError, match="9 used, 10"):
        lot.check_integrity()


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["reserve", "commit", "cancel", "take", "drop"]),
            st.integers(1, 60),
            st.integers(0, 3),
        ),
        max_size=60,
    )
)
def test_the_bound_holds_whatever_happens(actions: list[tuple[str, int, int]]) -> None:
    lot = RamParkingLot(100)
    open_: list[Reservation] = []
    parked: dict[int, int] = {}
    for action, n_bytes, request_id in actions:
        if action == "reserve":
            used = sum(r.n_bytes for r in open_) + sum(parked.values())
            reservation = lot.reserve(n_bytes)
            assert (reservation is not None) == (used + n_bytes <= 100)
            open_ += [reservation] if reservation else []
        elif action == "commit" and open_ and request_id not in parked:
            reservation = open_.pop()
            parked[request_id] = min(n_bytes, reservation.n_bytes)
            lot.commit(reservation, request_id, bytes(parked[request_id]), n_tokens=n_bytes)
        elif action == "cancel" and open_:
            lot.cancel(open_.pop(0))
        elif action == "take":
            state = lot.take(request_id)
            assert (len(state.data) if state else None) == parked.pop(request_id, None)
        elif action == "drop":
            assert lot.drop(request_id) == (parked.pop(request_id, None) is not None)
        lot.check_integrity()
        assert lot.used_bytes == sum(r.n_bytes for r in open_) + sum(parked.values()) <= 100
