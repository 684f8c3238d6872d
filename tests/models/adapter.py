"""LoRA adapters for the tiny dense model."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from .attention import HEAD, N_EMBD, N_HEAD, N_LAYER

RANK = 4


def write_adapter(path: Path, seed: int, strength: float = 1.0, task: str = "") -> None:
    """Writes an adapter that changes the queries of each layer; another `seed`, another change."""
    writer = gguf.GGUFWriter(None, "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(RANK))
    if task:
        writer.add_string("adapter.lora.task_name", task)
    draw = np.random.RandomState(seed)
    for il in range(N_LAYER):
        down = draw.standard_normal((RANK, N_EMBD)).astype(np.float32) / N_EMBD**0.5
        up = draw.standard_normal((N_HEAD * HEAD, RANK)).astype(np.float32) * np.float32(strength)
        writer.add_tensor(f"blk.{il}.attn_q.weight.lora_a", down)
        writer.add_tensor(f"blk.{il}.attn_q.weight.lora_b", up)
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
