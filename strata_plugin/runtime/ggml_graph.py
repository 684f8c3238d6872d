"""Small computations with ggml on the CPU, without a model: what kernels are measured and tested
with.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .library import declare, ggml_library

TYPES = {  # enum ggml_type
    "f32": 0, "f16": 1, "q8_0": 8, "q4_k": 12, "q6_k": 14, "iq2_xxs": 16, "iq2_xs": 17,
    "iq3_xxs": 18, "iq1_s": 19, "iq4_nl": 20, "iq3_s": 21, "iq2_s": 22, "iq4_xs": 23, "i32": 26,
    "iq1_m": 29, "q2_0": 42,
}  # fmt: skip
_TENSOR_BYTES = 512  # ggml's own book-keeping for one tensor, rounded up
_GRAPH_BYTES = 1 << 20

Tensor = int  # a ggml_tensor*


class _InitParams(ctypes.Structure):
    """struct ggml_init_params (ggml.h)."""

    _fields_ = (
        ("mem_size", ctypes.c_size_t),
        ("mem_buffer", ctypes.c_void_p),
        ("no_alloc", ctypes.c_bool),
    )


class _Plan(ctypes.Structure):
    """struct ggml_cplan (ggml-cpu.h)."""

    _fields_ = (
        ("work_size", ctypes.c_size_t),
        ("work_data", ctypes.c_void_p),
        ("n_threads", ctypes.c_int),
        ("threadpool", ctypes.c_void_p),
        ("abort_callback", ctypes.c_void_p),
        ("abort_callback_data", ctypes.c_void_p),
        ("use_ref", ctypes.c_bool),
    )


_POINTER, _LONG, _REAL = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_BASE: dict[str, tuple[Any, list[Any]]] = {
    "ggml_init": (_POINTER, [_InitParams]),
    "ggml_free": (None, [_POINTER]),
    "ggml_get_data": (_POINTER, [_POINTER]),
    "ggml_nbytes": (ctypes.c_size_t, [_POINTER]),
    "ggml_new_tensor_4d": (_POINTER, [_POINTER, ctypes.c_int, *[_LONG] * 4]),
    "ggml_permute": (_POINTER, [_POINTER, _POINTER, *[ctypes.c_int] * 4]),
    "ggml_cont": (_POINTER, [_POINTER, _POINTER]),
    "ggml_mul_mat": (_POINTER, [_POINTER] * 3),
    "ggml_mul_mat_id": (_POINTER, [_POINTER] * 4),
    "ggml_soft_max_ext": (_POINTER, [*[_POINTER] * 3, _REAL, _REAL]),
    "ggml_flash_attn_ext": (_POINTER, [*[_POINTER] * 5, _REAL, _REAL, _REAL]),
    "ggml_flash_attn_ext_add_sinks": (None, [_POINTER] * 2),
    "ggml_new_graph": (_POINTER, [_POINTER]),
    "ggml_build_forward_expand": (None, [_POINTER] * 2),
    "ggml_quantize_chunk": (
        ctypes.c_size_t,
        [ctypes.c_int, _POINTER, _POINTER, _LONG, _LONG, _LONG, _POINTER],
    ),
}
_CPU: dict[str, tuple[Any, list[Any]]] = {
    "ggml_cpu_init": (None, []),
    "ggml_graph_plan": (_Plan, [_POINTER, ctypes.c_int, _POINTER]),
    "ggml_graph_compute": (ctypes.c_int, [_POINTER, ctypes.POINTER(_Plan)]),
}


@cache
def _base() -> ctypes.CDLL:
    lib = ggml_library("ggml-base")
    declare(lib, _BASE)
    return lib


@cache
def _cpu() -> ctypes.CDLL:
    lib = ggml_library("ggml-cpu")
    declare(lib, _CPU)
    lib.ggml_cpu_init()
    return lib


class Graph:
    """Tensors and the operations on them. Shapes are ggml's: the first size is that of a row.

    `n_bytes` is the memory for all tensors, those between the operations included.
    """

    def __init__(self, n_bytes: int) -> None:
        size = n_bytes + _GRAPH_BYTES + 64 * _TENSOR_BYTES
        self._context: Any = _base().ggml_init(_InitParams(size, None, False))
        if not self._context:
            raise MemoryError(f"ggml cannot allocate {size} bytes")
        self._graph: Any = None
        self._plan = _Plan()
        self._work: NDArray[np.uint8] | None = None

    def close(self) -> None:
        """Free all tensors."""
        if self._context:
            _base().ggml_free(self._context)
            self._context = None

    def tensor(self, values: NDArray[Any], dtype: str = "f32") -> Tensor:
        """A tensor with these values: `values` has four axes, the last is ggml's first."""
        n3, n2, n1, n0 = values.shape
        tensor = _base().ggml_new_tensor_4d(self._context, TYPES[dtype], n0, n1, n2, n3)
        target = _base().ggml_get_data(tensor)
        rows = np.ascontiguousarray(values, np.float16 if dtype == "f16" else np.float32)
        if dtype in ("f32", "f16"):
            ctypes.memmove(target, rows.ctypes.data, rows.nbytes)
        else:
            n_rows = rows.size // n0
            source = rows.ctypes.data
            _base().ggml_quantize_chunk(TYPES[dtype], source, target, 0, n_rows, n0, None)
        return int(tensor)

    def raw(self, data: NDArray[np.uint8], dtype: str, shape: tuple[int, int, int, int]) -> Tensor:
        """A tensor of this type, made of bytes that are in its format; `shape` as numpy's."""
        n3, n2, n1, n0 = shape
        tensor = _base().ggml_new_tensor_4d(self._context, TYPES[dtype], n0, n1, n2, n3)
        if data.nbytes != _base().ggml_nbytes(tensor):
            raise ValueError(f"{data.nbytes} bytes are not a {dtype} tensor of shape {shape}")
        source = np.ascontiguousarray(data)
        ctypes.memmove(_base().ggml_get_data(tensor), source.ctypes.data, source.nbytes)
        return int(tensor)

    def permuted(self, x: Tensor, *axes: int) -> Tensor:
        """A view with axis i moved to place axes[i]."""
        return int(_base().ggml_permute(self._context, x, *axes))

    def contiguous(self, x: Tensor) -> Tensor:
        """A copy in one piece."""
        return int(_base().ggml_cont(self._context, x))

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        """Rows of `a` times rows of `b`."""
        return int(_base().ggml_mul_mat(self._context, a, b))

    def expert_product(self, experts: Tensor, b: Tensor, ids: Tensor) -> Tensor:
        """Rows of `b` times the matrices that `ids` (i32) names for each; see ggml_mul_mat_id()."""
        return int(_base().ggml_mul_mat_id(self._context, experts, b, ids))

    def soft_max(self, x: Tensor, mask: Tensor | None, scale: float) -> Tensor:
        """Row by row, of x * scale + mask."""
        return int(_base().ggml_soft_max_ext(self._context, x, mask, scale, 0.0))

    def flash_attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        scale: float,
        *,
        max_bias: float = 0.0,
        softcap: float = 0.0,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Attention in one operation; the result is (head size, heads, tokens, ...)."""
        result = _base().ggml_flash_attn_ext(
            self._context, q, k, v, mask, scale, max_bias, softcap
        )
        if sinks is not None:
            _base().ggml_flash_attn_ext_add_sinks(result, sinks)
        return int(result)

    def compute(self, result: Tensor, n_threads: int) -> None:
        """Compute `result`; the first call decides what is computed, later ones do it again."""
        if self._graph is None:
            self._graph = _base().ggml_new_graph(self._context)
            _base().ggml_build_forward_expand(self._graph, result)
            self._plan = _cpu().ggml_graph_plan(self._graph, n_threads, None)
            self._work = np.zeros(self._plan.work_size + 64, np.uint8)
            self._plan.work_data = self._work.ctypes.data
        status = _cpu().ggml_graph_compute(self._graph, ctypes.byref(self._plan))
        if status != 0:
            raise RuntimeError(f"ggml cannot compute the graph: status {status}")

    def values(self, x: Tensor, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """A copy of an f32 tensor's values, in numpy's order of axes."""
        out = np.empty(shape, np.float32)
        ctypes.memmove(out.ctypes.data, _base().ggml_get_data(x), out.nbytes)
        return out
