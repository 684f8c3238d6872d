"""Loads llama.cpp's shared libraries through llama-cpp-python, sends its log lines where ours go.

Nothing outside `strata_plugin.runtime` imports llama_cpp or ctypes.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import llama_cpp
from llama_cpp import llama_cpp as llama

__all__ = ["declare", "ggml_library", "init_backend", "lib_dir", "llama", "log_to_stderr"]

LogSink = Callable[[int, str], None]

# ggml's log levels to llama-server's --verbosity thresholds (0 output, 1 error, 2 warning, 3 info,
# 4 trace, 5 debug). llama.cpp's own INFO lines are many and early, so they count as trace here.
_THRESHOLD = {0: 0, 1: 5, 2: 4, 3: 2, 4: 1, 5: 5}


def lib_dir() -> Path:
    """The folder that holds libllama, libggml and, in a patched build, libstrata."""
    override = os.environ.get("LLAMA_CPP_LIB_PATH")
    return Path(override) if override else Path(llama_cpp.__file__).parent / "lib"


@cache
def ggml_library(name: str = "ggml") -> ctypes.CDLL:
    """One of ggml's own libraries (`ggml`, `ggml-base`, `ggml-cpu`), already loaded by libllama."""
    suffix = {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")
    return ctypes.CDLL(str(lib_dir() / f"lib{name}{suffix}"))


def declare(lib: ctypes.CDLL, functions: Mapping[str, tuple[Any, Sequence[Any]]]) -> None:
    """Give a library's functions their C types: name to (result, arguments)."""
    for name, (result, arguments) in functions.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments


_log_callback: Any = None  # ctypes callbacks must outlive their use in C


def log_to_stderr(verbosity: int) -> None:
    """Print llama.cpp's log lines of at most `verbosity` (llama-server's --verbosity) on stderr."""
    global _log_callback
    last = [5]

    def write(level: int, text: bytes, _user: Any) -> None:
        if level != 5:  # 5 continues the previous line
            last[0] = level
        if _THRESHOLD.get(last[0], 5) <= verbosity:
            sys.stderr.write(text.decode("utf-8", "replace"))
            sys.stderr.flush()

    _log_callback = llama.llama_log_callback(write)
    llama.llama_log_set(_log_callback, ctypes.c_void_p(0))


@cache
def init_backend(numa: str = "") -> None:
    """Initialise llama.cpp once per process; `numa` is "", distribute, isolate or numactl."""
    llama.llama_backend_init()
    strategies = {"distribute": 1, "isolate": 2, "numactl": 3}
    if numa:
        llama.llama_numa_init(strategies[numa])
