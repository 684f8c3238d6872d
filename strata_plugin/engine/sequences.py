"""The sequences of one context: places prompts on known prefixes, makes room, parks and unparks.

Keeps the book (`ResidentSet`) and the KV cache in step; nothing else calls the context's sequence
functions.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from strata_plugin.checkpoints.blocks import BlockMatch
from strata_plugin.checkpoints.borders import Borders
from strata_plugin.checkpoints.idle import IdleMatch, WindowRule
from strata_plugin.checkpoints.keys import Key, namespace
from strata_plugin.checkpoints.misses import COMPARED, Near
from strata_plugin.checkpoints.parking import RamParkingLot
from strata_plugin.checkpoints.resident import AllSequencesBusy, Placement, ResidentSet
from strata_plugin.checkpoints.slot_file import SlotState
from strata_plugin.checkpoints.tokens import common_prefix
from strata_plugin.checkpoints.traits import PrefixTraits

from .block_states import BlockStates, Restore, Task
from .ports import ContextPort, Tokens
from .whole_states import WholeStates, load_whole, save_whole

# A finished sequence slows down all others while it lies in the KV cache, since attention scans its
# cells, too. It leaves when the next request comes where that saves more, over so many tokens of a
# stream, than moving it out and back takes; else it stays until its cells are needed.
STREAM = 256
GUESSED_RATE = 4e9  # bytes per second that states move with, before any did
CHEAP_STATE = 256 << 20  # bytes that move out and back while the cost of scanning isn't known
CLOSE_S = 1.5  # for storing what is resident, and again for writing it
ANYBODY = namespace({})
RESTORE_GAIN = 16  # tokens that a state in RAM must be ahead of what is resident

log = logging.getLogger(__name__)


def root_of(salt: str, lora: tuple[tuple[int, float], ...] = ()) -> Key:
    """Under which a request's states are kept: all that changes them, and whose they are."""
    return namespace({"salt": salt, "lora": json.dumps(lora)})


class Sequences:
    """Book and KV cache of one context."""

    def __init__(
        self,
        context: ContextPort,
        lot: RamParkingLot,
        *,
        n_seqs: int,
        traits: PrefixTraits,
        window_rule: WindowRule | None = None,
        survives_failed_step: bool = True,
        copy_pins_window: bool = False,
        has_cells: bool = True,
        blocks: BlockStates | None = None,
        borders: Borders | None = None,
    ) -> None:
        self._context = context
        self._lot = lot
        self._resident = ResidentSet(n_seqs, traits)
        self._window_rule = window_rule
        self._survives_failed_step = survives_failed_step
        self._copy_pins_window = copy_pins_window
        self._has_cells = has_cells
        self._blocks = blocks
        self._whole = WholeStates(context, lot, traits, window_rule)  # used without `blocks`
        self._stored: BlockStates | WholeStates = blocks or self._whole
        self._borders = borders if blocks is not None and blocks.end is not None else None
        self._roots: dict[int, Key] = {}  # by sequence: who may use what it holds
        self._hits: Counter[str] = Counter()  # prompt tokens found, by tier
        self._kept: dict[int, int] = {}  # by sequence: tokens of it that are in blocks
        self.last_restore: Restore | None = None  # of the sequence started last

    # -- a request's sequence --------------------------------------------------------------------

    def start(
        self, tokens: Tokens, *, reuse_limit: int, root: Key = ANYBODY
    ) -> tuple[int, int]:
        """A sequence for `tokens` and how many of them it holds already (at most `reuse_limit`).

        Only what was computed under the same `root` is reused. Raises `AllSequencesBusy`.
        """
        self.last_restore = None
        resident = self._place(tokens, reuse_limit, root).reuse
        if self._blocks is not None and reuse_limit:
            match = self._blocks.find(root, tokens, reuse_limit, resident)
            if match is not None and match.reuse > resident + RESTORE_GAIN:
                return self._from_blocks(self._blocks, tokens, match, root)
        elif reuse_limit:
            whole = self._whole.find(root, tokens, reuse_limit)
            if whole is not None and whole.reuse > resident + RESTORE_GAIN:
                restored = self._from_whole(tokens, whole, root)
                if restored is not None:
                    return restored, whole.reuse
        seq_id, held = self._placed(tokens, reuse_limit, root)
        self._hits["resident"] += held
        return seq_id, held

    def known_prefix(self, tokens: Tokens, limit: int, root: Key = ANYBODY) -> int:
        """How many of `tokens` (at most `limit`) would not have to be computed now."""
        if not limit:
            return 0
        try:
            resident = self._place(tokens, limit, root).reuse
        except AllSequencesBusy:
            resident = 0
        match: BlockMatch | IdleMatch | None
        if self._blocks is not None:
            match = self._blocks.find(root, tokens, limit, resident)
        else:
            match = self._whole.find(root, tokens, limit)
        return max(resident, match.reuse if match is not None else 0)

    def nearest(self, tokens: Tokens, root: Key = ANYBODY) -> Near:
        """What is stored under `root`, anywhere, and shares the longest prefix with `tokens`."""
        seq_id, common = self._resident.longest(tokens, lambda s: self._roots.get(s) == root)
        near = Near()
        if seq_id is not None:
            rest = self._resident.tokens(seq_id)[common : common + COMPARED].copy()
            near = Near(common, rest, "resident")
        other = self._stored.nearest(root, tokens, COMPARED)
        known = max(near.common, other.common + other.evicted)
        if (other.common, len(other.rest)) > (near.common, len(near.rest)):
            near = other
        return replace(near, evicted=known - near.common)

    def conversations(self, root: Key) -> list[tuple[Tokens, int]]:
        """Tokens and bytes of the conversations that RAM holds under `root`."""
        return self._stored.conversations(root)

    @property
    def needs_checkpoints(self) -> bool:
        """Whether a prefix can be used only up to a checkpoint."""
        return self._blocks is not None and self._blocks.end is not None

    @property
    def idle_tokens(self) -> int:
        """Tokens of the sequences that lie in the KV cache without a request."""
        seqs = self._resident.eviction_order()
        return sum(self._resident.n_tokens(seq_id) for seq_id in seqs) if self._has_cells else 0

    @property
    def n_cells(self) -> int:
        """Cells of the KV cache; 0 where tokens take up none."""
        return self._context.n_ctx if self._has_cells else 0

    def _place(self, tokens: Tokens, limit: int, root: Key) -> Placement:
        return self._resident.place(
            tokens,
            limit=limit,
            usable=lambda seq_id, n: self._roots.get(seq_id) == root and self._usable(seq_id, n),
        )

    def _from_blocks(
        self, blocks: BlockStates, tokens: Tokens, match: BlockMatch, root: Key
    ) -> tuple[int, int]:
        """As `start`, with the blocks of a match on top of what lies in the KV cache."""
        with blocks.store.pinned(match):
            if blocks.end is None:
                seq_id, held = self._placed(tokens, match.reuse, root)
                first = blocks.first_held(match, held)
                if first < held:
                    self._context.remove(seq_id, first)
                    self._resident.truncate(seq_id, first)
            else:
                seq_id, first = self._beside(blocks, tokens, match, root)
            loaded = blocks.load(seq_id, match, first, self.evict_one)
        if loaded > first:
            self.last_restore = blocks.last_restore
        if loaded < first:
            self._resident.truncate(seq_id, loaded)
        self._resident.extend(seq_id, tokens[first:loaded])
        self._hits["resident"] += min(first, loaded)
        self._hits["ram"] += max(0, loaded - first)
        return seq_id, loaded

    def _beside(
        self, blocks: BlockStates, tokens: Tokens, match: BlockMatch, root: Key
    ) -> tuple[int, int]:
        """A sequence for a match that ends in a checkpoint. It shares what another one keeps for
        each of its first tokens, as many as is said; that alone is no state to go on from.
        """
        source, held = None, 0
        if blocks.end is not None and blocks.end.per_token and self._resident.traits.can_copy_whole:
            source, common = self._resident.longest(
                tokens[: match.reuse], lambda seq_id: self._roots.get(seq_id) == root
            )
            held = blocks.first_held(match, common)
        if source is not None and held:
            try:
                placement = self._resident.place(tokens, limit=0, keep=source)
            except AllSequencesBusy:
                source = None
        if source is None or not held:
            return self._placed(tokens, 0, root)
        for seq_id in placement.evict:
            self._retire(seq_id)
        self._context.copy(source, placement.seq_id, held)
        self._begin(placement.seq_id, tokens[:held], source, root)
        return placement.seq_id, held

    def _begin(self, seq_id: int, tokens: Tokens, source: int | None, root: Key) -> None:
        self._resident.begin(seq_id, tokens, source)
        self._roots[seq_id] = root
        self._kept.pop(seq_id, None)

    def _placed(self, tokens: Tokens, reuse_limit: int, root: Key) -> tuple[int, int]:
        """As `start`, from what lies in the KV cache."""
        placement = self._place(tokens, reuse_limit, root)
        for seq_id in placement.evict:
            self._retire(seq_id)
        seq_id, reuse = placement.seq_id, placement.reuse
        if placement.source is not None:
            whole = reuse == self._resident.n_tokens(placement.source)
            self._context.copy(placement.source, seq_id, None if whole else reuse)
            if self._copy_pins_window:
                self._context.own_window(seq_id)
            if self._context.position_range(seq_id)[1] != reuse - 1:  # the memory refused
                self._context.remove(seq_id)
                reuse = 0
        elif reuse:
            cut = reuse < self._resident.n_tokens(seq_id)
            if cut and not self._context.remove(seq_id, reuse):
                self._context.remove(seq_id)
                reuse = 0
        else:
            self._context.remove(seq_id)
        self._begin(seq_id, tokens[:reuse], placement.source, root)
        return seq_id, reuse

    def _from_whole(self, tokens: Tokens, match: IdleMatch, root: Key) -> int | None:
        """A sequence that holds the first `match.reuse` tokens, from RAM; None if that fails."""
        data = self._whole.read(match)
        seq_id, _ = self._placed(tokens, 0, root)
        if self._whole.load(seq_id, data, match, self.evict_one):
            self._resident.extend(seq_id, tokens[: match.reuse])
            self._hits["ram"] += match.reuse
            return seq_id
        self._context.remove(seq_id)
        self._resident.release(seq_id)
        return None

    def computed(self, seq_id: int, tokens: Tokens) -> None:
        """`tokens` were computed at the end of a sequence."""
        self._resident.extend(seq_id, tokens)

    def cut_back(self, seq_id: int, n: int) -> int:
        """Bring a sequence back to its first `n` tokens after a failed step.

        Returns how many it holds now. Where this memory can't be cut, or claims to hold what it
        failed to compute, those are what blocks hold of it, or none.
        """
        tokens = self._resident.tokens(seq_id)[:n].copy()
        context = self._context
        if not self._survives_failed_step or (
            context.position_range(seq_id)[1] >= n and not context.remove(seq_id, n)
        ):
            n = 0
        elif self._window_rule and not self._window_rule(context.position_range(seq_id)[0], n):
            n = 0  # the step had let go of what is in the window of token n
        if n == 0:
            self._context.remove(seq_id)
        self._resident.truncate(seq_id, n)
        if n == 0 and len(tokens) and self._blocks is not None:
            match = self._blocks.find(self._roots[seq_id], tokens, len(tokens), 0)
            if match is not None:
                with self._blocks.store.pinned(match):
                    n = self._blocks.load(seq_id, match, 0, self.evict_one)
                self._resident.extend(seq_id, tokens[:n])
        self._kept[seq_id] = min(n, self._kept.get(seq_id, 0))
        return n

    def release(self, seq_id: int) -> None:
        """The request is over; what it computed stays as a prefix for others."""
        self._resident.release(seq_id)

    def _retire(self, seq_id: int) -> None:
        """Move an idle sequence from the KV cache to RAM, or forget it where that has no room."""
        self._keep(seq_id)
        self._forget(seq_id)

    def _keep(self, seq_id: int) -> bool:
        """Have the state of an idle sequence in RAM; False where there is no room for it."""
        return self._stored.keep(seq_id, self._roots[seq_id], self._resident.tokens(seq_id))

    def _forget(self, seq_id: int) -> None:
        self._roots.pop(seq_id, None)
        self._kept.pop(seq_id, None)
        self._context.remove(seq_id)
        self._resident.forget(seq_id)

    def _usable(self, seq_id: int, n: int) -> bool:
        if self._window_rule is None or n == self._resident.n_tokens(seq_id):
            return True
        return self._window_rule(self._context.position_range(seq_id)[0], n)

    def view(self) -> dict[str, Any]:
        """What GET /cache shows."""
        idle = self._resident.eviction_order()
        held = [n for seq_id in self._roots if (n := self._resident.n_tokens(seq_id))]
        disk = self._blocks.disk if self._blocks is not None else None
        fetched = {"hit_tokens": self._blocks.n_fetched} if self._blocks is not None else {}
        return {
            "resident": {
                "sequences": len(held),
                "idle_sequences": len(idle),
                "tokens": sum(held),
                "cells": self.n_cells,
                "hit_tokens": self._hits["resident"],
            },
            "ram": {
                "bytes": self._lot.used_bytes,
                "limit_bytes": self._lot.limit_bytes,
                "hit_tokens": self._hits["ram"],
                "restore_bytes_per_s": self._stored.restore_bytes_per_s,
                **self._stored.view(),
            },
            "disk": disk.view() | fetched if disk is not None else None,
        }

    # -- write-behind ----------------------------------------------------------------------------

    def fetch(
        self,
        tokens: Tokens,
        known: int,
        limit: int,
        root: Key,
        post: Callable[[Task], None],
        done: Task,
    ) -> bool:
        """Start to bring from disk to RAM what would have to be computed else, beyond the `known`
        prefix. False where nothing is; else `done` is called once it is there, by a task that is
        posted.
        """
        if self._blocks is None or not limit:
            return False
        return self._blocks.fetch(root, tokens, known, limit, post, done)

    def write_behind(self, most: int, *, busy: bool) -> int:
        """Store up to `most` blocks of states that no block holds yet; how many were stored.

        Of sequences that are being written to (`busy`) only whole blocks.
        """
        left = most
        if self._blocks is None:
            return 0
        for seq_id, root in self._roots.items():
            if left <= 0:
                break
            held = n = self._resident.n_tokens(seq_id)
            is_busy = self._resident.is_busy(seq_id)
            if is_busy or self._blocks.end is not None:
                n -= n % self._blocks.store.block_tokens
            kept = self._kept.get(seq_id, 0)
            if kept >= (n if is_busy else held) or (is_busy and not busy):
                continue
            tokens = self._resident.tokens(seq_id)
            if n <= kept:  # all but the state that exists only at its end
                self._blocks.checkpoint(seq_id, root, tokens)
                done = held
            else:
                done = self._blocks.keep_some(seq_id, root, tokens[:n], left)
            left -= max(0, -(-(done - kept) // self._blocks.store.block_tokens))
            # where there was no room, it is not tried again for as long as the sequence is there
            self._kept[seq_id] = done if done > kept else held
        return most - left

    def checkpoints(
        self, prompt: Tokens, message_ends: frozenset[int], root: Key = ANYBODY
    ) -> tuple[int, ...]:
        """Where the reading of a prompt has to stop for `checkpoint`, ascending."""
        if self._borders is None or self._blocks is None:
            return ()
        found = self._borders.of_prompt(prompt, message_ends)
        # where it leaves what was read for others a third one will, too (Marconi, Pan et al. 2024)
        branch, _ = self._blocks.store.tip(root, prompt[:-1])
        return tuple(sorted({*found, branch.end})) if branch is not None else found

    def is_border(self, n: int) -> bool:
        """Whether a sequence that grows has to be stored when it holds `n` tokens."""
        return self._borders is not None and self._borders.is_border(n)

    def checkpoint(self, seq_id: int) -> None:
        """Store the state that a sequence has now."""
        if self._blocks is not None and self._blocks.end is not None:
            tokens = self._resident.tokens(seq_id)
            self._blocks.checkpoint(seq_id, self._roots[seq_id], tokens)

    # -- slot files ------------------------------------------------------------------------------

    @property
    def room_bytes(self) -> int:
        """Most bytes that states outside the KV cache may take."""
        return self._lot.limit_bytes

    def export(self, tokens: Tokens, root: Key) -> SlotState | None:
        """The state of as many of `tokens` as are stored; None where none are."""
        seq_id, common = self._resident.longest(tokens, lambda s: self._roots.get(s) == root)
        if (
            seq_id is not None
            and common == self._resident.n_tokens(seq_id)
            and not self._resident.is_busy(seq_id)
        ):
            self._keep(seq_id)
        return self._stored.export(root, tokens)

    def import_(self, state: SlotState, root: Key) -> Tokens:
        """Store what `export` gave; its tokens. Raises `SlotFileError`, also where it has no room.
        """
        tokens = np.concatenate([part.tokens for part in state.parts])[: state.n_tokens]
        self._stored.import_(root, state)
        return tokens

    def erase(self, tokens: Tokens, root: Key) -> int:
        """Forget `tokens` in every tier, but for what others begin with; how many were there."""
        found = 0
        for seq_id in self._resident.eviction_order():
            held = self._resident.tokens(seq_id)
            if self._roots.get(seq_id) == root and common_prefix(held, tokens) == len(held):
                found = max(found, len(held))
                self._forget(seq_id)
        return max(found, self._stored.erase(root, tokens))

    # -- room ------------------------------------------------------------------------------------

    def evict_one(self) -> bool:
        """Clear the idle sequence that is missed least; False when there is none."""
        for seq_id in self._resident.eviction_order():
            self._retire(seq_id)
            return True
        return False

    def retire_idle(self, scanning_ms: Callable[[int], float | None]) -> None:
        """Clear idle sequences where their cells cost others more than moving them does.

        `scanning_ms`: how much longer a step of one row takes for so many cells; None: not known.
        """
        if self._has_cells:
            for seq_id in self._resident.eviction_order():
                slower_ms = scanning_ms(self._resident.n_tokens(seq_id))
                if slower_ms is not None and slower_ms <= 0.0:
                    continue
                n_bytes = self._context.state_size(seq_id)
                if slower_ms is None:
                    leaves = n_bytes <= CHEAP_STATE
                else:
                    leaves = STREAM * slower_ms > self._moving_ms(seq_id, n_bytes)
                if leaves and self._keep(seq_id):
                    self._forget(seq_id)

    def _moving_ms(self, seq_id: int, n_bytes: int) -> float:
        """What moving a sequence out, but for what is stored already, and back in takes."""
        n = self._resident.n_tokens(seq_id)
        unsaved = n - min(n, self._kept.get(seq_id, 0))
        rate = self._stored.restore_bytes_per_s or GUESSED_RATE
        return 1e3 * n_bytes * (1.0 + unsaved / n) / rate

    def room_for(self, n: int) -> bool:
        """Whether `n` more tokens fit beside the busy sequences (shared cells counted as several).
        """
        busy = sum(
            self._resident.n_tokens(seq_id)
            for seq_id in range(self._resident.n_seqs)
            if self._resident.is_busy(seq_id)
        )
        return busy + n <= self._context.n_ctx

    # -- parking ---------------------------------------------------------------------------------

    def park(self, request_id: int, seq_id: int) -> None:
        """Move a sequence out of the KV cache, its state into the lot if that has room."""
        n = self._resident.n_tokens(seq_id)
        size = self._context.state_size(seq_id)
        reservation = self._stored.make_room(size) if n else None
        state = save_whole(self._context, seq_id, self._lot, reservation)
        if reservation is not None and state is not None:
            self._lot.commit(reservation, request_id, state, n)
        self._forget(seq_id)

    def unpark(
        self, request_id: int, tokens: Tokens, root: Key = ANYBODY
    ) -> tuple[int, int]:
        """A sequence for a parked request and how many of its `tokens` it holds.

        The state is loaded back; where it was not kept or does not fit any more, the longest known
        prefix serves. Raises `AllSequencesBusy` (the state stays in the lot then).
        """
        reuse_limit = len(tokens) - 1
        probe = self._place(tokens, reuse_limit, root)
        state = self._lot.take(request_id)
        if state is None or probe.reuse >= state.n_tokens:
            return self.start(tokens, reuse_limit=reuse_limit, root=root)
        seq_id, _ = self._placed(tokens, 0, root)
        data = state.data if isinstance(state.data, bytearray) else bytearray(state.data)
        if not load_whole(self._context, seq_id, data, self.evict_one):
            return seq_id, 0
        self._resident.extend(seq_id, tokens[: state.n_tokens])
        return seq_id, state.n_tokens

    def close(self) -> None:
        """Have what is resident on disk, as far as `CLOSE_S` allows: the process ends after that.
        """
        if self._blocks is None or self._blocks.disk is None:
            return
        until = time.monotonic() + CLOSE_S
        for seq_id, root in list(self._roots.items()):
            if seq_id not in self._resident:
                continue
            tokens, kept, done = self._resident.tokens(seq_id), 0, True
            while done and kept < len(tokens) and time.monotonic() < until:
                before = kept
                kept = self._blocks.keep_some(seq_id, root, tokens, 8)
                done = kept > before
            if self._blocks.end is not None:
                self._blocks.keep(seq_id, root, tokens)
        self._blocks.disk.close(CLOSE_S)

    def drop_parked(self, request_id: int) -> None:
        """Throw a parked state away."""
        self._lot.drop(request_id)

    def check_integrity(self) -> None:
        """Raise AssertionError when the book and the KV cache disagree."""
        self._resident.check_integrity()
        self._stored.check_integrity()
        for seq_id in range(self._resident.n_seqs):
            last = self._context.position_range(seq_id)[1]
            held = self._resident.n_tokens(seq_id)
            assert last == held - 1, f"sequence {seq_id}: {held} tokens booked, position {last}"
