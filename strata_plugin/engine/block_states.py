"""Moves ranges of a sequence between the KV cache and the block store, both ways.

llama.cpp writes and reads whole sequences only. In one pool of cells a scratch sequence that shares
the cells of a range is as good as the range: it is saved as a whole, and loaded states are handed
to the sequence that goes on with them. Nothing is copied for that within the cache.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from strata_plugin.checkpoints.blocks import Block, BlockMatch, BlockStore
from strata_plugin.checkpoints.keys import Key
from strata_plugin.runtime.errors import StateError

from .disk_tier import DiskTier, Loaded
from .ports import ContextPort, Tokens
from .transfer_rate import TransferRate

FETCH_GAIN = 64  # tokens that the disk must be ahead of what is in RAM

Task = Callable[[], None]
RecomputeMs = Callable[[int, int], float]  # (first position, tokens) -> time to compute them

log = logging.getLogger(__name__)


class BlockStates:
    """The blocks of one context. `scratch` is a sequence that nobody else uses."""

    def __init__(
        self,
        context: ContextPort,
        store: BlockStore,
        scratch: int,
        *,
        recompute_ms: RecomputeMs,
        clock: Callable[[], float],
        disk: DiskTier | None = None,
    ) -> None:
        self.store = store
        self.disk = disk
        self._context = context
        self._scratch = scratch
        self._recompute_ms = recompute_ms
        self._clock = clock
        self.n_fetched = 0  # tokens whose states came from disk
        self._restores = TransferRate()

    def keep(self, seq_id: int, root: Key, tokens: Tokens) -> bool:
        """Have the state of a sequence, which holds `tokens`, in blocks; False where some of it has
        no room.
        """
        return self.keep_some(seq_id, root, tokens, len(tokens)) == len(tokens)

    def keep_some(self, seq_id: int, root: Key, tokens: Tokens, most: int) -> int:
        """As `keep`, but `most` blocks at most; how many tokens are in blocks now."""
        if self.disk is not None:
            for written in self.disk.written():
                self.store.unpin(written)
        after, done = self.store.tip(root, tokens)
        while done < len(tokens) and most > 0:
            end = min(done + self.store.block_tokens, len(tokens))
            if (block := self._keep_one(seq_id, root, after, tokens[done:end])) is None:
                return done
            after, done, most = block, end, most - 1
            if self.disk is not None and self.disk.write(block):
                self.store.pin(block)  # so that what waits to be written counts as RAM
        return done

    def find(self, root: Key, tokens: Tokens, limit: int, resident: int) -> BlockMatch | None:
        """Blocks for the first of `tokens`, `limit` of them at most; None where they hold no more
        than the `resident` ones, or where computing those is quicker.
        """
        match = self.store.longest(root, tokens, limit)
        n_bytes = sum(len(b.data) for b in match.blocks if b.end > resident)
        if match.reuse <= resident:
            return None
        computing = self._recompute_ms(resident, match.reuse - resident)
        if computing and self._restores.predict(n_bytes) >= computing:
            self._restores.doubt()
            return None
        return match

    def load(
        self, seq_id: int, match: BlockMatch, held: int, evict_one: Callable[[], bool]
    ) -> int:
        """Append what a match has beyond the first `held` tokens of a sequence; how many it holds
        now. The blocks have to be pinned. `evict_one` makes room in the KV cache, False where it
        can't; then the rest is left.
        """
        self.store.use(match)
        began, n_bytes = self._clock(), 0
        for block in match.blocks:
            end = min(block.end, match.reuse)
            if end <= held:
                continue
            while not self._context.load_state(self._scratch, block.data):
                self._context.remove(self._scratch)
                if not evict_one():
                    return held
            self._context.copy(self._scratch, seq_id, end, held)
            self._context.remove(self._scratch)
            if self._context.position_range(seq_id)[1] != end - 1:
                log.warning("a stored block of %d tokens was refused", len(block.tokens))
                return held
            held, n_bytes = end, n_bytes + len(block.data)
        if n_bytes:
            self._restores.observe(n_bytes, (self._clock() - began) * 1e3)
        return held

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
            for entry, data in loaded:
                room = self.store.reserve(len(data), len(entry.tokens), after)
                if room is None:
                    break
                after = self.store.put(room, root, after, entry.tokens, data, entry.cost_ms)
                if after is None:
                    break
                self.n_fetched += len(entry.tokens)
            done()

        self.disk.read(root, tokens[:limit], here, lambda loaded: post(lambda: store(loaded)))
        return True

    def _keep_one(
        self, seq_id: int, root: Key, after: Block | None, tokens: Tokens
    ) -> Block | None:
        start = after.end if after else 0
        self._context.copy(seq_id, self._scratch, start + len(tokens), start)
        try:
            size = self._context.state_size(self._scratch)
            room = self.store.reserve(size, len(tokens), after)
            if room is None:
                return None
            try:
                data = self._context.save_state(self._scratch)
            except (MemoryError, StateError) as e:
                log.warning("a block of sequence %d was not saved: %s", seq_id, e or "no memory")
                self.store.cancel(room)
                return None
        finally:
            self._context.remove(self._scratch)
        cost_ms = self._recompute_ms(start, len(tokens))
        return self.store.put(room, root, after, tokens, data, cost_ms)
