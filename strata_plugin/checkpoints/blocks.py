"""States of prefixes in RAM, in blocks that conversations share.

A block holds what is kept for each of up to `block_tokens` consecutive tokens after the blocks
before it, so a prefix that ten conversations have in common is there once. Only the last block of a
conversation is shorter; it gives way to one that holds more.

Where there is also a state that exists only at the end of a sequence (recurrent layers, sliding
windows), a prefix can be used only up to a checkpoint: a last block, of maybe no tokens, that holds
that state too. Checkpoints stay beside longer blocks, and nothing follows them.

The bytes of parked requests come out of the same budget and go before. What is dropped first costs
least to compute again, by byte and by how long it was not used (GreedyDual-Size, Cao and Irani
1997); no block is dropped before those that follow it, and none that is pinned.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from .keys import Key, block_key
from .misses import Near
from .parking import RamParkingLot, Reservation
from .tokens import Tokens, common_prefix

MOST_EVICTED = 1 << 14  # keys of dropped blocks that are remembered
BLOCK_OVERHEAD = 1024  # bytes that a block takes beside its state and tokens, at most


@dataclass(slots=True, eq=False)
class Block:
    """The state of `tokens`, which follow those of `parent` (None: they are the first).

    `rest` is the state that exists only at their end, None for blocks that are no checkpoints.
    `cost_ms` is what computing them again would take. The room it takes of the budget stays
    reserved as long as it is stored.
    """

    key: Key
    root: Key
    parent: Block | None
    start: int
    tokens: Tokens
    data: bytearray = field(repr=False)
    cost_ms: float
    room: Reservation
    rest: bytearray | None = field(default=None, repr=False)
    priority: float = 0.0
    turn: int = 0  # of its valid entry in the heap; of two alike the one used earlier goes first
    pins: int = 0
    children: dict[Key, Block] = field(default_factory=dict, repr=False)

    @property
    def end(self) -> int:
        """Position after the last token."""
        return self.start + len(self.tokens)

    @property
    def n_data(self) -> int:
        """Bytes of its state."""
        return len(self.data) + len(self.rest or b"")


@dataclass(frozen=True)
class BlockMatch:
    """Blocks that hold the first `reuse` tokens of a prompt; of the last one maybe only a part."""

    blocks: tuple[Block, ...] = ()
    reuse: int = 0


class BlockStore:
    """All blocks of one engine's RAM tier."""

    def __init__(
        self,
        lot: RamParkingLot,
        block_tokens: int,
        dropped: Callable[[Block], None] | None = None,
        *,
        only_checkpoints: bool = False,
    ) -> None:
        """`dropped` is called with every block that goes. `only_checkpoints`: prefixes that end
        anywhere else can't be used.
        """
        if block_tokens < 1:
            raise ValueError(f"block_tokens must be positive, got {block_tokens}")
        self.block_tokens = block_tokens
        self.only_checkpoints = only_checkpoints
        self._lot = lot
        self._dropped = dropped
        self._blocks: dict[Key, Block] = {}
        self._first: dict[Key, dict[Key, Block]] = {}  # by root: blocks without a parent
        self._heap: list[tuple[float, int, Block]] = []  # of leaves, with outdated entries
        self._pushed = 0
        self._n_bytes = 0
        self.n_evicted = 0  # blocks that were dropped to make room
        self._evicted: dict[Key, None] = {}  # their keys, the latest ones
        self._inflation = 0.0  # priority of what was dropped last

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def n_bytes(self) -> int:
        """Bytes of the budget that blocks take."""
        return self._n_bytes

    @property
    def n_tokens(self) -> int:
        """Tokens of all blocks."""
        return sum(len(block.tokens) for block in self._blocks.values())

    # ---- finding ---------------------------------------------------------------------------------

    def get(self, key: Key) -> Block | None:
        """The block of this key, whatever its namespace."""
        return self._blocks.get(key)

    def longest(self, root: Key, tokens: Tokens, limit: int) -> BlockMatch:
        """What is stored of the first `limit` tokens of a prompt; `use` it if it is."""
        if self.only_checkpoints:
            return self._longest_checkpoint(root, tokens[:limit])
        found = list(self._path(root, tokens[:limit]))
        reuse = found[-1].end if found else 0
        rest = tokens[reuse:limit]
        if len(rest):
            best, shared = None, 0
            for block in self._after(root, found[-1] if found else None).values():
                common = common_prefix(block.tokens, rest)
                if common > shared:
                    best, shared = block, common
            if best is not None:
                found.append(best)
                reuse += shared
        return BlockMatch(tuple(found), reuse)

    def nearest(self, root: Key, tokens: Tokens, most: int) -> Near:
        """What is stored and shares most with `tokens`, and up to `most` tokens that follow."""
        path = list(self._path(root, tokens))
        block = path[-1] if path else None
        common, rest = block.end if block else 0, np.zeros(0, np.int32)
        after = self._after(root, block).values()
        shared = {id(b): common_prefix(b.tokens, tokens[common:]) for b in after}
        at = max(after, key=lambda b: (shared[id(b)], b.turn), default=None)
        if at is not None:
            parts, n = [at.tokens[shared[id(at)] :]], len(at.tokens)
            common += shared[id(at)]
            while at.children and n < most:
                at = max(at.children.values(), key=lambda b: (len(b.tokens), b.turn))
                parts.append(at.tokens)
                n += len(at.tokens)
            rest = np.concatenate(parts)[:most]
        end = block.end if block else 0
        return Near(common, rest, evicted=self._once_stored(root, block, tokens, end))

    def _once_stored(self, root: Key, block: Block | None, tokens: Tokens, at: int) -> int:
        """Tokens from position `at` on whose blocks were dropped."""
        key, begun, step = block.key if block else root, at, self.block_tokens
        while at + step <= len(tokens):
            key = block_key(key, tokens[at : at + step])
            if key not in self._evicted:
                break
            at += step
        return at - begun

    def conversations(self, root: Key) -> list[tuple[Tokens, int]]:
        """All conversations under `root`: their tokens, and the bytes of their states, of which
        those of common beginnings count for each.
        """
        found = []
        ends = [b for b in self._blocks.values() if b.root == root and not b.children]
        for end in ends:
            if end.rest is not None and end.parent is not None:
                others = end.parent.children.values()
                if any(b.end > end.end for b in others):
                    continue  # a checkpoint within a longer one
            parts, n_bytes = [], 0
            at: Block | None = end
            while at is not None:
                parts.append(at.tokens)
                n_bytes += at.room.n_bytes
                at = at.parent
            found.append((np.concatenate(parts[::-1]), n_bytes))
        return found

    def _longest_checkpoint(self, root: Key, tokens: Tokens) -> BlockMatch:
        path = list(self._path(root, tokens))
        for n in range(len(path), -1, -1):
            ends = [b for b in self._next(root, path[n - 1] if n else None, tokens) if _is_end(b)]
            if ends:
                last = max(ends, key=lambda block: block.end)
                return BlockMatch((*path[:n], last), last.end)
        return BlockMatch()

    def use(self, match: BlockMatch) -> None:
        """The blocks of a match were used just now."""
        for block in match.blocks:
            self._use(block)

    def tip(self, root: Key, tokens: Tokens) -> tuple[Block | None, int]:
        """The last of the whole blocks that `tokens` begin with, and how many tokens need no block.

        The latter is all of them where one that begins with the rest follows.
        """
        path = list(self._path(root, tokens))
        last = path[-1] if path else None
        done = last.end if last else 0
        rest = tokens[done:]
        after = self._after(root, last).values()
        if any(b.rest is None and common_prefix(b.tokens, rest) == len(rest) for b in after):
            done = len(tokens)
        return last, done

    @contextmanager
    def pinned(self, match: BlockMatch) -> Iterator[None]:
        """The blocks of a match are not dropped meanwhile."""
        for block in match.blocks:
            self.pin(block)
        try:
            yield
        finally:
            for block in match.blocks:
                self.unpin(block)

    def pin(self, block: Block) -> None:
        """A block is not dropped until it was unpinned as often."""
        block.pins += 1

    def unpin(self, block: Block) -> None:
        """Undo one `pin`."""
        block.pins -= 1
        self._push(block)

    # ---- storing ---------------------------------------------------------------------------------

    def reserve(self, n_data: int, n_tokens: int, after: Block | None) -> Reservation | None:
        """Room for a block with a state of `n_data` bytes that is to follow `after`, at the expense
        of others; None where parked requests and pinned blocks leave too little.
        """
        with self.pinned(BlockMatch((after,) if after else ())):
            return self.make_room(n_data + 4 * n_tokens + BLOCK_OVERHEAD)

    def cancel(self, room: Reservation) -> None:
        """Give back room that will not be used."""
        self._lot.cancel(room)

    def make_room(self, n_bytes: int) -> Reservation | None:
        """Set bytes aside for anything, at the expense of blocks; None where that is not enough."""
        if self._lot.used_bytes - self._n_bytes + n_bytes > self._lot.limit_bytes:
            return None  # and nothing is dropped in vain
        while (room := self._lot.reserve(n_bytes)) is None:
            if self.drop_one() is None:
                return None
        return room

    def drop_one(self) -> Block | None:
        """Drop the block that is missed least and return it; None where all are pinned."""
        while self._heap:
            priority, turn, block = heapq.heappop(self._heap)
            if (
                self._blocks.get(block.key) is block
                and turn == block.turn
                and not block.children
                and not block.pins
            ):
                self._inflation = priority
                self.n_evicted += 1
                self._evicted[block.key] = None
                if len(self._evicted) > MOST_EVICTED:
                    del self._evicted[next(iter(self._evicted))]
                self._drop(block)
                return block
        return None

    def drop(self, block: Block) -> None:
        """Drop a block, and those that follow it."""
        going = [block]
        for at in going:  # grows: no recursion, for a long prompt has thousands of blocks
            going.extend(at.children.values())
        for at in reversed(going):
            self._drop(at)

    def with_checkpoints(self, match: BlockMatch, tokens: Tokens) -> list[Block]:
        """The blocks of a match, each followed by the checkpoints of `tokens` that stand on it."""
        if not match.blocks or not self.only_checkpoints:
            return list(match.blocks)
        found: list[Block] = []
        steps: list[Block | None] = [None, *match.blocks[:-1]]
        for after in steps:
            found += [after] if after is not None else []
            following = self._next(match.blocks[0].root, after, tokens[: match.reuse])
            found += [block for block in following if _is_end(block)]
        return found

    def erase(self, root: Key, tokens: Tokens) -> int:
        """Drop what is stored of `tokens`, from its end to where other conversations part; how many
        tokens were there. What is pinned stays.
        """
        path: list[Block | None] = [None, *self._path(root, tokens)]
        found = 0
        for after in reversed(path):
            for block in self._next(root, after, tokens):
                if not block.children and not block.pins:
                    found = max(found, block.end)
                    self._drop(block)
        return found

    def thin(self, root: Key, tokens: Tokens, most: int) -> None:
        """Leave `most` checkpoints of a conversation, whose tokens are given: those without which
        the longest ways would be left to the next one before.
        """
        found = self._checkpoints(root, tokens)
        while len(found) > most:
            ends = [0, *(block.end for block in found)]
            # the gap from one's predecessor to its successor; the last has none
            gaps = [b - a for a, b in zip(ends, ends[2:], strict=False)] or [0]
            self._drop(found.pop(gaps.index(min(gaps))))

    def _checkpoints(self, root: Key, tokens: Tokens) -> list[Block]:
        """Those that can be dropped, from the shortest to the longest."""
        steps: list[Block | None] = [None, *self._path(root, tokens)]
        following = [block for after in steps for block in self._next(root, after, tokens)]
        found = [block for block in following if _is_end(block) and not block.pins]
        return sorted(found, key=lambda block: block.end)

    def put(
        self,
        room: Reservation,
        root: Key,
        after: Block | None,
        tokens: Tokens,
        data: bytearray,
        cost_ms: float,
        rest: bytearray | None = None,
    ) -> Block | None:
        """Store `data`, the state of `tokens`, which follow the block `after`; with `rest` it is a
        checkpoint.

        None, and the room is given back, where `after` is gone. One that is stored already stays.
        Raises ValueError for more tokens than a block has, or none (checkpoints may have none).
        """
        least = 1 if rest is None or after is None else 0
        if not least <= len(tokens) <= self.block_tokens:
            raise ValueError(f"a block of {len(tokens)} tokens, not 1 to {self.block_tokens}")
        if after is not None and self._blocks.get(after.key) is not after:
            self._lot.cancel(room)
            return None
        key = block_key(after.key if after else root, tokens, checkpoint=rest is not None)
        if (there := self._after(root, after).get(key)) is not None:
            self._lot.cancel(room)
            return there
        if rest is None:
            for other in list(self._after(root, after).values()):
                if _replaces(tokens, other):
                    self._drop(other)
        start = after.end if after else 0
        block = Block(key, root, after, start, tokens.copy(), data, cost_ms, room, rest)
        self._n_bytes += room.n_bytes
        self._blocks[key] = block
        siblings = after.children if after else self._first.setdefault(root, {})
        siblings[key] = block
        self._use(block)
        return block

    # ---- inside ----------------------------------------------------------------------------------

    def _after(self, root: Key, parent: Block | None) -> dict[Key, Block]:
        return parent.children if parent is not None else self._first.get(root, {})

    def _next(self, root: Key, after: Block | None, tokens: Tokens) -> list[Block]:
        """The blocks that follow `after` and hold the next ones of `tokens`, nothing else."""
        start = after.end if after else 0
        following = self._after(root, after).values()
        return [b for b in following if np.array_equal(b.tokens, tokens[start : b.end])]

    def _path(self, root: Key, tokens: Tokens) -> Iterator[Block]:
        """The whole blocks that `tokens` begin with."""
        parent: Block | None = None
        step, at = self.block_tokens, 0
        while at + step <= len(tokens):
            own = tokens[at : at + step]
            key = block_key(parent.key if parent else root, own)
            block = self._after(root, parent).get(key)
            if block is None or not np.array_equal(block.tokens, own):
                return
            yield block
            parent, at = block, at + step

    def _use(self, block: Block) -> None:
        block.priority = self._inflation + block.cost_ms / block.room.n_bytes
        self._push(block)

    def _push(self, block: Block) -> None:
        if not block.children:
            self._pushed += 1
            block.turn = self._pushed
            heapq.heappush(self._heap, (block.priority, block.turn, block))
            if len(self._heap) > 8 * len(self._blocks) + 64:
                leaves = [b for b in self._blocks.values() if not b.children]
                self._heap = [(b.priority, b.turn, b) for b in leaves]
                heapq.heapify(self._heap)

    def _drop(self, block: Block) -> None:
        self._lot.cancel(block.room)
        self._n_bytes -= block.room.n_bytes
        del self._blocks[block.key]
        siblings = block.parent.children if block.parent else self._first[block.root]
        del siblings[block.key]
        if block.parent is None:
            if not siblings:
                del self._first[block.root]
        elif not siblings:
            self._push(block.parent)
        if self._dropped is not None:
            self._dropped(block)

    def check_integrity(self) -> None:
        """Raise AssertionError naming the first broken invariant."""
        taken = sum(block.room.n_bytes for block in self._blocks.values())
        assert self._n_bytes == taken, f"{self._n_bytes} bytes of blocks, {taken} found"
        queued = {(turn, id(block)) for _, turn, block in self._heap}
        for key, block in self._blocks.items():
            parent = block.parent.key if block.parent else block.root
            own = block_key(parent, block.tokens, checkpoint=block.rest is not None)
            assert key == block.key == own, "a key is wrong"
            assert block.rest is None or not block.children, "something follows a checkpoint"
            assert block.start == (block.parent.end if block.parent else 0), "a hole before a block"
            siblings = block.parent.children if block.parent else self._first[block.root]
            assert siblings.get(key) is block, "a block is not among its siblings"
            if block.parent is not None:
                assert self._blocks.get(parent) is block.parent, "a block outlived its parent"
            if not block.children and not block.pins:
                assert (block.turn, id(block)) in queued, "a leaf can't be dropped"
            assert block.pins >= 0, "unpinned too often"


def _is_end(block: Block) -> bool:
    """Whether it is a checkpoint."""
    return block.rest is not None


def _replaces(longer: Tokens, shorter: Block) -> bool:
    n = len(shorter.tokens)
    return (
        n < len(longer)
        and shorter.rest is None
        and not shorter.children
        and not shorter.pins
        and bool(np.array_equal(longer[:n], shorter.tokens))
    )
