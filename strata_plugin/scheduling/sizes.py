"""How long a prompt is, in a word: metrics, replays and simulations report by it."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

SIZES: Mapping[str, float] = {  # most tokens of each, ascending
    "short": 1024,
    "medium": 8192,
    "long": 32768,
    "extreme": inf,
}


def size_of(n_prompt: int) -> str:
    """The word for a prompt of so many tokens."""
    return next(name for name, most in SIZES.items() if n_prompt <= most)
