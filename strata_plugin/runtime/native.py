"""llama-server's own code for requests and replies, through libstrata: requests in, bytes out.

A `Frontend` belongs to a model and may be used by several threads at once; every other object by
one thread at a time. Objects keep what they need alive, except the model itself.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from .native_library import (
    NativeError,
    NativeUnavailable,
    call_handle,
    call_text,
    library,
    take_text,
)
from .reply import Reply
from .sampler import Sampler, memory_class_name, sample_rows

__all__ = [
    "Frontend",
    "Kind",
    "NativeError",
    "NativeUnavailable",
    "Prepared",
    "Reply",
    "Sampler",
    "build_info",
    "memory_class_name",
    "sample_rows",
    "schema_to_grammar",
]


class Kind(IntEnum):
    """Which API a body belongs to: enum strata_kind."""

    COMPLETION = 0
    OAI_COMPLETION = 1
    OAI_CHAT = 2
    INFILL = 3


def build_info() -> dict[str, Any]:
    """llama.cpp's commit, build number, compiler and target, and the patches applied to it."""
    lib = library()
    info: dict[str, Any] = orjson.loads(take_text(lib, lib.strata_build_info()))
    return info


def schema_to_grammar(schema: Mapping[str, Any]) -> str:
    """The GBNF grammar of a JSON schema; raises `NativeError`."""
    lib = library()
    body = orjson.dumps({"schema": schema})
    grammar: str = orjson.loads(call_text(lib, lib.strata_schema_to_grammar, body, len(body)))[
        "grammar"
    ]
    return grammar


class Frontend:
    """Vocabulary, chat templates and request defaults of one model.

    `model` is a llama_model pointer, of a whole or a vocabulary-only model, and must outlive this.
    `config` is described at strata_frontend_new in strata.h. Raises `NativeError`.
    """

    def __init__(self, model: Any, config: Mapping[str, Any]) -> None:
        self._lib = lib = library()
        pointer = ctypes.cast(model, ctypes.c_void_p)
        self.handle = call_handle(lib, lib.strata_frontend_new, pointer, orjson.dumps(config))

    def __del__(self) -> None:
        if handle := getattr(self, "handle", None):
            self._lib.strata_frontend_free(handle)

    def info(self) -> dict[str, Any]:
        """Template, special tokens and defaults, see strata_frontend_info."""
        text = call_text(self._lib, self._lib.strata_frontend_info, self.handle)
        info: dict[str, Any] = orjson.loads(text)
        return info

    def tokenize(self, body: bytes) -> bytes:
        """Reply body of POST /tokenize."""
        return self._route(self._lib.strata_tokenize, body)

    def detokenize(self, body: bytes) -> bytes:
        """Reply body of POST /detokenize."""
        return self._route(self._lib.strata_detokenize, body)

    def apply_template(self, body: bytes) -> bytes:
        """Reply body of POST /apply-template."""
        return self._route(self._lib.strata_apply_template, body)

    def embedding_inputs(self, body: bytes) -> bytes:
        """JSON lists of token ids for what is to be embedded, see strata_embedding_inputs."""
        return self._route(self._lib.strata_embedding_inputs, body)

    def rerank_inputs(self, body: bytes) -> bytes:
        """JSON lists of token ids, one for each document, see strata_rerank_inputs."""
        return self._route(self._lib.strata_rerank_inputs, body)

    def chat_parse(self, body: bytes) -> bytes:
        """The message in a model's text, see strata_chat_parse; `body` is not a client's."""
        return self._route(self._lib.strata_chat_parse, body)

    def prepare(self, kind: int, body: bytes) -> Prepared:
        """Parse, render, tokenise and check a request; raises `NativeError`."""
        return Prepared(self, kind, body)

    def _route(self, function: Any, body: bytes) -> bytes:
        return call_text(self._lib, function, self.handle, body, len(body))


class Prepared:
    """One API request, parsed, rendered, tokenised and checked."""

    def __init__(self, frontend: Frontend, kind: int, body: bytes) -> None:
        self._frontend = frontend
        self._lib = lib = library()
        self.handle = call_handle(
            lib, lib.strata_prepare, frontend.handle, int(kind), body, len(body)
        )

    def __del__(self) -> None:
        if handle := getattr(self, "handle", None):
            self._lib.strata_prepared_free(handle)

    @cached_property
    def info(self) -> dict[str, Any]:
        """What the request asks for, see strata_prepared_info."""
        text = call_text(self._lib, self._lib.strata_prepared_info, self.handle)
        info: dict[str, Any] = orjson.loads(text)
        return info

    def tokens(self, prompt: int) -> NDArray[np.int32]:
        """Token ids of prompt number `prompt`: read-only, shape (n,), no copy."""
        if not 0 <= prompt < self.info["n_prompts"]:
            raise IndexError(f"prompt {prompt} of {self.info['n_prompts']}")
        n = ctypes.c_size_t()
        pointer = self._lib.strata_prepared_tokens(self.handle, prompt, ctypes.byref(n))
        if not n.value:
            return np.empty(0, dtype=np.int32)
        memory: Any = (ctypes.c_int32 * n.value).from_address(pointer)
        memory.owner = self  # the array keeps `memory` alive and so the tokens
        array: NDArray[np.int32] = np.frombuffer(memory, dtype=np.int32)
        array.flags.writeable = False
        return array

    def sampling(self) -> bytes:
        """JSON for `Sampler`: the request without its prompt."""
        return call_text(self._lib, self._lib.strata_prepared_sampling, self.handle)

    def settings(self, only_metrics: bool) -> bytes:
        """JSON of the settings as /slots (`only_metrics`) or /completion shows them."""
        function = self._lib.strata_prepared_settings
        return call_text(self._lib, function, self.handle, int(only_metrics))

    def reply(self, prompt: int, index: int) -> Reply:
        """The writer of choice number `index`, which answers prompt number `prompt`."""
        return Reply(self, prompt, index)
