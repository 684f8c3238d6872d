"""A llama context that gives vectors instead of logits: for embedding and for ranking."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from .config import ContextConfig, EmbeddingConfig
from .context import Context
from .library import llama
from .model import Model

Vectors = NDArray[np.float32]

POOLING = {"none": 0, "mean": 1, "cls": 2, "last": 3, "rank": 4}
MICRO_BATCH = 2048  # tokens of an input that has to be computed at once, where nobody says more


class EmbeddingContext(Context):
    """`splits`: an input may be computed in pieces; its vectors come token by token and are pooled
    by the caller. That needs attention that looks back only, and a memory. Otherwise llama.cpp
    pools, and an input has to fit into one micro-batch.
    """

    def __init__(
        self, model: Model, config: ContextConfig, embedding: EmbeddingConfig, *, n_seq_max: int
    ) -> None:
        self.pooling = embedding.pooling or _pooling_of(model)
        causal = model.metadata("attention.causal") != "false"
        self.splits = causal and self.pooling != "rank"
        whole = _for_whole_inputs(model, config, embedding)
        super().__init__(model, config if self.splits else whole, n_seq_max=n_seq_max)
        if self.splits and not llama.llama_get_memory(self.handle):
            self.close()
            self.splits = False
            super().__init__(model, whole, n_seq_max=n_seq_max)
        rank = self.pooling == "rank"
        width = llama.llama_model_n_cls_out if rank else llama.llama_model_n_embd_out
        self.n_out = int(width(model.handle))

    def _adjust(self, params: Any) -> None:
        params.embeddings = True
        params.pooling_type = 0 if self.splits else POOLING[self.pooling]
        params.n_outputs_max = params.n_batch

    def warmup(self) -> None:
        """As a context that generates does, with an output for each token."""
        batch = self.new_batch()
        batch.add_all(0, np.array([0], np.int32), 0)
        self.decode(batch)
        self.clear()
        self.synchronize()

    def token_vectors(self, first: int, n: int) -> Vectors:
        """Vectors of batch rows first.. first + n, shape (n, n_out); a copy.

        `IndexError` where a row has none.
        """
        found = np.empty((n, self.n_out), np.float32)
        for i in range(n):
            pointer = llama.llama_get_embeddings_ith(self.handle, first + i)
            if not pointer:
                raise IndexError(f"batch row {first + i} has no embedding")
            found[i] = np.ctypeslib.as_array(pointer, shape=(self.n_out,))
        return found

    def pooled_vector(self, seq_id: int) -> Vectors:
        """The vector of a whole input, shape (1, n_out); a copy. `IndexError` where it has none."""
        pointer = llama.llama_get_embeddings_seq(self.handle, seq_id)
        if not pointer:
            raise IndexError(f"sequence {seq_id} has no embedding")
        vector: Vectors = np.ctypeslib.as_array(pointer, shape=(1, self.n_out)).copy()
        return vector

    @property
    def longest_trained(self) -> int:
        """Tokens that an input could have if the micro-batch, or the context, were large enough."""
        return 0 if self.splits else self.model.n_ctx_train

    @property
    def longest_input(self) -> int:
        """Tokens that an input may have."""
        return min(self.n_ctx_seq if self.splits else self.n_ubatch, self.model.n_ctx_train)


def _pooling_of(model: Model) -> str:
    number = model.metadata("pooling_type")
    names = {str(value): name for name, value in POOLING.items()}
    return names.get(number or "", "none")


def _for_whole_inputs(
    model: Model, config: ContextConfig, embedding: EmbeddingConfig
) -> ContextConfig:
    """Batch and micro-batch are the same, and the context holds them."""
    n_ctx = config.n_ctx or model.n_ctx_train
    n_ubatch = config.n_ubatch
    if not embedding.micro_batch_given:
        n_ubatch = max(n_ubatch, min(n_ctx, model.n_ctx_train, MICRO_BATCH))
    n_ctx = max(n_ctx, n_ubatch)
    return msgspec.structs.replace(config, n_ctx=n_ctx, n_batch=n_ubatch, n_ubatch=n_ubatch)
