"""Where a state that exists only at the end of a sequence is stored while the sequence grows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .tokens import Tokens

ROOT_TOKENS = 8192  # how far the dense beginning goes: system prompts, tools


@dataclass(frozen=True)
class Borders:
    """Every `every` tokens, and every `root` tokens at the beginning; whole blocks both."""

    every: int
    root: int
    block_tokens: int

    def __post_init__(self) -> None:
        if min(self.every, self.root, self.block_tokens) < 1:
            raise ValueError(f"intervals must be positive: {self}")

    def is_border(self, n: int) -> bool:
        """Whether a state of `n` tokens is to be stored."""
        root = n <= ROOT_TOKENS and n % self._whole(self.root) == 0
        return n > 0 and (root or n % self._whole(self.every) == 0)

    def _whole(self, n: int) -> int:
        return -(-n // self.block_tokens) * self.block_tokens

    def of_prompt(self, prompt: Tokens, message_ends: frozenset[int]) -> tuple[int, ...]:
        """Positions at which the reading of a prompt has to stop, ascending; all before its end.

        Beside the borders that is where its last message ends, after the last of the tokens
        `message_ends`: what follows, the header of the answer, is often another one in the next
        turn. Where that is further back than a block, or never, it is the last border of a block,
        too.
        """
        last = len(prompt) - 1  # at least one token has to be computed for a first answer
        every, root = self._whole(self.every), self._whole(self.root)
        found = {*range(0, last + 1, every), *range(0, min(last, ROOT_TOKENS) + 1, root)}
        ends = np.flatnonzero(np.isin(prompt[:last], list(message_ends)))
        message_end = int(ends[-1]) + 1 if len(ends) else 0
        found.add(message_end)
        if last - message_end > self.block_tokens:
            found.add(last - last % self.block_tokens)
        found.discard(0)
        return tuple(sorted(found))
