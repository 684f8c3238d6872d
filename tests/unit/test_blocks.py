"""The block store: what is found, what is shared, what goes first, and that the budget holds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_plugin.checkpoints.blocks import BLOCK_OVERHEAD, Block, BlockStore
from strata_plugin.checkpoints.keys import KEY_BYTES, block_key, namespace
from strata_plugin.checkpoints.parking import RamParkingLot
from strata_plugin.checkpoints.tokens import Tokens, common_prefix

ROOT = namespace({"model": "m"})
OTHER = namespace({"model": "m", "tenant": "key-2"})
N = 4  # tokens of a block
ROOM = BLOCK_OVERHEAD + 4 * N + 100  # that a whole block of the tests takes


def run(n: int, start: int = 1) -> Tokens:
    return np.arange(start, start + n, dtype=np.int32)


def joined(*parts: Tokens) -> Tokens:
    return np.concatenate(parts).astype(np.int32)


def store(blocks: int = 100) -> BlockStore:
    return BlockStore(RamParkingLot(blocks * ROOM), N)


def keep(blocks: BlockStore, tokens: Tokens, root: bytes = ROOT, cost_ms: float = 1.0) -> bool:
    """Store all of `tokens`, as an engine does; False where there was no room for some."""
    after, done = blocks.tip(root, tokens)
    while done < len(tokens):
        own = tokens[done : done + N]
        room = blocks.reserve(100, len(own), after)
        if room is None:
            return False
        after = blocks.put(room, root, after, own, bytearray(100), cost_ms)
        assert after is not None
        done += len(own)
        blocks.check_integrity()
    return True


def found(blocks: BlockStore, tokens: Tokens, limit: int = 1000, root: bytes = ROOT) -> int:
    match = blocks.longest(root, tokens, limit)
    ends = [block.end for block in match.blocks]
    starts = [block.start for block in match.blocks]
    assert starts == [0, *ends[:-1]][: len(starts)]
    assert match.reuse <= (ends[-1] if ends else 0)
    blocks.use(match)
    return match.reuse


def test_a_prompt_finds_whole_blocks_and_a_part_of_the_next_one() -> None:
    blocks = store()
    assert keep(blocks, run(10))
    assert len(blocks) == 3
    assert found(blocks, run(50)) == 10
    assert found(blocks, run(50), limit=9) == 9
    assert found(blocks, joined(run(6), run(9, 70))) == 6
    assert found(blocks, run(10, 2)) == 0
    assert found(blocks, run(0)) == 0


def test_a_common_prefix_is_stored_once() -> None:
    blocks = store()
    for number in range(10):
        assert keep(blocks, joined(run(8 * N), run(N, 1000 * (number + 1))))
    assert len(blocks) == 8 + 10


def test_a_block_that_holds_more_replaces_the_shorter_one() -> None:
    blocks = store()
    for n in (N + 1, N + 3, N + 2, 2 * N):
        assert keep(blocks, run(n))
        assert len(blocks) == 2
    assert found(blocks, run(50)) == 2 * N
    assert keep(blocks, joined(run(N + 1), run(2, 90)))  # another way on
    assert len(blocks) == 3


def test_other_namespaces_find_nothing() -> None:
    blocks = store()
    keep(blocks, run(10))
    assert found(blocks, run(10), root=OTHER) == 0
    assert keep(blocks, run(10), root=OTHER)
    assert len(blocks) == 6


def test_who_was_not_used_goes_first_and_the_end_before_the_beginning() -> None:
    blocks = store(4)
    keep(blocks, run(2 * N))
    keep(blocks, run(2 * N, 100))
    assert found(blocks, run(2 * N)) == 2 * N
    keep(blocks, run(N, 200))
    assert (found(blocks, run(2 * N)), found(blocks, run(2 * N, 100))) == (2 * N, N)


def test_what_is_dear_to_compute_again_stays_longer() -> None:
    blocks = store(3)
    keep(blocks, run(N), cost_ms=100.0)
    for number in range(1, 10):
        keep(blocks, run(N, 1000 * number), cost_ms=1.0)
    assert found(blocks, run(N)) == N
    for number in range(10, 400):  # but not for ever
        keep(blocks, run(N, 1000 * number), cost_ms=1.0)
    assert blocks.longest(ROOT, run(N), N).reuse == 0


def test_pinned_blocks_stay_and_what_does_not_fit_is_refused() -> None:
    blocks = store(2)
    keep(blocks, run(2 * N))
    match = blocks.longest(ROOT, run(2 * N), 2 * N)
    with blocks.pinned(match):
        assert not keep(blocks, run(N, 50))
        assert blocks.longest(ROOT, run(2 * N), 2 * N).reuse == 2 * N
    assert keep(blocks, run(N, 50))
    assert blocks.reserve(3 * ROOM, 1, None) is None
    assert len(blocks) == 2


def test_parked_requests_come_first() -> None:
    lot = RamParkingLot(3 * ROOM)
    blocks = BlockStore(lot, N)
    keep(blocks, run(3 * N))
    assert lot.reserve(ROOM) is None
    assert blocks.make_room(ROOM) is not None
    assert len(blocks) == 2
    assert blocks.make_room(3 * ROOM) is None
    assert len(blocks) == 2


def test_a_block_whose_predecessor_is_gone_is_refused() -> None:
    blocks = store(2)
    keep(blocks, run(N))
    after, _ = blocks.tip(ROOT, run(N))
    room = blocks.reserve(100, N, after)
    assert room is not None
    blocks.make_room(2 * ROOM - room.n_bytes)
    assert len(blocks) == 0
    assert blocks.put(room, ROOT, after, run(N, 5), bytearray(100), 1.0) is None
    blocks.check_integrity()


def test_making_room_for_a_block_never_drops_what_it_follows() -> None:
    blocks = store(2)
    keep(blocks, run(N))
    keep(blocks, run(N, 100))
    found(blocks, run(N, 100))
    keep(blocks, run(2 * N))
    assert found(blocks, run(2 * N)) == 2 * N


def test_a_beginning_goes_with_all_that_follows_however_long() -> None:
    blocks = BlockStore(RamParkingLot(1 << 30), 1)
    after = None
    for number in range(3000):
        room = blocks.reserve(1, 1, after)
        assert room is not None
        after = blocks.put(room, ROOT, after, run(1, number), bytearray(1), 1.0)
    first = blocks.longest(ROOT, run(1, 0), 1).blocks[0]
    blocks.drop(first)
    assert len(blocks) == 0 and blocks.n_bytes == 0
    blocks.check_integrity()


def test_keys_differ_with_everything_that_changes_the_bytes() -> None:
    roots = [
        namespace({"model": "a"}),
        namespace({"model": "b"}),
        namespace({"model": "a", "tenant": ""}),
        namespace({"model": "a", "n": 1}),
        namespace({"model": "a", "n": "1"}),
        namespace({"model": "a", "n": True}),
        namespace({"model": "a", "n": 1.5}),
    ]
    keys = [*roots, *(block_key(root, run(3)) for root in roots), block_key(roots[0], run(4))]
    keys += [block_key(keys[-1], run(3)), block_key(roots[0], run(3, 2))]
    assert len(set(keys)) == len(keys) and {len(key) for key in keys} == {KEY_BYTES}
    assert namespace({"a": 1, "b": 2}) == namespace({"b": 2, "a": 1})


def test_a_block_of_a_wrong_size_is_an_error() -> None:
    blocks = store()
    room = blocks.reserve(100, N, None)
    assert room is not None
    for n in (0, N + 1):
        with pytest.raises(ValueError, match=f"a block of {n} tokens"):
            blocks.put(room, ROOT, None, run(n), bytearray(100), 1.0)
    with pytest.raises(ValueError, match="block_tokens"):
        BlockStore(RamParkingLot(1), 0)


conversations = st.lists(st.integers(0, 2), max_size=20).map(lambda x: np.array(x, np.int32))
steps = st.tuples(conversations, st.integers(0, 1), st.sampled_from((0.1, 1.0, 50.0)))


@settings(max_examples=150, deadline=None)
@given(st.lists(steps, max_size=30), st.integers(1, 8))
def test_whatever_happens_the_budget_holds_and_matches_are_true(
    history: list[tuple[Tokens, int, float]], capacity: int
) -> None:
    lot = RamParkingLot(capacity * ROOM)
    blocks = BlockStore(lot, N)
    kept: dict[int, list[Tokens]] = {0: [], 1: []}
    for tokens, tenant, cost_ms in history:
        root = (ROOT, OTHER)[tenant]
        match = blocks.longest(root, tokens, len(tokens))
        most = max((common_prefix(tokens, other) for other in kept[tenant]), default=0)
        assert match.reuse <= most, "something was found that was never stored there"
        at: Block | None = None
        for block in match.blocks:
            assert block.parent is at
            part = tokens[block.start : min(block.end, match.reuse)]
            assert np.array_equal(part, block.tokens[: len(part)])
            at = block
        blocks.use(match)
        whole = keep(blocks, tokens, root, cost_ms)
        kept[tenant].append(tokens)
        assert lot.used_bytes <= lot.limit_bytes
        blocks.check_integrity()
        if whole:
            assert blocks.longest(root, tokens, len(tokens)).reuse == len(tokens)


def keep_end(blocks: BlockStore, tokens: Tokens, root: bytes, cost_ms: float) -> bool:
    """Store a checkpoint after `tokens`; False where there was no room."""
    border = len(tokens) - len(tokens) % N
    if not keep(blocks, tokens[:border], root, cost_ms):
        return False
    after, _ = blocks.tip(root, tokens[:border])
    room = blocks.reserve(100, len(tokens) - border, after)
    if room is None:
        return False
    rest = bytearray(tokens.tobytes())
    return blocks.put(room, root, after, tokens[border:], bytearray(1), cost_ms, rest) is not None


@settings(max_examples=150, deadline=None)
@given(st.lists(steps, max_size=30), st.integers(2, 12), st.data())
def test_where_only_checkpoints_count_each_is_the_end_of_what_it_is_found_for(
    history: list[tuple[Tokens, int, float]], capacity: int, data: st.DataObject
) -> None:
    lot = RamParkingLot(capacity * ROOM)
    blocks = BlockStore(lot, N, only_checkpoints=True)
    for tokens, tenant, cost_ms in history:
        root = (ROOT, OTHER)[tenant]
        limit = data.draw(st.integers(0, len(tokens)))
        match = blocks.longest(root, tokens, limit)
        assert match.reuse <= limit
        if match.blocks:
            last = match.blocks[-1]
            assert last.end == match.reuse and last.root == root
            assert last.rest == bytearray(tokens[: match.reuse].tobytes())
            assert [b.start for b in match.blocks[1:]] == [b.end for b in match.blocks[:-1]]
            assert all(block.rest is None for block in match.blocks[:-1])
        blocks.use(match)
        stored = len(tokens) > 0 and keep_end(blocks, tokens, root, cost_ms)
        assert lot.used_bytes <= lot.limit_bytes
        blocks.check_integrity()
        if stored:
            assert blocks.longest(root, tokens, len(tokens)).reuse == len(tokens)


def test_a_checkpoint_stays_beside_longer_blocks_and_is_no_beginning_of_others() -> None:
    blocks = BlockStore(RamParkingLot(1 << 20), N, only_checkpoints=True)
    keep_end(blocks, run(N + 2), ROOT, 1.0)
    keep_end(blocks, run(N), ROOT, 1.0)
    keep(blocks, run(3 * N))
    assert len(blocks) == 3 + 2
    assert found(blocks, run(3 * N)) == N + 2
    assert found(blocks, run(3 * N), limit=N + 1) == N
    room = blocks.reserve(1, 0, None)
    assert room is not None
    with pytest.raises(ValueError, match="0 tokens"):
        blocks.put(room, ROOT, None, run(0), bytearray(), 1.0, bytearray(1))


def test_of_too_many_checkpoints_those_go_that_leave_the_smallest_gaps() -> None:
    blocks = BlockStore(RamParkingLot(1 << 20), N, only_checkpoints=True)
    for n in (10, 20, 21, 40, 60):
        keep_end(blocks, run(n), ROOT, 1.0)
    for most, left in ((5, [10, 20, 21, 40, 60]), (4, [10, 21, 40, 60]), (2, [21, 60]), (0, [])):
        blocks.thin(ROOT, run(100), most)
        blocks.check_integrity()
        assert sorted({found(blocks, run(100), limit=n) for n in range(101)} - {0}) == left
    keep_end(blocks, run(10), ROOT, 1.0)
    with blocks.pinned(blocks.longest(ROOT, run(10), 10)):
        blocks.thin(ROOT, run(100), 0)
    assert found(blocks, run(100)) == 10
