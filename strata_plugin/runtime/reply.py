"""Writes one choice's results in the dialect of its request. Runs once per streamed token."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Protocol

from .native_library import Chunk, Final, Stats, call_handle, error_of, library

_byref = ctypes.byref
_string_at = ctypes.string_at


class PreparedHandle(Protocol):
    """A `native.Prepared`."""

    handle: int


class Timings(Protocol):
    """llama-server's `timings`, times in ms; see `engine.messages.Timings`."""

    @property
    def prompt_n(self) -> int:
        """Prompt tokens computed for this request."""

    @property
    def cache_n(self) -> int:
        """Prompt tokens found in a cache."""

    @property
    def prompt_ms(self) -> float:
        """Time until the end of the prompt."""

    @property
    def predicted_n(self) -> int:
        """Tokens sampled."""

    @property
    def predicted_ms(self) -> float:
        """Time from the end of the prompt to the last token."""


def _set_stats(stats: Stats, timings: Timings | None) -> None:
    if timings is None:
        stats.is_set = 0
        return
    stats.is_set = 1
    stats.n_prompt_cached = timings.cache_n
    stats.n_prompt_processed = timings.prompt_n
    stats.n_gen = timings.predicted_n
    stats.prompt_ms = timings.prompt_ms
    stats.gen_ms = timings.predicted_ms


class Reply:
    """One choice's writer.

    With `sse` methods return bytes of the event stream (maybe none), without it the JSON value that
    llama-server would write. `data: [DONE]` ends a whole stream, not a choice: not written here.
    """

    def __init__(self, prepared: PreparedHandle, prompt: int, index: int) -> None:
        self._lib = lib = library()
        self._prepared = prepared  # keeps the model's frontend alive
        self._handle = call_handle(lib, lib.strata_reply_new, prepared.handle, prompt, index)
        self._chunk = Chunk()
        self._err = ctypes.c_void_p()
        self._one = (ctypes.c_int32 * 1)()

    def __del__(self) -> None:
        if handle := getattr(self, "_handle", None):
            self._lib.strata_reply_free(handle)

    def chunk(
        self,
        *,
        sse: bool,
        kind: int = 0,
        text: bytes = b"",
        tokens: Sequence[int] = (),
        n_decoded: int = 0,
        n_prompt: int = 0,
        n_cached: int = 0,
        progress_processed: int = 0,
        progress_ms: int = 0,
        stats: Timings | None = None,
        probs: bytes | None = None,
        extra_timings: bytes | None = None,
    ) -> bytes:
        """One streamed piece: token(s) (`kind` 0), prompt progress (1) or the begin (2).

        `text` is what goes out now, whole UTF-8; `n_decoded` counts the tokens sampled so far.
        """
        c = self._chunk
        c.kind = kind
        c.text = text
        c.n_text = len(text)
        n = len(tokens)
        if n == 1:
            self._one[0] = tokens[0]
            c.tokens = self._one
        elif n:
            c.tokens = (ctypes.c_int32 * n)(*tokens)
        c.n_tokens = n
        c.n_decoded = n_decoded
        c.n_prompt = n_prompt
        c.n_cached = n_cached
        c.progress_processed = progress_processed
        c.progress_ms = progress_ms
        _set_stats(c.stats, stats)
        c.probs = probs
        return self._write(self._lib.strata_reply_chunk, c, sse, extra_timings)

    def final(
        self,
        *,
        sse: bool,
        text: bytes = b"",
        tokens: Sequence[int] = (),
        id_slot: int = -1,
        stop: int = 0,
        stopping_word: str = "",
        truncated: bool = False,
        has_new_line: bool = False,
        n_decoded: int = 0,
        n_prompt: int = 0,
        n_cached: int = 0,
        n_tokens_cached: int = 0,
        stats: Timings | None = None,
        probs: bytes | None = None,
        extra_timings: bytes | None = None,
    ) -> bytes:
        """The end of the choice; the whole text when not streaming, otherwise what was held back.

        `probs` is a JSON array of strata_sampler_probs objects, without those of a stop string.
        """
        f = Final()
        f.text = text
        f.n_text = len(text)
        f.tokens = (ctypes.c_int32 * len(tokens))(*tokens)
        f.n_tokens = len(tokens)
        f.id_slot = id_slot
        f.stop = stop
        f.stopping_word = stopping_word.encode("utf-8", "surrogateescape")
        f.truncated = truncated
        f.has_new_line = has_new_line
        f.n_decoded = n_decoded
        f.n_prompt = n_prompt
        f.n_cached = n_cached
        f.n_tokens_cached = n_tokens_cached
        _set_stats(f.stats, stats)
        f.probs = probs
        return self._write(self._lib.strata_reply_final, f, sse, extra_timings)

    def _write(self, function: Any, what: Any, sse: bool, extra_timings: bytes | None) -> bytes:
        err = self._err
        pointer = function(self._handle, _byref(what), sse, extra_timings, _byref(err))
        if not pointer:
            raise error_of(self._lib, err)
        text = _string_at(pointer)
        self._lib.strata_free(pointer)
        return text
