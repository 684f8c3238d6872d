"""What each of llama.cpp's memory classes lets one do with a sequence: cut, copy, share, save.

llama.cpp answers some forbidden calls with False, some with an abort of the process and some with a
wrong state and no sign of it, so the engine asks this table first. docs/memory.md has the reasons;
tests/engine/test_memory_*.py check each row against llama.cpp itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum


class Cut(Enum):
    """Where `llama_memory_seq_rm(seq, n, -1)` leaves a valid sequence of n tokens."""

    ANYWHERE = "anywhere"
    IN_WINDOW = "where the window is still held"  # see `window_covers`
    NOWHERE = "nowhere"  # all or nothing


class Copy(Enum):
    """What `llama_memory_seq_cp` can give to another sequence."""

    PREFIX = "any prefix that a cut would leave"
    WHOLE = "the whole sequence"
    NOTHING = "nothing"  # save and restore the whole state instead


class Cost(Enum):
    """What one more sequence id (n_seq_max + 1) takes when the context is made."""

    NOTHING = "nothing"
    WINDOW = "one window of KV cells"
    STATE = "one recurrent state"
    WINDOW_AND_STATE = "one window of KV cells and one recurrent state"
    CONTEXT = "KV cells for the context of one sequence"


@dataclass(frozen=True)
class MemoryClass:
    """One of llama.cpp's memory classes, as a context with one pool of cells (kv_unified) has it.

    Saving and restoring a whole sequence works for every class and is exact.
    """

    name: str
    # tokens take KV cells, of which there are n_ctx; without, only sequences are counted
    has_cells: bool
    cut: Cut
    copy: Copy
    # a copied token takes no cell of its own
    shares_cells: bool
    # cells that two sequences share never leave the window cache: give the copy cells of its own by
    # saving and restoring its partial state (LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY)
    copy_pins_window: bool
    # a partial state is less than the whole one: it is what no cut can bring back
    has_partial_state: bool
    # after llama_decode failed (2, -2, -3) a sequence ends, valid, with its last finished
    # micro-batch; where False it claims the failed one as well and has to be removed
    survives_failed_step: bool
    # n_rs_seq > 0 can take back tokens of the last step, on some architectures
    can_roll_back: bool
    cost_per_sequence: Cost
    # False: make the context with kv_unified = false
    unified: bool = True

    @property
    def can_cut(self) -> bool:
        """Whether the tail of a sequence can be dropped, at some positions at least."""
        return self.cut is not Cut.NOWHERE

    @property
    def can_copy_prefix(self) -> bool:
        """Whether another sequence can be given the first tokens of one."""
        return self.copy is Copy.PREFIX

    @property
    def can_copy_whole(self) -> bool:
        """Whether another sequence can be given all tokens of one."""
        return self.copy is not Copy.NOTHING

    @property
    def has_window(self) -> bool:
        """Whether cuts and prefix copies must be checked with `window_covers`."""
        return self.cut is Cut.IN_WINDOW


def _attention(name: str) -> MemoryClass:
    return MemoryClass(
        name,
        has_cells=True,
        cut=Cut.ANYWHERE,
        copy=Copy.PREFIX,
        shares_cells=True,
        copy_pins_window=False,
        has_partial_state=False,
        survives_failed_step=True,
        can_roll_back=False,
        cost_per_sequence=Cost.NOTHING,
    )


def _window(name: str) -> MemoryClass:
    return replace(
        _attention(name),
        cut=Cut.IN_WINDOW,
        copy_pins_window=True,
        has_partial_state=True,
        cost_per_sequence=Cost.WINDOW,
    )


def _hybrid(name: str) -> MemoryClass:
    return replace(
        _attention(name),
        cut=Cut.NOWHERE,
        copy=Copy.WHOLE,
        has_partial_state=True,
        survives_failed_step=False,
        can_roll_back=True,
        cost_per_sequence=Cost.STATE,
    )


_TABLE = {
    row.name: row
    for row in (
        _attention("llama_kv_cache"),
        _window("llama_kv_cache_iswa"),
        _attention("llama_kv_cache_dsa"),
        _window("llama_kv_cache_dsa_iswa"),
        # with one pool for several sequences the model computes dense attention, another result
        replace(_attention("llama_kv_cache_msa"), unified=False),
        # each sequence has cells of its own whatever kv_unified says: with it, n_ctx for each
        replace(
            _hybrid("llama_kv_cache_dsv4"),
            copy=Copy.NOTHING,
            shares_cells=False,
            cost_per_sequence=Cost.CONTEXT,
            unified=False,
        ),
        replace(
            _hybrid("llama_memory_recurrent"),
            has_cells=False,
            has_partial_state=False,
            can_roll_back=False,
        ),
        _hybrid("llama_memory_hybrid"),
        replace(
            _hybrid("llama_memory_hybrid_iswa"),
            copy_pins_window=True,
            cost_per_sequence=Cost.WINDOW_AND_STATE,
        ),
        # a block of tokens of which some are shared is lost to the indexer, on both sides
        replace(_hybrid("llama_memory_hybrid_idx"), copy=Copy.NOTHING, shares_cells=False),
    )
}

KNOWN_CLASSES = frozenset(_TABLE)


def memory_class(name: str, *, unified: bool = True) -> MemoryClass:
    """The row of llama.cpp's class `name` for a context with or without one pool of cells.

    Of a class that is not known only whole sequences are used, and they move by save and restore.
    """
    row = _TABLE.get(name)
    if row is None:
        row = replace(
            _hybrid(name),
            copy=Copy.NOTHING,
            shares_cells=False,
            has_partial_state=False,
            can_roll_back=False,
            cost_per_sequence=Cost.CONTEXT,
        )
    elif not unified and row.has_cells:
        # each sequence has its own cells; seq_cp aborts on anything but all of them, and copies
        # only when the next batch comes: until then the copy must not be saved or restored
        row = replace(
            row,
            copy=Copy.NOTHING,
            shares_cells=False,
            copy_pins_window=False,
            cost_per_sequence=Cost.CONTEXT,
        )
    return row


def window_covers(pos_min: int, n: int, n_swa: int) -> bool:
    """Whether a sequence cut to (or copied up to) `n` tokens still holds the window of token n.

    `pos_min` is llama_memory_seq_pos_min (-1: nothing is held), `n_swa` llama_model_n_swa, in
    tokens. Token n attends to positions above n - n_swa. llama.cpp reuses the cells of older ones
    at will, with swa_full too when another sequence needs them, and computes on without a sign.
    """
    if n <= 0:
        return True
    return 0 <= pos_min <= max(0, n - n_swa + 1)
