"""Strata's own flags: what is kept of prompts that were read, and who may use it."""

from __future__ import annotations

from .flag import Flag, Status, flag, integer, switch

OURS = Status.OURS

CACHE: tuple[Flag, ...] = (
    flag(
        "--block-tokens",
        "tokens of a block, the unit in which states of prompts are stored and shared",
        integer(16, 1 << 16),
        metavar="N",
        env="STRATA_BLOCK_TOKENS",
        default=256,
        status=OURS,
    ),
    switch(
        "--cache-shared",
        "requests may use what was computed for another API key: quicker, but the time to the "
        "first token tells who else sent a prompt",
        env="STRATA_CACHE_SHARED",
        status=OURS,
    ),
)
