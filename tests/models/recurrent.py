"""Models with a recurrent state: pure recurrent, and hybrids of recurrent and attention layers."""

from __future__ import annotations

from .attention import (
    HEAD,
    N_EMBD,
    N_HEAD,
    N_HEAD_KV,
    WINDOW,
    attention,
    feed_forward,
    transformer_keys,
)
from .writer import ModelFile

D_STATE, D_CONV, D_INNER, N_SSM_HEAD, N_GROUP = 16, 4, 2 * N_EMBD, 8, 1
SHORTCONV = 3


def mamba2_mixer(f: ModelFile, il: int) -> None:
    """Mamba-2 mixer of layer `il`: heads forget at different speeds, some over many tokens."""
    conv_dim = D_INNER + 2 * N_GROUP * D_STATE
    f.norm(f"blk.{il}.attn_norm.weight", N_EMBD)
    f.weight(f"blk.{il}.ssm_in.weight", N_EMBD, D_INNER + conv_dim + N_SSM_HEAD)
    f.weight(f"blk.{il}.ssm_conv1d.weight", D_CONV, conv_dim)
    f.uniform(f"blk.{il}.ssm_conv1d.bias", conv_dim, half_width=0.1)
    f.uniform(f"blk.{il}.ssm_dt.bias", N_SSM_HEAD, half_width=2.0, centre=-3.0)
    # negative: states decay
    f.uniform(f"blk.{il}.ssm_a", 1, N_SSM_HEAD, half_width=0.4, centre=-0.5)
    f.uniform(f"blk.{il}.ssm_d", 1, N_SSM_HEAD, half_width=0.5)
    f.norm(f"blk.{il}.ssm_norm.weight", D_INNER // N_GROUP, N_GROUP)
    f.weight(f"blk.{il}.ssm_out.weight", D_INNER, N_EMBD, gain=2.0)


def mamba2_keys(f: ModelFile) -> None:
    """Hyperparameters of `mamba2_mixer`."""
    f.keys(
        ssm__conv_kernel=D_CONV,
        ssm__inner_size=D_INNER,
        ssm__state_size=D_STATE,
        ssm__time_step_rank=N_SSM_HEAD,
        ssm__group_count=N_GROUP,
    )


def recurrent(f: ModelFile) -> None:
    """mamba2: no KV cache at all, one state per sequence."""
    n_layer = 3
    f.keys(
        context_length=8192,
        embedding_length=N_EMBD,
        block_count=n_layer,
        feed_forward_length=0,
        attention__head_count=0,
        attention__layer_norm_rms_epsilon=1e-5,
    )
    mamba2_keys(f)
    f.embeddings(N_EMBD)
    for il in range(n_layer):
        mamba2_mixer(f, il)


def hybrid(f: ModelFile) -> None:
    """granitehybrid: Mamba-2 layers with one attention layer among them."""
    n_layer = 4
    attn_layers = {2}
    n_head_kv = [N_HEAD_KV * (il in attn_layers) for il in range(n_layer)]
    transformer_keys(f, n_layer=n_layer, n_head_kv=n_head_kv)
    mamba2_keys(f)
    f.embeddings(N_EMBD)
    for il in range(n_layer):
        if il in attn_layers:
            attention(f, il)
        else:
            mamba2_mixer(f, il)
        feed_forward(f, il)


def shortconv_mixer(f: ModelFile, il: int) -> None:
    """LFM2's gated short convolution of layer `il`: its state is the last two inputs."""
    f.norm(f"blk.{il}.attn_norm.weight", N_EMBD)
    f.weight(f"blk.{il}.shortconv.conv.weight", SHORTCONV, N_EMBD)
    f.weight(f"blk.{il}.shortconv.in_proj.weight", N_EMBD, 3 * N_EMBD)
    f.weight(f"blk.{il}.shortconv.out_proj.weight", N_EMBD, N_EMBD, gain=2.0)


def _lfm2(f: ModelFile) -> None:
    n_layer = 4
    assert N_HEAD * HEAD == N_EMBD  # lfm2 has no own head size
    transformer_keys(f, n_layer=n_layer, n_head_kv=[N_HEAD_KV * (il % 2) for il in range(n_layer)])
    f.keys(shortconv__l_cache=SHORTCONV)
    f.embeddings(N_EMBD, norm_name="token_embd_norm")
    for il in range(n_layer):
        if il % 2:
            attention(f, il, qk_norm=True)
        else:
            shortconv_mixer(f, il)
        feed_forward(f, il)


def hybrid_rollback(f: ModelFile) -> None:
    """lfm2: a hybrid whose last recurrent states llama.cpp can keep for a rollback (n_rs_seq)."""
    _lfm2(f)


def hybrid_sliding_window(f: ModelFile) -> None:
    """lfm2 with a window of 32 tokens in its attention layers."""
    f.keys(attention__sliding_window=WINDOW)
    _lfm2(f)
