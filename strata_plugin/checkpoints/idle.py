"""States of finished sequences that were moved out of the KV cache, in RAM while there is room.

They share the byte budget of parked requests and give way to those. Reading one leaves it there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import numpy as np

from .keys import Key
from .parking import RamParkingLot, Reservation
from .tokens import Tokens, common_prefix
from .traits import PrefixTraits

WindowRule = Callable[[int, int], bool]  # (smallest position held, n): are n tokens a valid state?
MIN_SHARE = 4  # a state is worth loading when at least one in so many of its tokens is of use


@dataclass(frozen=True, slots=True)
class IdleMatch:
    """A stored state and how many of its first tokens a prompt shares."""

    key: int
    n_tokens: int
    reuse: int


@dataclass(frozen=True, slots=True)
class _Held:
    root: Key
    tokens: Tokens
    n_bytes: int
    pos_min: int  # smallest position that the state holds, for memory with a window


def _serves(n_held: int, n: int) -> bool:
    """Whether a state of `n_held` tokens is worth loading for its first `n`."""
    return n * MIN_SHARE >= n_held


class IdleStates:
    """Whole-sequence states by the tokens they hold, least recently used first to go."""

    def __init__(self, lot: RamParkingLot, traits: PrefixTraits) -> None:
        self._lot = lot
        self._traits = traits
        self._held: dict[int, _Held] = {}  # by key, least recently used first
        self._n_bytes = 0
        self._keys = count(-1, -1)  # the lot's owners: requests are positive, idle states negative

    def __len__(self) -> int:
        return len(self._held)

    def reserve(self, n_bytes: int) -> Reservation | None:
        """Set bytes aside in the shared budget, at the expense of the oldest idle states.

        None, and nothing is dropped, when parked requests leave too little for `n_bytes`.
        """
        if self._lot.used_bytes - self._n_bytes + n_bytes > self._lot.limit_bytes:
            return None
        while (reservation := self._lot.reserve(n_bytes)) is None:
            self._drop(next(iter(self._held)))
        return reservation

    def covers(self, root: Key, tokens: Tokens) -> bool:
        """Whether a stored state serves wherever one of `tokens` would."""
        return any(
            held.root == root and self._replaces(held.tokens, tokens)
            for held in self._held.values()
        )

    def keep(
        self,
        reservation: Reservation,
        root: Key,
        tokens: Tokens,
        data: bytearray,
        pos_min: int = 0,
    ) -> None:
        """Store the state of `tokens`; shorter ones that it replaces are dropped."""
        for key, held in list(self._held.items()):
            if held.root == root and self._replaces(tokens, held.tokens):
                self._drop(key)
        key = next(self._keys)
        self._lot.commit(reservation, key, data, len(tokens))
        self._held[key] = _Held(root, tokens.copy(), len(data), pos_min)
        self._n_bytes += len(data)

    def _replaces(self, longer: Tokens, shorter: Tokens) -> bool:
        n = len(shorter)
        if len(longer) != n and not (
            self._traits.every_prefix and n < len(longer) and _serves(len(longer), n)
        ):
            return False
        return bool(np.array_equal(longer[:n], shorter))

    def longest(
        self, root: Key, tokens: Tokens, limit: int, window_rule: WindowRule | None = None
    ) -> IdleMatch | None:
        """The state under `root` that shares most with `tokens`, of at most `limit` tokens; None
        when none does.

        Where states can't be cut, or a window does not cover the cut, only one that is a prefix as
        a whole counts.
        """
        best: IdleMatch | None = None
        for key, held in self._held.items():
            n_held = len(held.tokens)
            if held.root != root or held.tokens[0] != tokens[0]:
                continue
            reuse = min(common_prefix(held.tokens, tokens), limit)
            if not reuse or not _serves(n_held, reuse):
                continue
            if reuse < n_held and not (
                self._traits.can_cut
                and (window_rule is None or window_rule(held.pos_min, reuse))
            ):
                continue
            if best is None or reuse > best.reuse:
                best = IdleMatch(key, n_held, reuse)
        return best

    def conversations(self, root: Key) -> list[tuple[Tokens, int]]:
        """Tokens and bytes of the states under `root`."""
        return [(h.tokens, h.n_bytes) for h in self._held.values() if h.root == root]

    def erase(self, root: Key, tokens: Tokens) -> int:
        """Drop the states of prefixes of `tokens`; the longest one's tokens."""
        found = 0
        for key, held in list(self._held.items()):
            n = len(held.tokens)
            if held.root == root and common_prefix(held.tokens, tokens) == n:
                found = max(found, n)
                self._drop(key)
        return found

    def read(self, key: int) -> bytearray:
        """The state's bytes, which count as used now."""
        state = self._lot.peek(key)
        self._held[key] = self._held.pop(key)
        return state.data if isinstance(state.data, bytearray) else bytearray(state.data)

    def check_integrity(self) -> None:
        """Raise AssertionError when a state is listed without bytes or the other way round."""
        for key, held in self._held.items():
            assert key in self._lot, f"idle state {key} has no bytes"
            assert len(held.tokens) == self._lot.peek(key).n_tokens > 0, f"idle state {key}"
        assert self._n_bytes == sum(held.n_bytes for held in self._held.values()), "idle bytes"

    def _drop(self, key: int) -> None:
        self._n_bytes -= self._held.pop(key).n_bytes
        self._lot.drop(key)
