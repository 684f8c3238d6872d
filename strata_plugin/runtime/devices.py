"""ggml's devices, buffer types and CPU thread pools: what llama-server's --device, -ot and -t need.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any

from .config import ContextConfig, ModelConfig
from .library import declare, ggml_library, llama

GGML_MAX_N_THREADS = 512
_CPU_DEVICE, _ACCELERATOR = 0, 3  # enum ggml_backend_dev_type; the latter helps the CPU: BLAS, AMX


class _ThreadpoolParams(ctypes.Structure):
    """struct ggml_threadpool_params (ggml.h)."""

    _fields_ = (
        ("cpumask", ctypes.c_bool * GGML_MAX_N_THREADS),
        ("n_threads", ctypes.c_int),
        ("prio", ctypes.c_int),
        ("poll", ctypes.c_uint32),
        ("strict_cpu", ctypes.c_bool),
        ("paused", ctypes.c_bool),
    )


_OWN: dict[str, tuple[Any, list[Any]]] = {
    "ggml_backend_dev_count": (ctypes.c_size_t, []),
    "ggml_backend_dev_get": (ctypes.c_void_p, [ctypes.c_size_t]),
    "ggml_backend_dev_by_type": (ctypes.c_void_p, [ctypes.c_int]),
}
_BASE: dict[str, tuple[Any, list[Any]]] = {
    "ggml_backend_dev_name": (ctypes.c_char_p, [ctypes.c_void_p]),
    "ggml_backend_dev_description": (ctypes.c_char_p, [ctypes.c_void_p]),
    "ggml_backend_dev_type": (ctypes.c_int, [ctypes.c_void_p]),
    "ggml_backend_dev_buffer_type": (ctypes.c_void_p, [ctypes.c_void_p]),
    "ggml_backend_buft_name": (ctypes.c_char_p, [ctypes.c_void_p]),
    "ggml_backend_dev_backend_reg": (ctypes.c_void_p, [ctypes.c_void_p]),
    "ggml_backend_reg_get_proc_address": (ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]),
    "ggml_threadpool_params_init": (None, [ctypes.POINTER(_ThreadpoolParams), ctypes.c_int]),
}


@cache
def _ggml() -> ctypes.CDLL:
    lib = ggml_library("ggml")
    declare(lib, _OWN)
    base = ggml_library("ggml-base")
    declare(base, _BASE)
    for name in _BASE:
        setattr(lib, name, getattr(base, name))
    return lib


def _devices() -> list[int]:
    lib = _ggml()
    return [lib.ggml_backend_dev_get(i) for i in range(lib.ggml_backend_dev_count())]


def device_names() -> list[str]:
    """Names of all devices that llama.cpp sees, the CPU included, e.g. ["CUDA0", "CPU"]."""
    return [_ggml().ggml_backend_dev_name(d).decode() for d in _devices()]


def device_by_name(name: str) -> int:
    """Handle of a device; `ValueError` naming those that exist."""
    for device in _devices():
        if _ggml().ggml_backend_dev_name(device).decode() == name:
            return device
    raise ValueError(f"no device named {name!r}; there are: {', '.join(device_names())}")


def buffer_type_by_name(name: str) -> int:
    """Handle of a buffer type (`CPU`, `CUDA0`, ...); `ValueError` naming those that exist."""
    lib = _ggml()
    known: dict[str, int] = {}
    for device in _devices():
        buffer_type = lib.ggml_backend_dev_buffer_type(device)
        if buffer_type:
            known[lib.ggml_backend_buft_name(buffer_type).decode()] = buffer_type
    if name not in known:
        raise ValueError(f"no buffer type named {name!r}; there are: {', '.join(known)}")
    return known[name]


def only_cpu(config: ModelConfig, offload_kqv: bool) -> bool:
    """Whether attention is computed on the CPU: there is no other device, or it gets no layers."""
    if config.devices == ("none",) or config.n_gpu_layers == 0 or not offload_kqv:
        return True
    kinds = {_ggml().ggml_backend_dev_type(device) for device in _devices()}
    return kinds <= {_CPU_DEVICE, _ACCELERATOR}


def math_threads() -> int:
    """Physical cores, llama-server's default for --threads (one thread per core of a package)."""
    siblings = set()
    for cpu in sorted(Path("/sys/devices/system/cpu").glob("cpu[0-9]*")):
        try:
            siblings.add((cpu / "topology/thread_siblings").read_text())
        except OSError:  # offline cores have no topology
            continue
    return len(siblings) or os.cpu_count() or 1


def thread_counts(config: ContextConfig) -> tuple[int, int]:
    """Threads for generating and for reading prompts."""
    threads = config.threads if config.threads > 0 else math_threads()
    return threads, config.threads_batch if config.threads_batch > 0 else threads


class ThreadPools:
    """The CPU backend's thread pools for decode and batch, as llama-server attaches them.

    Without them llama.cpp makes a throw-away pool for every graph.
    """

    def __init__(self, context: Any, n_threads: int, n_threads_batch: int) -> None:
        lib = _ggml()
        device = lib.ggml_backend_dev_by_type(_CPU_DEVICE)
        registry = lib.ggml_backend_dev_backend_reg(device)
        new = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_ThreadpoolParams))(
            lib.ggml_backend_reg_get_proc_address(registry, b"ggml_threadpool_new")
        )
        self._free = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(
            lib.ggml_backend_reg_get_proc_address(registry, b"ggml_threadpool_free")
        )

        def make(n: int, paused: bool) -> Any:
            params = _ThreadpoolParams()
            lib.ggml_threadpool_params_init(ctypes.byref(params), n)
            params.paused = paused
            return new(ctypes.byref(params))

        # llama.cpp wants each pool to match its thread count exactly
        self._batch = make(n_threads_batch, False) if n_threads_batch != n_threads else None
        self._decode = make(n_threads, self._batch is not None)
        self._context = context
        self._attach(self._decode, self._batch)

    def _attach(self, decode: Any, batch: Any) -> None:
        attach = llama._lib.llama_attach_threadpool  # not among llama-cpp-python's wrappers
        attach.argtypes = [ctypes.c_void_p] * 3
        attach.restype = None
        attach(self._context, decode, batch)

    def close(self) -> None:
        """Detach and free; the context must still be alive."""
        detach = llama._lib.llama_detach_threadpool
        detach.argtypes = [ctypes.c_void_p]
        detach.restype = None
        detach(self._context)
        for pool in (self._decode, self._batch):
            if pool:
                self._free(pool)
        self._decode = self._batch = None
