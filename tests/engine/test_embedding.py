"""Embedding and ranking with real models: what is pooled here equals what llama.cpp pools."""

from __future__ import annotations

import numpy as np
import pytest

from strata_plugin.engine.config import EngineConfig
from strata_plugin.engine.embedding_assembly import LoadedEmbedder
from strata_plugin.engine.messages import Embed, Embedded, Failed
from strata_plugin.runtime.config import ContextConfig, EmbeddingConfig, ModelConfig
from strata_plugin.runtime.embedding import EmbeddingContext
from strata_plugin.runtime.model import Model
from tests.models import tiny_model

SHORT = [7, 300, 301, 9, 44, 320]
LONG = [5 + i % 400 for i in range(700)]
CONTEXT = ContextConfig(n_ctx=2048, n_batch=256, n_ubatch=128, threads=2, warmup=False)


def embed(
    name: str, *inputs: list[int], pooling: str = "", context: ContextConfig = CONTEXT
) -> list[np.ndarray] | str:
    """Vectors of each input, or why there are none."""
    config = EngineConfig(
        model=ModelConfig(path=str(tiny_model(name))),
        context=context,
        embedding=EmbeddingConfig(pooling=pooling, micro_batch_given=True),
        verbosity=0,
    )
    engine = LoadedEmbedder(config, None, lambda: 0.0)
    try:
        data = tuple(np.array(tokens, "<i4").tobytes() for tokens in inputs)
        engine.core.embed(Embed(request_id=1, inputs=data))
        while engine.core.step():
            pass
        (event,) = engine.core.events
        if isinstance(event, Failed):
            return event.message
        assert isinstance(event, Embedded)
        width = engine.context.n_out
        return [np.frombuffer(v, "<f4").reshape(-1, width) for v in event.vectors]
    finally:
        engine.close()


def pooled_by_llama(name: str, tokens: list[int], pooling: str) -> np.ndarray:
    """The reference: one micro-batch, llama.cpp's own pooling."""
    model = Model(ModelConfig(path=str(tiny_model(name))))
    whole = ContextConfig(n_ctx=2048, n_batch=1024, n_ubatch=1024, threads=2)

    class Whole(EmbeddingContext):
        def _adjust(self, params: object) -> None:
            self.splits = False
            super()._adjust(params)

    context = Whole(model, whole, EmbeddingConfig(pooling=pooling), n_seq_max=4)
    try:
        batch = context.new_batch()
        batch.add_all(2, np.array(tokens, np.int32), 0)
        assert context.decode(batch) == 0
        return context.pooled_vector(2)
    finally:
        context.close()
        model.close()


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
@pytest.mark.parametrize("name", ["dense", "moe", "swa", "hybrid"])
def test_inputs_longer_than_a_micro_batch_get_the_vector_that_llama_cpp_gives_at_once(
    name: str, pooling: str
) -> None:
    found = embed(name, SHORT, LONG, [9], pooling=pooling)
    assert not isinstance(found, str)
    for vectors, tokens in zip(found, (SHORT, LONG, [9]), strict=True):
        reference = pooled_by_llama(name, tokens, pooling)
        assert vectors.shape == reference.shape
        scale = np.abs(reference).max()
        np.testing.assert_allclose(vectors, reference, atol=2e-2 * scale)
        cosine = (vectors @ reference.T) / np.linalg.norm(vectors) / np.linalg.norm(reference)
        assert cosine > 0.999


def test_without_pooling_each_token_has_its_vector() -> None:
    found = embed("dense", SHORT, pooling="none")
    assert not isinstance(found, str) and found[0].shape == (len(SHORT), 128)


def test_an_encoder_takes_several_inputs_in_one_step_and_each_gets_its_own_vector() -> None:
    inputs = [SHORT, [9, 8], [11] * 30]
    together = embed("encoder", *inputs)
    assert not isinstance(together, str)
    for tokens, vectors in zip(inputs, together, strict=True):
        (alone,) = embed("encoder", tokens)
        np.testing.assert_allclose(vectors, alone, atol=1e-4)
        np.testing.assert_allclose(vectors, pooled_by_llama("encoder", tokens, "cls"), atol=1e-4)


def test_an_input_that_an_encoder_has_no_room_for_is_refused_with_the_size_it_wants() -> None:
    message = embed("encoder", [9] * 300)
    assert isinstance(message, str) and "-ub 300" in message


def test_a_ranker_gives_one_score_for_each_input() -> None:
    found = embed("ranker", SHORT, [9, 8], pooling="rank")
    assert not isinstance(found, str)
    assert [v.shape for v in found] == [(1, 1), (1, 1)]
    assert found[0][0, 0] != found[1][0, 0]
