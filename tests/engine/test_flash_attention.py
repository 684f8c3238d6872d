"""Flash attention on the CPU against plain attention in double precision, and `-fa auto`.

Shapes cover what models have: grouped heads, one head, heads of different sizes, sinks, softcap,
ALiBi, quantised caches, several streams, and masks with whole blocks that nobody sees.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from strata_plugin.runtime import attention
from strata_plugin.runtime.attention import Heads, Times, heads, measurable, measure
from strata_plugin.runtime.config import ContextConfig, ModelConfig
from strata_plugin.runtime.ggml_graph import Graph
from strata_plugin.runtime.model import Model
from tests.models import tiny_model

Array = NDArray[np.float32]


@dataclass
class Case:
    """One attention: `tokens` against `cells`, `group` query heads for each of `kv` heads."""

    tokens: int
    cells: int
    kv: int = 2
    group: int = 3
    key_size: int = 64
    value_size: int = 64
    streams: int = 1
    key_type: str = "f16"
    value_type: str = "f16"
    seen: float = 0.5  # share of the cells that a token sees; 0: there is no mask
    max_bias: float = 0.0
    softcap: float = 0.0
    sinks: bool = False
    threads: int = 2
    seed: int = 0


def inputs(c: Case) -> tuple[Array, Array, Array, Array | None, Array | None]:
    rng = np.random.default_rng(c.seed)
    n_heads = c.kv * c.group
    half = np.float16  # what the cache keeps: both sides compute with the same values
    q = rng.normal(size=(c.streams, n_heads, c.tokens, c.key_size))
    k = rng.normal(size=(c.streams, c.kv, c.cells, c.key_size)).astype(half)
    v = rng.normal(size=(c.streams, c.kv, c.cells, c.value_size)).astype(half)
    mask = None
    if c.seen:
        shape = (c.streams, 1, c.tokens, c.cells)
        mask = np.where(rng.random(shape) < c.seen, 0.0, -np.inf)
        blocks = rng.random((c.tokens, c.cells // 64 + 1)) < 0.4  # nothing of them is seen
        mask = np.where(np.repeat(blocks, 64, 1)[:, : c.cells], -np.inf, mask)
        if c.max_bias:
            mask = np.where(mask == 0, -rng.integers(0, 50, shape), mask)
        mask = mask.astype(np.float32)
    sinks = rng.normal(size=(1, 1, 1, n_heads)).astype(np.float32) if c.sinks else None
    return q.astype(np.float32), k.astype(np.float32), v.astype(np.float32), mask, sinks


def by_ggml(c: Case, tokens: slice = slice(None)) -> Array:
    """The operation's result, for some of the tokens."""
    q, k, v, mask, sinks = inputs(c)
    q, mask = q[:, :, tokens], None if mask is None else mask[:, :, tokens]
    graph = Graph(1 << 26)
    try:
        # tokens outside, heads inside, as in llama.cpp's cache
        def laid_out(x: Array, dtype: str) -> int:
            return graph.permuted(graph.tensor(x.transpose(0, 2, 1, 3), dtype), 0, 2, 1, 3)

        result = graph.flash_attention(
            laid_out(q, "f32"),
            laid_out(k, c.key_type),
            laid_out(v, c.value_type),
            None if mask is None else graph.tensor(mask, "f16"),
            c.key_size**-0.5,
            max_bias=c.max_bias,
            softcap=c.softcap,
            sinks=None if sinks is None else graph.tensor(sinks),
        )
        graph.compute(result, c.threads)
        once = graph.values(result, (c.streams, q.shape[2], c.kv * c.group, c.value_size))
        graph.compute(result, c.threads)
        again = graph.values(result, once.shape)
        assert np.array_equal(once, again)
        return once
    finally:
        graph.close()


def by_definition(c: Case) -> NDArray[np.float64]:
    q, k, v, mask, sinks = inputs(c)
    n_heads = c.kv * c.group
    keys = np.repeat(k.astype(np.float64), c.group, 1)
    values = np.repeat(v.astype(np.float64), c.group, 1)
    scores = np.einsum("shtd,shcd->shtc", q.astype(np.float64), keys) * c.key_size**-0.5
    if c.softcap:
        scores = c.softcap * np.tanh(scores / c.softcap)
    if mask is not None:
        slopes = np.ones(n_heads)
        if c.max_bias:
            low = 1 << int(np.log2(n_heads))
            a, b = 2.0 ** (-c.max_bias / low), 2.0 ** (-c.max_bias / 2 / low)
            slopes = np.array(
                [a ** (h + 1) if h < low else b ** (2 * (h - low) + 1) for h in range(n_heads)]
            )
        scores = scores + mask * slopes[None, :, None, None]
    top = scores.max(-1, keepdims=True)
    if sinks is not None:
        sink = sinks.reshape(1, n_heads, 1, 1).astype(np.float64)
        top = np.maximum(top, sink)
    top = np.where(np.isneginf(top), 0.0, top)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sink - top)
    weights /= np.where(total == 0.0, 1.0, total)
    return np.einsum("shtc,shcd->sthd", weights, values)


CASES = {
    "decoding": Case(1, 700),
    "decoding, few cells": Case(1, 5),
    "decoding, one head for each": Case(1, 700, group=1),
    "decoding, one thread": Case(1, 700, threads=1),
    "decoding, more threads than heads": Case(1, 1000, kv=1, threads=7),
    "four rows": Case(4, 513, seen=0.2),
    "a short chunk": Case(23, 600),
    "just over a tile of rows": Case(22, 300, seen=0.05),
    "one row more than a tile": Case(65, 300, group=1),
    "a long chunk": Case(200, 640),
    "nobody sees anything": Case(9, 200, seen=1e-9),
    "no mask": Case(17, 130, seen=0.0),
    "cells that fill no tile": Case(3, 63),
    "sinks": Case(5, 300, sinks=True),
    "sinks, decoding": Case(1, 900, sinks=True),
    "sinks and nothing seen": Case(3, 100, sinks=True, seen=1e-9),
    "softcap": Case(11, 200, softcap=20.0),
    "ALiBi": Case(12, 200, max_bias=8.0, group=3),
    "values smaller than keys": Case(13, 256, key_size=192, value_size=128, kv=1, group=8),
    "odd head size": Case(7, 129, key_size=80, value_size=80),
    "two streams": Case(5, 300, streams=2),
    "two streams, decoding": Case(1, 600, streams=2),
    "cache of 32 bits": Case(10, 300, key_type="f32", value_type="f32"),
}


def tolerance(case: Case) -> float:
    # one row alone is computed by llama.cpp's own code, which sums in 16 bits
    return 2e-3 if case.tokens * case.group == 1 else 1e-5


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_flash_attention_is_attention(case: Case) -> None:
    assert np.abs(by_ggml(case) - by_definition(case)).max() < tolerance(case)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("chunk", [1, 2, 7, 64])
def test_the_size_of_chunks_makes_no_difference_to_a_bit(chunk: int, threads: int) -> None:
    whole = by_ggml(Case(100, 1500, seen=0.3))
    part = Case(100, 1500, seen=0.3, threads=threads)
    for start in range(0, 100, chunk):
        piece = slice(start, start + chunk)
        np.testing.assert_array_equal(by_ggml(part, piece), whole[:, piece])


@pytest.mark.parametrize("tokens", [1, 2, 7, 40])
def test_a_quantised_cache_loses_what_quantising_loses(tokens: int) -> None:
    case = Case(tokens, 400, key_type="q8_0", value_type="q8_0")
    assert np.abs(by_ggml(case) - by_definition(case)).max() < 0.05


def test_random_shapes() -> None:
    rng = np.random.default_rng(3)
    for seed in range(60):
        case = Case(
            tokens=int(rng.integers(1, 90)),
            cells=int(rng.integers(1, 700)),
            kv=int(rng.integers(1, 4)),
            group=int(rng.choice([1, 2, 3, 4, 8])),
            key_size=(size := int(rng.choice([32, 64, 96, 128]))),
            value_size=size,
            streams=int(rng.choice([1, 1, 2])),
            seen=float(rng.choice([0.02, 0.3, 0.9])),
            softcap=float(rng.choice([0.0, 0.0, 20.0])),
            sinks=bool(rng.random() < 0.3),
            threads=int(rng.integers(1, 6)),
            seed=seed,
        )
        assert np.abs(by_ggml(case) - by_definition(case)).max() < tolerance(case), case


# ---- -fa auto ------------------------------------------------------------------------------------


def test_both_ways_are_timed_on_the_model_s_heads() -> None:
    times = measure(Heads(6, 2, 64, 64), n_layers=2, dtype="f16", n_threads=1, depth=256)
    twice = measure(Heads(6, 2, 64, 64), n_layers=4, dtype="f16", n_threads=1, depth=256)
    assert 0 < times.flash < 100 and 0 < times.plain < 100
    assert 1.2 < (twice.flash + twice.plain) / (times.flash + times.plain) < 3.3


def test_the_quicker_way_is_chosen() -> None:
    assert Times(flash=1.0, plain=2.0).choice == "on"
    assert Times(flash=2.0, plain=1.0).choice == "off"


def test_the_plain_way_that_is_timed_computes_attention() -> None:
    case = Case(5, 130)
    q, k, v, mask, _ = inputs(case)
    assert mask is not None
    graph = Graph(1 << 24)
    result = attention._plain(graph, q, k, v, mask, "f16")
    graph.compute(result, 1)
    got = graph.values(result, (1, case.tokens, case.kv * case.group, case.value_size))
    graph.close()
    np.testing.assert_allclose(got, by_definition(case), atol=5e-3)


@pytest.fixture(scope="module")
def dense() -> Model:
    return Model(ModelConfig(path=str(tiny_model("dense"))))


def test_heads_are_the_model_s(dense: Model) -> None:
    assert heads(dense) == Heads(4, 2, 32, 32)


@pytest.mark.parametrize(
    ("model", "context"),
    [
        ({}, {"flash_attn": "on"}),
        ({}, {"flash_attn": "off"}),
        ({}, {"type_v": "q8_0"}),  # llama.cpp needs flash attention for it
        ({}, {"type_k": "q8_0"}),
    ],
)
def test_nothing_is_measured_where_there_is_no_choice(
    dense: Model, model: dict[str, object], context: dict[str, object]
) -> None:
    config = ModelConfig(path="", **model)  # type: ignore[arg-type]
    assert measurable(dense, ModelConfig(path=""), ContextConfig()) is not None
    assert measurable(dense, config, ContextConfig(**context)) is None  # type: ignore[arg-type]


def test_a_gpu_is_left_to_llama_cpp(dense: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "only_cpu", lambda model, offload_kqv: False)
    assert measurable(dense, ModelConfig(path=""), ContextConfig()) is None
