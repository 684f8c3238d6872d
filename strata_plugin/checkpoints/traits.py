"""What a kind of memory lets one do with the prefix of a sequence, free of llama.cpp's names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

# (sequence id, n): are the first n tokens of that sequence, alone, still a valid state?
Usable = Callable[[int, int], bool]


@dataclass(frozen=True)
class PrefixTraits:
    """What may be reused of a sequence that lies in the KV cache.

    A sliding window may cut or copy at some positions only: which ones, `Usable` says at look-up.
    """

    can_cut: bool  # drop the tail of a sequence
    can_copy_prefix: bool  # give another sequence its first n tokens
    can_copy_whole: bool  # give another sequence all of its tokens
    every_prefix: bool = False  # a longer sequence serves wherever one of its prefixes would


PLAIN = PrefixTraits(can_cut=True, can_copy_prefix=True, can_copy_whole=True, every_prefix=True)
# recurrent and hybrid memory, and whatever is not known
WHOLE_ONLY = PrefixTraits(can_cut=False, can_copy_prefix=False, can_copy_whole=True)
