"""Fits a trace to a server, and makes its prompts of the trace's hash ids."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from dataclasses import dataclass

from strata_plugin.scheduling.trace import BLOCK_TOKENS, TraceRequest


@dataclass(frozen=True)
class Scale:
    """How a trace is fitted to a server: faster, shorter prompts, fewer requests."""

    speed: float = 1.0  # arrivals and cancels come this many times faster
    block: int = BLOCK_TOKENS  # tokens that one hash id stands for
    max_output: int | None = None

    def n_prompt(self, request: TraceRequest) -> int:
        """Tokens of the prompt that is sent."""
        return max(1, request.n_prompt * self.block // BLOCK_TOKENS)

    def n_output(self, request: TraceRequest) -> int:
        """Tokens that are asked for."""
        return min(request.n_output, self.max_output or request.n_output)


def block_for(trace: Sequence[TraceRequest], max_prompt: int | None) -> int:
    """Tokens a hash id may stand for so that no prompt gets longer than `max_prompt`."""
    longest = max(request.n_prompt for request in trace)
    if max_prompt is None or longest <= max_prompt:
        return BLOCK_TOKENS
    return max(1, BLOCK_TOKENS * max_prompt // longest)


def prompt(request: TraceRequest, scale: Scale, vocabulary: tuple[int, ...]) -> list[int]:
    """The request's prompt as token ids, the same for the same hash ids."""
    tokens: list[int] = []
    for one in request.hash_ids:
        tokens += _block(one, scale.block, vocabulary)
    return tokens[: scale.n_prompt(request)]


@functools.lru_cache(maxsize=4096)
def _block(hash_id: int, length: int, vocabulary: tuple[int, ...]) -> list[int]:
    return random.Random(f"block {hash_id}").choices(vocabulary, k=length)
