"""How many prompt tokens a step takes, so that it ends in time for those who wait for it.

While somebody decodes, a step should end within the inter-token target; while nobody does, within
the prefill quantum, so that newcomers and cancels act quickly. What fits is asked of the cost model
for each step, so the chunk size follows depth, rows and the machine by itself.

Where not even a small chunk fits (rows that miss the target alone, experts that are streamed for
each pass), prompts wait for credit: every step of rows alone saves some time against the target,
and when enough is saved a larger step is due. The average gap then still meets the target; where
the rows alone miss it, prompts get their minimal share of the time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp
from typing import NamedTuple

from .config import SchedulingConfig
from .cost import CostModel, StepShape

FIRST_CHUNK = 16  # prompt tokens beside rows before anything was measured
GROWTH = 2  # how far beyond what was measured a chunk beside rows may go
SHORT_READ_COST = 1.25  # a short read may make the rows' steps this much longer
REST_STEPS = 2  # of rows alone before each step of a short read that lengthens them by more
SPILL = 2.0  # a chunk that needs credit takes up to this many targets
SHORTEST = 4  # tokens below which a chunk bought with credit is not worth its pass
AS_QUICK = 0.98  # a larger chunk is taken where it reads nearly as quickly as any
MOST_CREDIT = 200.0  # targets or quanta; a chunk that costs still more is due by then

ShapeOf = Callable[[int], StepShape]


class Grant(NamedTuple):
    """Prompt tokens for one step. `with_rows`: False means that this step leaves the rows out.

    `feasible` says whether the target can be met. The step adds `credit_ms` to the credit or, if
    that is below 0, spends it.
    """

    tokens: int
    with_rows: bool = True
    feasible: bool = True
    credit_ms: float = 0.0


@dataclass
class Pace:
    """The sizes of one engine's steps. Only `settle` changes anything."""

    config: SchedulingConfig
    cost: CostModel
    n_batch: int
    n_ubatch: int
    credit_ms: float = 0.0

    def __post_init__(self) -> None:
        self.n_ubatch = min(self.n_ubatch, self.n_batch)
        sizes = [1, 2, 3, 4, 6, 8, 12]
        while sizes[-1] < self.n_ubatch:
            sizes.append(sizes[-2] * 2)
        self._sizes = [n for n in sizes if n < self.n_ubatch]
        self._sizes += range(self.n_ubatch, self.n_batch + 1, self.n_ubatch)

    # ---- nobody decodes --------------------------------------------------------------------------

    def alone(self, shape_of: ShapeOf) -> int:
        """Tokens of a step without rows: whole micro-batches, where more than half of one fits.

        Part of one reads slower (5 to 10 %, measured on 2 CPU cores, 320 against 512 tokens). Where
        a pass costs much whatever it computes, a step may take twice the time of a minimal one.
        """
        if self.config.prefill_budget:
            return min(self.config.prefill_budget, self.n_batch)
        whole = self.cost.predict(shape_of(self.n_ubatch))
        quantum = self.config.prefill_quantum_ms
        if whole <= 2.0 * quantum or not self.cost.knows(1):
            passes = int(quantum / whole) if whole > 0 else 1
            return max(1, min(passes, self.n_batch // self.n_ubatch)) * self.n_ubatch
        limit = max(quantum, 2.0 * self.cost.predict(shape_of(1)))
        return self._best(shape_of, limit, self.n_ubatch) or 1

    # ---- beside rows -----------------------------------------------------------------------------

    def beside(self, shape_of: ShapeOf, target_ms: float, wanted: int, short: bool) -> Grant:
        """Prompt tokens of a step beside rows.

        `shape_of(n)` is the step with n prompt tokens, `wanted` how many could be read, `short`
        whether all that reads is short. At most `wanted` tokens are granted, maybe none. A short
        read of which not one token fits into the rows' steps gets a step of its own now and then,
        so that at least most gaps are as without it.
        """
        if self.config.prefill_budget:
            return Grant(min(self.config.prefill_budget, wanted))
        rows = shape_of(0)
        rows_ms = self.cost.predict(rows)
        if rows_ms <= 0.0:  # nothing is known
            return Grant(min(FIRST_CHUNK, wanted))
        if short and (grant := self.unnoticed(shape_of, target_ms, wanted)).tokens:
            return grant
        limit = target_ms * exp(-0.5 * self.cost.spread(rows))
        tokens = self._best(shape_of, limit, self._ventured(rows, wanted))
        if tokens and short:
            rest = REST_STEPS * rows_ms
            rested = self.credit_ms >= 0.99 * rest
            return Grant(tokens, credit_ms=-rest) if rested else Grant(0, credit_ms=rows_ms)
        if tokens:
            took = self.cost.predict(shape_of(tokens))
            if tokens == wanted or took - rows_ms >= self.config.prefill_min_share * took:
                return Grant(tokens)
        return self._on_credit(shape_of, target_ms, rows_ms, wanted)

    def unnoticed(self, shape_of: ShapeOf, target_ms: float, wanted: int) -> Grant:
        """As many prompt tokens as the rows' steps take with hardly any delay, maybe none."""
        if self.config.prefill_budget:
            return Grant(min(self.config.prefill_budget, wanted))
        rows = shape_of(0)
        limit = min(
            target_ms * exp(-0.5 * self.cost.spread(rows)),
            SHORT_READ_COST * self.cost.predict(rows),
        )
        most = self._ventured(rows, wanted)
        return Grant(self._best(shape_of, limit, most, largest=True))

    def _on_credit(
        self, shape_of: ShapeOf, target_ms: float, rows_ms: float, wanted: int
    ) -> Grant:
        limit = max(SPILL * max(target_ms, rows_ms), rows_ms + self.credit_ms * 0.5)
        tokens = self._best(shape_of, limit, self._ventured(shape_of(0), wanted))
        if tokens < min(SHORTEST, wanted):
            tokens = min(wanted, self.alone(shape_of))  # a pass is dear: then it should be full
        took = self.cost.predict(shape_of(tokens))
        apart = self.cost.predict(shape_of(tokens)._replace(rows=0))
        # a memory that splits mixed batches computes an extra pass for them
        with_rows = took <= apart + 0.9 * rows_ms
        # what a step of rows alone saves: how much longer each might be, were all of them alike
        share = self.config.prefill_min_share
        earned = max(rows_ms * share / (1.0 - share), target_ms - rows_ms)
        cost = took - rows_ms - earned if with_rows else apart
        feasible = rows_ms < target_ms
        if cost > self.credit_ms and self.credit_ms < self._most_credit:
            return Grant(0, feasible=feasible, credit_ms=earned)
        return Grant(tokens, with_rows, feasible, -max(cost, 0.0))

    def settle(self, credit_ms: float) -> None:
        """Book a step: what it saved for prompts that had to wait or, below 0, spent of that."""
        self.credit_ms = min(max(self.credit_ms + credit_ms, 0.0), self._most_credit)

    # ---- inside ----------------------------------------------------------------------------------

    @property
    def _most_credit(self) -> float:
        return MOST_CREDIT * max(self.config.itl_slo_ms, self.config.prefill_quantum_ms)

    def _ventured(self, rows: StepShape, wanted: int) -> int:
        """`wanted`, but not much more than what was measured already."""
        tokens = FIRST_CHUNK
        while tokens < wanted and self.cost.knows(rows.rows + tokens):
            tokens *= GROWTH
        return min(tokens, wanted)

    def _best(self, shape_of: ShapeOf, limit_ms: float, most: int, largest: bool = False) -> int:
        """The size up to `most` that reads quickest (or the largest) within `limit_ms`; 0: none."""
        fitting: list[tuple[int, float]] = []
        predict = self.cost.predict
        for size in (*self._sizes, most):
            if size > most:
                continue
            took = predict(shape_of(size))
            if took <= limit_ms:
                fitting.append((size, size / took))
            elif size > 16 and took > 3.0 * limit_ms:
                break  # far beyond: what follows is not cheaper
        enough = 0.0 if largest else AS_QUICK * max((rate for _, rate in fitting), default=0.0)
        return max((size for size, rate in fitting if rate >= enough), default=0)
