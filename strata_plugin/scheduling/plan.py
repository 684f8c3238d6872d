"""A step as a value: the scheduler returns it, the engine runs it, a simulator replays it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class BatchClass(NamedTuple):
    """What llama.cpp cannot mix in one batch. Equal classes may share a step."""

    kind: str = "plain"  # plain | embedding
    lora: tuple[tuple[int, float], ...] = ()  # (adapter id, scale), sorted by id


@dataclass(frozen=True)
class ReadPiece:
    """Compute the known tokens [start, start + count). Nothing is sampled, by type."""

    request_id: int
    start: int
    count: int


@dataclass(frozen=True)
class RowPiece:
    """As `ReadPiece`, but it ends with the last known token, whose logits are sampled.

    A decoding request's row has count 1; a prompt's last chunk may be longer.
    """

    request_id: int
    start: int
    count: int


Piece = ReadPiece | RowPiece


@dataclass(frozen=True)
class StepPlan:
    """One step: decoding rows first, then prompt pieces in the scheduler's order; never empty.

    `credit_ms` is what it saves for prompts that have to wait (positive), or spends of that.
    """

    batch_class: BatchClass
    pieces: tuple[Piece, ...]
    credit_ms: float = 0.0

    @property
    def n_tokens(self) -> int:
        """Tokens computed by this step."""
        return sum(p.count for p in self.pieces)
