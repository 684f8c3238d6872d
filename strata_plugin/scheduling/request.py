"""A request as the scheduler sees it: two counters, where it sits, and what it waits for."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from enum import Enum

from .plan import BatchClass


class Stage(Enum):
    """Where a request is in its life; derived from the counters, never stored beside them."""

    QUEUED = "queued"  # has no row yet
    READING = "reading"  # has a row; known tokens are still to be computed
    WRITING = "writing"  # has a row; at most the token sampled last is still to be computed
    PARKED = "parked"  # keeps its row's slot, but its state is out of the KV cache
    FINISHED = "finished"  # forgotten by the scheduler


@dataclass(slots=True, eq=False)
class ScheduledRequest:
    """One request. Only the scheduler changes it; everybody else reads.

    Token counts: `n_prompt` is the prompt's length, `known` counts prompt and sampled tokens,
    `computed` counts those whose keys and values are in the cache. 0 <= computed <= known and
    n_prompt <= known always hold.
    """

    request_id: int
    batch_class: BatchClass
    arrival: float  # seconds on the caller's clock
    sequence: int  # order of submission, decides between equal arrivals
    n_prompt: int
    known: int
    stop_positions: tuple[int, ...] = ()  # ascending; no step crosses one
    id_slot: int = -1  # the slot it insists on, -1: any
    fork_of: int | None = None  # waits for this request's prompt
    computed: int = 0
    slot: int | None = None
    parked: bool = False
    finished: bool = False
    turn: int = 0  # step number at which its batch class last had its turn
    served: int = 0  # step number at which it was last part of a step itself

    @property
    def order(self) -> tuple[float, int]:
        """First come, first served: smaller goes first."""
        return self.arrival, self.sequence

    @property
    def stage(self) -> Stage:
        """The stage that the counters and the slot amount to."""
        if self.finished:
            return Stage.FINISHED
        if self.slot is None:
            return Stage.QUEUED
        if self.parked:
            return Stage.PARKED
        return Stage.WRITING if self.writing else Stage.READING

    @property
    def writing(self) -> bool:
        """The whole prompt is computed and no more than one token is pending."""
        return self.computed >= self.n_prompt and self.known - self.computed <= 1

    @property
    def pending(self) -> int:
        """Known tokens that are still to be computed."""
        return self.known - self.computed

    @property
    def reach(self) -> int:
        """Most tokens one step may compute: to the last known one or to the next stop position."""
        stops = self.stop_positions
        i = bisect_right(stops, self.computed)
        end = min(stops[i], self.known) if i < len(stops) else self.known
        return end - self.computed
