"""Moves states between the KV cache and the block store, both ways.

What is kept for each token moves in ranges of positions; what exists only at the end of a sequence
(`EndState`), in one piece, at the moment when the sequence is there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from strata_plugin.checkpoints.blocks import Block, BlockMatch, BlockStore
from strata_plugin.checkpoints.keys import Key
from strata_plugin.checkpoints.misses import Near
from strata_plugin.checkpoints.parking import Reservation
from strata_plugin.checkpoints.slot_file import NO_ROOM, Part, SlotFileError, SlotState
from strata_plugin.runtime.errors import StateError

from .disk_tier import DiskTier, Loaded
from .ports import ContextPort, Tokens
from .transfer_rate import TransferRate

FETCH_GAIN = 64  # tokens that the disk must be ahead of what is in RAM

Task = Callable[[], None]
RecomputeMs = Callable[[int, int], float]  # (first position, tokens) -> time to compute them

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EndState:
    """Of memory whose state exists, in part or as a whole, only at the end of a sequence."""

    flags: int  # that save_state gives just that part for
    per_token: bool = True  # there is another part, which is kept for each token
    most: int = 32  # checkpoints of a conversation


@dataclass(frozen=True)
class Restore:
    """What bringing back a state took, and what computing it again should have taken, in ms."""

    took_ms: float
    recompute_ms: float


class BlockStates:
    """The blocks of one context. `end`: the kind of its checkpoints, None where it needs none."""

    def __init__(
        self,
        context: ContextPort,
        store: BlockStore,
        *,
        recompute_ms: RecomputeMs,
        clock: Callable[[], float],
        disk: DiskTier | None = None,
        end: EndState | None = None,
    ) -> None:
        self.store = store
        self.disk = disk
        self.end = end
        self._context = context
        self._recompute_ms = recompute_ms
        self._clock = clock
        self.n_fetched = 0  # tokens whose states came from disk
        self._restores = TransferRate()
        self.last_restore: Restore | None = None

    @property
    def restore_bytes_per_s(self) -> float:
        """How quickly states came back into the KV cache so far; 0: none did."""
        return self._restores.bytes_per_s

    # ---- to blocks -------------------------------------------------------------------------------

    def keep(self, seq_id: int, root: Key, tokens: Tokens) -> bool:
        """Have the state of a sequence, which holds `tokens`, in blocks; False where some of it has
        no room.
        """
        if self.end is not None:
            return self.checkpoint(seq_id, root, tokens)
        return self.keep_some(seq_id, root, tokens, len(tokens)) == len(tokens)

    def keep_some(self, seq_id: int, root: Key, tokens: Tokens, most: int) -> int:
        """Store up to `most` blocks of what is kept for each of `tokens`; how many tokens are in
        blocks now.
        """
        if self.end is not None:  # a block of fewer tokens would be of no use
            tokens = tokens[: len(tokens) - len(tokens) % self.store.block_tokens]
        after, done = self.store.tip(root, tokens)
        while done < len(tokens) and most > 0:
            end = min(done + self.store.block_tokens, len(tokens))
            cost_ms = self._recompute_ms(done, end - done)
            block = self._stored(seq_id, root, after, tokens[done:end], cost_ms)
            if block is None:
                return done
            after, done, most = block, end, most - 1
        return done

    def checkpoint(self, seq_id: int, root: Key, tokens: Tokens) -> bool:
        """Store the state of a sequence that holds exactly `tokens`, so that it can go on from
        there; False where there is no room for it.
        """
        assert self.end is not None
        n, known = len(tokens), self.store.longest(root, tokens, len(tokens))
        if known.reuse == n:
            self.store.use(known)
            return True
        border = n - n % self.store.block_tokens
        if self.keep_some(seq_id, root, tokens[:border], n) < border:
            return False
        after, _ = self.store.tip(root, tokens[:border])
        cost_ms = self._recompute_ms(known.reuse, n - known.reuse)
        self.store.thin(root, tokens, self.end.most - 1)
        return self._stored(seq_id, root, after, tokens[border:], cost_ms, self.end) is not None

    def _stored(
        self,
        seq_id: int,
        root: Key,
        after: Block | None,
        tokens: Tokens,
        cost_ms: float,
        end: EndState | None = None,
    ) -> Block | None:
        """A new block of `tokens`, with `end` a checkpoint; None where there is no room for it."""
        context, start = self._context, after.end if after else 0
        stop = start + len(tokens)
        per_token = bool(len(tokens)) and (self.end is None or self.end.per_token)
        size = context.range_size(seq_id, start, stop) if per_token else 0
        size += context.state_size(seq_id, end.flags) if end else 0
        room = self._reserve(size, len(tokens), after)
        if room is None:
            return None
        try:
            data = context.save_range(seq_id, start, stop) if per_token else bytearray()
            rest = context.save_state(seq_id, end.flags) if end else None
        except (MemoryError, StateError) as e:
            log.warning("a block of sequence %d was not saved: %s", seq_id, e or "no memory")
            self.store.cancel(room)
            return None
        block = self.store.put(room, root, after, tokens, data, cost_ms, rest)
        if block is not None and self.disk is not None and self.disk.write(block):
            self.store.pin(block)  # so that what waits to be written counts as RAM
        return block

    def _reserve(self, n_data: int, n_tokens: int, after: Block | None) -> Reservation | None:
        """As `BlockStore.reserve`; what was written meanwhile may go for it."""
        self._unpin_written()
        return self.store.reserve(n_data, n_tokens, after)

    def _unpin_written(self) -> None:
        if self.disk is not None:
            for written in self.disk.written():
                self.store.unpin(written)

    # ---- from blocks -----------------------------------------------------------------------------

    def find(self, root: Key, tokens: Tokens, limit: int, resident: int) -> BlockMatch | None:
        """Blocks for the first of `tokens`, `limit` of them at most; None where they hold no more
        than the `resident` ones, or where computing those is quicker.
        """
        match = self.store.longest(root, tokens, limit)
        if match.reuse <= resident:
            return None
        n_bytes = sum(b.n_data for b in match.blocks if b.end > resident)
        computing = self._recompute_ms(resident, match.reuse - resident)
        if computing and self._restores.predict(n_bytes) >= computing:
            self._restores.doubt()
            return None
        return match

    def first_held(self, match: BlockMatch, held: int) -> int:
        """To how many of its `held` tokens a sequence has to be cut before `load`."""
        if self.end is not None and held >= match.reuse:
            return match.reuse
        return held - held % self.store.block_tokens

    def load(
        self, seq_id: int, match: BlockMatch, held: int, evict_one: Callable[[], bool]
    ) -> int:
        """Append what a match has beyond the first `held` tokens of a sequence (see `first_held`);
        how many it holds now: all or as before, or none where its state was refused.

        The blocks have to be pinned. `evict_one` makes room in the KV cache, False where it can't.
        """
        self.store.use(match)
        began = self._clock()
        blocks = [b for b in match.blocks if b.end > held and len(b.data)]
        while not self._context.append_ranges(seq_id, [b.data for b in blocks]):
            if not evict_one():
                return held if self.end is None else self._given_up(seq_id)
        last = match.blocks[-1]
        if self.end is not None:
            assert last.rest is not None
            while not self._context.load_state(seq_id, last.rest, self.end.flags):
                if not evict_one():
                    return self._given_up(seq_id)
        elif match.reuse < last.end:
            self._context.remove(seq_id, match.reuse)
        if self._context.position_range(seq_id)[1] != match.reuse - 1:
            log.warning("a stored state of %d tokens was refused", match.reuse)
            return self._given_up(seq_id)
        n_bytes = sum(len(b.data) for b in blocks) + len(last.rest or b"")
        took_ms = (self._clock() - began) * 1e3
        self._restores.observe(n_bytes, took_ms)
        self.last_restore = Restore(took_ms, self._recompute_ms(held, match.reuse - held))
        return match.reuse

    def make_room(self, n_bytes: int) -> Reservation | None:
        """Set bytes aside for anything, at the expense of blocks; None where that is not enough."""
        self._unpin_written()
        return self.store.make_room(n_bytes)

    def conversations(self, root: Key) -> list[tuple[Tokens, int]]:
        """Tokens and bytes of what RAM holds under `root`."""
        return self.store.conversations(root)

    def view(self) -> dict[str, Any]:
        """Fields of the RAM tier."""
        return {
            "blocks": len(self.store),
            "tokens": self.store.n_tokens,
            "evicted_blocks": self.store.n_evicted,
        }

    def check_integrity(self) -> None:
        """Raise AssertionError naming the first broken invariant."""
        self.store.check_integrity()

    def export(self, root: Key, tokens: Tokens) -> SlotState | None:
        """Blocks and checkpoints of a prefix of `tokens`, for a slot file; None where none are."""
        match = self.store.longest(root, tokens, len(tokens))
        blocks = self.store.with_checkpoints(match, tokens)
        parts = tuple(Part(block.tokens, block.data, block.rest) for block in blocks)
        return SlotState(parts, match.reuse) if parts else None

    def import_(self, root: Key, state: SlotState) -> None:
        """Store what `export` gave; raises `SlotFileError`."""
        if state.whole:
            raise SlotFileError("it was saved from another kind of memory")
        parts = state.parts
        whole, after = self.store.block_tokens, None
        inner = [len(part.tokens) for part in parts if part.rest is None]
        if max(len(part.tokens) for part in parts) > whole or any(n != whole for n in inner[:-1]):
            raise SlotFileError("it was saved with another --block-tokens")
        for part in parts:
            n_data = len(part.data) + len(part.rest or b"")
            room = self._reserve(n_data, len(part.tokens), after)
            if room is None:
                raise SlotFileError(NO_ROOM)
            cost_ms = self._recompute_ms(after.end if after else 0, len(part.tokens))
            try:
                block = self.store.put(
                    room, root, after, part.tokens, part.data, cost_ms, part.rest
                )
            except ValueError as error:
                self.store.cancel(room)
                raise SlotFileError(str(error)) from error
            if block is None:
                raise SlotFileError(NO_ROOM)
            after = block if part.rest is None else after

    def erase(self, root: Key, tokens: Tokens) -> int:
        """Drop the blocks of `tokens` but for those that others need; how many tokens were there.
        """
        if self.disk is not None:
            self.disk.erase(root, tokens)
        return self.store.erase(root, tokens)

    def nearest(self, root: Key, tokens: Tokens, most: int) -> Near:
        """What RAM or disk hold that shares most with `tokens`."""
        near = replace(self.store.nearest(root, tokens, most), tier="ram")
        if self.disk is None:
            return near
        disk = replace(self.disk.nearest(root, tokens, most), tier="disk")
        known = max(near.common + near.evicted, disk.common + disk.evicted)
        if (disk.common, len(disk.rest)) > (near.common, len(near.rest)):
            near = disk
        return replace(near, evicted=known - near.common)

    def _given_up(self, seq_id: int) -> int:
        self._context.remove(seq_id)
        return 0

    def fetch(
        self, root: Key, tokens: Tokens, known: int, limit: int, post: Callable[[Task], None],
        done: Task,
    ) -> bool:  # fmt: skip
        """Start to bring blocks of a prompt from disk to RAM, of which `known` tokens need not be
        computed anyway. False where that is not worth while; else a task is posted that stores them
        and calls `done`.
        """
        if self.disk is None:
            return False
        on_disk, takes_ms = self.disk.find(root, tokens, limit)
        computing = self._recompute_ms(known, max(0, on_disk - known))
        if on_disk <= known + FETCH_GAIN or 0.0 < computing <= takes_ms:
            return False
        last, _ = self.store.tip(root, tokens[:limit])
        here = last.end if last else 0

        def store(loaded: Loaded) -> None:
            after = last
            for found in loaded:
                entry = found.entry
                n_data = entry.n_data + (entry.n_rest or 0)
                room = self._reserve(n_data, len(entry.tokens), after)
                if room is None:
                    break
                after = self.store.put(
                    room, root, after, entry.tokens, found.data, entry.cost_ms, found.rest
                )
                if after is None:
                    break
                self.n_fetched += len(entry.tokens)
            done()

        self.disk.read(root, tokens[:limit], here, lambda loaded: post(lambda: store(loaded)))
        return True
