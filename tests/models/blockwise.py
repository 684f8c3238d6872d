"""Models whose sparse attention works on blocks of tokens: MSA, DeepSeek-V4, indexed hybrids."""

from __future__ import annotations

from . import latent
from .attention import (
    HEAD,
    N_CTX_TRAIN,
    N_EMBD,
    N_EXPERT,
    N_EXPERT_USED,
    N_FF_EXPERT,
    N_HEAD,
    N_HEAD_KV,
    attention,
    experts,
    transformer_keys,
)
from .latent import INDEXER_HEAD, INDEXER_HEADS, SIGMOID_GATE, WINDOW, shared_experts_ffn
from .vocab import N_VOCAB
from .writer import ModelFile

HC, HC_RANK = 4, 8  # residual streams of hyper-connections; rank of their mixing matrices
SQRT_SOFTPLUS_GATE = 4


def _expert_keys(f: ModelFile) -> None:
    f.keys(
        expert_count=N_EXPERT,
        expert_used_count=N_EXPERT_USED,
        expert_feed_forward_length=N_FF_EXPERT,
        expert_shared_feed_forward_length=N_FF_EXPERT,
        expert_shared_count=1,
        expert_weights_norm=True,
        expert_weights_scale=1.0,
    )


def msa(f: ModelFile) -> None:
    """minimax-m3: after a dense layer, attention over the best blocks of 8 tokens."""
    n_layer = 3
    transformer_keys(f, n_layer=n_layer)
    _expert_keys(f)
    f.keys(
        leading_dense_block_count=1,
        expert_gating_func=SIGMOID_GATE,
        attention__indexer__head_count=N_HEAD_KV,
        attention__indexer__key_length=INDEXER_HEAD,
        attention__indexer__top_k=4,
        attention__indexer__block_size=8,
        attention__indexer__local_blocks=1,
    )
    f.embeddings(N_EMBD)
    for il in range(n_layer):
        attention(f, il, qk_norm=True)
        if il > 0:
            _block_indexer(f, il, n_head=N_HEAD_KV)
        shared_experts_ffn(f, il)


def _block_indexer(f: ModelFile, il: int, n_head: int) -> None:
    f.weight(f"blk.{il}.indexer.q_proj.weight", N_EMBD, n_head * INDEXER_HEAD)
    f.weight(f"blk.{il}.indexer.k_proj.weight", N_EMBD, INDEXER_HEAD)
    f.norm(f"blk.{il}.indexer.q_norm.weight", INDEXER_HEAD)
    f.norm(f"blk.{il}.indexer.k_norm.weight", INDEXER_HEAD)


def compressed(f: ModelFile) -> None:
    """deepseek4: a window of 32 tokens plus compressed rows, one for 4 and one for 128 tokens."""
    n_head, head, groups, o_rank, q_rank = 4, 64, 4, 32, 64
    ratios = [0, 4, 128]
    f.keys(
        context_length=N_CTX_TRAIN,
        embedding_length=N_EMBD,
        block_count=len(ratios),
        feed_forward_length=N_FF_EXPERT,
        attention__head_count=n_head,
        attention__head_count_kv=1,
        attention__key_length=head,
        attention__value_length=head,
        attention__layer_norm_rms_epsilon=1e-5,
        attention__q_lora_rank=q_rank,
        attention__sliding_window=WINDOW,
        attention__output_group_count=groups,
        attention__output_lora_rank=o_rank,
        attention__compress_ratios=ratios,
        attention__compress_rope_freq_base=160000.0,
        attention__indexer__head_count=INDEXER_HEADS,
        attention__indexer__key_length=INDEXER_HEAD,
        attention__indexer__top_k=8,
        rope__dimension_count=head // 2,
        hyper_connection__count=HC,
        hyper_connection__sinkhorn_iterations=2,
        hyper_connection__epsilon=1e-6,
        hash_layer_count=0,
        swiglu_clamp_exp=10.0,
        expert_gating_func=SQRT_SOFTPLUS_GATE,
    )
    _expert_keys(f)
    f.embeddings(N_EMBD)
    f.weight("output_hc_fn.weight", HC * N_EMBD, HC, gain=0.3)
    f.uniform("output_hc_base.weight", HC, half_width=0.5)
    f.uniform("output_hc_scale.weight", 1, half_width=0.1, centre=1.0)
    for il, ratio in enumerate(ratios):
        f.norm(f"blk.{il}.attn_norm.weight", N_EMBD)
        f.uniform(f"blk.{il}.attn_sinks.weight", n_head, half_width=0.5)
        f.weight(f"blk.{il}.attn_q_a.weight", N_EMBD, q_rank)
        f.norm(f"blk.{il}.attn_q_a_norm.weight", q_rank)
        f.weight(f"blk.{il}.attn_q_b.weight", q_rank, n_head * head, gain=1.6)
        f.weight(f"blk.{il}.attn_kv.weight", N_EMBD, head, gain=1.6)
        f.norm(f"blk.{il}.attn_kv_a_norm.weight", head)
        f.weight(f"blk.{il}.attn_output_a.weight", n_head * head // groups, o_rank * groups)
        f.weight(f"blk.{il}.attn_output_b.weight", groups * o_rank, N_EMBD, gain=2.0)
        _hyper_connections(f, il)
        if ratio:
            _compressor(f, f"blk.{il}.attn_compressor", head, ratio)
        if ratio == 4:
            f.weight(f"blk.{il}.indexer.proj.weight", N_EMBD, INDEXER_HEADS)
            f.weight(f"blk.{il}.indexer.attn_q_b.weight", q_rank, INDEXER_HEADS * INDEXER_HEAD)
            _compressor(f, f"blk.{il}.indexer_compressor", INDEXER_HEAD, ratio)
        f.norm(f"blk.{il}.ffn_norm.weight", N_EMBD)
        f.uniform(f"blk.{il}.exp_probs_b.bias", N_EXPERT, half_width=0.1)
        experts(f, il)
        _shared_expert(f, il)


def _compressor(f: ModelFile, name: str, head: int, ratio: int) -> None:
    width = head * (2 if ratio == 4 else 1)  # blocks of 4 overlap: each also reads the one before
    f.weight(f"{name}_kv.weight", N_EMBD, width)
    f.weight(f"{name}_gate.weight", N_EMBD, width)
    f.uniform(f"{name}_ape.weight", width, ratio, half_width=0.5)
    f.norm(f"{name}_norm.weight", head)


def _hyper_connections(f: ModelFile, il: int) -> None:
    mix = (2 + HC) * HC
    for part in ("attn", "ffn"):
        f.weight(f"blk.{il}.hc_{part}_fn.weight", HC * N_EMBD, mix, gain=0.3)
        f.uniform(f"blk.{il}.hc_{part}_base.weight", mix, half_width=0.5)
        f.uniform(f"blk.{il}.hc_{part}_scale.weight", 3, half_width=0.1, centre=1.0)


def _shared_expert(f: ModelFile, il: int) -> None:
    f.weight(f"blk.{il}.ffn_gate_shexp.weight", N_EMBD, N_FF_EXPERT)
    f.weight(f"blk.{il}.ffn_up_shexp.weight", N_EMBD, N_FF_EXPERT)
    f.weight(f"blk.{il}.ffn_down_shexp.weight", N_FF_EXPERT, N_EMBD)


def hybrid_block_indexer(f: ModelFile) -> None:
    """qwen4exp: delta-net layers, attention over the best blocks of 4 tokens, n-gram embeddings.

    The indexer may pick every token. Were there fewer picks than tokens, llama.cpp would fill the
    last picks with part of a block, in cell order, and outputs would depend on neighbours.
    """
    _qwen4exp(f, top_k=N_CTX_TRAIN)


def hybrid_sparse_block_indexer(f: ModelFile) -> None:
    """qwen4exp as it is meant: 32 tokens are picked. Only for a sequence that is alone."""
    _qwen4exp(f, top_k=32)


def _qwen4exp(f: ModelFile, top_k: int) -> None:
    n_layer, d_state, n_group, n_v_head = 4, 32, 2, 4
    key_dim, value_dim = d_state * n_group, d_state * n_v_head
    is_recurrent = [int(il % 2 == 0) for il in range(n_layer)]
    ngram, heads_per_ngram = 3, 2
    n_ple_head = (ngram - 1) * heads_per_ngram
    ple_dim = N_EMBD // n_ple_head
    transformer_keys(f, n_layer=n_layer)
    _expert_keys(f)
    f.keys(
        rope__dimension_sections=[4, 4, 4, 4],
        ssm__conv_kernel=4,
        ssm__inner_size=value_dim,
        ssm__state_size=d_state,
        ssm__time_step_rank=n_v_head,
        ssm__group_count=n_group,
        hyper_connection__count=HC,
        hyper_connection__low_rank=HC_RANK,
        attention__indexer__head_count=INDEXER_HEADS,
        attention__indexer__key_length=INDEXER_HEAD,
        attention__indexer__top_k=top_k,
        attention__compress_ratios=[4] * n_layer,
        attention__recurrent_layers=is_recurrent,
        ple__layers=[0],
        ple__ngram_size=ngram,
        ple__heads_per_ngram=heads_per_ngram,
        ple__conv_kernel=4,
        ple__eos_token_id=0,
        embedding_length_per_layer_input=ple_dim,
    )
    f.uint64_array("ple.layer_multipliers", [1, 3, 5])
    f.uint64_array("ple.head_offsets", [h * N_VOCAB for h in range(n_ple_head)])
    f.uint64_array("ple.head_vocab_sizes", [N_VOCAB] * n_ple_head)
    f.embeddings(N_EMBD, norm_name=None, logit_std=6.0)
    f.norm("output_hc_norm.weight", N_EMBD, HC)
    f.weight("output_hc_down.weight", HC * N_EMBD, HC_RANK)
    f.weight("output_hc_up.weight", HC_RANK, HC * N_EMBD)
    f.weight("per_layer_token_embd.weight", ple_dim, n_ple_head * N_VOCAB, gain=ple_dim**0.5)
    for il in range(n_layer):
        for part in ("attn", "ffn"):
            f.norm(f"blk.{il}.hc_{part}_norm.weight", N_EMBD, HC)
            f.weight(f"blk.{il}.hc_{part}_down.weight", HC * N_EMBD, HC_RANK)
            f.weight(f"blk.{il}.hc_{part}_up.weight", HC_RANK, HC * N_EMBD)
            f.weight(f"blk.{il}.hc_{part}_inject.weight", HC * N_EMBD, HC)
        if is_recurrent[il]:
            conv_dim = 2 * key_dim + value_dim
            f.weight(f"blk.{il}.attn_qkv.weight", N_EMBD, conv_dim)
            f.weight(f"blk.{il}.attn_gate.weight", N_EMBD, value_dim)
            f.weight(f"blk.{il}.ssm_conv1d.weight", 4, conv_dim)
            f.uniform(f"blk.{il}.ssm_dt.bias", n_v_head, half_width=1.0, centre=-2.0)
            f.uniform(f"blk.{il}.ssm_a", n_v_head, half_width=0.4, centre=-0.5)
            f.weight(f"blk.{il}.ssm_beta.weight", N_EMBD, n_v_head)
            f.weight(f"blk.{il}.ssm_alpha.weight", N_EMBD, n_v_head)
            f.norm(f"blk.{il}.ssm_norm.weight", d_state)
            f.weight(f"blk.{il}.ssm_out.weight", value_dim, N_EMBD, gain=2.0)
        else:
            f.weight(f"blk.{il}.attn_q.weight", N_EMBD, 2 * N_HEAD * HEAD, gain=1.6)
            f.weight(f"blk.{il}.attn_k.weight", N_EMBD, N_HEAD_KV * HEAD, gain=1.6)
            f.weight(f"blk.{il}.attn_v.weight", N_EMBD, N_HEAD_KV * HEAD)
            f.weight(f"blk.{il}.attn_output.weight", N_HEAD * HEAD, N_EMBD, gain=2.0)
            f.norm(f"blk.{il}.attn_q_norm.weight", HEAD)
            f.norm(f"blk.{il}.attn_k_norm.weight", HEAD)
            _block_indexer(f, il, n_head=INDEXER_HEADS)
        if il == 0:
            f.weight(f"blk.{il}.ple_key.weight", N_EMBD, HC * N_EMBD)
            f.weight(f"blk.{il}.ple_value.weight", N_EMBD, N_EMBD)
            for part in ("key", "query", "conv"):
                f.norm(f"blk.{il}.ple_norm_{part}.weight", N_EMBD, HC)
            f.weight(f"blk.{il}.ple_conv1d.weight", 4, HC * N_EMBD)
        experts(f, il)
        f.weight(f"blk.{il}.ffn_gate_inp_shexp.weight", N_EMBD)
        _shared_expert(f, il)


def hybrid_pool_indexer(f: ModelFile) -> None:
    """glm5-next: gated linear layers, and latent attention over the best pools of 4 tokens."""
    n_layer, n_head, head, kpool = 4, 2, 32, 4
    is_recurrent = [il % 2 == 0 for il in range(n_layer)]
    d_inner = n_head * head
    latent.mla_keys(f, n_layer, rope=0, n_head=n_head, n_head_kv=[int(not r) for r in is_recurrent])
    latent.indexer_keys(f)
    f.keys(
        attention__layer_norm_epsilon=1e-5,
        attention__indexer__kpool=kpool,
        attention__indexer__kpool_select_tail=True,
        ssm__conv_kernel=4,
        kda__head_dim=head,
        kda__gate_lower_bound=-5.0,
        hyper_connection__count=HC,
        hyper_connection__sinkhorn_iterations=2,
        hyper_connection__epsilon=1e-6,
    )
    f.embeddings(N_EMBD)
    for il in range(n_layer):
        _hyper_connections(f, il)
        if is_recurrent[il]:
            f.norm(f"blk.{il}.attn_norm.weight", N_EMBD)
            for part in ("q", "k", "v"):
                f.weight(f"blk.{il}.attn_{part}.weight", N_EMBD, d_inner)
                f.weight(f"blk.{il}.ssm_conv1d_{part}.weight", 4, 1, d_inner)
            f.weight(f"blk.{il}.ssm_f_a.weight", N_EMBD, head)
            f.weight(f"blk.{il}.ssm_f_b.weight", head, d_inner)
            f.weight(f"blk.{il}.ssm_beta.weight", N_EMBD, n_head)
            f.uniform(f"blk.{il}.ssm_a", n_head, half_width=0.4, centre=-0.5)
            f.uniform(f"blk.{il}.ssm_dt.bias", d_inner, half_width=1.0, centre=-2.0)
            f.weight(f"blk.{il}.ssm_g_a.weight", N_EMBD, head)
            f.weight(f"blk.{il}.ssm_g_b.weight", head, d_inner)
            f.norm(f"blk.{il}.ssm_norm.weight", head)
            f.weight(f"blk.{il}.attn_output.weight", d_inner, N_EMBD, gain=2.0)
        else:
            latent.mla_attention(f, il, rope=0)
            latent.indexer(f, il)
            f.weight(f"blk.{il}.indexer_compressor_gate.weight", N_EMBD, INDEXER_HEAD)
            f.uniform(
                f"blk.{il}.indexer_compressor_ape.weight", INDEXER_HEAD, kpool, half_width=0.5
            )
        shared_experts_ffn(f, il)
