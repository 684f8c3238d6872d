"""Between KV cache and block store, on a fake context: what is stored, restored, and when not."""

from __future__ import annotations

import numpy as np

from strata_plugin.checkpoints.blocks import BlockStore
from strata_plugin.checkpoints.keys import namespace
from strata_plugin.checkpoints.parking import RamParkingLot
from strata_plugin.engine.block_states import BlockStates, EndState
from tests.unit.fake_engine import FakeContext

ROOT = namespace({})


def tokens(n: int, start: int = 1) -> np.ndarray:
    return np.arange(start, start + n, dtype=np.int32)


class Bench:
    """A context whose loads take `load_s`; a token takes `ms` to compute, blocks have 4."""

    def __init__(
        self,
        *,
        ms: float = 1.0,
        load_s: float = 0.0,
        limit: int = 1 << 20,
        recurrent: bool = False,
    ) -> None:
        self.context = FakeContext(100, n_batch=100, recurrent=recurrent)
        self.load_s = load_s
        self.saved: list[tuple[int, int]] = []
        append, save = self.context.append_ranges, self.context.save_range

        def append_ranges(seq_id: int, ranges: list[bytearray]) -> bool:
            self.context.now += self.load_s
            return append(seq_id, ranges)

        def save_range(seq_id: int, start: int, stop: int) -> bytearray:
            self.saved.append((start, stop))
            return save(seq_id, start, stop)

        self.context.append_ranges = append_ranges  # type: ignore
        self.context.save_range = save_range  # type: ignore[method-assign]
        self.store = BlockStore(RamParkingLot(limit), 4, only_checkpoints=recurrent)
        self.states = BlockStates(
            self.context,
            self.store,
            recompute_ms=lambda start, n: ms * n,
            clock=lambda: self.context.now,
            end=EndState(flags=1) if recurrent else None,
        )

    def compute(self, seq_id: int, new: np.ndarray, start: int = 0) -> None:
        batch = self.context.new_batch()
        batch.add(seq_id, new, start, output=True)
        assert self.context.decode(batch) == 0

    def load(self, prompt: np.ndarray, limit: int, held: int = 0, seq_id: int = 1) -> int:
        match = self.states.find(ROOT, prompt, limit, resident=0)
        assert match is not None
        first = self.states.first_held(match, held)
        if first < held:
            self.context.remove(seq_id, first)
        return self.states.load(seq_id, match, first, lambda: False)


def test_a_sequence_is_stored_and_comes_back_on_top_of_what_is_left() -> None:
    bench = Bench()
    bench.compute(1, tokens(10))
    assert bench.states.keep(1, ROOT, tokens(10))
    assert len(bench.store) == 3
    bench.context.remove(1, 6)
    assert bench.load(tokens(20), 9, held=6) == 9
    assert bench.context.tokens[1] == tokens(9).tolist()


def test_only_what_is_new_is_stored() -> None:
    bench = Bench()
    bench.compute(1, tokens(8))
    bench.states.keep(1, ROOT, tokens(8))
    bench.compute(1, tokens(3, 9), start=8)
    assert bench.states.keep(1, ROOT, tokens(11)) and bench.states.keep(1, ROOT, tokens(11))
    assert bench.saved == [(0, 4), (4, 8), (8, 11)]


def test_without_room_the_rest_is_left_out() -> None:
    bench = Bench(limit=2 * 1100)
    bench.compute(1, tokens(12))
    assert not bench.states.keep(1, ROOT, tokens(12))
    assert bench.store.longest(ROOT, tokens(12), 12).reuse == 8
    bench.store.check_integrity()


def test_a_full_cache_is_left_as_it_is_until_somebody_leaves() -> None:
    bench = Bench()
    bench.compute(1, tokens(12))
    bench.states.keep(1, ROOT, tokens(12))
    bench.context.remove(1, 4)
    bench.compute(2, tokens(93, 500))
    assert bench.load(tokens(12), 12, held=4) == 4
    assert bench.context.tokens[1] == tokens(4).tolist()
    evicted = []

    def evict_one() -> bool:
        evicted.append(2)
        return bench.context.remove(2)

    match = bench.states.find(ROOT, tokens(12), 12, resident=0)
    assert match is not None and bench.states.load(1, match, 4, evict_one) == 12
    assert evicted == [2] and bench.context.tokens[1] == tokens(12).tolist()


def test_what_is_computed_more_quickly_is_not_restored() -> None:
    bench = Bench(ms=1.0, load_s=0.05)
    bench.compute(1, tokens(8))
    bench.states.keep(1, ROOT, tokens(8))
    bench.context.remove(1)
    assert bench.load(tokens(8), 8) == 8  # nothing is known about restores yet
    assert bench.states.find(ROOT, tokens(8), 8, resident=0) is None
    refused = 0
    while bench.states.find(ROOT, tokens(8), 8, resident=0) is None:
        refused += 1  # it is tried again some time
    assert 20 < refused < 200


def test_a_state_that_can_not_be_cut_comes_back_where_it_was_stored() -> None:
    bench = Bench(recurrent=True)
    bench.compute(1, tokens(8))
    assert bench.states.keep(1, ROOT, tokens(8))  # at a border of blocks
    bench.compute(1, tokens(3, 9), start=8)
    assert bench.states.keep(1, ROOT, tokens(11)) and bench.states.keep(1, ROOT, tokens(11))
    bench.compute(1, tokens(5, 12), start=11)
    assert bench.states.keep_some(1, ROOT, tokens(16), 10) == 16
    bench.store.check_integrity()
    assert len(bench.store) == 4 + 2
    for limit, expected in ((8, 8), (10, 8), (11, 11), (16, 11)):
        bench.context.remove(1)
        assert bench.load(tokens(20), limit) == expected
        assert bench.context.tokens[1] == tokens(expected).tolist()
        assert not bench.context.unfinished
    other = np.concatenate((tokens(9), tokens(9, 50)))
    assert bench.store.longest(ROOT, other, 18).reuse == 8
    assert bench.states.find(ROOT, tokens(20), 7, resident=0) is None


def test_what_another_sequence_keeps_of_it_is_not_loaded_again() -> None:
    bench = Bench(recurrent=True)
    bench.compute(1, tokens(11))
    bench.states.keep(1, ROOT, tokens(11))
    bench.compute(1, tokens(5, 12), start=11)
    match = bench.states.find(ROOT, tokens(20), 19, resident=0)
    assert match is not None
    assert [bench.states.first_held(match, n) for n in (3, 4, 10, 11, 16)] == [0, 4, 8, 11, 11]
    for held in (0, 4, 8, 11):
        bench.context.copy(1, 2, held) if held else bench.context.remove(2)
        assert bench.states.load(2, match, held, lambda: False) == 11
        assert bench.context.tokens[2] == tokens(11).tolist()
        assert not bench.context.unfinished
        bench.context.remove(2)


def test_a_checkpoint_that_does_not_fit_leaves_nothing_behind() -> None:
    bench = Bench(recurrent=True)
    bench.compute(1, tokens(11))
    bench.states.keep(1, ROOT, tokens(11))
    bench.compute(2, tokens(85, 500))
    bench.context.copy(1, 3, 4)
    match = bench.states.find(ROOT, tokens(20), 19, resident=0)
    assert match is not None and bench.states.load(3, match, 4, lambda: False) == 0
    assert 3 not in bench.context.tokens


def test_old_checkpoints_go_before_what_they_stand_on() -> None:
    bench = Bench(recurrent=True, limit=7 * 1100)
    for end in range(2, 40, 2):
        bench.compute(1, tokens(2, end - 1), start=end - 2)
        bench.states.keep(1, ROOT, tokens(end))
        bench.store.check_integrity()
        found = bench.store.longest(ROOT, tokens(40), 40).reuse
        assert found == end or end > 16, "the last one is there as long as there is room"
