"""Steps that fail half-way, tokens taken back (n_rs_seq), contexts that need their own pools."""

from __future__ import annotations

import llama_cpp
import numpy as np
import pytest

from strata_plugin.runtime.memory_classes import Cost, MemoryClass, memory_class
from tests.engine.logits import assert_other, assert_same
from tests.engine.raw_context import RawContext, some_tokens
from tests.models import TINY_MODELS, tiny_model

MODELS = [name for name in TINY_MODELS if name != "hybrid-blocks-sparse"]
ROLLBACK = ["hybrid-rollback", "hybrid-swa", "hybrid-blocks", "hybrid-pools", "dsv4"]
HEAD = some_tokens(50, seed=1)
LONG = some_tokens(64, seed=2)  # two micro-batches of 32
NEXT = some_tokens(20, seed=3)
SNAPSHOTS = 4  # n_rs_seq


def row_of(name: str) -> MemoryClass:
    return memory_class(TINY_MODELS[name].memory_class)


class Interruption:
    """Stops llama_decode after some of its graph nodes, as llama.cpp's abort callback."""

    def __init__(self) -> None:
        self.nodes = 0
        self.limit: float = float("inf")
        self.callback = llama_cpp.ggml_abort_callback(self._reached)

    def _reached(self, _: object) -> bool:
        self.nodes += 1
        return self.nodes > self.limit


@pytest.mark.parametrize("name", MODELS)
def test_failed_step_leaves_what_the_table_says(name: str) -> None:
    stop = Interruption()
    with RawContext(tiny_model(name), n_ubatch=32, abort_callback=stop.callback) as c:

        def begin() -> bytes:
            c.clear()
            c.feed(HEAD)
            c.feed(NEXT, 1)
            return c.save(1)

        begin()
        stop.nodes = 0
        c.feed(LONG, start=len(HEAD))
        in_second = stop.nodes * 3 // 4
        other = begin()
        stop.nodes, stop.limit = 0, in_second
        assert c.try_decode([(t, len(HEAD) + i, 0) for i, t in enumerate(LONG)]) == 2
        stop.limit = float("inf")
        assert c.save(1) == other
        held = c.positions(0)[1] + 1
        if row_of(name).survives_failed_step:
            assert held == len(HEAD) + 32
            got = c.feed(NEXT, start=held)
            begin()
            c.feed(LONG[:32], start=len(HEAD))
            np.testing.assert_array_equal(c.feed(NEXT, start=held), got)
        else:
            assert held == len(HEAD) + 64  # 32 of which were not computed
            assert not c.remove(0, len(HEAD) + 32)
            assert c.remove(0)
            c.feed(HEAD)  # and the sequence serves again
            assert c.save(1) == other


@pytest.mark.parametrize("name", ROLLBACK)
def test_failed_step_looks_undone_but_is_not_where_tokens_can_be_taken_back(name: str) -> None:
    """llama.cpp takes the failed tokens back to snapshots that were never written."""
    stop = Interruption()
    with RawContext(tiny_model(name), n_rs_seq=SNAPSHOTS, abort_callback=stop.callback) as c:
        c.feed(HEAD)
        expected = c.feed(NEXT, start=len(HEAD))
        c.clear()
        c.feed(HEAD)
        stop.nodes, stop.limit = 0, 3
        assert c.try_decode([(t, len(HEAD) + i, 0) for i, t in enumerate(LONG[:2])]) == 2
        stop.limit = float("inf")
        assert c.positions(0)[1] == len(HEAD) - 1
        assert_other(c.feed(NEXT, start=len(HEAD)), expected)


@pytest.mark.parametrize("name", MODELS)
def test_snapshots_are_for_some_hybrids_only(name: str) -> None:
    with RawContext(tiny_model(name), n_rs_seq=SNAPSHOTS) as c:
        assert (llama_cpp.llama_n_rs_seq(c.ctx) > 0) == (name in ROLLBACK)
        assert row_of(name).can_roll_back or name not in ROLLBACK


@pytest.mark.parametrize("name", ROLLBACK)
@pytest.mark.parametrize("back", [1, 3])
def test_tokens_of_the_last_step_can_be_taken_back(name: str, back: int) -> None:
    kept = SNAPSHOTS - back
    with RawContext(tiny_model(name), n_rs_seq=SNAPSHOTS) as c:
        c.feed(HEAD)
        c.feed(LONG[:kept], start=len(HEAD))
        expected = c.feed(NEXT, start=len(HEAD) + kept)
        c.clear()
        c.feed(HEAD)
        c.feed(LONG[:SNAPSHOTS], start=len(HEAD))
        assert c.remove(0, len(HEAD) + kept)
        assert not c.remove(0, len(HEAD) + kept - 1)  # once only
        state = c.save(0)
        got = c.feed(NEXT, start=len(HEAD) + kept)
        assert_same(got, expected)
        assert c.restore(state, 1)  # saving knows of it
        again = c.feed(NEXT, 1, len(HEAD) + kept)  # from other cells: in another order of sums
        assert_same(again, got)


@pytest.mark.parametrize("name", ROLLBACK[:-1])
def test_taking_back_a_whole_step_is_wrong_and_not_refused(name: str) -> None:
    with RawContext(tiny_model(name), n_rs_seq=SNAPSHOTS) as c:
        c.feed(HEAD)
        expected = c.feed(NEXT, start=len(HEAD))
        for step in (1, 2, 3):
            c.clear()
            c.feed(HEAD)
            c.feed(LONG[:step], start=len(HEAD))
            assert c.remove(0, len(HEAD))
            assert_other(c.feed(NEXT, start=len(HEAD)), expected)


@pytest.mark.parametrize("name", ROLLBACK[:-1])
def test_copy_does_not_know_of_tokens_taken_back(name: str) -> None:
    with RawContext(tiny_model(name), n_rs_seq=SNAPSHOTS) as c:
        c.feed(HEAD)
        c.feed(LONG[:2], start=len(HEAD))
        expected = c.feed(NEXT, start=len(HEAD) + 2)
        c.clear()
        c.feed(HEAD)
        c.feed(LONG[:4], start=len(HEAD))
        assert c.remove(0, len(HEAD) + 2)
        c.copy(0, 1)
        assert_other(c.feed(NEXT, 1, len(HEAD) + 2), expected)


def test_msa_is_dense_attention_in_a_common_pool() -> None:
    assert not memory_class("llama_kv_cache_msa").unified
    prompt = some_tokens(150, seed=4)
    logits = {}
    for unified, n_seq_max in ((True, 1), (True, 2), (False, 2)):
        with RawContext(
            tiny_model("msa"), n_ctx=512 * n_seq_max, kv_unified=unified, n_seq_max=n_seq_max
        ) as c:
            logits[unified, n_seq_max] = c.feed(prompt)
    assert_same(logits[True, 1], logits[False, 2])
    assert_other(logits[True, 2][100:], logits[False, 2][100:])


def test_dsv4_gives_each_sequence_a_whole_context() -> None:
    """kv_unified or not: with it, n_ctx is not what is allocated."""
    row = memory_class("llama_kv_cache_dsv4")
    assert (row.unified, row.cost_per_sequence) == (False, Cost.CONTEXT)
    prompt = some_tokens(200, seed=4)
    in_second = {}
    for name in ("dsv4", "dense"):
        with RawContext(tiny_model(name), n_ctx=256, n_batch=256, n_seq_max=2) as c:
            assert llama_cpp.llama_n_ctx(c.ctx) == 256
            c.feed(prompt)
            in_second[name] = c.try_decode([(t, i, 1) for i, t in enumerate(prompt)])
    assert in_second == {"dsv4": 0, "dense": 1}


@pytest.mark.parametrize("name", ["recurrent", "hybrid", "hybrid-swa", "hybrid-pools"])
def test_removal_in_the_middle_is_accepted_and_not_done(name: str) -> None:
    """Attention forgets the tokens, the recurrent state does not: such a context can't shift."""
    with RawContext(tiny_model(name)) as c:
        c.feed(HEAD)
        state = len(c.save(0))
        assert c.remove(0, 10, 20)
        assert c.positions(0) == (len(HEAD) - 1, len(HEAD) - 1)
        assert (len(c.save(0)) < state) == row_of(name).has_cells  # attention did forget
