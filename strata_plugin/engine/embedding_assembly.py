"""Puts an engine together that embeds or ranks: model, context, step loop."""

from __future__ import annotations

from collections.abc import Callable

from strata_plugin.runtime.embedding import EmbeddingContext
from strata_plugin.runtime.library import log_to_stderr
from strata_plugin.runtime.model import Model
from strata_plugin.runtime.native import memory_class_name

from .assembly import LOAD_ERRORS, LoadError, model_info
from .config import EmbeddingConfig, EngineConfig
from .embedder import Embedder
from .messages import Ready, Submit
from .ports import SamplerPort

SEQUENCES = 64  # inputs computed side by side at most


class LoadedEmbedder:
    """A model ready to embed; the same interface to the process as `LoadedEngine`."""

    def __init__(
        self,
        config: EngineConfig,
        on_progress: Callable[[float], None] | None,
        clock: Callable[[], float],
    ) -> None:
        """Raises `LoadError`."""
        log_to_stderr(config.verbosity)
        embedding = config.embedding or EmbeddingConfig()
        try:
            self.model = model = Model(config.model, on_progress=on_progress)
            self.context = context = EmbeddingContext(
                model, config.context, embedding, n_seq_max=SEQUENCES
            )
            if config.context.warmup:
                context.warmup()
            memory = memory_class_name(context.handle)
        except LOAD_ERRORS as error:
            raise LoadError(str(error)) from error
        self.core = Embedder(context, clock=clock)
        self.ready = Ready(
            model=model_info(model, memory),
            n_ctx=context.n_ctx,
            n_ctx_slot=context.longest_input,
            n_slots=SEQUENCES,
            n_batch=context.n_batch,
            n_ubatch=context.n_ubatch,
            pooling=context.pooling,
        )

    def make_sampler(self, submit: Submit) -> SamplerPort:
        """There is nothing to sample here."""
        raise NotImplementedError("this server embeds; it generates nothing")

    def close(self) -> None:
        """Free the context and the model."""
        self.context.close()
        self.model.close()
