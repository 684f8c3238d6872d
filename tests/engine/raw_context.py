"""llama.cpp's context as tests of its memory see it: decode rows, get logits, cut, copy, save.

Goes straight to llama-cpp-python's low-level functions, so that what is checked is llama.cpp and
not our engine.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import llama_cpp
import numpy as np
from numpy.typing import NDArray

Row = tuple[int, int, int]  # token, position, sequence
PARTIAL = 1  # LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY


def some_tokens(n: int, seed: int = 0) -> list[int]:
    """`n` word tokens of the tiny models' vocabulary, the same for the same seed."""
    return [int(t) for t in np.random.RandomState(seed).randint(270, 510, n)]


def _drop_message(level: int, text: bytes, user_data: Any) -> None:
    """llama.cpp's own messages would drown pytest's."""


_quiet = llama_cpp.llama_log_callback(_drop_message)


class RawContext:
    """One model and one context; every row of a batch yields logits."""

    def __init__(self, path: Path, **params: Any) -> None:
        llama_cpp.llama_log_set(_quiet, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        # on the CPU wherever the tests run: results are compared bit by bit
        model_params = llama_cpp.llama_model_default_params()
        model_params.n_gpu_layers = 0
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), model_params)
        if not self.model:
            raise ValueError(f"llama.cpp does not load {path}")
        p = llama_cpp.llama_context_default_params()
        settings: dict[str, Any] = {
            "n_ctx": 512, "n_batch": 512, "n_ubatch": 64, "n_seq_max": 4, "kv_unified": True,
            "n_threads": 1, "n_threads_batch": 1, "swa_full": False,
            "offload_kqv": False, "op_offload": False, **params,
        }  # fmt: skip
        for name, value in settings.items():
            setattr(p, name, value)
        self.ctx = llama_cpp.llama_init_from_model(self.model, p)
        if not self.ctx:
            llama_cpp.llama_model_free(self.model)
            raise ValueError(f"no context for {path} with {params}")
        self.memory = llama_cpp.llama_get_memory(self.ctx)
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self._batch = llama_cpp.llama_batch_init(p.n_batch, 0, 1)

    def __enter__(self) -> RawContext:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self.ctx)
        llama_cpp.llama_model_free(self.model)

    def try_decode(self, rows: Sequence[Row]) -> int:
        """llama_decode's result for one batch of `rows`."""
        b = self._batch
        b.n_tokens = len(rows)
        for i, (token, pos, seq) in enumerate(rows):
            b.token[i], b.pos[i], b.n_seq_id[i], b.logits[i] = token, pos, 1, 1
            b.seq_id[i][0] = seq
        return int(llama_cpp.llama_decode(self.ctx, b))

    def decode(self, rows: Sequence[Row]) -> NDArray[np.float32]:
        """Decodes one batch; returns logits [row, token]. Fails the test when llama.cpp refuses."""
        result = self.try_decode(rows)
        assert result == 0, f"llama_decode returned {result}"
        return np.stack(
            [
                np.ctypeslib.as_array(
                    llama_cpp.llama_get_logits_ith(self.ctx, i), (self.n_vocab,)
                ).copy()
                for i in range(len(rows))
            ]
        )

    def feed(self, tokens: Sequence[int], seq: int = 0, start: int = 0) -> NDArray[np.float32]:
        """Decodes `tokens` of `seq` from position `start` in one batch."""
        return self.decode([(t, start + i, seq) for i, t in enumerate(tokens)])

    def feed_singly(
        self, tokens: Sequence[int], seq: int = 0, start: int = 0
    ) -> NDArray[np.float32]:
        """Decodes `tokens` of `seq` from position `start`, one batch each."""
        return np.concatenate([self.decode([(t, start + i, seq)]) for i, t in enumerate(tokens)])

    def greedy(self, prompt: Sequence[int], n: int, seq: int = 0) -> list[int]:
        """The `n` most likely tokens after `prompt`, one at a time."""
        out = [int(self.feed(prompt, seq)[-1].argmax())]
        while len(out) < n:
            pos = len(prompt) + len(out) - 1
            out.append(int(self.decode([(out[-1], pos, seq)])[0].argmax()))
        return out

    def clear(self) -> None:
        """Empties the memory, cells and data."""
        llama_cpp.llama_memory_clear(self.memory, True)

    def remove(self, seq: int, start: int = -1, end: int = -1) -> bool:
        """llama_memory_seq_rm: forget positions [start, end); -1 is open."""
        return bool(llama_cpp.llama_memory_seq_rm(self.memory, seq, start, end))

    def copy(self, src: int, dst: int, start: int = -1, end: int = -1) -> None:
        """llama_memory_seq_cp: `dst` also has the positions [start, end) of `src`."""
        llama_cpp.llama_memory_seq_cp(self.memory, src, dst, start, end)

    def positions(self, seq: int) -> tuple[int, int]:
        """Smallest and largest position held for `seq`; (-1, -1) when it is empty."""
        return (
            int(llama_cpp.llama_memory_seq_pos_min(self.memory, seq)),
            int(llama_cpp.llama_memory_seq_pos_max(self.memory, seq)),
        )

    def save(self, seq: int, flags: int = 0) -> bytes:
        """The sequence's state as llama.cpp writes it."""
        size = int(llama_cpp.llama_state_seq_get_size_ext(self.ctx, seq, flags))
        buffer = (ctypes.c_uint8 * size)()
        got = int(llama_cpp.llama_state_seq_get_data_ext(self.ctx, buffer, size, seq, flags))
        assert got == size
        return bytes(buffer)

    def restore(self, state: bytes, seq: int, flags: int = 0) -> bool:
        """Reads `state` into `seq`; False when llama.cpp refuses it."""
        buffer = (ctypes.c_uint8 * len(state)).from_buffer_copy(state)
        done = llama_cpp.llama_state_seq_set_data_ext(self.ctx, buffer, len(state), seq, flags)
        return int(done) == len(state)
