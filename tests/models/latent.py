"""Models with multi-head latent attention (MLA), without and with a sparse-attention indexer (DSA).

The cache holds one compressed row per token. With DSA a second cache holds the indexer's keys, from
which each token picks the rows it attends to.
"""

from __future__ import annotations

from .attention import N_EMBD, N_EXPERT, N_EXPERT_USED, N_FF, N_FF_EXPERT, experts, feed_forward
from .writer import ModelFile

N_HEAD, Q_RANK, KV_RANK, ROPE, NOPE, HEAD_V = 2, 64, 64, 32, 32, 32
# Heads of 64: llama.cpp rotates indexer keys by a Hadamard matrix of at least 64. Many heads: with
# few, their rectified scores are often all 0, and such ties are broken by the order of the cells.
INDEXER_HEADS, INDEXER_HEAD = 24, 64
TOP_K = 32  # few enough that a context of 100 tokens is truly sparse
WINDOW = 32
SIGMOID_GATE = 2


def mla_keys(
    f: ModelFile,
    n_layer: int,
    *,
    rope: int = ROPE,
    n_head: int = N_HEAD,
    n_head_kv: int | list[int] = 1,
) -> None:
    """Hyperparameters of latent attention and of the experts behind it; layer 0 is dense."""
    f.keys(
        context_length=8192,
        embedding_length=N_EMBD,
        block_count=n_layer,
        feed_forward_length=N_FF,
        leading_dense_block_count=1,
        attention__head_count=n_head,
        attention__head_count_kv=n_head_kv,
        attention__layer_norm_rms_epsilon=1e-5,
        attention__q_lora_rank=Q_RANK,
        attention__kv_lora_rank=KV_RANK,
        attention__key_length=KV_RANK + rope,
        attention__value_length=KV_RANK,
        attention__key_length_mla=NOPE + rope,
        attention__value_length_mla=HEAD_V,
        rope__dimension_count=rope,
        expert_count=N_EXPERT,
        expert_used_count=N_EXPERT_USED,
        expert_feed_forward_length=N_FF_EXPERT,
        expert_shared_count=1,
        expert_gating_func=SIGMOID_GATE,
        expert_weights_norm=True,
        expert_weights_scale=1.0,
    )


def indexer_keys(f: ModelFile) -> None:
    """Hyperparameters of the DSA indexer."""
    f.keys(
        attention__indexer__head_count=INDEXER_HEADS,
        attention__indexer__key_length=INDEXER_HEAD,
        attention__indexer__top_k=TOP_K,
    )


def mla_attention(f: ModelFile, il: int, *, rope: int = ROPE) -> None:
    """Latent attention of layer `il`."""
    f.norm(f"blk.{il}.attn_norm.weight", N_EMBD)
    f.weight(f"blk.{il}.attn_q_a.weight", N_EMBD, Q_RANK)
    f.norm(f"blk.{il}.attn_q_a_norm.weight", Q_RANK)
    f.weight(f"blk.{il}.attn_q_b.weight", Q_RANK, N_HEAD * (NOPE + rope), gain=1.6)
    f.weight(f"blk.{il}.attn_kv_a_mqa.weight", N_EMBD, KV_RANK + rope, gain=1.6)
    f.norm(f"blk.{il}.attn_kv_a_norm.weight", KV_RANK)
    f.weight(f"blk.{il}.attn_k_b.weight", NOPE, KV_RANK, N_HEAD)
    f.weight(f"blk.{il}.attn_v_b.weight", KV_RANK, HEAD_V, N_HEAD)
    f.weight(f"blk.{il}.attn_output.weight", N_HEAD * HEAD_V, N_EMBD, gain=2.0)


def indexer(f: ModelFile, il: int) -> None:
    """DSA indexer of layer `il`."""
    f.norm(f"blk.{il}.indexer.k_norm.weight", INDEXER_HEAD)
    f.uniform(f"blk.{il}.indexer.k_norm.bias", INDEXER_HEAD, half_width=0.1)
    f.weight(f"blk.{il}.indexer.proj.weight", N_EMBD, INDEXER_HEADS)
    f.weight(f"blk.{il}.indexer.attn_k.weight", N_EMBD, INDEXER_HEAD)
    f.weight(f"blk.{il}.indexer.attn_q_b.weight", Q_RANK, INDEXER_HEADS * INDEXER_HEAD)


def shared_experts_ffn(f: ModelFile, il: int) -> None:
    """Routed experts plus one shared expert, or a dense feed-forward in layer 0."""
    if il == 0:
        feed_forward(f, il)
        return
    f.norm(f"blk.{il}.ffn_norm.weight", N_EMBD)
    f.uniform(f"blk.{il}.exp_probs_b.bias", N_EXPERT, half_width=0.1)
    experts(f, il)
    f.weight(f"blk.{il}.ffn_gate_shexp.weight", N_EMBD, N_FF_EXPERT)
    f.weight(f"blk.{il}.ffn_up_shexp.weight", N_EMBD, N_FF_EXPERT)
    f.weight(f"blk.{il}.ffn_down_shexp.weight", N_FF_EXPERT, N_EMBD)


def mla(f: ModelFile) -> None:
    """deepseek2: latent attention in a plain cache (keys only)."""
    n_layer = 3
    mla_keys(f, n_layer)
    f.embeddings(N_EMBD)
    for il in range(n_layer):
        mla_attention(f, il)
        shared_experts_ffn(f, il)


def dsa(f: ModelFile) -> None:
    """deepseek32: latent attention over the 32 tokens that an indexer picks."""
    n_layer = 3
    mla_keys(f, n_layer)
    indexer_keys(f)
    f.embeddings(N_EMBD)
    for il in range(n_layer):
        mla_attention(f, il)
        indexer(f, il)
        shared_experts_ffn(f, il)


def dsa_sliding_window(f: ModelFile) -> None:
    """dots3note: layers take turns, DSA over the whole context and a window of 32 tokens."""
    n_layer = 4
    is_window = [il % 2 for il in range(n_layer)]
    mla_keys(f, n_layer)
    indexer_keys(f)
    f.keys(
        attention__sliding_window=WINDOW,
        attention__sliding_window_pattern=is_window,
        attention__indexer__types=[1 - w for w in is_window],
        attention__kv_lora_rank_swa=KV_RANK,
        attention__key_length_swa=KV_RANK + ROPE,
        attention__value_length_swa=KV_RANK,
        attention__key_length_mla_swa=NOPE + ROPE,
        attention__value_length_mla_swa=HEAD_V,
        rope__freq_base_swa=10000.0,
    )
    f.embeddings(N_EMBD)
    for il in range(n_layer):
        mla_attention(f, il)
        f.norm(f"blk.{il}.attn_k_norm.weight", ROPE)
        f.weight(f"blk.{il}.attn_gate.weight", N_EMBD, N_HEAD)
        if not is_window[il]:
            indexer(f, il)
        shared_experts_ffn(f, il)
