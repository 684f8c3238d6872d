"""llama.cpp's common_sampler for one sequence, and sampling the rows of a step in one call."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .native_library import call_handle, call_text, error_of, library


class FrontendHandle(Protocol):
    """A `native.Frontend`."""

    handle: int


class Sampler:
    """One sequence's sampler; may change threads, but only one may use it at a time.

    `sampling` comes from `Prepared.sampling()`. Raises `NativeError`.
    """

    def __init__(self, frontend: FrontendHandle, sampling: bytes) -> None:
        lib = library()
        handle = call_handle(lib, lib.strata_sampler_new, frontend.handle, sampling, len(sampling))
        self._init(frontend, handle)

    def _init(self, frontend: FrontendHandle, handle: int) -> None:
        self._lib = library()
        self._frontend = frontend
        self.handle = handle
        self._piece = ctypes.create_string_buffer(256)
        self._state = (ctypes.c_uint8 * 64)()

    def __del__(self) -> None:
        if handle := getattr(self, "handle", None):
            self._lib.strata_sampler_free(handle)

    def clone(self) -> Sampler:
        """A copy that continues alike and independently."""
        handle = call_handle(self._lib, self._lib.strata_sampler_clone, self.handle)
        copy = Sampler.__new__(Sampler)
        copy._init(self._frontend, handle)
        return copy

    def accept(self, tokens: Sequence[int] | NDArray[np.int32], *, generated: bool) -> None:
        """Tell the sampler what the sequence holds; raises `NativeError`.

        Penalties see all tokens, grammar and reasoning budget only generated ones.
        """
        array = np.ascontiguousarray(tokens, dtype=np.int32)
        err = ctypes.c_void_p()
        result = self._lib.strata_sampler_accept(
            self.handle, array.ctypes.data, array.size, generated, ctypes.byref(err)
        )
        if result < 0:
            raise error_of(self._lib, err)

    @property
    def error(self) -> str:
        """Why the last sampling failed, "" when it did not."""
        text: bytes = self._lib.strata_sampler_error(self.handle)
        return text.decode("utf-8", "replace")

    @property
    def seed(self) -> int:
        """The seed in use, also where the request left it to chance."""
        return int(self._lib.strata_sampler_seed(self.handle))

    def piece(self, token: int) -> bytes:
        """Bytes of a token as the request wants to see them."""
        n = self._lib.strata_sampler_piece(self.handle, token, self._piece, len(self._piece))
        if n < 0:
            self._piece = ctypes.create_string_buffer(-n)
            return self.piece(token)
        return ctypes.string_at(self._piece, n)

    def probs(self, context: Any, row: int, token: int) -> bytes:
        """JSON of the probabilities of the row just sampled, see strata_sampler_probs.

        `context` is a llama_context pointer or an object with one as `handle`.
        """
        function = self._lib.strata_sampler_probs
        return call_text(self._lib, function, self.handle, _pointer(context), row, token)

    def save(self) -> bytes:
        """State that accepting the same tokens does not rebuild: tens of bytes."""
        n = self._lib.strata_sampler_save(self.handle, self._state, len(self._state))
        if n > len(self._state):
            self._state = (ctypes.c_uint8 * n)()
            return self.save()
        return ctypes.string_at(self._state, n)

    def load(self, state: bytes) -> None:
        """Continue as the sampler that was saved; raises `NativeError`.

        This one must be made from the same request and have accepted the same tokens.
        """
        err = ctypes.c_void_p()
        function = self._lib.strata_sampler_load
        if function(self.handle, state, len(state), ctypes.byref(err)) < 0:
            raise error_of(self._lib, err)


def _pointer(context: Any) -> ctypes.c_void_p:
    known: ctypes.c_void_p | None = getattr(context, "pointer", None)
    return known or ctypes.cast(getattr(context, "handle", context), ctypes.c_void_p)


def sample_rows(context: Any, samplers: Sequence[Sampler], rows: Sequence[int]) -> list[int]:
    """Sample and accept one token per sampler, from output `rows[i]` of the last batch.

    -1 where a sampler failed, see `Sampler.error`. `context` is as for `Sampler.probs`.
    """
    n = len(samplers)
    if len(rows) != n:
        raise ValueError(f"{n} samplers for {len(rows)} rows")
    tokens = (ctypes.c_int32 * n)()
    library().strata_sample_rows(
        _pointer(context),
        n,
        (ctypes.c_void_p * n)(*(s.handle for s in samplers)),
        (ctypes.c_int32 * n)(*rows),
        tokens,
    )
    return list(tokens)


def memory_class_name(context: Any) -> str:
    """llama.cpp's class behind a context's memory, e.g. "llama_kv_cache"; "" without memory."""
    name: bytes = library().strata_memory_class(_pointer(context))
    return name.decode()
