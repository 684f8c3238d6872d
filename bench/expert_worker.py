"""One side of `python -m bench cpu-experts`: a process that computes what it is told to, line by
line on its standard input, and answers with seconds of CPU time.

A process of its own for each side, since ggml reads its switches once.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np

from bench.random_weights import random_weights
from strata_plugin.runtime.config import ContextConfig, ModelConfig
from strata_plugin.runtime.context import Batch, Context
from strata_plugin.runtime.ggml_graph import Graph, Tensor
from strata_plugin.runtime.library import log_to_stderr
from strata_plugin.runtime.model import Model


class Experts:
    """MUL_MAT_ID where each of `experts` matrices gets `rows` rows."""

    def __init__(self, dtype: str, rows: int, experts: int, n_in: int, n_out: int) -> None:
        rng = np.random.default_rng(1)
        n_tokens = experts * rows
        weights = random_weights(dtype, experts * n_out, n_in, rng)
        x = rng.normal(size=(1, n_tokens, 1, n_in)).astype(np.float32)
        ids = rng.permutation(np.arange(n_tokens) % experts).astype(np.int32)
        self._graph = Graph(weights.nbytes + 8 * n_tokens * (n_in + n_out) + (1 << 20))
        self._result: Tensor = self._graph.expert_product(
            self._graph.raw(weights, dtype, (1, experts, n_out, n_in)),
            self._graph.tensor(x),
            self._graph.raw(ids.view(np.uint8), "i32", (1, 1, n_tokens, 1)),
        )

    def run(self) -> None:
        """Compute it once, in this thread."""
        self._graph.compute(self._result, 1)

    def close(self) -> None:
        """Free the tensors."""
        self._graph.close()


class Tokens:
    """A model's step over `n` new tokens of an empty context."""

    def __init__(self, path: str, n: int) -> None:
        self._model = Model(ModelConfig(path=path, n_gpu_layers=0))
        config = ContextConfig(n_ctx=512, n_batch=256, n_ubatch=256, threads=1, threads_batch=1)
        self._context = Context(self._model, config, n_seq_max=1)
        self._batch: Batch = self._context.new_batch()
        tokens = np.random.default_rng(2).integers(100, 250, n).astype(np.int32)
        self._batch.add(0, tokens, 0, output=True)

    def run(self) -> None:
        """Decode the batch; all tokens at position 0 and on, with nothing before them."""
        self._context.clear()
        if self._context.decode(self._batch):
            raise SystemExit("bench: llama_decode failed")
        self._context.synchronize()

    def close(self) -> None:
        """Free context and model."""
        self._context.close()
        self._model.close()


def serve() -> None:
    """Answer requests until standard input ends."""
    log_to_stderr(1)
    work: Experts | Tokens | None = None
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        if "experts" in request:
            work = _instead(work, lambda r=request: Experts(**r["experts"]))
        elif "tokens" in request:
            work = _instead(work, lambda r=request: Tokens(**r["tokens"]))
        assert work is not None
        began = time.process_time()
        for _ in range(request["times"]):
            work.run()
        print(json.dumps(time.process_time() - began), flush=True)


def _instead(old: Experts | Tokens | None, make: Any) -> Experts | Tokens:
    if old is not None:
        old.close()
    return make()  # type: ignore[no-any-return]


if __name__ == "__main__":
    serve()
