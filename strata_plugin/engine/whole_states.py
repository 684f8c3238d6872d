"""Moves whole states between the KV cache and RAM, where llama.cpp gives no ranges of them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from strata_plugin.checkpoints.idle import IdleMatch, IdleStates, WindowRule
from strata_plugin.checkpoints.keys import Key
from strata_plugin.checkpoints.misses import Near
from strata_plugin.checkpoints.parking import RamParkingLot, Reservation
from strata_plugin.checkpoints.slot_file import NO_ROOM, Part, SlotFileError, SlotState
from strata_plugin.checkpoints.traits import PrefixTraits
from strata_plugin.runtime.errors import StateError

from .ports import ContextPort, Tokens

log = logging.getLogger(__name__)


class WholeStates:
    """The states of ended sequences of one context, each as it was at its end."""

    def __init__(
        self,
        context: ContextPort,
        lot: RamParkingLot,
        traits: PrefixTraits,
        window_rule: WindowRule | None = None,
    ) -> None:
        self._context = context
        self._lot = lot
        self._idle = IdleStates(lot, traits)
        self._window_rule = window_rule

    def find(self, root: Key, tokens: Tokens, limit: int) -> IdleMatch | None:
        """The state that shares most with `tokens`, `limit` of them at most."""
        return self._idle.longest(root, tokens, limit, self._window_rule)

    def load(
        self, seq_id: int, data: bytearray, match: IdleMatch, evict_one: Callable[[], bool]
    ) -> bool:
        """Put what `read` gave into an empty sequence, cut to what a prompt shares with it."""
        if not load_whole(self._context, seq_id, data, evict_one):
            return False
        if match.reuse == match.n_tokens:
            return True
        pos_min = self._context.position_range(seq_id)[0]
        if self._window_rule is not None and not self._window_rule(pos_min, match.reuse):
            return False
        return self._context.remove(seq_id, match.reuse)

    def read(self, match: IdleMatch) -> bytearray:
        """A state's bytes; before room is made, which may drop it."""
        return self._idle.read(match.key)

    # ---- as `BlockStates` ------------------------------------------------------------------------

    def keep(self, seq_id: int, root: Key, tokens: Tokens) -> bool:
        """Have the state of a sequence, which holds `tokens`, in RAM; False without room for it."""
        if self._idle.covers(root, tokens):
            return True
        reservation = self._idle.reserve(self._context.state_size(seq_id))
        state = save_whole(self._context, seq_id, self._lot, reservation)
        if reservation is None or state is None:
            return False
        pos_min = self._context.position_range(seq_id)[0]
        self._idle.keep(reservation, root, tokens, state, pos_min)
        return True

    def make_room(self, n_bytes: int) -> Reservation | None:
        """Set bytes aside for anything, at the expense of states; None where that is not enough."""
        return self._idle.reserve(n_bytes)

    def nearest(self, root: Key, tokens: Tokens, most: int) -> Near:
        """What is stored and shares most with `tokens`."""
        match = self._idle.longest(root, tokens, len(tokens), self._window_rule)
        return Near(match.reuse, tier="ram") if match is not None else Near()

    def conversations(self, root: Key) -> list[tuple[Tokens, int]]:
        """Tokens and bytes of what is stored under `root`."""
        return self._idle.conversations(root)

    def export(self, root: Key, tokens: Tokens) -> SlotState | None:
        """The state of a prefix of `tokens`, for a slot file; None where there is none."""
        match = self._idle.longest(root, tokens, len(tokens), self._window_rule)
        if match is None or match.reuse < match.n_tokens:
            return None
        part = Part(tokens[: match.n_tokens].copy(), self._idle.read(match.key))
        return SlotState((part,), match.n_tokens, whole=True)

    def import_(self, root: Key, state: SlotState) -> None:
        """Store what `export` gave; raises `SlotFileError`."""
        if not state.whole:
            raise SlotFileError("it was saved from another kind of memory")
        (part,) = state.parts
        reservation = self._idle.reserve(len(part.data))
        if reservation is None:
            raise SlotFileError(NO_ROOM)
        self._idle.keep(reservation, root, part.tokens, part.data)

    def erase(self, root: Key, tokens: Tokens) -> int:
        """Drop the states of prefixes of `tokens`; the longest one's tokens."""
        return self._idle.erase(root, tokens)

    @property
    def restore_bytes_per_s(self) -> float:
        """Not measured."""
        return 0.0

    def view(self) -> dict[str, Any]:
        """Fields of the RAM tier."""
        return {"blocks": 0, "tokens": 0, "evicted_blocks": 0}

    def check_integrity(self) -> None:
        """Raise AssertionError naming the first broken invariant."""
        self._idle.check_integrity()


def load_whole(
    context: ContextPort, seq_id: int, data: bytearray, evict_one: Callable[[], bool]
) -> bool:
    """Load a whole state into an empty sequence, at the expense of idle ones if need be."""
    while not context.load_state(seq_id, data):
        context.remove(seq_id)
        if not evict_one():
            return False
    return True


def save_whole(
    context: ContextPort, seq_id: int, lot: RamParkingLot, reservation: Reservation | None
) -> bytearray | None:
    """A sequence's state for the room that was reserved; None without room, or where the state
    can't be had: then its tokens are computed again.
    """
    if reservation is None:
        return None
    try:
        return context.save_state(seq_id)
    except (MemoryError, StateError) as e:
        log.warning("the state of sequence %d was not saved: %s", seq_id, e or "no memory")
        lot.cancel(reservation)
        return None
