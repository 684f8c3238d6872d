"""The tiny models are what the tests that use them rely on: the same bytes, telling outputs."""

from __future__ import annotations

import ctypes
from pathlib import Path

import llama_cpp
import numpy as np
import pytest

from tests.engine.raw_context import RawContext, some_tokens
from tests.models import TINY_MODELS, tiny_model, write_model
from tests.models.vocab import never_greedy


@pytest.mark.parametrize("name", TINY_MODELS)
def test_the_same_bytes_every_time(name: str, tmp_path: Path) -> None:
    write_model(name, tmp_path / "again.gguf")
    assert (tmp_path / "again.gguf").read_bytes() == tiny_model(name).read_bytes()


@pytest.mark.parametrize("name", TINY_MODELS)
def test_greedy_output_is_varied_and_printable(name: str) -> None:
    with RawContext(tiny_model(name)) as c:
        produced = c.greedy(some_tokens(50), 64)
    assert len(set(produced)) > 20
    assert not set(produced) & set(never_greedy())


@pytest.mark.parametrize("name", TINY_MODELS)
def test_output_depends_on_a_token_that_was_long_ago(name: str) -> None:
    prompt = some_tokens(60)
    other = [prompt[0] + 1, *prompt[1:]]
    with RawContext(tiny_model(name)) as c:
        one = c.feed(prompt)[-1]
        c.clear()
        assert float(np.abs(c.feed(other)[-1] - one).max()) > 0.1


@pytest.mark.parametrize(
    "text", ["Hello world", "  two\n\nlines\t", "naïve – 世界 🦙", "<|im_end|>", "\x00\x7f"]
)
def test_any_text_is_tokenised_without_loss(text: str) -> None:
    data = text.encode()
    with RawContext(tiny_model("dense")) as c:
        vocab = llama_cpp.llama_model_get_vocab(c.model)
        tokens = (ctypes.c_int32 * 64)()
        n = llama_cpp.llama_tokenize(vocab, data, len(data), tokens, 64, False, True)
        out = ctypes.create_string_buffer(256)
        size = llama_cpp.llama_detokenize(vocab, tokens, n, out, 256, False, True)
    assert n > 0
    assert out.raw[:size] == data
