"""Flags of servers that embed or rank instead of generating."""

from __future__ import annotations

from .flag import Flag, choice, flag, integer, switch

EMBEDDING: tuple[Flag, ...] = (
    switch(
        "--embedding --embeddings",
        "serve embeddings, and nothing that generates",
        env="LLAMA_ARG_EMBEDDINGS",
    ),
    switch(
        "--rerank --reranking",
        "serve ranks, and nothing that generates: --embeddings --pooling rank",
        env="LLAMA_ARG_RERANKING",
    ),
    flag(
        "--pooling",
        "how the vectors of an input's tokens become one",
        choice("none", "mean", "cls", "last", "rank"),
        metavar="{none,mean,cls,last,rank}",
        env="LLAMA_ARG_POOLING",
        default="",
        shown="the model's",
    ),
    flag(
        "--embd-normalize",
        "how vectors are normalised where a request does not say it: -1 not at all, 0 to the "
        "largest absolute 16-bit integer, 1 taxicab, 2 Euclidean, p above 2 by that norm",
        integer(-1, 1 << 20),
        metavar="N",
        default=2,
    ),
)
