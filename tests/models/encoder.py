"""Models that embed or rank: attention to all tokens, nothing kept for the next ones."""

from __future__ import annotations

from .attention import N_EMBD, N_FF, N_HEAD, N_LAYER
from .writer import ModelFile

N_CTX_TRAIN = 512
CLS, RANK = 2, 4  # llama.cpp's pooling types


def encoder(f: ModelFile, pooling: int = CLS) -> None:
    """bert: positions are learnt, so no input is longer than `N_CTX_TRAIN`."""
    f.keys(
        context_length=N_CTX_TRAIN,
        embedding_length=N_EMBD,
        block_count=N_LAYER,
        feed_forward_length=N_FF,
        attention__head_count=N_HEAD,
        attention__layer_norm_epsilon=1e-5,
        attention__causal=False,
        pooling_type=pooling,
    )
    f.token_types(1)
    f.embeddings(N_EMBD, norm_name=None, with_output=False)
    f.weight("token_types.weight", N_EMBD, 1)
    f.uniform("position_embd.weight", N_EMBD, N_CTX_TRAIN, half_width=0.5)
    _norm(f, "token_embd_norm")
    for il in range(N_LAYER):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            f.weight(f"blk.{il}.{name}.weight", N_EMBD, N_EMBD, gain=1.3)
        _norm(f, f"blk.{il}.attn_output_norm")
        f.weight(f"blk.{il}.ffn_up.weight", N_EMBD, N_FF)
        f.weight(f"blk.{il}.ffn_down.weight", N_FF, N_EMBD)
        _norm(f, f"blk.{il}.layer_output_norm")


def ranker(f: ModelFile) -> None:
    """The same with a classification head: one score for a query and a document."""
    encoder(f, RANK)
    f.weight("cls.weight", N_EMBD, N_EMBD)
    f.uniform("cls.bias", N_EMBD, half_width=0.1)
    f.weight("cls.output.weight", N_EMBD, 1)
    f.uniform("cls.output.bias", 1, half_width=0.1)


def _norm(f: ModelFile, name: str) -> None:
    f.norm(f"{name}.weight", N_EMBD)
    f.uniform(f"{name}.bias", N_EMBD, half_width=0.1)
