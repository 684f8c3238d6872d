"""Sliding windows: where a cut or a copy is valid, and what sharing their cells leads to."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_plugin.runtime.memory_classes import memory_class, window_covers
from tests.engine.logits import ROUNDING, assert_same, error
from tests.engine.raw_context import PARTIAL, RawContext, some_tokens
from tests.models import TINY_MODELS, tiny_model

WINDOW = 32
STEP = 10  # tokens per batch
TOKENS = some_tokens(800, seed=1)
PROBE = some_tokens(1, seed=2)[0]

CUTTABLE = ["swa", "dsa-swa"]
SHARING = [*CUTTABLE, "hybrid-swa"]


def open_context(name: str, **params: object) -> RawContext:
    """256 cells for windows, 2048 for the layers without one."""
    return RawContext(tiny_model(name), **{"n_ctx": 2048, "n_seq_max": 2, **params})


def feed_to(c: RawContext, end: int, seq: int = 0, start: int = 0) -> None:
    for i in range(start, end, STEP):
        c.feed(TOKENS[i : min(i + STEP, end)], seq, i)


def error_after_cut(c: RawContext, held: int, n: int) -> float:
    """Largest error of the logits of token n, computed after a cut from `held` to `n` tokens."""
    c.clear()
    feed_to(c, held)
    assert c.remove(0, n)
    got = c.decode([(PROBE, n, 0)])
    c.clear()
    feed_to(c, n)
    return error(got, c.decode([(PROBE, n, 0)]))


@pytest.mark.parametrize("name", CUTTABLE)
def test_cut_is_right_exactly_where_the_window_is_covered(name: str) -> None:
    with open_context(name) as c:
        feed_to(c, 320)
        pos_min, pos_max = c.positions(0)
        assert 320 - 256 <= pos_min < pos_max - WINDOW == 319 - WINDOW
        shortest = pos_min + WINDOW - 1
        assert window_covers(pos_min, shortest, WINDOW)
        assert not window_covers(pos_min, shortest - 1, WINDOW)
        for n in (shortest, shortest + 1, shortest + 50):
            assert error_after_cut(c, 320, n) < ROUNDING
        for n in (shortest - 1, shortest - 2, shortest - WINDOW // 2):
            assert error_after_cut(c, 320, n) > 2 * ROUNDING


@pytest.mark.parametrize("name", CUTTABLE)
def test_llama_cpp_computes_on_when_the_window_is_lost(name: str) -> None:
    with open_context(name) as c:
        feed_to(c, 320)
        n = c.positions(0)[0] - 5
        assert c.remove(0, n)
        assert c.positions(0) == (-1, -1)  # though other layers hold n tokens
        assert not window_covers(-1, n, WINDOW)
        assert c.try_decode([(PROBE, n, 0)]) == 0


@pytest.mark.parametrize("name", CUTTABLE)
def test_prefix_copy_needs_the_window_too(name: str) -> None:
    with open_context(name) as c:
        feed_to(c, 300)
        n = c.positions(0)[0] + WINDOW - 1
        c.copy(0, 1, 0, n)
        copied = c.decode([(PROBE, n, 1)])
        c.clear()
        feed_to(c, n)
        assert_same(c.decode([(PROBE, n, 0)]), copied)


def test_full_size_window_cache_still_gives_cells_to_another_sequence() -> None:
    """Why `window_covers` is asked with --swa-full as well."""
    with open_context("swa", swa_full=True, n_seq_max=3) as c:
        feed_to(c, 100, seq=0)
        feed_to(c, 300, seq=1)
        assert c.positions(1) == (0, 299)
        c.remove(0)
        c.feed(TOKENS[300:500], seq=2)  # 100 free cells, then those next to them
        pos_min = c.positions(1)[0]
        assert pos_min > 0
        assert not window_covers(pos_min, pos_min + WINDOW - 2, WINDOW)


@pytest.mark.parametrize("name", SHARING)
def test_shared_window_cells_are_never_reused(name: str) -> None:
    assert memory_class(TINY_MODELS[name].memory_class).copy_pins_window
    with open_context(name) as c:
        feed_to(c, 250)
        c.copy(0, 1)
        # 256 cells for windows of 32 tokens are full of tokens that nobody attends to any more
        assert c.try_decode([(t, 250 + i, 1) for i, t in enumerate(TOKENS[250:260])]) == 1


@pytest.mark.parametrize("name", SHARING)
def test_partial_state_gives_a_copy_window_cells_of_its_own(name: str) -> None:
    with open_context(name) as c:
        feed_to(c, 250)
        c.copy(0, 1)
        assert c.restore(c.save(1, PARTIAL), 1, PARTIAL)
        original, copy = [], []
        for i in range(250, 650, STEP):
            original.append(c.feed(TOKENS[i : i + STEP], 0, i))
            copy.append(c.feed(TOKENS[i : i + STEP], 1, i))
        flips = 4 if name == "dsa-swa" else 0
        assert_same(np.concatenate(copy), np.concatenate(original), flips=flips)
        assert c.positions(0)[1] == c.positions(1)[1] == 649


@pytest.mark.parametrize("name", CUTTABLE)
def test_restored_window_is_as_short_as_can_be(name: str) -> None:
    with open_context(name) as c:
        feed_to(c, 200)
        assert c.positions(0) == (0, 199)
        assert c.restore(c.save(0), 1)
        assert c.positions(1) == (200 - WINDOW, 199)
        # one token may be taken back, to compute its logits once more
        assert window_covers(200 - WINDOW, 199, WINDOW)
        assert not window_covers(200 - WINDOW, 198, WINDOW)


@pytest.mark.parametrize("name", SHARING)
@pytest.mark.parametrize("n_seq_max", [2, 16])
def test_each_sequence_id_costs_a_window_of_cells(name: str, n_seq_max: int) -> None:
    n_cells = -(-(n_seq_max * WINDOW + 64) // 256) * 256  # and a micro-batch, in steps of 256
    with open_context(name, n_seq_max=n_seq_max) as c:
        feed_to(c, n_cells)
        c.copy(0, 1)  # pins them all
        assert c.try_decode([(PROBE, n_cells, 0)]) == 1
        c.remove(1)
        assert c.try_decode([(PROBE, n_cells, 0)]) == 0


@given(st.integers(0, 500), st.integers(1, 600), st.integers(1, 100))
def test_window_rule_is_the_definition(pos_min: int, n: int, n_swa: int) -> None:
    attended = range(max(0, n - n_swa + 1), n)  # by token n, besides itself
    assert window_covers(pos_min, n, n_swa) == (min(attended, default=n) >= pos_min)


def test_nothing_needs_no_window() -> None:
    assert window_covers(-1, 0, WINDOW)
    assert window_covers(500, 0, WINDOW)
