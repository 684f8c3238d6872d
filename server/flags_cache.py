"""Strata's own flags: what is kept of prompts that were read, and who may use it."""

from __future__ import annotations

import os

from .flag import Flag, Status, flag, integer, switch

OURS = Status.OURS
BIG = 1 << 31


def folder(value: str) -> str:
    """A folder that is there or can be made."""
    path = os.path.abspath(os.path.expanduser(value))
    if not value or (os.path.exists(path) and not os.path.isdir(path)):
        raise ValueError(f"not a folder: '{value}'")
    return path


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
    flag(
        "--cache-disk",
        "MiB of disk for states of prompts, where they outlive the server; 0: none, -1: a tenth of "
        "what is free, 32 GiB at most",
        integer(-1, BIG),
        metavar="N",
        env="STRATA_CACHE_DISK",
        default=-1,
        status=OURS,
    ),
    flag(
        "--cache-dir",
        "folder for them; several servers may share one",
        folder,
        metavar="DIR",
        env="STRATA_CACHE_DIR",
        default="",
        shown="~/.cache/strata/prompts",
        status=OURS,
    ),
    switch(
        "--cache-shared",
        "requests may use what was computed for another API key: quicker, but the time to the "
        "first token tells who else sent a prompt",
        env="STRATA_CACHE_SHARED",
        status=OURS,
    ),
    switch(
        "--normalise",
        "make constant what clients change in each prompt without meaning anything by it (the "
        "stamp in Claude Code's x-anthropic-billing-header), so that its prefix is found again, "
        "and read answers that come back as they were sampled",
        off="--no-normalise",
        env="STRATA_NORMALISE",
        default=True,
        status=OURS,
    ),
)
