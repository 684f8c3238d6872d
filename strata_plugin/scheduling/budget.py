"""How many tokens one step may take, so that it ends within a time quantum.

A step can't be interrupted, so its length is what a newcomer, a cancel and every running stream
wait for. How long a step takes is learnt from the steps themselves, all the time: it drifts with
depth, and single steps can be far off (a page fault, another program).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Protocol

MIN_PROMPT_SHARE = 16  # prompt tokens a step takes even where the rows alone use up the budget
ALIGNMENT = 8  # kernels work on tiles of at least this many tokens
_GROWTH = 1.5  # most that steps of less than a micro-batch grow by at once
_SHORTEST_MS = 1e-3  # below that clocks say nothing


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


class StepTime:
    """Fits milliseconds = per_pass * passes + per_token * tokens to recent steps.

    Least squares of relative errors, so that short and long steps count alike; older steps count
    less and less. Where the steps were too much alike to tell the two costs apart, all is put down
    to the tokens. A step far off counts for little, but several in a row are a new truth.
    """

    _DECAY = 0.8  # weight of a step against the one after it
    _FAR_OFF = 3.0  # times slower or quicker than expected; a step farther off counts as this much
    _TRUSTED = 3  # steps after which the fit is good enough to call another one far off
    _NEW_TRUTH = (
        3  # steps in a row, far off on the same side, after which the old ones are forgotten
    )
    _RIDGE = 0.01  # strength of the preference for costs per token

    def __init__(self) -> None:
        self.per_pass = 0.0
        self.per_token = 0.0
        self._far_off = (
            0  # how many of the last steps were: positive if slower, negative if quicker
        )
        self._forget()

    def _forget(self) -> None:
        self.n_observed = 0
        self._pp = self._pn = self._nn = self._p = self._n = 0.0  # sums of products

    def predict(self, passes: float, tokens: float) -> float:
        """Milliseconds of a step."""
        return self.per_pass * passes + self.per_token * tokens

    def observe(self, passes: int, tokens: int, elapsed_ms: float) -> None:
        """Learn from one step; all three are positive."""
        if self.n_observed >= self._TRUSTED:
            elapsed_ms = self._believable(elapsed_ms, self.predict(passes, tokens))
        self.n_observed += 1
        p, n = passes / elapsed_ms, tokens / elapsed_ms
        self._pp = self._pp * self._DECAY + p * p
        self._pn = self._pn * self._DECAY + p * n
        self._nn = self._nn * self._DECAY + n * n
        self._p = self._p * self._DECAY + p
        self._n = self._n * self._DECAY + n
        determinant = self._pp * self._nn * (1 + self._RIDGE) - self._pn**2
        self.per_pass = max(0.0, (self._p * self._nn - self._n * self._pn) / determinant)
        self.per_token = (self._n - self.per_pass * self._pn) / self._nn
        if self.per_token <= 0:
            self.per_token = 0.0
            self.per_pass = self._p / self._pp

    def _believable(self, elapsed_ms: float, expected: float) -> float:
        clipped = min(max(elapsed_ms, expected / self._FAR_OFF), expected * self._FAR_OFF)
        side = (elapsed_ms > clipped) - (elapsed_ms < clipped)
        self._far_off = self._far_off + side if side * self._far_off > 0 else side
        if abs(self._far_off) < self._NEW_TRUTH:
            return clipped
        self._far_off = 0
        self._forget()
        return elapsed_ms


class QuantumBudget:
    """As many tokens as fit into a fixed time quantum, as far as that can be had.

    `n_batch`: most tokens of a step; `n_ubatch`: tokens of a micro-batch (one pass over the
    weights); `quantum_ms`: milliseconds that a step should take at most. Until something is
    measured a step takes one micro-batch.

    Where a pass costs much whatever it computes (experts that are streamed to the device), tiny
    steps would take hardly less time and read hardly anything. There a step may take up to twice
    the time of an empty pass, but no more than one pass.
    """

    def __init__(self, n_batch: int, n_ubatch: int, quantum_ms: float) -> None:
        if n_batch < 1 or n_ubatch < 1:
            raise ValueError(f"n_batch and n_ubatch must be positive, got {n_batch}, {n_ubatch}")
        if not quantum_ms > 0:
            raise ValueError(f"quantum_ms must be positive, got {quantum_ms}")
        self._n_batch = n_batch
        self._n_ubatch = min(n_ubatch, n_batch)
        self._quantum_ms = quantum_ms
        self._time = StepTime()
        self._size = self._n_ubatch

    @property
    def tokens_per_s(self) -> float | None:
        """Measured speed of full micro-batches, None before the first measurement."""
        if not self._time.n_observed:
            return None
        return self._n_ubatch / self._time.predict(1, self._n_ubatch) * 1000.0

    def step_tokens(self, n_rows: int) -> int:
        """Tokens of a step, rows included: at least a minimal prompt share, at most `n_batch`.

        Where more than half a micro-batch fits and no stream waits for the step, it takes a whole
        one: part of one reads 5 to 10 % slower (measured on 2 CPU cores, 320 against 512 tokens).
        """
        size = self._size
        if not n_rows and 2 * size >= self._n_ubatch:
            size = max(size, self._n_ubatch)
        return min(max(size, n_rows + MIN_PROMPT_SHARE), self._n_batch)

    def step_budget(self, n_rows: int) -> StepBudget:
        """Budget of a step that holds prompt tokens beside `n_rows` decoding rows."""
        return StepBudget(self.step_tokens(n_rows))

    def observe(self, n_prompt_tokens: int, n_rows: int, elapsed_ms: float) -> None:
        """Learn from a step; one without prompt tokens says nothing about reading."""
        if n_prompt_tokens <= 0 or not 0 < elapsed_ms < inf:
            return
        n_tokens = n_prompt_tokens + n_rows
        passes = -(-n_tokens // self._n_ubatch)
        self._time.observe(passes, n_tokens, max(elapsed_ms, _SHORTEST_MS))
        size = self._fitting()
        if size <= self._n_ubatch:
            # while the machine slows down, smaller steps look no quicker: don't leap at that
            size = min(size, max(int(self._size * _GROWTH), MIN_PROMPT_SHARE))
        self._size = size if size >= self._n_ubatch else size // ALIGNMENT * ALIGNMENT

    def _fitting(self) -> int:
        """Tokens that fit the quantum: whole micro-batches, or a part of one."""
        # tokens that do not fill a micro-batch cost nearly as much as one that is full
        full_passes = int(self._quantum_ms / self._time.predict(1, self._n_ubatch))
        if full_passes:
            return min(full_passes, self._n_batch // self._n_ubatch) * self._n_ubatch
        per_pass, per_token = self._time.per_pass, self._time.per_token
        time = max(self._quantum_ms, 2 * per_pass) - per_pass
        if time >= per_token * self._n_ubatch:
            return self._n_ubatch
        return int(time / per_token)
