"""A request as the scheduler sees it: two counters, where it sits, and what it waits for."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from enum import Enum

from .plan import BatchClass


class Stage(Enum):
    """Where a request is in its life; derived from the counters, never stored beside them."""

    QUEUED = "queued"  # nothing is computed for it yet
    READING = "reading"  # known tokens are still to be computed; it may not have a row yet
    WRITING = "writing"  # has a row; at most the token sampled last is still to be computed
    PARKED = "parked"  # keeps its row, if it has one, but its state is out of the KV cache
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
    tenant: str = ""  # computing time is shared fairly between tenants
    priority: int = 0  # higher goes first
    itl_slo_ms: float = 0.0  # longest wait between two of its tokens; 0: the scheduler's target
    n_predict: int = -1  # most tokens it will generate; -1: unknown
    expected: int = 0  # tokens that are expected to be found in a cache, while it is queued
    held: bool = False  # has a sequence: it can be read, and written once it has a row
    short: bool = False  # little was left to read when it began
    passed_over: int = 0  # turns that shorter ones had while it was its tenant's oldest
    compute_ms: float = 0.0  # its share of the steps that read its prompt

    @property
    def unread(self) -> int:
        """Prompt tokens that are still to be computed; 0 for one that writes."""
        return max(0, self.n_prompt - (self.computed if self.held else self.expected))

    @property
    def group(self) -> tuple[int, str]:
        """Those among whom length and age decide: of one tenant, equally urgent."""
        return self.priority, self.tenant

    @property
    def order(self) -> tuple[float, int]:
        """First come, first served: smaller goes first."""
        return self.arrival, self.sequence

    @property
    def stage(self) -> Stage:
        """The stage that the counters and the slot amount to."""
        if self.finished:
            return Stage.FINISHED
        if not self.held:
            return Stage.QUEUED
        if self.parked:
            return Stage.PARKED
        return Stage.WRITING if self.writing else Stage.READING

    @property
    def writing(self) -> bool:
        """The whole prompt is computed and no more than one token is pending."""
        return self.computed >= self.n_prompt and self.known - self.computed <= 1

    @property
    def read(self) -> bool:
        """All is computed but for the last token, which has to wait for a row."""
        return self.slot is None and self.held and self.pending == 1

    @property
    def pending(self) -> int:
        """Known tokens that are still to be computed."""
        return self.known - self.computed

    @property
    def reach(self) -> int:
        """Most tokens one step may compute: to the last known one or to the next stop position.

        Without a row the last one is left: what is computed last has to be sampled.
        """
        end = self.known if self.slot is not None else self.known - 1
        stops = self.stop_positions
        i = bisect_right(stops, self.computed)
        return (min(stops[i], end) if i < len(stops) else end) - self.computed
