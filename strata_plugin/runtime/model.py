"""A loaded model, or only its vocabulary."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from .config import ModelConfig
from .devices import buffer_type_by_name, device_by_name
from .library import init_backend, llama

_SPLIT_MODES = {"none": 0, "layer": 1, "row": 2, "tensor": 3}
_LOAD_MODES = {"auto": -1, "none": 0, "mmap": 1, "mlock": 2, "mmap+mlock": 3, "dio": 4}
GGUF_MAGIC = b"GGUF"


class ModelError(Exception):
    """The model can't be loaded; the message is one line for a person."""


def check_model_file(path: str) -> None:
    """Raise `ModelError` when `path` is missing, unreadable or plainly no GGUF file."""
    file = Path(path)
    if not file.exists():
        raise ModelError(f"model file not found: {path}")
    if file.is_dir():
        raise ModelError(f"model path is a directory, not a GGUF file: {path}")
    try:
        with file.open("rb") as f:
            magic = f.read(4)
    except OSError as e:
        raise ModelError(f"model file cannot be read: {path}: {e.strerror}") from e
    if magic != GGUF_MAGIC:
        raise ModelError(f"not a GGUF file (bad magic): {path}")


class _Params:
    """llama_model_params with all memory that it points to kept alive."""

    def __init__(self, config: ModelConfig, on_progress: Callable[[float], None] | None) -> None:
        self.raw = raw = llama.llama_model_default_params()
        raw.n_gpu_layers = config.n_gpu_layers
        raw.split_mode = _SPLIT_MODES[config.split_mode]
        raw.load_mode = _LOAD_MODES[config.load_mode]
        raw.main_gpu = config.main_gpu
        raw.check_tensors = config.check_tensors
        raw.use_extra_bufts = config.repack
        raw.no_host = config.no_host
        self._keep: list[Any] = []
        if config.tensor_split:
            split = (ctypes.c_float * llama.LLAMA_MAX_DEVICES)(*config.tensor_split)
            raw.tensor_split = split
            self._keep.append(split)
        if config.devices is not None:
            handles = [] if config.devices == ("none",) else config.devices
            devices = (ctypes.c_void_p * (len(handles) + 1))(*map(device_by_name, handles))
            raw.devices = ctypes.cast(devices, ctypes.c_void_p)
            self._keep.append(devices)
        if config.tensor_overrides:
            self._tensor_overrides(config.tensor_overrides)
        if config.kv_overrides:
            self._kv_overrides(config.kv_overrides)
        if on_progress is not None:

            def report(fraction: float, _user: Any) -> bool:
                on_progress(fraction)
                return True

            callback = llama.llama_progress_callback(report)
            raw.progress_callback = callback
            self._keep.append(callback)

    def _tensor_overrides(self, overrides: tuple[tuple[str, str], ...]) -> None:
        """llama_model_tensor_buft_override[], ended by a null pattern."""

        class Override(ctypes.Structure):
            _fields_ = (("pattern", ctypes.c_char_p), ("buft", ctypes.c_void_p))

        array = (Override * (len(overrides) + 1))()
        for entry, (pattern, buffer_type) in zip(array, overrides, strict=False):
            entry.pattern = pattern.encode()
            entry.buft = buffer_type_by_name(buffer_type)
        self.raw.tensor_buft_overrides = ctypes.cast(array, ctypes.c_void_p)
        self._keep.append(array)

    def _kv_overrides(self, overrides: tuple[str, ...]) -> None:
        """KEY=TYPE:VALUE with TYPE int, float, bool or str; ended by an empty key."""
        array = (llama.llama_model_kv_override * (len(overrides) + 1))()
        for entry, text in zip(array, overrides, strict=False):
            key, _, typed = text.partition("=")
            kind, _, value = typed.partition(":")
            if not key or len(key.encode()) > 127:
                raise ModelError(f"--override-kv: bad key in {text!r}")
            entry.key = key.encode()
            try:
                if kind == "int":
                    entry.tag, entry.value.val_i64 = 0, int(value)
                elif kind == "float":
                    entry.tag, entry.value.val_f64 = 1, float(value)
                elif kind == "bool" and value in ("true", "false"):
                    entry.tag, entry.value.val_bool = 2, value == "true"
                elif kind == "str" and len(value.encode()) < 128:
                    entry.tag, entry.value.val_str = 3, value.encode()
                else:
                    raise ValueError
            except ValueError:
                raise ModelError(f"--override-kv: expected KEY=TYPE:VALUE, got {text!r}") from None
        self.raw.kv_overrides = array
        self._keep.append(array)


class Model:
    """A model with its weights (or, `vocab_only`, without them and without hyper-parameters)."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        vocab_only: bool = False,
        on_progress: Callable[[float], None] | None = None,
    ) -> None:
        check_model_file(config.path)
        init_backend(config.numa)
        params = _Params(config, on_progress)
        params.raw.vocab_only = vocab_only
        self.handle: Any = llama.llama_model_load_from_file(config.path.encode(), params.raw)
        if not self.handle:
            raise ModelError(f"llama.cpp cannot load the model: {config.path}")
        self._params = params  # tensor overrides are read again when a context is made
        self.vocab: Any = llama.llama_model_get_vocab(self.handle)

    def close(self) -> None:
        """Free the weights; contexts made from them must be gone."""
        if self.handle:
            llama.llama_model_free(self.handle)
            self.handle = None

    @cached_property
    def n_vocab(self) -> int:
        """Size of the vocabulary."""
        return int(llama.llama_vocab_n_tokens(self.vocab))

    @cached_property
    def eog_tokens(self) -> frozenset[int]:
        """Tokens that end a generation (EOS, EOT, ...)."""
        is_eog = llama.llama_vocab_is_eog
        return frozenset(t for t in range(self.n_vocab) if is_eog(self.vocab, t))

    def piece(self, token: int) -> bytes:
        """The bytes of a token, control tokens by their names."""
        buffer = ctypes.create_string_buffer(64)
        n = llama.llama_token_to_piece(self.vocab, token, buffer, len(buffer), 0, True)
        if n < 0:
            buffer = ctypes.create_string_buffer(-n)
            n = llama.llama_token_to_piece(self.vocab, token, buffer, len(buffer), 0, True)
        return buffer.raw[: max(n, 0)]

    def is_control(self, token: int) -> bool:
        """Whether a token is no text, but a mark."""
        return bool(llama.llama_vocab_is_control(self.vocab, token))

    @property
    def n_ctx_train(self) -> int:
        """Context length that the model was trained with, in tokens."""
        return int(llama.llama_model_n_ctx_train(self.handle))

    @property
    def n_swa(self) -> int:
        """Width of the sliding attention window in tokens, 0 without one."""
        return int(llama.llama_model_n_swa(self.handle))

    @property
    def is_recurrent(self) -> bool:
        """Purely recurrent (Mamba, RWKV)."""
        return bool(llama.llama_model_is_recurrent(self.handle))

    @property
    def is_hybrid(self) -> bool:
        """Attention and recurrent layers."""
        return bool(llama.llama_model_is_hybrid(self.handle))

    @property
    def n_embd(self) -> int:
        """Width of an embedding."""
        return int(llama.llama_model_n_embd(self.handle))

    @property
    def n_layer(self) -> int:
        """Number of layers."""
        return int(llama.llama_model_n_layer(self.handle))

    @property
    def n_head(self) -> int:
        """Query heads of the first layer."""
        return int(llama.llama_model_n_head(self.handle))

    @property
    def n_head_kv(self) -> int:
        """Key and value heads of the first layer."""
        return int(llama.llama_model_n_head_kv(self.handle))

    def metadata(self, key: str) -> str | None:
        """A value of the GGUF file, as text; `key` goes without the architecture's name."""
        architecture = self._metadata(b"general.architecture") or ""
        return self._metadata(f"{architecture}.{key}".encode())

    def _metadata(self, key: bytes) -> str | None:
        buffer = ctypes.create_string_buffer(256)
        length = llama.llama_model_meta_val_str(self.handle, key, buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace") if length >= 0 else None

    @property
    def n_params(self) -> int:
        """Number of weights."""
        return int(llama.llama_model_n_params(self.handle))

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return int(llama.llama_model_size(self.handle))

    @property
    def vocab_type(self) -> int:
        """Number of llama.cpp's vocabulary type."""
        return int(llama.llama_vocab_type(self.vocab))

    @cached_property
    def desc(self) -> str:
        """e.g. "llama 256M Q4_1"."""
        buffer = ctypes.create_string_buffer(256)
        llama.llama_model_desc(self.handle, buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace")

    @cached_property
    def ftype(self) -> str:
        """Name of the file's quantisation, e.g. "Q4_1"."""
        name = llama._lib.llama_ftype_name
        name.argtypes, name.restype = [ctypes.c_int], ctypes.c_char_p
        value: bytes = name(llama.llama_model_ftype(self.handle))
        return value.decode()


class VocabularyModel(Model):
    """Only the vocabulary and the metadata: what the HTTP process needs, without the weights."""

    def __init__(self, path: str) -> None:
        super().__init__(ModelConfig(path=path), vocab_only=True)
