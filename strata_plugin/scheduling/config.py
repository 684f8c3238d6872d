"""How the scheduler decides, as the flags say."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SchedulingConfig:
    """Values of the scheduling flags. Times are milliseconds, sizes are tokens."""

    policy: str = "strata"  # "upstream": llama-server's order and fixed chunks
    itl_slo_ms: float = 150.0  # longest step while somebody decodes
    prefill_quantum_ms: float = 500.0  # longest step while nobody decodes
    prefill_min_share: float = 0.10  # of the time, for prompts, where rows alone miss the target
    prefill_budget: int = 0  # prompt tokens a step; 0: as many as the targets allow
    short_read: int = 256  # prompts with no more left are read unnoticed by the rows; 0: off
    yield_chunks: int = 0  # large chunks in a row, without rows; 0: as the cost model says
    yield_steps: int = 0  # decode steps between those; 0: as the cost model says
    max_queue: int = 0  # requests that may wait; 0: any number
    cost_model_path: str = ""  # where the cost model is kept; "": nowhere

    def __post_init__(self) -> None:
        if self.policy not in ("strata", "upstream"):
            raise ValueError(f"unknown scheduler {self.policy!r}: expected strata or upstream")
        if not self.itl_slo_ms > 0 or not self.prefill_quantum_ms > 0:
            raise ValueError("the inter-token target and the prefill quantum must be positive")
        if not 0 < self.prefill_min_share < 1:
            raise ValueError("the prompts' share of the time must lie between 0 and 1")
        counts = (self.prefill_budget, self.short_read, self.yield_chunks, self.yield_steps)
        if min(*counts, self.max_queue) < 0:
            raise ValueError("token and step counts must not be negative")
