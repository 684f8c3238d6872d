"""LoRA adapters of a model: loaded once, applied to a context in any mixture."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from .library import llama
from .model import Model, ModelError, check_model_file

Mixture = tuple[tuple[int, float], ...]  # (number of an adapter, scale), by number


class Adapter:
    """One loaded adapter; it lives as long as its model. Raises `ModelError`."""

    def __init__(self, model: Model, path: str) -> None:
        check_model_file(path)
        self.path = path
        self.handle: Any = llama.llama_adapter_lora_init(model.handle, path.encode())
        if not self.handle:
            raise ModelError(f"llama.cpp cannot load the LoRA adapter for this model: {path}")
        if llama.llama_adapter_get_alora_n_invocation_tokens(self.handle):
            raise ModelError(f"aLoRA adapters (activated by a text) do not work yet: {path}")

    @property
    def task_name(self) -> str:
        """What it is for, as its file says."""
        return self._metadata(b"adapter.lora.task_name")

    @property
    def prompt_prefix(self) -> str:
        """What prompts should begin with, as its file says."""
        return self._metadata(b"adapter.lora.prompt_prefix")

    def _metadata(self, key: bytes) -> str:
        buffer = ctypes.create_string_buffer(1024)
        length = llama.llama_adapter_meta_val_str(self.handle, key, buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace") if length >= 0 else ""


def apply(context: Any, adapters: Sequence[Adapter], mixture: Mixture) -> None:
    """Have a llama_context use these adapters and no others from the next step on."""
    n = len(mixture)
    handles = (ctypes.POINTER(ctypes.c_void_p) * max(1, n))()
    scales = (ctypes.c_float * max(1, n))()
    for place, (number, scale) in enumerate(mixture):
        handles[place] = adapters[number].handle
        scales[place] = scale
    if llama.llama_set_adapters_lora(context, handles, n, scales) != 0:
        raise ModelError(f"llama.cpp cannot apply the LoRA adapters {mixture}")
