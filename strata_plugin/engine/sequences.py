"""The sequences of one context: places prompts on resident prefixes, makes room, parks and unparks.

Keeps the book (`ResidentSet`) and the KV cache in step; nothing else calls the context's sequence
functions.
"""

from __future__ import annotations

from collections.abc import Callable

from strata_plugin.checkpoints.parking import ParkingLot
from strata_plugin.checkpoints.resident import ResidentSet
from strata_plugin.checkpoints.traits import PrefixTraits

from .ports import ContextPort, Tokens

WindowRule = Callable[[int, int], bool]  # (smallest position held, n): are n tokens a valid state?


class Sequences:
    """Book and KV cache of one context."""

    def __init__(
        self,
        context: ContextPort,
        lot: ParkingLot,
        *,
        n_seqs: int,
        traits: PrefixTraits,
        window_rule: WindowRule | None = None,
        survives_failed_step: bool = True,
        copy_pins_window: bool = False,
    ) -> None:
        self._context = context
        self._lot = lot
        self._resident = ResidentSet(n_seqs, traits)
        self._window_rule = window_rule
        self._survives_failed_step = survives_failed_step
        self._copy_pins_window = copy_pins_window

    # -- a request's sequence --------------------------------------------------------------------

    def start(self, tokens: Tokens, *, reuse_limit: int) -> tuple[int, int]:
        """A sequence for `tokens` and how many of them it holds already (at most `reuse_limit`).

        Raises `AllSequencesBusy`.
        """
        placement = self._resident.place(tokens, limit=reuse_limit, usable=self._usable)
        for seq_id in placement.evict:
            self._forget(seq_id)
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
        self._resident.begin(seq_id, tokens[:reuse], placement.source)
        return seq_id, reuse

    def computed(self, seq_id: int, tokens: Tokens) -> None:
        """`tokens` were computed at the end of a sequence."""
        self._resident.extend(seq_id, tokens)

    def cut_back(self, seq_id: int, n: int) -> int:
        """Bring a sequence back to its first `n` tokens after a failed step.

        Returns how many it holds now: `n`, or 0 where this memory can't be cut, or claims to hold
        what it failed to compute.
        """
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
        return n

    def release(self, seq_id: int) -> None:
        """The request is over; what it computed stays as a prefix for others."""
        self._resident.release(seq_id)

    def _forget(self, seq_id: int) -> None:
        self._context.remove(seq_id)
        self._resident.forget(seq_id)

    def _usable(self, seq_id: int, n: int) -> bool:
        if self._window_rule is None or n == self._resident.n_tokens(seq_id):
            return True
        return self._window_rule(self._context.position_range(seq_id)[0], n)

    # -- room ------------------------------------------------------------------------------------

    def evict_one(self) -> bool:
        """Forget the idle sequence that is missed least; False when there is none."""
        for seq_id in self._resident.eviction_order():
            self._forget(seq_id)
            return True
        return False

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
        reservation = self._lot.reserve(self._context.state_size(seq_id)) if n else None
        if reservation is not None:
            try:
                state = self._context.save_state(seq_id)
            except Exception:
                self._lot.cancel(reservation)
                raise
            self._lot.commit(reservation, request_id, state, n)
        self._forget(seq_id)

    def unpark(self, request_id: int, tokens: Tokens) -> tuple[int, int]:
        """A sequence for a parked request and how many of its `tokens` it holds.

        The state is loaded back; where it was not kept or does not fit any more, the longest
        resident prefix serves. Raises `AllSequencesBusy` (the state stays in the lot then).
        """
        reuse_limit = len(tokens) - 1
        probe = self._resident.place(tokens, limit=reuse_limit, usable=self._usable)
        state = self._lot.take(request_id)
        if state is None or probe.reuse >= state.n_tokens:
            return self.start(tokens, reuse_limit=reuse_limit)
        seq_id, _ = self.start(tokens, reuse_limit=0)
        while not self._context.load_state(seq_id, bytearray(state.data)):
            self._context.remove(seq_id)
            if not self.evict_one():
                return seq_id, 0
        self._resident.extend(seq_id, tokens[: state.n_tokens])
        return seq_id, state.n_tokens

    def drop_parked(self, request_id: int) -> None:
        """Throw a parked state away."""
        self._lot.drop(request_id)

    def check_integrity(self) -> None:
        """Raise AssertionError when the book and the KV cache disagree."""
        self._resident.check_integrity()
        for seq_id in range(self._resident.n_seqs):
            last = self._context.position_range(seq_id)[1]
            held = self._resident.n_tokens(seq_id)
            assert last == held - 1, f"sequence {seq_id}: {held} tokens booked, position {last}"
