"""The default model for tests: its vocabulary, and logits of a short text computed once."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from strata_plugin.runtime.config import ContextConfig, ModelConfig
from strata_plugin.runtime.context import Context, Tokens
from strata_plugin.runtime.library import log_to_stderr
from strata_plugin.runtime.model import Model, VocabularyModel
from strata_plugin.runtime.native import (
    Frontend,
    NativeUnavailable,
    Sampler,
    build_info,
    sample_rows,
)
from strata_server.model_file import default_model

TEXT = "Once upon a time, in a small village by the sea, there lived a girl who liked to count."
ROWS = 20  # outputs of the text's last tokens


def need_native_library() -> None:
    """Skip the calling module without the patched build."""
    try:
        build_info()
    except NativeUnavailable as e:
        pytest.skip(str(e), allow_module_level=True)


@cache
def vocabulary() -> VocabularyModel:
    """What the HTTP process loads."""
    log_to_stderr(0)
    return VocabularyModel(default_model().path)


@cache
def frontend() -> Frontend:
    """A frontend with llama-server's defaults and two slots."""
    return new_frontend()


def new_frontend(**config: Any) -> Frontend:
    """A frontend on the vocabulary; keyword arguments as for strata_frontend_new."""
    settings = {"model_name": "smollm2", "n_parallel": 2, "n_ctx_slot": 4096, "verbosity": 0}
    return Frontend(vocabulary().handle, {**settings, **config})


class Logits:
    """Rows of real logits to sample from: those after each of `TEXT`'s last `ROWS` tokens."""

    def __init__(self) -> None:
        log_to_stderr(0)
        self.model = Model(ModelConfig(path=default_model().path))
        config = ContextConfig(n_ctx=128, n_batch=64, n_ubatch=64, threads=2)
        self.context = Context(self.model, config, n_seq_max=ROWS)
        self.frontend = Frontend(
            self.model.handle, {"n_ctx_slot": 128, "templates": False, "verbosity": 0}
        )
        self.tokens: Tokens = frontend().prepare(0, b'{"prompt":"%s"}' % TEXT.encode()).tokens(0)
        head = len(self.tokens) - ROWS
        batch = self.context.new_batch()
        batch.add(0, self.tokens[:head], 0, output=False)
        self.rows = [
            batch.add(0, self.tokens[i : i + 1], i, output=True)
            for i in range(head, len(self.tokens))
        ]
        assert self.context.decode(batch) == 0

    def row(self, i: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Logits of row `i`."""
        return self.context.logits(self.rows[i])

    def sample(self, sampler: Sampler, rows: range = range(ROWS)) -> list[int]:
        """One token for each row; fails the test when the sampler does."""
        tokens = []
        for i in rows:
            (token,) = sample_rows(self.context, [sampler], [self.rows[i]])
            assert token >= 0, sampler.error
            tokens.append(token)
        return tokens


@cache
def logits() -> Logits:
    """One context for all tests of a run."""
    return Logits()
