"""Each row of the table in strata_plugin/runtime/memory_classes.py, tried on llama.cpp itself.

A claim "this is allowed" is checked by going on from the result and comparing logits with a
sequence that was computed afresh; batches have the same shapes, so the states must be the same.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from strata_plugin.runtime.memory_classes import (
    KNOWN_CLASSES,
    Copy,
    Cost,
    Cut,
    MemoryClass,
    memory_class,
)
from strata_plugin.runtime.native import memory_class_name
from tests.engine.logits import assert_other, assert_same
from tests.engine.raw_context import PARTIAL, RawContext, some_tokens
from tests.models import TINY_MODELS, tiny_model

MODELS = [name for name in TINY_MODELS if name != "hybrid-blocks-sparse"]
HEAD = some_tokens(60, seed=1)  # what is kept; longer than the tiny models' windows of 32
REST = some_tokens(40, seed=2)  # what is cut off
NEXT = some_tokens(20, seed=3)  # what then goes on


def row_of(name: str, *, unified: bool = True) -> MemoryClass:
    return memory_class(TINY_MODELS[name].memory_class, unified=unified)


def models_where(test: Callable[[MemoryClass], bool]) -> pytest.MarkDecorator:
    """Parametrises `name` with the models whose row passes."""
    return pytest.mark.parametrize("name", [name for name in MODELS if test(row_of(name))])


def fresh(c: RawContext) -> NDArray[np.float32]:
    """Logits of `NEXT` after `HEAD` in an empty memory; leaves it empty."""
    c.clear()
    c.feed(HEAD)
    logits = c.feed(NEXT, start=len(HEAD))
    c.clear()
    return logits


@pytest.fixture(params=MODELS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_every_known_class_has_a_tiny_model() -> None:
    assert {m.memory_class for m in TINY_MODELS.values()} == KNOWN_CLASSES


def test_llama_cpp_uses_the_class_the_model_was_made_for(name: str) -> None:
    with RawContext(tiny_model(name)) as c:
        assert memory_class_name(c.ctx) == TINY_MODELS[name].memory_class


def test_tail_is_cut_or_refused_as_the_table_says(name: str) -> None:
    with RawContext(tiny_model(name)) as c:
        expected = fresh(c)
        c.feed(HEAD)
        c.feed(REST, start=len(HEAD))
        if row_of(name).can_cut:
            assert c.remove(0, len(HEAD))
            np.testing.assert_array_equal(c.feed(NEXT, start=len(HEAD)), expected)
        else:
            before = c.save(0)
            assert not c.remove(0, len(HEAD))
            assert c.save(0) == before


def test_cut_at_the_end_changes_nothing(name: str) -> None:
    with RawContext(tiny_model(name)) as c:
        expected = fresh(c)
        c.feed(HEAD)
        assert c.remove(0, len(HEAD))
        np.testing.assert_array_equal(c.feed(NEXT, start=len(HEAD)), expected)


def test_removing_a_whole_sequence_frees_it_for_another(name: str) -> None:
    with RawContext(tiny_model(name)) as c:
        expected = fresh(c)
        for seq in range(4):  # all there are
            c.feed(REST, seq)
        for seq in (0, 2):
            assert c.remove(seq)
            assert c.positions(seq) == (-1, -1)
            c.feed(HEAD, seq)
            assert_same(c.feed(NEXT, seq, len(HEAD)), expected)


@models_where(lambda row: row.can_copy_prefix)
def test_prefix_copy_gives_the_state_of_the_prefix(name: str) -> None:
    with RawContext(tiny_model(name)) as c:
        expected = fresh(c)
        c.feed(HEAD)
        after_rest = c.feed(REST, start=len(HEAD))
        c.copy(0, 1, 0, len(HEAD))
        assert_same(c.feed(NEXT, 1, len(HEAD)), expected)
        assert c.remove(0, len(HEAD))  # the source can still be cut and written
        assert_same(c.feed(REST, 0, len(HEAD)), after_rest)


# deepseek4 aborts the process instead (an assertion in llama_kv_cache_dsv4::seq_cp)
@pytest.mark.parametrize("name", ["recurrent", "hybrid", "hybrid-swa", "hybrid-pools"])
def test_prefix_copy_gives_a_wrong_state_where_the_table_forbids_it(name: str) -> None:
    with RawContext(tiny_model(name)) as c:
        expected = fresh(c)
        c.feed(HEAD)
        c.feed(REST, start=len(HEAD))
        c.copy(0, 1, 0, len(HEAD))
        start = c.positions(1)[1] + 1
        assert_other(c.feed(NEXT, 1, start), expected)
        assert not row_of(name).can_copy_prefix


@models_where(lambda row: row.can_copy_whole)
def test_whole_copy_gives_both_sequences_the_state(name: str) -> None:
    with RawContext(tiny_model(name)) as c:
        expected = fresh(c)
        c.feed(HEAD)
        c.copy(0, 1)
        assert_same(c.feed(NEXT, 1, len(HEAD)), expected)
        assert_same(c.feed(NEXT, 0, len(HEAD)), expected)


@models_where(lambda row: row.has_cells)
def test_copy_without_a_common_pool_is_not_there_before_the_next_batch(name: str) -> None:
    assert row_of(name, unified=False).copy is Copy.NOTHING
    with RawContext(tiny_model(name), n_ctx=4 * 256, kv_unified=False) as c:
        expected = fresh(c)
        c.feed(HEAD)
        c.copy(0, 1)
        too_early = c.save(1)
        assert_same(c.feed(NEXT, 1, len(HEAD)), expected)
        c.clear()
        assert c.restore(too_early, 1)
        assert_other(c.feed(NEXT, 1, len(HEAD)), expected)


@models_where(lambda row: row.can_copy_whole)
def test_copy_in_a_common_pool_is_there_at_once(name: str) -> None:
    with RawContext(tiny_model(name)) as c:
        expected = fresh(c)
        c.feed(HEAD)
        c.copy(0, 1)
        state = c.save(1)
        c.clear()
        assert c.restore(state, 1)
        assert_same(c.feed(NEXT, 1, len(HEAD)), expected)


@pytest.mark.parametrize("length", [61, 62, 63])
def test_sharing_part_of_a_block_spoils_an_indexed_hybrid(length: int) -> None:
    """Why `llama_memory_hybrid_idx` copies nothing; a fix in llama.cpp would fail this test."""
    tokens = some_tokens(length, seed=1)
    with RawContext(tiny_model("hybrid-blocks-sparse")) as c:
        c.feed(tokens)
        expected = c.feed(NEXT, start=length)
        c.clear()
        c.feed(tokens)
        c.copy(0, 1)
        assert_other(c.feed(NEXT, 1, length), expected)
        assert_other(c.feed(NEXT, 0, length), expected)
    assert row_of("hybrid-blocks-sparse").copy is Copy.NOTHING


@models_where(lambda row: row.shares_cells and row.has_cells)
def test_copies_share_cells_where_the_table_says(name: str) -> None:
    prompt = some_tokens(200, seed=4)
    with RawContext(tiny_model(name), n_ctx=256, n_batch=256) as c:
        c.feed(prompt)
        state = c.save(0)
        assert not c.restore(state, 1)  # 400 cells are not there
        c.remove(1)
        c.copy(0, 1)
        if row_of(name).copy_pins_window:
            assert c.restore(c.save(1, PARTIAL), 1, PARTIAL)
        for i, token in enumerate(NEXT):
            c.decode([(token, 200 + i, 0), (token, 200 + i, 1)])


def test_saved_state_goes_on_in_another_sequence(name: str) -> None:
    with RawContext(tiny_model(name)) as c:
        expected = fresh(c)
        c.feed(HEAD)
        state = c.save(0)
        c.remove(0)
        assert c.restore(state, 3)
        assert_same(c.feed(NEXT, 3, len(HEAD)), expected)


def test_saved_state_goes_on_beside_other_sequences(name: str) -> None:
    with RawContext(tiny_model(name)) as c:
        expected = fresh(c)
        c.feed(REST, 2)
        c.feed(HEAD)
        state = c.save(0)
        c.feed(REST, 0, len(HEAD))
        assert c.restore(state, 1)
        assert_same(c.feed(NEXT, 1, len(HEAD)), expected)
        assert c.restore(state, 0)  # replaces what is there
        assert_same(c.feed(NEXT, 0, len(HEAD)), expected)


def test_damaged_state_is_refused_and_leaves_other_sequences_alone(name: str) -> None:
    with RawContext(tiny_model(name)) as c:
        expected = fresh(c)
        c.feed(HEAD)
        state = c.save(0)
        assert not c.restore(state[: len(state) // 2], 1)
        c.remove(1)
        assert c.positions(1) == (-1, -1)
        assert_same(c.feed(NEXT, 0, len(HEAD)), expected)


def test_partial_state_brings_back_what_no_cut_can(name: str) -> None:
    with RawContext(tiny_model(name)) as c:
        expected = fresh(c)
        c.feed(HEAD)
        whole, partial = c.save(0), c.save(0, PARTIAL)
        assert (len(partial) < len(whole)) == row_of(name).has_partial_state
        c.feed(REST, start=len(HEAD))
        assert c.restore(partial, 0, PARTIAL)
        assert c.remove(0, len(HEAD))  # the rest of the memory is cut to the same length
        assert_same(c.feed(NEXT, start=len(HEAD)), expected)


@models_where(lambda row: row.has_partial_state and row.can_copy_whole)
def test_partial_state_turns_a_whole_copy_into_a_prefix_copy(name: str) -> None:
    with RawContext(tiny_model(name)) as c:
        expected = fresh(c)
        c.feed(HEAD)
        partial = c.save(0, PARTIAL)
        c.feed(REST, start=len(HEAD))
        later = c.save(0)
        c.copy(0, 1)
        assert c.restore(partial, 1, PARTIAL)
        assert c.remove(1, len(HEAD))
        assert_same(c.feed(NEXT, 1, len(HEAD)), expected)
        assert c.save(0) == later


@models_where(lambda row: row.has_cells)
def test_batch_without_room_changes_nothing(name: str) -> None:
    with RawContext(tiny_model(name), n_ctx=256, n_batch=256) as c:
        c.feed(some_tokens(200), 0)
        c.feed(HEAD[:40], 1)
        before = c.save(0), c.save(1)
        too_many = [(t, 200 + i, 0) for i, t in enumerate(some_tokens(60))]
        assert c.try_decode(too_many) == 1
        assert (c.save(0), c.save(1)) == before


def test_only_a_memory_without_cells_outgrows_the_context(name: str) -> None:
    with RawContext(tiny_model(name), n_ctx=256, n_batch=256) as c:
        c.feed(some_tokens(200))
        more = [(t, 200 + i, 0) for i, t in enumerate(some_tokens(100))]
        assert (c.try_decode(more) == 0) == (not row_of(name).has_cells)


def test_positions_must_go_on_where_the_sequence_ends(name: str) -> None:
    with RawContext(tiny_model(name)) as c:
        c.feed(HEAD)
        assert c.try_decode([(5, len(HEAD) - 2, 0)]) == -1
        takes_gaps = name == "hybrid-blocks"  # M-RoPE: an image spans more positions than tokens
        assert (c.try_decode([(5, len(HEAD) + 1, 0)]) == 0) == takes_gaps


def test_sequence_ids_beyond_n_seq_max_are_refused(name: str) -> None:
    with RawContext(tiny_model(name), n_seq_max=2) as c:
        assert c.try_decode([(5, 0, 2)]) == -1


def test_unknown_class_is_used_for_whole_sequences_only() -> None:
    for unified in (True, False):
        row = memory_class("llama_kv_cache_of_tomorrow", unified=unified)
        assert row.name == "llama_kv_cache_of_tomorrow"
        assert (row.can_cut, row.can_copy_prefix, row.survives_failed_step) == (False, False, False)
    assert not memory_class("llama_kv_cache_of_tomorrow").can_copy_whole


def test_without_a_common_pool_nothing_is_copied_or_shared() -> None:
    for name in KNOWN_CLASSES:
        row = memory_class(name, unified=False)
        if row.has_cells:
            assert row.copy is Copy.NOTHING
            assert not row.shares_cells
            assert not row.copy_pins_window
            assert row.cost_per_sequence is Cost.CONTEXT
        assert row.cut is memory_class(name).cut
    assert memory_class("llama_kv_cache").cut is Cut.ANYWHERE
