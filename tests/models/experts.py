"""Mixtures of experts with weights of IQ types, made of random bits: what patch 0007 and the CUDA
kernels for experts are tested and measured with. Shapes are arguments, since both need their own.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np

from bench.random_weights import random_weights

from .writer import ModelFile

HEAD = 64


def write_experts(
    path: Path,
    *,
    experts: int,
    used: int,
    n_embd: int,
    n_ff: int,
    n_layer: int,
    types: tuple[str, ...] = ("iq3_s", "iq3_xxs"),
    down: tuple[str, ...] = ("iq3_s",),
) -> None:
    """Writes a qwen3moe model; layer i takes its types from `types` and `down`, round and round.

    Layer by layer, gate has one type of `types` and up the next one.
    """
    f = ModelFile("experts", "qwen3moe")
    heads = n_embd // HEAD
    f.keys(
        context_length=4096,
        embedding_length=n_embd,
        block_count=n_layer,
        feed_forward_length=n_ff,
        attention__head_count=heads,
        attention__head_count_kv=1,
        attention__key_length=HEAD,
        attention__value_length=HEAD,
        attention__layer_norm_rms_epsilon=1e-5,
        rope__dimension_count=HEAD,
        expert_count=experts,
        expert_used_count=used,
        expert_feed_forward_length=n_ff,
    )
    f.embeddings(n_embd)
    for il in range(n_layer):
        f.norm(f"blk.{il}.attn_norm.weight", n_embd)
        f.weight(f"blk.{il}.attn_q.weight", n_embd, heads * HEAD, gain=1.6)
        f.weight(f"blk.{il}.attn_k.weight", n_embd, HEAD, gain=1.6)
        f.weight(f"blk.{il}.attn_v.weight", n_embd, HEAD)
        f.weight(f"blk.{il}.attn_output.weight", heads * HEAD, n_embd, gain=2.0)
        f.norm(f"blk.{il}.attn_q_norm.weight", HEAD)
        f.norm(f"blk.{il}.attn_k_norm.weight", HEAD)
        f.norm(f"blk.{il}.ffn_norm.weight", n_embd)
        f.weight(f"blk.{il}.ffn_gate_inp.weight", n_embd, experts, gain=2.0)
        _experts(f, f"blk.{il}.ffn_gate_exps", types[il % len(types)], n_embd, n_ff, experts)
        _experts(f, f"blk.{il}.ffn_up_exps", types[(il + 1) % len(types)], n_embd, n_ff, experts)
        _experts(f, f"blk.{il}.ffn_down_exps", down[il % len(down)], n_ff, n_embd, experts, 2.0)
    f.write(path)


def _experts(
    f: ModelFile, name: str, dtype: str, n_in: int, n_out: int, experts: int, gain: float = 1.0
) -> None:
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    deviation = gain * n_in**-0.5
    data = random_weights(dtype, experts * n_out, n_in, rng, deviation=deviation)
    f.raw(f"{name}.weight", data.reshape(experts, n_out, -1), dtype)
