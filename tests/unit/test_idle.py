"""Idle states: what is found, what replaces what, and who gives way to whom."""

from __future__ import annotations

import numpy as np

from strata_plugin.checkpoints.idle import MIN_SHARE, IdleStates
from strata_plugin.checkpoints.keys import namespace
from strata_plugin.checkpoints.parking import RamParkingLot
from strata_plugin.checkpoints.traits import PLAIN, WHOLE_ONLY, PrefixTraits

ROOT = namespace({})


def tokens(*ids: int) -> np.ndarray:
    return np.array(ids, np.int32)


def run(n: int, start: int = 1) -> np.ndarray:
    return np.arange(start, start + n, dtype=np.int32)


def states(limit: int = 1000, traits=PLAIN) -> tuple[IdleStates, RamParkingLot]:
    lot = RamParkingLot(limit)
    return IdleStates(lot, traits), lot


def keep(idle: IdleStates, held: np.ndarray, n_bytes: int = 10, pos_min: int = 0) -> None:
    reservation = idle.reserve(n_bytes)
    assert reservation is not None
    idle.keep(reservation, ROOT, held, bytearray(n_bytes), pos_min)
    idle.check_integrity()


def test_the_longest_common_prefix_is_found():
    idle, _ = states()
    keep(idle, tokens(1, 2, 3))
    keep(idle, tokens(1, 2, 9, 9))
    match = idle.longest(ROOT, tokens(1, 2, 3, 4, 5), limit=4)
    assert match is not None and (match.reuse, match.n_tokens) == (3, 3)
    assert idle.longest(ROOT, tokens(7, 2, 3), limit=2) is None


def test_a_longer_state_replaces_a_shorter_one_only_where_it_would_be_loaded_for_it():
    for n_long, expected in ((10 * MIN_SHARE, 1), (10 * MIN_SHARE + 1, 2)):
        idle, _ = states()
        keep(idle, run(10))
        keep(idle, run(n_long))
        assert len(idle) == expected
        assert idle.covers(ROOT, run(10))
        match = idle.longest(ROOT, np.append(run(10), 999).astype(np.int32), limit=10)
        assert match is not None and match.reuse == 10


def test_states_that_can_not_be_cut_serve_only_as_a_whole():
    idle, _ = states(traits=WHOLE_ONLY)
    keep(idle, tokens(1, 2, 3))
    assert idle.longest(ROOT, tokens(1, 2, 9), limit=2) is None
    match = idle.longest(ROOT, tokens(1, 2, 3, 4), limit=3)
    assert match is not None and match.reuse == 3


def test_where_a_window_does_not_cover_the_cut_a_shorter_whole_state_serves():
    window = PrefixTraits(can_cut=True, can_copy_prefix=True, can_copy_whole=True)
    idle, _ = states(traits=window)
    keep(idle, tokens(1, 2))
    keep(idle, tokens(1, 2, 3, 4, 5, 6), pos_min=4)
    match = idle.longest(ROOT, tokens(1, 2, 3, 9), 3, lambda pos_min, n: pos_min < n - 1)
    assert match is not None and match.reuse == match.n_tokens == 2


def test_the_oldest_go_first_and_reading_makes_young():
    idle, _ = states(30)
    keep(idle, tokens(1))
    keep(idle, tokens(2))
    keep(idle, tokens(3))
    first = idle.longest(ROOT, tokens(1, 9), limit=1)
    assert first is not None
    idle.read(first.key)
    keep(idle, tokens(4))
    assert idle.longest(ROOT, tokens(1, 9), limit=1) is not None
    assert idle.longest(ROOT, tokens(2, 9), limit=1) is None


def test_nothing_is_dropped_for_what_does_not_fit_anyway():
    idle, lot = states(100)
    request = lot.reserve(60)
    assert request is not None
    lot.commit(request, 1, bytearray(60), 5)
    keep(idle, tokens(1))
    keep(idle, tokens(2))
    assert idle.reserve(50) is None
    assert len(idle) == 2
