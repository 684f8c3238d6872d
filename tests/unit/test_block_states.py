"""Between KV cache and block store, on a fake context: what is stored, restored, and when not."""

from __future__ import annotations

import numpy as np

from strata_plugin.checkpoints.blocks import BlockStore
from strata_plugin.checkpoints.keys import namespace
from strata_plugin.checkpoints.parking import RamParkingLot
from strata_plugin.engine.block_states import BlockStates
from tests.unit.fake_engine import FakeContext

ROOT = namespace({})
SCRATCH = 9


def tokens(n: int, start: int = 1) -> np.ndarray:
    return np.arange(start, start + n, dtype=np.int32)


class Bench:
    """A context whose loads take `load_s`; a token takes `ms` to compute, blocks have 4."""

    def __init__(self, *, ms: float = 1.0, load_s: float = 0.0, limit: int = 1 << 20) -> None:
        self.context = FakeContext(100, n_batch=100)
        self.load_s = load_s
        real = self.context.load_state

        def load_state(seq_id: int, data: bytearray) -> bool:
            self.context.now += self.load_s
            return real(seq_id, data)

        self.context.load_state = load_state  # type: ignore[method-assign]
        self.store = BlockStore(RamParkingLot(limit), 4)
        self.states = BlockStates(
            self.context,
            self.store,
            SCRATCH,
            recompute_ms=lambda start, n: ms * n,
            clock=lambda: self.context.now,
        )

    def compute(self, seq_id: int, new: np.ndarray, start: int = 0) -> None:
        batch = self.context.new_batch()
        batch.add(seq_id, new, start, output=True)
        assert self.context.decode(batch) == 0


def test_a_sequence_is_stored_and_comes_back_on_top_of_what_is_left() -> None:
    bench = Bench()
    bench.compute(1, tokens(10))
    assert bench.states.keep(1, ROOT, tokens(10))
    assert len(bench.store) == 3
    bench.context.remove(1, 6)
    match = bench.states.find(ROOT, tokens(20), 9, resident=6)
    assert match is not None and match.reuse == 9
    assert bench.states.load(1, match, 6, lambda: False) == 9
    assert bench.context.tokens[1] == tokens(9).tolist()
    assert SCRATCH not in bench.context.tokens


def test_only_what_is_new_is_stored() -> None:
    bench = Bench()
    bench.compute(1, tokens(8))
    bench.states.keep(1, ROOT, tokens(8))
    saved = []
    real = bench.context.save_state
    bench.context.save_state = lambda seq: saved.append(seq) or real(seq)  # type: ignore
    bench.compute(1, tokens(3, 9), start=8)
    assert bench.states.keep(1, ROOT, tokens(11)) and len(saved) == 1
    assert bench.states.keep(1, ROOT, tokens(11)) and len(saved) == 1


def test_without_room_the_rest_is_left_out() -> None:
    bench = Bench(limit=2 * 1100)
    bench.compute(1, tokens(12))
    assert not bench.states.keep(1, ROOT, tokens(12))
    assert bench.store.longest(ROOT, tokens(12), 12).reuse == 8
    bench.store.check_integrity()


def test_a_full_cache_takes_what_fits_once_nobody_can_leave() -> None:
    bench = Bench()
    bench.compute(1, tokens(12))
    bench.states.keep(1, ROOT, tokens(12))
    bench.context.remove(1)
    bench.compute(2, tokens(93, 500))
    match = bench.states.find(ROOT, tokens(12), 12, resident=0)
    assert match is not None
    assert bench.states.load(1, match, 0, lambda: False) == 4
    evicted = []

    def evict_one() -> bool:
        evicted.append(2)
        return bench.context.remove(2)

    assert bench.states.load(1, match, 4, evict_one) == 12
    assert evicted == [2] and bench.context.tokens[1] == tokens(12).tolist()


def test_what_is_computed_more_quickly_is_not_restored() -> None:
    bench = Bench(ms=1.0, load_s=0.05)
    bench.compute(1, tokens(8))
    bench.states.keep(1, ROOT, tokens(8))
    bench.context.remove(1)
    match = bench.states.find(ROOT, tokens(8), 8, resident=0)
    assert match is not None  # nothing is known about restores yet
    bench.states.load(1, match, 0, lambda: False)
    assert bench.states.find(ROOT, tokens(8), 8, resident=0) is None
    refused = 0
    while bench.states.find(ROOT, tokens(8), 8, resident=0) is None:
        refused += 1  # it is tried again some time
    assert 20 < refused < 200
