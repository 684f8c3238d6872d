"""What the step loop needs of a llama context and of a sampler: the seam where tests put fakes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int32]


class BatchPort(Protocol):
    """Token rows for one step."""

    def clear(self) -> None:
        """Forget all rows."""

    def add(self, seq_id: int, tokens: Tokens, start: int, *, output: bool) -> int:
        """Append tokens at positions start, start+1, ...; index of the last row."""


class ContextPort(Protocol):
    """One llama context; see `runtime.context.Context`."""

    n_ctx: int

    def new_batch(self) -> BatchPort:
        """An empty batch of n_batch tokens."""

    def decode(self, batch: Any) -> int:
        """llama_decode's result for a batch of `new_batch`: 0 done, 1 no room, 2 aborted, < 0
        error.
        """

    def use_lora(self, mixture: tuple[tuple[int, float], ...]) -> None:
        """Compute with these LoRA adapters (number, scale) from now on."""

    def synchronize(self) -> None:
        """Wait until what was started is computed, so that its time can be measured."""

    def remove(self, seq_id: int, start: int = 0) -> bool:
        """Drop a sequence's tokens from position `start` on; False where it can't be cut."""

    def copy(self, source: int, target: int, n: int | None = None) -> None:
        """Share the first `n` tokens (None: all) of `source` with `target`, which is empty."""

    def own_window(self, seq_id: int) -> None:
        """Give a copied sequence window cells of its own; shared ones would never be freed."""

    def position_range(self, seq_id: int) -> tuple[int, int]:
        """Smallest and largest position held; (-1, -1) when empty."""

    def state_size(self, seq_id: int, flags: int = 0) -> int:
        """Bytes of a whole-sequence state; with flags, of a part."""

    def save_state(self, seq_id: int, flags: int = 0) -> bytearray:
        """Whole-sequence state; raises `StateError` or MemoryError."""

    def load_state(self, seq_id: int, data: bytearray, flags: int = 0) -> bool:
        """Put a saved state into an empty sequence; False when there is no room."""

    def range_size(self, seq_id: int, start: int, stop: int) -> int:
        """Bytes of what is kept for each of the positions [start, stop)."""

    def save_range(self, seq_id: int, start: int, stop: int) -> bytearray:
        """What is kept for each of the positions; raises `StateError` or MemoryError."""

    def append_ranges(self, seq_id: int, ranges: Sequence[bytearray]) -> bool:
        """Append saved ranges to a sequence; False, and nothing is changed, without room."""

    def sample(self, samplers: Sequence[Any], rows: Sequence[int]) -> list[int]:
        """Sample and accept one token per row with its own sampler; -1 where one failed."""


class SamplerPort(Protocol):
    """One sequence's sampler; see `runtime.native.Sampler`."""

    @property
    def error(self) -> str:
        """Why the last sampling failed, "" when it did not."""

    def piece(self, token: int) -> bytes:
        """Bytes of a token as the request wants to see them."""

    def probs(self, context: ContextPort, row: int, token: int) -> bytes:
        """JSON of the probabilities of the row just sampled."""

    def save(self) -> bytes:
        """State that accepting the same tokens does not rebuild."""
