"""What requests can expect: their place in the queue and when their first token will come.

Forecasts are made when something has changed, and only as often as they take a small part of the
time; a prediction is told again when it has moved by more than a client would want to know.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from strata_plugin.observe.metrics import EngineMetrics
from strata_plugin.scheduling.forecast import Accuracy, first_tokens
from strata_plugin.scheduling.lengths import OutputLengths
from strata_plugin.scheduling.request import ScheduledRequest
from strata_plugin.scheduling.scheduler import Scheduler

from .generation import Generation
from .messages import Frozen, Moved, Queued, StopReason
from .queue_rows import QueueRow, asked_by
from .sequences import Sequences

SHARE = 0.02  # of the time that forecasts may take
PATIENCE_S = 1.0  # a forecast is made again after this, changed or not, while somebody waits
WORTH_TELLING = 0.2  # relative change of a prediction


class Outlook:
    """Forecasts for one engine; times are seconds on the engine's clock."""

    def __init__(
        self,
        scheduler: Scheduler,
        sequences: Sequences,
        generations: dict[int, Generation],
        metrics: EngineMetrics,
    ) -> None:
        self._scheduler = scheduler
        self._sequences = sequences
        self._generations = generations
        self._metrics = metrics
        self._lengths = OutputLengths()
        self._accuracy = Accuracy()
        self._due: dict[int, float] = {}  # time of each first token, as of the last forecast
        self._parked: set[int] = set()  # those whose clients know that they are
        self._changed = False
        self._made_at = float("-inf")
        self._not_before = float("-inf")

    def changed(self) -> None:
        """Requests came, began or ended."""
        self._changed = True

    def ended(self, g: Generation) -> None:
        """An answer is complete."""
        if g.text.stop is not StopReason.LIMIT or g.submit.n_predict < 0:
            self._lengths.observe(g.n_generated)

    def first_token(self, g: Generation, now: float) -> None:
        """A first token came: was it predicted well?"""
        if g.predicted_ms > 0:
            actual = (now - g.queued_at) * 1e3
            self._accuracy.observe(g.predicted_ms, actual)
            self._metrics.predicted(g.n_prompt, g.predicted_ms / 1e3, actual / 1e3)

    def news(self, now: float) -> list[Frozen]:
        """Events for clients whose outlook has changed."""
        events: list[Frozen] = []
        waiting = [g for g in self._generations.values() if not g.n_generated]
        if self._changed:
            events += self._parkings()
        if not waiting:
            self._changed = False
            return events
        fresh = any(g.told is None for g in waiting)
        stale = self._changed or now - self._made_at > PATIENCE_S
        if (stale and now >= self._not_before) or (fresh and len(self._generations) <= 8):
            self._forecast(now)
        if not (fresh or stale):
            return events
        self._changed = False
        places = self._places()
        for g in waiting:
            queued = self._queued(g, places.get(g.request_id, -1))
            if g.told is None or _worth_telling(g.told, queued):
                if g.told is None:
                    g.predicted_ms = queued.predicted_ttft_ms
                g.told = queued
                events.append(queued)
        return events

    def view(self, now: float, restoring: Sequence[Generation] = ()) -> dict[str, Any]:
        """What GET /queue shows; `restoring` are read from disk and not scheduled yet."""
        self._forecast(now)
        scheduler = self._scheduler
        places = self._places()
        n_rows, row_ms, feasible = scheduler.outlook()
        requests = []
        for request_id, g in self._generations.items():
            request = scheduler.request(request_id)
            queued = self._queued(g, places.get(request_id, -1))
            requests.append(_shown(g, request, queued, now))
        requests += [_shown(g, None, self._queued(g, -1), now) for g in restoring]
        return {
            "requests": requests,
            "queued": len(places),
            "rows": n_rows,
            "scheduler": scheduler.config.policy,
            "itl_slo_ms": scheduler.config.itl_slo_ms,
            "itl_feasible": feasible,
            "row_step_ms": round(row_ms, 3),
        }

    def next_place_s(self, now: float) -> float:
        """When somebody leaves the queue, in seconds; 1 while that can't be said."""
        self._forecast(now)
        queued = [self._due[i] for i in self._scheduler.queued() if i in self._due]
        return max(1.0, min(queued) - now) if queued else 1.0

    # ---- inside ----------------------------------------------------------------------------------

    def _forecast(self, now: float) -> None:
        began = time.perf_counter()
        found = first_tokens(self._scheduler, self._lengths, self._sequences.n_cells)
        self._due = {key: now + ms / 1e3 for key, ms in found.items()}
        took = time.perf_counter() - began
        self._made_at = now
        self._not_before = now + took / SHARE

    def _places(self) -> dict[int, int]:
        return {key: place for place, key in enumerate(self._scheduler.queued())}

    def _queued(self, g: Generation, place: int) -> Queued:
        due = self._due.get(g.request_id)
        if due is None or g.n_generated:
            return Queued(
                request_id=g.request_id, position=place, predicted_ttft_ms=-1.0, low_ms=-1.0,
                high_ms=-1.0,
            )  # fmt: skip
        predicted = max(0.0, due - g.queued_at) * 1e3
        low, high = self._accuracy.around(predicted)
        return Queued(
            request_id=g.request_id,
            position=place,
            predicted_ttft_ms=predicted,
            low_ms=low,
            high_ms=high,
        )

    def _parkings(self) -> list[Frozen]:
        parked = set(self._scheduler.parked())
        moved: list[Frozen] = [Moved(i, "parked") for i in sorted(parked - self._parked)]
        for request_id in sorted(self._parked - parked):
            if request_id in self._generations:
                moved.append(Moved(request_id, self._scheduler.request(request_id).stage.value))
        self._parked = parked
        return moved


def _worth_telling(told: Queued, now: Queued) -> bool:
    if told.position != now.position:
        return True
    if now.position < 0 or now.predicted_ttft_ms < 0:
        return False  # it is being read: its client will see the first token soon enough
    change = abs(now.predicted_ttft_ms - told.predicted_ttft_ms)
    return change > WORTH_TELLING * max(told.predicted_ttft_ms, 1000.0)


def _shown(
    g: Generation, request: ScheduledRequest | None, queued: Queued, now: float
) -> dict[str, Any]:
    waits = not g.n_generated
    computed = request.computed if request else 0
    since = g.prompt_done_at if g.prompt_done_at else g.started_at
    tokens = g.n_generated if g.prompt_done_at else computed - g.n_cached
    seconds = now - since if since else 0.0
    known = waits and queued.predicted_ttft_ms >= 0
    return QueueRow(
        **asked_by(g.submit),
        prompt_tokens=g.n_prompt,
        cached_tokens=g.n_cached,
        computed_tokens=computed,
        generated_tokens=g.n_generated,
        stage=request.stage.value if request else "restoring",
        position=queued.position,
        waited_ms=(now - g.queued_at) * 1e3,
        predicted_ttft_ms=queued.predicted_ttft_ms if known else None,
        predicted_ttft_low_ms=queued.low_ms if known else None,
        predicted_ttft_high_ms=queued.high_ms if known else None,
        tokens_per_s=tokens / seconds if seconds > 0 else 0.0,
    ).shown()
