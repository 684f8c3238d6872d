"""States of finished sequences that were moved out of the KV cache, in RAM while there is room.

They share the byte budget of parked requests and give way to those. Reading one leaves it there.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

import numpy as np

from .parking import RamParkingLot, Reservation
from .tokens import Tokens, common_prefix
from .traits import PrefixTraits

MIN_SHARE = 4  # a state is worth loading when at least one in so many of its tokens is of use


@dataclass(frozen=True, slots=True)
class IdleMatch:
    """A stored state and how many of its first tokens a prompt shares."""

    key: int
    n_tokens: int
    reuse: int


class IdleStates:
    """Whole-sequence states by the tokens they hold, least recently used first to go."""

    def __init__(self, lot: RamParkingLot, traits: PrefixTraits) -> None:
        self._lot = lot
        self._traits = traits
        self._tokens: dict[int, Tokens] = {}  # by key, least recently used first
        self._keys = count(-1, -1)  # the lot's owners: requests are positive, idle states negative

    def __len__(self) -> int:
        return len(self._tokens)

    def reserve(self, n_bytes: int) -> Reservation | None:
        """Set bytes aside in the shared budget, at the expense of the oldest idle states."""
        if n_bytes > self._lot.limit_bytes:
            return None
        reservation = self._lot.reserve(n_bytes)
        while reservation is None and self._tokens:
            self._drop(next(iter(self._tokens)))
            reservation = self._lot.reserve(n_bytes)
        return reservation

    def covers(self, tokens: Tokens) -> bool:
        """Whether a stored state serves wherever one of `tokens` would."""
        return any(
            len(held) >= len(tokens)
            and (len(held) == len(tokens) or self._traits.every_prefix)
            and np.array_equal(held[: len(tokens)], tokens)
            for held in self._tokens.values()
        )

    def keep(self, reservation: Reservation, tokens: Tokens, data: bytearray) -> None:
        """Store the state of `tokens`; shorter ones that it replaces are dropped."""
        if self._traits.every_prefix:
            for key, held in list(self._tokens.items()):
                if len(held) < len(tokens) and np.array_equal(held, tokens[: len(held)]):
                    self._drop(key)
        key = next(self._keys)
        self._lot.commit(reservation, key, data, len(tokens))
        self._tokens[key] = tokens.copy()

    def longest(self, tokens: Tokens, limit: int) -> IdleMatch | None:
        """The state that shares most with `tokens`, of at most `limit` tokens; None when none does.

        Where states can't be cut only one that is a prefix as a whole counts.
        """
        best: IdleMatch | None = None
        for key, held in self._tokens.items():
            if held[0] != tokens[0]:
                continue
            reuse = min(common_prefix(held, tokens), limit)
            whole = reuse == len(held)
            if not (whole or self._traits.can_cut) or reuse * MIN_SHARE < len(held):
                continue
            if reuse and (best is None or reuse > best.reuse):
                best = IdleMatch(key, len(held), reuse)
        return best

    def read(self, key: int) -> bytearray:
        """The state's bytes, which count as used now."""
        state = self._lot.peek(key)
        self._tokens[key] = self._tokens.pop(key)
        return state.data if isinstance(state.data, bytearray) else bytearray(state.data)

    def check_integrity(self) -> None:
        """Raise AssertionError when a state is listed without bytes or the other way round."""
        for key, held in self._tokens.items():
            assert key in self._lot, f"idle state {key} has no bytes"
            assert len(held) and self._lot.peek(key).n_tokens == len(held), f"idle state {key}"

    def _drop(self, key: int) -> None:
        del self._tokens[key]
        self._lot.drop(key)
