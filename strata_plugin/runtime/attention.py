"""`-fa auto` on the CPU: a short measurement decides, since no rule does.

Which of the two ways to compute attention is quicker depends on the machine, the heads, the depth
and the number of tokens. Both are timed on the model's own shapes, as part of what an agent's turn
consists of: text is read in large chunks, or in small ones beside a running stream, and then
written. With its layers on a GPU llama.cpp's own choice stands.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .config import ContextConfig, ModelConfig
from .devices import only_cpu
from .ggml_graph import Graph, Tensor
from .model import Model

DEPTH = 2048  # tokens
READ, READ_BESIDE = 128, 16  # tokens of a chunk, with nobody decoding and beside a stream
READ_PER_WRITTEN = 4  # tokens read for each that is written: long prompts, mostly cached
ENOUGH_S = 0.1  # for one shape
MOST_RUNS = 10

@dataclass(frozen=True)
class Heads:
    """The shape of one layer's attention."""

    query: int
    kv: int
    key_size: int
    value_size: int


@dataclass(frozen=True)
class Times:
    """Milliseconds of attention for one token that is written, and those read before it."""

    flash: float
    plain: float

    @property
    def choice(self) -> str:
        """`on` or `off`, as -fa has it."""
        return "on" if self.flash <= self.plain else "off"


def measurable(model: Model, model_config: ModelConfig, config: ContextConfig) -> Heads | None:
    """Heads to measure with; None where llama.cpp's own choice stands: attention not on the CPU,
    a cache type that needs flash attention, heads of a kind of their own.
    """
    if config.flash_attn != "auto" or config.type_k not in ("f16", "f32"):
        return None
    if config.type_v != config.type_k or not only_cpu(model_config, config.offload_kqv):
        return None
    return heads(model)


def heads(model: Model) -> Heads | None:
    """Heads of a model's attention; None where it has none, or a latent one."""
    query, kv = model.n_head, model.n_head_kv
    if query < 1 or kv < 1 or query % kv or model.metadata("attention.kv_lora_rank"):
        return None
    size = str(model.n_embd // query)
    return Heads(
        query,
        kv,
        int(model.metadata("attention.key_length") or size),
        int(model.metadata("attention.value_length") or size),
    )


def measure(heads: Heads, n_layers: int, dtype: str, n_threads: int, depth: int = DEPTH) -> Times:
    """Time both ways; takes about a second at most for usual heads on two cores."""
    rng = np.random.default_rng(0)
    k = rng.standard_normal((1, heads.kv, depth, heads.key_size), np.float32)
    v = rng.standard_normal((1, heads.kv, depth, heads.value_size), np.float32)
    flash = plain = 0.0
    # tokens that see so many of the cells, and what part of the turn such steps are
    for tokens, own, share in (
        (READ, depth, 0.5), (READ_BESIDE, depth, 0.5), (1, depth, 0.5), (1, 64, 0.5),
    ):  # fmt: skip
        q = rng.standard_normal((1, heads.query, tokens, heads.key_size), np.float32)
        mask = np.full((1, 1, tokens, depth), -np.inf, np.float32)
        mask[..., :own] = 0.0
        weight = n_layers * share * (READ_PER_WRITTEN / tokens if tokens > 1 else 1.0)
        flash += weight * _layer_ms(_flash, q, k, v, mask, dtype, n_threads)
        plain += weight * _layer_ms(_plain, q, k, v, mask, dtype, n_threads)
    return Times(flash=flash, plain=plain)


Array = NDArray[np.float32]
Attend = Callable[[Graph, Array, Array, Array, Array, str], Tensor]


def _layer_ms(
    attend: Attend, q: Array, k: Array, v: Array, mask: Array, dtype: str, n_threads: int
) -> float:
    """One layer's attention, (1, heads, tokens or cells, size) each: the quickest of a few runs."""
    scores = q.shape[1] * mask.size
    graph = Graph(4 * (3 * scores + 4 * q.size + 2 * (k.size + v.size) + mask.size))
    try:
        result = attend(graph, q, k, v, mask, dtype)
        graph.compute(result, n_threads)  # not timed: memory is touched for the first time
        best, spent, runs = float("inf"), 0.0, 0
        while runs < 2 or (spent < ENOUGH_S and runs < MOST_RUNS):
            started = time.perf_counter()
            graph.compute(result, n_threads)
            elapsed = time.perf_counter() - started
            best, spent, runs = min(best, elapsed), spent + elapsed, runs + 1
        return best * 1e3
    finally:
        graph.close()


def _flash(graph: Graph, q: Array, k: Array, v: Array, mask: Array, dtype: str) -> Tensor:
    scale = float(q.shape[-1] ** -0.5)
    keys, values = graph.tensor(k, dtype), graph.tensor(v, dtype)
    return graph.flash_attention(
        graph.tensor(q), keys, values, graph.tensor(mask, "f16"), scale
    )


def _plain(graph: Graph, q: Array, k: Array, v: Array, mask: Array, dtype: str) -> Tensor:
    """As llama.cpp does it without flash attention: its cache holds the values transposed."""
    keys, values = graph.tensor(k, dtype), graph.tensor(np.swapaxes(v, 2, 3), dtype)
    scores = graph.product(keys, graph.tensor(q))
    weights = graph.soft_max(scores, graph.tensor(mask), float(q.shape[-1] ** -0.5))
    return graph.contiguous(graph.permuted(graph.product(values, weights), 0, 2, 1, 3))
