"""Writes one tiny GGUF: hyperparameters, the tokenizer, and weights drawn by their names.

Weights come from NumPy's legacy generator (its stream is frozen) as uniform numbers, so a file is
the same bytes on every run and machine, and one more tensor in a model changes no other.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from .vocab import CONTROL_TOKENS, N_VOCAB, add_tokenizer, never_greedy

Key = bool | int | float | str | Sequence[int] | Sequence[bool] | Sequence[float]


class ModelFile:
    """Collects the keys and tensors of one model, then writes them.

    Shapes are in llama.cpp's order, ne0 first.
    """

    def __init__(self, name: str, arch: str) -> None:
        self._name = name
        self._arch = arch
        self._writer = gguf.GGUFWriter(None, arch)
        self._writer.add_name(f"tiny-{name}")
        add_tokenizer(self._writer)
        self._writer.add_uint32(f"{arch}.vocab_size", N_VOCAB)

    def keys(self, **values: Key) -> None:
        """Adds `<arch>.<key>` for each argument; `__` in a name stands for a dot.

        An int is stored as u32, a float as f32; a sequence as an array of its elements' type.
        """
        for name, value in values.items():
            key = f"{self._arch}.{name.replace('__', '.')}"
            if isinstance(value, bool):
                self._writer.add_bool(key, value)
            elif isinstance(value, int):
                self._writer.add_uint32(key, value)
            elif isinstance(value, float):
                self._writer.add_float32(key, value)
            elif isinstance(value, str):
                self._writer.add_string(key, value)
            else:
                self._writer.add_array(key, list(value))

    def uint64_array(self, name: str, values: Sequence[int]) -> None:
        """Adds `<arch>.<name>` as an array of u64, which llama.cpp asks for in a few keys."""
        self._writer.add_key_value(
            f"{self._arch}.{name}",
            list(values),
            gguf.GGUFValueType.ARRAY,
            gguf.GGUFValueType.UINT64,
        )

    def int32_table(self, name: str, values: NDArray[np.int32]) -> None:
        """Adds a tensor of integers as it is."""
        self._writer.add_tensor(name, values)

    def raw(self, name: str, data: NDArray[np.uint8], dtype: str) -> None:
        """Adds a tensor whose bytes are already in the format of a quantised type."""
        self._writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType[dtype.upper()])

    def weight(self, name: str, *shape: int, gain: float = 1.0) -> None:
        """Adds a random matrix; times a vector of unit variance it gives a deviation of `gain`."""
        self.uniform(name, *shape, half_width=gain * (3.0 / shape[0]) ** 0.5)

    def uniform(self, name: str, *shape: int, half_width: float, centre: float = 0.0) -> None:
        """Adds numbers drawn evenly from centre ± half_width."""
        seed = zlib.crc32(f"{self._name}/{name}".encode())
        draw = np.random.RandomState(seed).random_sample(shape[::-1]).astype(np.float32)
        self._add(name, (2.0 * draw - 1.0) * np.float32(half_width) + np.float32(centre))

    def norm(self, name: str, *shape: int) -> None:
        """Adds a norm's weights: near 1, but not all alike."""
        self.uniform(name, *shape, half_width=0.2, centre=1.0)

    def embeddings(
        self,
        n_embd: int,
        *,
        norm_name: str | None = "output_norm",
        embedding_std: float = 1.0,
        logit_std: float = 3.0,
        with_output: bool = True,
    ) -> None:
        """Adds the token embedding, the last norm, and the output matrix.

        Its rows give logits with a deviation of `logit_std`, but are zero for tokens that no test
        wants by chance: greedy decoding never picks those.
        """
        self.weight("token_embd.weight", n_embd, N_VOCAB, gain=embedding_std * n_embd**0.5)
        if norm_name:
            self.norm(f"{norm_name}.weight", n_embd)
        if not with_output:
            return
        seed = zlib.crc32(f"{self._name}/output".encode())
        rows = np.random.RandomState(seed).random_sample((N_VOCAB, n_embd)).astype(np.float32)
        rows = (2.0 * rows - 1.0) * np.float32(logit_std * (3.0 / n_embd) ** 0.5)
        rows[never_greedy()] = 0.0
        self._add("output.weight", rows)

    def fill_in_tokens(self) -> None:
        """Uses three bytes that no text has as marks of a gap: before, after, here."""
        first = len(CONTROL_TOKENS)
        for place, name in enumerate(("pre", "suf", "mid")):
            self._writer.add_uint32(f"tokenizer.ggml.fim_{name}_token_id", first + 0xFD + place)

    def token_types(self, n: int) -> None:
        """How many kinds of tokens an encoder tells apart."""
        self._writer.add_token_type_count(n)

    def write(self, path: Path) -> None:
        """Writes the file; `path` is replaced."""
        self._writer.write_header_to_file(path)
        self._writer.write_kv_data_to_file()
        self._writer.write_tensors_to_file()
        self._writer.close()

    def _add(self, name: str, values: NDArray[np.float32]) -> None:
        self._writer.add_tensor(name, np.ascontiguousarray(values, dtype=np.float32))
