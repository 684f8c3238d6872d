"""Products of experts over shapes, types and threads, and greedy decoding with a model;
`python -m tests.kernels.expert_cases FILE MODEL` writes the results of all of them.

A program of its own, since ggml reads STRATA_CPU_MULTI_ROW once in a process.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.random_weights import random_weights
from strata_plugin.runtime.config import ContextConfig, ModelConfig
from strata_plugin.runtime.context import Context
from strata_plugin.runtime.ggml_graph import TYPES, Graph
from strata_plugin.runtime.library import declare, ggml_library
from strata_plugin.runtime.model import Model

KERNELS = (
    "iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_xs", "iq4_nl", "q2_0",
)  # fmt: skip
TILED = tuple(name for name in KERNELS if name not in ("iq4_nl", "q2_0"))  # from 8 rows on
OTHERS = ("q4_k", "q6_k", "q8_0", "f16")  # left to upstream

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Case:
    """Tokens, each sent to `used` of the experts; `hot`: expert 3 is among them every time."""

    dtype: str
    tokens: int
    used: int = 1
    experts: int = 8
    n_in: int = 512
    n_out: int = 33
    each: bool = False  # each of a token's experts has an input of its own, as `down` has
    hot: bool = False
    threads: int = 1
    plain: bool = False  # one matrix for all, without experts (MUL_MAT)


def cases() -> Iterator[Case]:
    """What is computed with the patch's switch on and off."""
    for dtype in (*KERNELS, *OTHERS):
        for tokens in range(1, 10):
            yield Case(dtype, tokens, hot=True)  # as many rows for one expert, none for the others
            yield Case(dtype, tokens, used=8, each=True, threads=2)  # the same for each
        for threads in (1, 2, 3, 5):
            yield Case(dtype, 21, used=2, n_in=256, n_out=64, threads=threads)
            yield Case(dtype, 21, used=2, n_in=768, n_out=5, each=True, threads=threads)
            yield Case(dtype, 40, used=8, experts=64, n_in=1024, n_out=48, threads=threads)
        yield Case(dtype, 31, hot=True, n_out=256)
        for tokens in (1, 2, 5, 7, 11, 40):
            yield Case(dtype, tokens, used=3, experts=1, each=True, n_out=70, threads=2, plain=True)


def inputs(case: Case) -> tuple[NDArray[np.uint8], Floats, NDArray[np.int32]]:
    """Weights as bytes, activations, and the experts of each token."""
    rng = np.random.default_rng([*case.dtype.encode(), case.tokens, case.used, case.n_in])
    rows = case.experts * case.n_out
    if case.dtype in ("f16", "q8_0"):
        weights = np.empty(0, np.uint8)
    else:
        weights = random_weights(case.dtype, rows, case.n_in, rng)
    x = rng.normal(size=(1, case.tokens, case.used if case.each else 1, case.n_in))
    x *= rng.uniform(0.1, 10.0, size=(1, case.tokens, 1, 1))  # columns have scales of their own
    ids = np.argsort(rng.random((case.tokens, max(case.used, case.experts))), axis=1)
    ids = ids[:, : case.used]
    if case.hot:
        ids[:, 0] = 3
    return weights, x.astype(np.float32), ids.astype(np.int32)


def compute(case: Case, tokens: slice = slice(None)) -> Floats:
    """The product, for some of the tokens: (tokens, experts used, outputs)."""
    weights, x, ids = inputs(case)
    x, ids = x[:, tokens], np.ascontiguousarray(ids[tokens])
    shape = (1, case.experts, case.n_out, case.n_in)
    graph = Graph(1 << 26)
    try:
        if weights.size:
            matrices = graph.raw(weights, case.dtype, shape)
        else:
            values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
            matrices = graph.tensor(values, case.dtype)
        if case.plain:
            result = graph.product(matrices, graph.tensor(x))
            graph.compute(result, case.threads)
            return graph.values(result, (*x.shape[1:3], case.n_out))
        chosen = graph.raw(ids.view(np.uint8), "i32", (1, 1, *ids.shape))
        result = graph.expert_product(matrices, graph.tensor(x), chosen)
        graph.compute(result, case.threads)
        return graph.values(result, (*ids.shape, case.n_out))
    finally:
        graph.close()


def dequantised(case: Case) -> Floats:
    """The matrices as ggml's own reference code makes them from the bytes."""
    weights, _, _ = inputs(case)
    name = f"dequantize_row_{case.dtype}"
    base = ggml_library("ggml-base")
    declare(base, {name: (None, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64])})
    values = np.empty((case.experts, case.n_out, case.n_in), np.float32)
    getattr(base, name)(weights.ctypes.data, values.ctypes.data, values.size)
    return values


def has_kernel(dtype: str, n_in: int = 256) -> bool:
    """Whether rows of this type are computed by the patch: switched on, and made for this CPU."""
    cpu = ggml_library("ggml-cpu")
    declare(cpu, {"ggml_multi_row_kernel": (ctypes.c_void_p, [ctypes.c_int, ctypes.c_int64])})
    return bool(cpu.ggml_multi_row_kernel(TYPES[dtype], n_in))


def greedy(model_path: Path, *, streams: int = 4, steps: int = 24) -> tuple[Floats, list[int]]:
    """All logits and tokens of some streams that are read together and decode together."""
    model = Model(ModelConfig(path=str(model_path), n_gpu_layers=0))
    config = ContextConfig(n_ctx=1024, n_batch=64, n_ubatch=64, threads=2, threads_batch=2)
    context = Context(model, config, n_seq_max=streams)
    batch = context.new_batch()
    logits: list[Floats] = []
    said: list[int] = []
    texts = np.random.default_rng(3).integers(100, 250, (streams, 5)).astype(np.int32)
    position = 0
    for _ in range(steps):
        batch.clear()
        rows = [batch.add(i, text, position, output=True) for i, text in enumerate(texts)]
        assert context.decode(batch) == 0
        position += texts.shape[1]
        logits += [context.logits(row).copy() for row in rows]
        texts = np.array([[int(row.argmax())] for row in logits[-streams:]], np.int32)
        said += [int(token) for token in texts[:, 0]]
    context.close()
    model.close()
    return np.stack(logits), said


def write(path: Path, model_path: Path) -> None:
    """Write all results, and for which types there is a kernel."""
    results = {f"{number:04}": compute(case) for number, case in enumerate(cases())}
    names = np.array([name for name in (*KERNELS, *OTHERS) if has_kernel(name)], dtype=str)
    logits, said = greedy(model_path)
    np.savez(path, kernels=names, logits=logits, said=np.array(said), **results)


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
