"""Models with a plain or a sliding-window KV cache: dense, mixture of experts, sliding window."""

from __future__ import annotations

from .writer import ModelFile

N_EMBD, N_HEAD, N_HEAD_KV, HEAD, N_FF, N_LAYER = 128, 4, 2, 32, 192, 3
N_EXPERT, N_EXPERT_USED, N_FF_EXPERT = 8, 2, 64
N_CTX_TRAIN = 8192
WINDOW = 32


def transformer_keys(
    f: ModelFile, *, n_layer: int = N_LAYER, n_head_kv: int | list[int] = N_HEAD_KV
) -> None:
    """The hyperparameters that the models here share."""
    f.keys(
        context_length=N_CTX_TRAIN,
        embedding_length=N_EMBD,
        block_count=n_layer,
        feed_forward_length=N_FF,
        attention__head_count=N_HEAD,
        attention__head_count_kv=n_head_kv,
        attention__key_length=HEAD,
        attention__value_length=HEAD,
        attention__layer_norm_rms_epsilon=1e-5,
        rope__dimension_count=HEAD,
    )


def attention(f: ModelFile, il: int, *, qk_norm: bool = False) -> None:
    """Grouped-query attention of layer `il`, sharp enough that distant tokens matter."""
    f.norm(f"blk.{il}.attn_norm.weight", N_EMBD)
    f.weight(f"blk.{il}.attn_q.weight", N_EMBD, N_HEAD * HEAD, gain=1.6)
    f.weight(f"blk.{il}.attn_k.weight", N_EMBD, N_HEAD_KV * HEAD, gain=1.6)
    f.weight(f"blk.{il}.attn_v.weight", N_EMBD, N_HEAD_KV * HEAD)
    f.weight(f"blk.{il}.attn_output.weight", N_HEAD * HEAD, N_EMBD, gain=2.0)
    if qk_norm:
        f.norm(f"blk.{il}.attn_q_norm.weight", HEAD)
        f.norm(f"blk.{il}.attn_k_norm.weight", HEAD)


def feed_forward(f: ModelFile, il: int, *, n_embd: int = N_EMBD, n_ff: int = N_FF) -> None:
    """Gated feed-forward of layer `il`."""
    f.norm(f"blk.{il}.ffn_norm.weight", n_embd)
    f.weight(f"blk.{il}.ffn_gate.weight", n_embd, n_ff)
    f.weight(f"blk.{il}.ffn_up.weight", n_embd, n_ff)
    f.weight(f"blk.{il}.ffn_down.weight", n_ff, n_embd, gain=2.0)


def experts(f: ModelFile, il: int, *, n_embd: int = N_EMBD) -> None:
    """Routed experts of layer `il` (the norm before them is the caller's)."""
    f.weight(f"blk.{il}.ffn_gate_inp.weight", n_embd, N_EXPERT, gain=2.0)
    f.weight(f"blk.{il}.ffn_gate_exps.weight", n_embd, N_FF_EXPERT, N_EXPERT)
    f.weight(f"blk.{il}.ffn_up_exps.weight", n_embd, N_FF_EXPERT, N_EXPERT)
    f.weight(f"blk.{il}.ffn_down_exps.weight", N_FF_EXPERT, n_embd, N_EXPERT, gain=2.0)


def dense(f: ModelFile) -> None:
    """llama: every layer attends to all positions."""
    transformer_keys(f)
    f.embeddings(N_EMBD)
    for il in range(N_LAYER):
        attention(f, il)
        feed_forward(f, il)


def infill(f: ModelFile) -> None:
    """The same with tokens that mark what lies before and after a gap."""
    f.fill_in_tokens()
    dense(f)


def moe(f: ModelFile) -> None:
    """qwen3moe: 8 experts per layer, 2 used for a token."""
    transformer_keys(f)
    f.keys(
        expert_count=N_EXPERT,
        expert_used_count=N_EXPERT_USED,
        expert_feed_forward_length=N_FF_EXPERT,
    )
    f.embeddings(N_EMBD)
    for il in range(N_LAYER):
        attention(f, il, qk_norm=True)
        f.norm(f"blk.{il}.ffn_norm.weight", N_EMBD)
        experts(f, il)


def sliding_window(f: ModelFile) -> None:
    """gemma3: layers take turns, a window of 32 tokens and the whole context."""
    n_layer = 4
    transformer_keys(f, n_layer=n_layer)
    f.keys(
        attention__sliding_window=WINDOW,
        attention__sliding_window_pattern=2,
        rope__freq_base=10000.0,
    )
    # gemma3 multiplies embeddings by sqrt(n_embd), and norms the output of each block to about 1
    f.embeddings(N_EMBD, embedding_std=N_EMBD**-0.5)
    for il in range(n_layer):
        attention(f, il, qk_norm=True)
        f.norm(f"blk.{il}.post_attention_norm.weight", N_EMBD)
        feed_forward(f, il)
        f.norm(f"blk.{il}.post_ffw_norm.weight", N_EMBD)
