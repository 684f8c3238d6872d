"""A llama context: one batch in, logits out; sequences cut, shared, saved and restored.

Only one thread may use a context. Positions equal token indices (text only).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .config import ContextConfig
from .devices import ThreadPools, thread_counts
from .errors import StateError
from .library import llama
from .lora import Adapter, Mixture, apply
from .model import Model
from .native_library import library
from .sampler import Sampler, sample_rows

Tokens = NDArray[np.int32]

_FLASH_ATTN = {"auto": -1, "off": 0, "on": 1}
_ROPE_SCALING = {"": -1, "none": 0, "linear": 1, "yarn": 2}
KV_TYPES = {
    "f32": 0,
    "f16": 1,
    "bf16": 30,
    "q8_0": 8,
    "q4_0": 2,
    "q4_1": 3,
    "iq4_nl": 20,
    "q5_0": 6,
    "q5_1": 7,
}

# llama_decode results (llama.h)
DECODE_OK = 0
DECODE_NO_ROOM = 1
DECODE_ABORTED = 2
DECODE_INVALID = -1

STATE_PARTIAL = 1  # LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY: what no cut can bring back

MAX_SEQUENCES = 256  # LLAMA_MAX_SEQ


class ContextError(Exception):
    """The context can't be made; the message is one line for a person."""


def context_params(config: ContextConfig, threads: int, batch_threads: int) -> Any:
    """llama_context_params as far as `config` says them."""
    params = llama.llama_context_default_params()
    params.n_ctx = config.n_ctx
    params.n_batch = config.n_batch
    params.n_ubatch = min(config.n_ubatch, config.n_batch)
    params.n_threads = threads
    params.n_threads_batch = batch_threads
    params.flash_attn_type = _FLASH_ATTN[config.flash_attn]
    params.type_k = KV_TYPES[config.type_k]
    params.type_v = KV_TYPES[config.type_v]
    params.offload_kqv = config.offload_kqv
    params.op_offload = config.op_offload
    params.swa_full = config.swa_full
    params.no_perf = True
    params.rope_scaling_type = _ROPE_SCALING[config.rope_scaling]
    params.rope_freq_base = config.rope_freq_base
    params.rope_freq_scale = config.rope_freq_scale
    params.yarn_orig_ctx = config.yarn_orig_ctx
    params.yarn_ext_factor = config.yarn_ext_factor
    params.yarn_attn_factor = config.yarn_attn_factor
    params.yarn_beta_fast = config.yarn_beta_fast
    params.yarn_beta_slow = config.yarn_beta_slow
    return params


class Batch:
    """Token rows of several sequences, filled with numpy, read by llama_decode in place.

    Capacity is in tokens. `add` appends a run of consecutive positions of one sequence.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.n_tokens = 0
        self._tokens = np.zeros(capacity, np.int32)
        self._positions = np.zeros(capacity, np.int32)
        self._outputs = np.zeros(capacity, np.int8)
        self._seq = np.zeros(capacity, np.int32)
        self._arange = np.arange(capacity, dtype=np.int32)
        one = np.ones(capacity, np.int32)
        # seq_id is int32**: a column of pointers, each to the row's own entry in _seq
        pointers = self._seq.ctypes.data + np.arange(capacity, dtype=np.uintp) * 4
        self._keep = (one, pointers)
        int_p = ctypes.POINTER(ctypes.c_int32)
        self.raw: Any = llama.llama_batch(
            n_tokens=0,
            token=self._tokens.ctypes.data_as(int_p),
            embd=None,
            pos=self._positions.ctypes.data_as(int_p),
            n_seq_id=one.ctypes.data_as(int_p),
            seq_id=pointers.ctypes.data_as(ctypes.POINTER(int_p)),
            logits=self._outputs.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )

    def clear(self) -> None:
        """Forget all rows."""
        self.n_tokens = 0

    def add_all(self, seq_id: int, tokens: Tokens, start: int) -> int:
        """As `add`, with an output for each of the tokens."""
        last = self.add(seq_id, tokens, start, output=True)
        self._outputs[last + 1 - len(tokens) : last + 1] = 1
        return last

    def add(self, seq_id: int, tokens: Tokens, start: int, *, output: bool) -> int:
        """Append `tokens` at positions start, start+1, ...; returns the index of the last row.

        With `output` the last row's logits are computed. `ValueError` beyond the capacity.
        """
        n = len(tokens)
        begin, end = self.n_tokens, self.n_tokens + n
        if end > self.capacity:
            raise ValueError(f"batch of {end} tokens exceeds its capacity of {self.capacity}")
        self.n_tokens = end
        if n == 1:  # a decoding row: element by element is quicker than slices of one
            self._tokens[begin] = tokens[0]
            self._positions[begin] = start
            self._seq[begin] = seq_id
            self._outputs[begin] = output
            return begin
        self._tokens[begin:end] = tokens
        np.add(self._arange[:n], start, out=self._positions[begin:end])
        self._seq[begin:end] = seq_id
        self._outputs[begin:end] = 0
        if output:
            self._outputs[end - 1] = 1
        return end - 1


class Context:
    """llama_context, with one pool of KV cells for all sequences (`kv_unified`) where that works.
    """

    def __init__(
        self, model: Model, config: ContextConfig, *, n_seq_max: int, kv_unified: bool = True
    ) -> None:
        if not 1 <= n_seq_max <= MAX_SEQUENCES:
            raise ContextError(f"number of sequences must be 1..{MAX_SEQUENCES}, got {n_seq_max}")
        threads, batch_threads = thread_counts(config)
        params = context_params(config, threads, batch_threads)
        params.n_seq_max = n_seq_max
        params.n_outputs_max = n_seq_max  # llama.cpp reserves one output per sequence
        params.kv_unified = kv_unified
        self._adjust(params)
        self.handle: Any = llama.llama_init_from_model(model.handle, params)
        if not self.handle:
            raise ContextError(
                f"llama.cpp cannot make a context of {config.n_ctx or model.n_ctx_train} tokens"
                f" (KV types {config.type_k}/{config.type_v}); try a smaller -c"
            )
        self.pointer = ctypes.cast(self.handle, ctypes.c_void_p)  # once, not for every token
        self.model = model
        self.n_ctx = int(llama.llama_n_ctx(self.handle))
        self.n_ctx_seq = int(llama.llama_n_ctx_seq(self.handle))  # one sequence's
        self.n_batch = int(llama.llama_n_batch(self.handle))
        self.n_ubatch = int(llama.llama_n_ubatch(self.handle))
        self.n_seq_max = n_seq_max
        self.kv_unified = kv_unified
        self.threads = threads
        self.adapters: Sequence[Adapter] = ()
        self._mixture: Mixture = ()
        self._memory: Any = llama.llama_get_memory(self.handle)
        self._pools: ThreadPools | None = ThreadPools(self.handle, threads, batch_threads)

    def _adjust(self, params: Any) -> None:
        """What another kind of context wants otherwise."""

    def close(self) -> None:
        """Free the context."""
        if self.handle:
            if self._pools is not None:
                self._pools.close()
                self._pools = None
            llama.llama_free(self.handle)
            self.handle = None

    # -- computing -------------------------------------------------------------------------------

    def new_batch(self) -> Batch:
        """An empty batch of n_batch tokens."""
        return Batch(self.n_batch)

    def decode(self, batch: Batch) -> int:
        """Run a batch; returns llama_decode's result. Blocks, with the GIL released."""
        batch.raw.n_tokens = batch.n_tokens
        return int(llama.llama_decode(self.handle, batch.raw))

    def use_lora(self, mixture: Mixture) -> None:
        """Compute with these of `adapters` from now on."""
        if mixture != self._mixture:
            apply(self.handle, self.adapters, mixture)
            self._mixture = mixture

    def synchronize(self) -> None:
        """Wait until all that was started has been computed."""
        llama.llama_synchronize(self.handle)

    def logits(self, row: int) -> NDArray[np.float32]:
        """Logits of a batch row that was added with `output`, shape (n_vocab,); a view, not a copy.

        `IndexError` when the row has none.
        """
        pointer = llama.llama_get_logits_ith(self.handle, row)
        if not pointer:
            raise IndexError(f"batch row {row} has no logits")
        return np.ctypeslib.as_array(pointer, shape=(self.model.n_vocab,))

    def sample(self, samplers: Sequence[Sampler], rows: Sequence[int]) -> list[int]:
        """Sample and accept one token per batch row; -1 where a sampler failed."""
        return sample_rows(self, samplers, rows)

    def warmup(self) -> None:
        """An empty run, so that the first request does not pay for page faults and allocation."""
        special = {llama.llama_vocab_bos(self.model.vocab), llama.llama_vocab_eos(self.model.vocab)}
        tokens = np.array(sorted(t for t in special if t >= 0) or [0], np.int32)
        batch = Batch(len(tokens))
        batch.add(0, tokens, 0, output=True)
        llama.llama_set_warmup(self.handle, True)
        self.decode(batch)
        llama.llama_set_warmup(self.handle, False)
        self.clear()
        self.synchronize()

    # -- sequences -------------------------------------------------------------------------------

    def clear(self) -> None:
        """Empty the memory."""
        llama.llama_memory_clear(self._memory, True)

    def remove(self, seq_id: int, start: int = 0) -> bool:
        """Drop positions [start, end) of a sequence; False where this memory can't be cut there."""
        return bool(llama.llama_memory_seq_rm(self._memory, seq_id, start if start > 0 else -1, -1))

    def copy(self, source: int, target: int, n: int | None = None) -> None:
        """Give `target`, which is empty, the first `n` positions of `source`; None: all.

        Attention cells are shared, not copied. A recurrent state is shared as it is, whatever `n`.
        """
        first, end = (-1, -1) if n is None else (0, n)
        llama.llama_memory_seq_cp(self._memory, source, target, first, end)

    def position_range(self, seq_id: int) -> tuple[int, int]:
        """Smallest and largest position held for a sequence; (-1, -1) when it is empty."""
        return (
            int(llama.llama_memory_seq_pos_min(self._memory, seq_id)),
            int(llama.llama_memory_seq_pos_max(self._memory, seq_id)),
        )

    def own_window(self, seq_id: int) -> None:
        """Give a copied sequence cells of its own in the sliding-window cache.

        Window cells that two sequences share are never freed (docs/memory.md). The rest stays
        shared.
        """
        state = self.save_state(seq_id, STATE_PARTIAL)
        if not self.load_state(seq_id, state, STATE_PARTIAL):
            self.remove(seq_id)

    def state_size(self, seq_id: int, flags: int = 0) -> int:
        """Bytes that `save_state` needs."""
        return int(llama.llama_state_seq_get_size_ext(self.handle, seq_id, flags))

    def save_state(self, seq_id: int, flags: int = 0) -> bytearray:
        """The whole state of a sequence."""
        size = self.state_size(seq_id, flags)
        data = bytearray(size)
        buffer = (ctypes.c_uint8 * size).from_buffer(data)
        written = llama.llama_state_seq_get_data_ext(self.handle, buffer, size, seq_id, flags)
        if written != size:
            raise StateError(f"saving sequence {seq_id}: {written} of {size} bytes")
        return data

    def load_state(self, seq_id: int, data: bytearray, flags: int = 0) -> bool:
        """Replace a sequence by a saved state; False when there is no room for it."""
        n = len(data)
        buffer = (ctypes.c_uint8 * n).from_buffer(data)
        return bool(llama.llama_state_seq_set_data_ext(self.handle, buffer, n, seq_id, flags))

    def supports_ranges(self) -> bool:
        """Whether what is kept for each token can be saved and appended by ranges of positions."""
        return bool(library().strata_range_supported(self.pointer))

    def range_size(self, seq_id: int, start: int, stop: int) -> int:
        """Bytes that `save_range` needs; 0 where the sequence does not hold all of the range."""
        return int(library().strata_range_size(self.pointer, seq_id, start, stop))

    def save_range(self, seq_id: int, start: int, stop: int) -> bytearray:
        """What a sequence keeps for each of the positions [start, stop).

        That is attention but for layers with a sliding window (patches/README.md, 0006).
        """
        data = bytearray(self.range_size(seq_id, start, stop))
        n = len(data)
        written = 0
        if n:
            buffer = (ctypes.c_uint8 * n).from_buffer(data)
            written = library().strata_range_get(self.pointer, seq_id, start, stop, buffer, n)
        if not n or written != n:
            raise StateError(f"saving [{start}, {stop}) of sequence {seq_id}: {written} bytes")
        return data

    def append_ranges(self, seq_id: int, ranges: Sequence[bytearray]) -> bool:
        """Append ranges that follow each other, to a sequence that ends where the first begins.

        False, and the sequence is as before, where there is no room or they don't fit.
        """
        if not ranges:
            return True
        n = len(ranges)
        buffers = [(ctypes.c_uint8 * len(data)).from_buffer(data) for data in ranges]
        pointers = (ctypes.c_void_p * n)(*(ctypes.addressof(b) for b in buffers))
        sizes = (ctypes.c_size_t * n)(*(len(data) for data in ranges))
        return bool(library().strata_range_append(self.pointer, seq_id, n, pointers, sizes))

    def range_copies(self, seq_id: int, start: int, stop: int) -> int:
        """Copies from the device that `save_range` takes, or would take if it came from one."""
        return int(library().strata_range_copies(self.pointer, seq_id, start, stop))
