"""How many tokens one step may take, so that it ends within a time quantum.

A step can't be interrupted, so its length is what a newcomer, a cancel and every running stream
wait for. The speed is learnt from the steps themselves; it drifts with depth, and single steps can
be far off (a page fault, another program).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

MIN_PROMPT_SHARE = 16  # prompt tokens a step takes even where the rows alone use up the budget
ALIGNMENT = 8  # kernels work on tiles of at least this many tokens

_LEARNING_RATE = 0.3  # weight of one full step in the moving average
_CLIP = 4.0  # a step that is more than this much slower or faster than expected counts as this much


@dataclass(slots=True)
class StepBudget:
    """One step's tokens, rows and prompt pieces together, handed out piece by piece."""

    left: int

    def take(self, wanted: int) -> int:
        """Grant up to `wanted` tokens; 0 when nothing is left."""
        granted = max(0, min(wanted, self.left))
        self.left -= granted
        return granted


class BudgetPolicy(Protocol):
    """What decides about the size of steps."""

    def step_budget(self, n_rows: int) -> StepBudget:
        """Budget of a step that holds prompt tokens beside `n_rows` decoding rows."""

    def observe(self, n_prompt_tokens: int, n_rows: int, elapsed_ms: float) -> None:
        """Learn from a step that was carried out."""


class QuantumBudget:
    """As many tokens as the measured speed allows within a fixed quantum.

    `n_batch`: most tokens of a step; `n_ubatch`: tokens of a micro-batch (one pass over the
    weights); `quantum_ms`: milliseconds a step should take at most. Until something is measured a
    step takes one micro-batch.
    """

    def __init__(self, n_batch: int, n_ubatch: int, quantum_ms: float) -> None:
        if n_batch < 1 or n_ubatch < 1:
            raise ValueError(f"n_batch and n_ubatch must be positive, got {n_batch} and {n_ubatch}")
        if not quantum_ms > 0:
            raise ValueError(f"quantum_ms must be positive, got {quantum_ms}")
        self._n_batch = n_batch
        self._n_ubatch = min(n_ubatch, n_batch)
        self._quantum_ms = quantum_ms
        self._tokens_per_ms = self._n_ubatch / quantum_ms
        self._weight = 0.0  # of all observations so far, in full steps

    @property
    def tokens_per_s(self) -> float | None:
        """Measured speed of steps that hold prompt tokens, None before the first one."""
        return self._tokens_per_ms * 1000.0 if self._weight else None

    def step_tokens(self, n_rows: int) -> int:
        """Tokens of a step, rows included: at least a minimal prompt share, at most `n_batch`."""
        # the product may be an ulp below the whole number it stands for
        fitting = int(min(self._tokens_per_ms * self._quantum_ms * (1 + 1e-9), self._n_batch))
        # tokens that do not fill a micro-batch cost nearly as much as one that is full
        unit = self._n_ubatch if fitting >= self._n_ubatch else ALIGNMENT
        return min(max(fitting // unit * unit, n_rows + MIN_PROMPT_SHARE), self._n_batch)

    def step_budget(self, n_rows: int) -> StepBudget:
        """Budget of a step that holds prompt tokens beside `n_rows` decoding rows."""
        return StepBudget(self.step_tokens(n_rows))

    def observe(self, n_prompt_tokens: int, n_rows: int, elapsed_ms: float) -> None:
        """Learn from a step; one without prompt tokens says nothing about reading."""
        if n_prompt_tokens <= 0 or not elapsed_ms > 0:
            return
        n_tokens = n_prompt_tokens + n_rows
        # a short rest of a prompt is dominated by fixed costs, so it counts less than a full step
        weight = min(1.0, n_tokens / self.step_tokens(n_rows))
        ratio = n_tokens / elapsed_ms / self._tokens_per_ms
        if self._weight >= 1.0:
            ratio = min(max(ratio, 1.0 / _CLIP), _CLIP)
        self._weight += weight
        # a plain mean of the first few, then an exponential one; of logarithms, as speeds
        # differ by factors
        self._tokens_per_ms *= ratio ** (weight * max(_LEARNING_RATE, min(1.0, 1.0 / self._weight)))
