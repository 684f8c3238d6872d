"""Loads llama.cpp's shared libraries through llama-cpp-python, sends its log lines where ours go.

Nothing outside `strata_plugin.runtime` imports llama_cpp or ctypes.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any


def lib_dir() -> Path:
    """The folder that holds libllama, libggml and, in a patched build, libstrata."""
    override = os.environ.get("LLAMA_CPP_LIB_PATH")
    if override:
        return Path(override)
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        raise ImportError("llama_cpp is not installed: run python -m strata_plugin.build")
    return Path(spec.origin).parent / "lib"


def _load_our_own() -> None:
    """Load ggml from our folder, before libllama asks for it by name.

    A name is looked up in $LD_LIBRARY_PATH first, where another llama.cpp may lie.
    """
    if sys.platform.startswith("linux"):
        found = sorted(lib_dir().glob("libggml*.so"), key=lambda path: _LAST.get(path.stem, 1))
        for path in found:
            ctypes.CDLL(str(path))


_LAST = {"libggml-base": 0, "libggml": 2}
_load_our_own()

from llama_cpp import llama_cpp as llama  # noqa: E402

__all__ = ["declare", "ggml_library", "init_backend", "lib_dir", "llama", "log_to_stderr"]

LogSink = Callable[[int, str], None]

# ggml's log levels to llama-server's --verbosity thresholds (0 output, 1 error, 2 warning, 3 info,
# 4 trace, 5 debug). llama.cpp's own INFO lines are many and early, so they count as trace here.
_THRESHOLD = {0: 0, 1: 5, 2: 4, 3: 2, 4: 1, 5: 5}


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
