"""libstrata's functions with their C types, and how its errors become exceptions.

The declarations follow `strata_plugin/native/strata.h`; `API_VERSION` is the version they were
written for.
"""

from __future__ import annotations

import ctypes
import sys
from ctypes import (
    c_char_p,
    c_double,
    c_int32,
    c_int64,
    c_size_t,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
)
from functools import cache
from typing import Any

import orjson

from .library import declare, lib_dir

API_VERSION = 4


class NativeUnavailable(RuntimeError):
    """libstrata is missing or too old; the message is one sentence for a person."""


class NativeError(Exception):
    """llama.cpp refused something. `code` and `type` are those of llama-server's error body."""

    def __init__(self, code: int, type: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.type = type
        self.message = message


class Stats(ctypes.Structure):
    """struct strata_stats."""

    _fields_ = (
        ("is_set", c_int32),
        ("n_prompt_cached", c_uint64),
        ("n_prompt_processed", c_uint64),
        ("n_gen", c_uint64),
        ("n_draft", c_uint64),
        ("n_draft_accepted", c_uint64),
        ("prompt_ms", c_double),
        ("gen_ms", c_double),
    )


class Chunk(ctypes.Structure):
    """struct strata_chunk."""

    _fields_ = (
        ("kind", c_int32),
        ("text", c_char_p),
        ("n_text", c_size_t),
        ("tokens", ctypes.POINTER(c_int32)),
        ("n_tokens", c_size_t),
        ("n_decoded", c_int32),
        ("n_prompt", c_int32),
        ("n_cached", c_int32),
        ("progress_processed", c_int32),
        ("progress_ms", c_int64),
        ("stats", Stats),
        ("probs", c_char_p),
    )


class Final(ctypes.Structure):
    """struct strata_final."""

    _fields_ = (
        ("text", c_char_p),
        ("n_text", c_size_t),
        ("tokens", ctypes.POINTER(c_int32)),
        ("n_tokens", c_size_t),
        ("id_slot", c_int32),
        ("stop", c_int32),
        ("stopping_word", c_char_p),
        ("truncated", c_int32),
        ("has_new_line", c_int32),
        ("n_decoded", c_int32),
        ("n_prompt", c_int32),
        ("n_cached", c_int32),
        ("n_tokens_cached", c_int32),
        ("stats", Stats),
        ("probs", c_char_p),
    )


_ERR = ctypes.POINTER(c_void_p)
_BODY = (c_char_p, c_size_t)
_RANGE = (c_int32, c_int32, c_int32)
_INT32S = ctypes.POINTER(c_int32)
_BYTES = ctypes.POINTER(c_uint8)

# name: (result, arguments). Handles and texts that must be freed are void pointers.
_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "strata_api_version": (c_int32, ()),
    "strata_build_info": (c_void_p, ()),
    "strata_free": (None, (c_void_p,)),
    "strata_frontend_new": (c_void_p, (c_void_p, c_char_p, _ERR)),
    "strata_frontend_free": (None, (c_void_p,)),
    "strata_frontend_info": (c_void_p, (c_void_p, _ERR)),
    "strata_tokenize": (c_void_p, (c_void_p, *_BODY, _ERR)),
    "strata_embedding_inputs": (c_void_p, (c_void_p, *_BODY, _ERR)),
    "strata_rerank_inputs": (c_void_p, (c_void_p, *_BODY, _ERR)),
    "strata_detokenize": (c_void_p, (c_void_p, *_BODY, _ERR)),
    "strata_apply_template": (c_void_p, (c_void_p, *_BODY, _ERR)),
    "strata_chat_parse": (c_void_p, (c_void_p, *_BODY, _ERR)),
    "strata_schema_to_grammar": (c_void_p, (*_BODY, _ERR)),
    "strata_prepare": (c_void_p, (c_void_p, c_int32, *_BODY, _ERR)),
    "strata_prepared_free": (None, (c_void_p,)),
    "strata_prepared_info": (c_void_p, (c_void_p, _ERR)),
    "strata_prepared_tokens": (c_void_p, (c_void_p, c_size_t, ctypes.POINTER(c_size_t))),
    "strata_prepared_sampling": (c_void_p, (c_void_p, _ERR)),
    "strata_prepared_settings": (c_void_p, (c_void_p, c_int32, _ERR)),
    "strata_reply_new": (c_void_p, (c_void_p, c_size_t, c_int32, _ERR)),
    "strata_reply_free": (None, (c_void_p,)),
    "strata_reply_chunk": (
        c_void_p,
        (c_void_p, ctypes.POINTER(Chunk), c_int32, c_char_p, _ERR),
    ),
    "strata_reply_final": (
        c_void_p,
        (c_void_p, ctypes.POINTER(Final), c_int32, c_char_p, _ERR),
    ),
    "strata_sampler_new": (c_void_p, (c_void_p, *_BODY, _ERR)),
    "strata_sampler_clone": (c_void_p, (c_void_p, _ERR)),
    "strata_sampler_free": (None, (c_void_p,)),
    "strata_sampler_accept": (c_int32, (c_void_p, c_void_p, c_size_t, c_int32, _ERR)),
    "strata_sample_rows": (
        c_int32,
        (c_void_p, c_size_t, ctypes.POINTER(c_void_p), _INT32S, _INT32S),
    ),
    "strata_sampler_error": (c_char_p, (c_void_p,)),
    "strata_sampler_piece": (c_int32, (c_void_p, c_int32, c_char_p, c_int32)),
    "strata_sampler_probs": (c_void_p, (c_void_p, c_void_p, c_int32, c_int32, _ERR)),
    "strata_sampler_save": (c_size_t, (c_void_p, _BYTES, c_size_t)),
    "strata_sampler_load": (c_int32, (c_void_p, c_char_p, c_size_t, _ERR)),
    "strata_sampler_seed": (c_uint32, (c_void_p,)),
    "strata_memory_class": (c_char_p, (c_void_p,)),
    "strata_range_supported": (c_int32, (c_void_p,)),
    "strata_range_size": (c_size_t, (c_void_p, *_RANGE)),
    "strata_range_get": (c_size_t, (c_void_p, *_RANGE, c_void_p, c_size_t)),
    "strata_range_append": (
        c_int32,
        (c_void_p, c_int32, c_size_t, ctypes.POINTER(c_void_p), ctypes.POINTER(c_size_t)),
    ),
    "strata_range_copies": (c_size_t, (c_void_p, *_RANGE)),
}


@cache
def library() -> Any:
    """Libstrata with its prototypes set; raises `NativeUnavailable`."""
    suffix = {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")
    path = lib_dir() / f"libstrata{suffix}"
    if not path.exists():
        raise NativeUnavailable(
            "Parsing requests, chat templates, samplers and replies need the patched llama.cpp"
            " build (python -m strata_plugin.build), which this llama-cpp-python is not."
        )
    try:
        lib = ctypes.CDLL(str(path))  # releases the interpreter lock while in C
    except OSError as e:
        raise NativeUnavailable(f"The patched llama.cpp build cannot be loaded: {e}.") from e
    lib.strata_api_version.restype = c_int32
    version = lib.strata_api_version()
    if version != API_VERSION:
        raise NativeUnavailable(
            f"The patched llama.cpp build is out of date (its API has version {version}, needed is"
            f" {API_VERSION}): run python -m strata_plugin.build again."
        )
    declare(lib, _FUNCTIONS)
    return lib


def take_text(lib: Any, pointer: int) -> bytes:
    """The text behind a pointer that C returned; frees it."""
    try:
        return ctypes.string_at(pointer)
    finally:
        lib.strata_free(pointer)


def error_of(lib: Any, err: c_void_p) -> NativeError:
    """The exception for an error that C stored in `err`."""
    if not err.value:
        return NativeError(500, "server_error", "out of memory")
    error = orjson.loads(take_text(lib, err.value))
    return NativeError(error["code"], error["type"], error["message"])


def call_text(lib: Any, function: Any, *args: Any) -> bytes:
    """Call a function that returns text; raises `NativeError`."""
    err = c_void_p()
    pointer = function(*args, ctypes.byref(err))
    if not pointer:
        raise error_of(lib, err)
    return take_text(lib, pointer)


def call_handle(lib: Any, function: Any, *args: Any) -> int:
    """Call a function that returns a handle; raises `NativeError`."""
    err = c_void_p()
    handle = function(*args, ctypes.byref(err))
    if not handle:
        raise error_of(lib, err)
    return int(handle)
