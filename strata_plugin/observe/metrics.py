"""Counters of one engine, under the names that llama-server's /metrics gives them (without prefix).
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from strata_plugin.scheduling.sizes import SIZES, size_of


@dataclass(slots=True)
class _Window:
    """Tokens, decode steps and seconds since the last scrape; only the rate is read from it."""

    steps: int = 0
    seconds: float = 0.0

    def rate(self) -> float:
        return self.steps / self.seconds if self.seconds > 0 else 0.0


SECONDS = (0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
RATIOS = (0.1, 0.25, 0.5, 0.75, 0.9, 1.1, 1.25, 1.5, 2.0, 4.0)


class Histogram:
    """Counts of values up to each bound, for each size of prompt where there are sizes."""

    def __init__(self, name: str, bounds: tuple[float, ...], *, sized: bool) -> None:
        self._name = name
        self._bounds = bounds
        self._counts: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}
        for size in SIZES if sized else ("",):
            self._counts[size] = [0] * (len(bounds) + 1)
            self._sums[size] = 0.0

    def observe(self, value: float, size: str = "") -> None:
        """Count one value."""
        self._counts[size][bisect_left(self._bounds, value)] += 1
        self._sums[size] += value

    def samples(self) -> dict[str, float]:
        """Prometheus' samples: names with labels, counts cumulative."""
        found: dict[str, float] = {}
        for size, counts in self._counts.items():
            label = f'size="{size}"' if size else ""
            total = 0
            for bound, count in zip((*self._bounds, "+Inf"), counts, strict=True):
                total += count
                labels = ",".join(filter(None, (label, f'le="{bound}"')))
                found[f"{self._name}_bucket{{{labels}}}"] = float(total)
            tail = f"{{{label}}}" if label else ""
            found[f"{self._name}_sum{tail}"] = self._sums[size]
            found[f"{self._name}_count{tail}"] = float(total)
        return found


@dataclass(slots=True)
class EngineMetrics:
    """Cumulative since the engine started, but for the two windows that a scrape resets."""

    prompt_tokens: int = 0
    prompt_seconds: float = 0.0
    prompt_tokens_cached: int = 0
    predicted_tokens: int = 0
    predicted_seconds: float = 0.0
    n_decode: int = 0
    n_busy_slots: int = 0
    n_tokens_max: int = 0
    _prompt: _Window = field(default_factory=_Window)
    _predicted: _Window = field(default_factory=_Window)
    _ttft: Histogram = field(default_factory=lambda: _seconds("ttft_seconds"))
    _itl: Histogram = field(default_factory=lambda: _seconds("itl_seconds"))
    _queue: Histogram = field(default_factory=lambda: _seconds("queue_seconds"))
    _steps: Histogram = field(
        default_factory=lambda: Histogram("step_seconds", SECONDS, sized=False)
    )
    _error: Histogram = field(
        default_factory=lambda: Histogram("ttft_prediction_error_ratio", RATIOS, sized=True)
    )

    def queued(self, n_prompt: int, seconds: float) -> None:
        """A request of `n_prompt` tokens waited for so long before it was read."""
        self._queue.observe(seconds, size_of(n_prompt))

    def first_token(self, n_prompt: int, seconds: float) -> None:
        """A first token came so long after its request."""
        self._ttft.observe(seconds, size_of(n_prompt))

    def gap(self, n_prompt: int, seconds: float) -> None:
        """A further token came so long after the one before it."""
        self._itl.observe(seconds, size_of(n_prompt))

    def predicted(self, n_prompt: int, predicted: float, actual: float) -> None:
        """A first token's time as predicted on arrival, and as it came; in seconds."""
        self._error.observe(actual / max(predicted, 1e-3), size_of(n_prompt))

    def prompt_done(self, n_processed: int, n_cached: int, seconds: float) -> None:
        """A prompt has been read: tokens computed, tokens found in a cache, seconds it took."""
        self.prompt_tokens += n_processed
        self.prompt_tokens_cached += n_cached
        self.prompt_seconds += seconds
        self._prompt.steps += n_processed
        self._prompt.seconds += seconds

    def generation_done(self, n_tokens: int, seconds: float) -> None:
        """A generation has ended: tokens sampled, seconds from the prompt's end to the last."""
        self.predicted_tokens += n_tokens
        self.predicted_seconds += seconds
        self._predicted.steps += max(0, n_tokens - 1)  # the first comes with the prompt
        self._predicted.seconds += seconds

    def step_done(self, n_busy: int, n_tokens_max: int, seconds: float) -> None:
        """A step has run for `n_busy` slots; the longest sequence has `n_tokens_max` tokens."""
        self._steps.observe(seconds)
        self.n_decode += 1
        self.n_busy_slots += n_busy
        self.n_tokens_max = max(self.n_tokens_max, n_tokens_max)

    def values(
        self, *, processing: int, deferred: int, feasible: bool, reset_window: bool
    ) -> dict[str, float]:
        """All values by name; `reset_window` starts a new window for the two rates."""
        values = {
            "prompt_tokens_total": float(self.prompt_tokens),
            "prompt_tokens_cached_total": float(self.prompt_tokens_cached),
            "prompt_seconds_total": self.prompt_seconds,
            "tokens_predicted_total": float(self.predicted_tokens),
            "tokens_predicted_seconds_total": self.predicted_seconds,
            "n_decode_total": float(self.n_decode),
            "n_tokens_max": float(self.n_tokens_max),
            "n_busy_slots_per_decode": self.n_busy_slots / max(1, self.n_decode),
            "prompt_tokens_seconds": self._prompt.rate(),
            "predicted_tokens_seconds": self._predicted.rate(),
            "requests_processing": float(processing),
            "requests_deferred": float(deferred),
            "queue_length": float(deferred),
            "itl_feasible": float(feasible),
        }
        for histogram in (self._ttft, self._itl, self._queue, self._steps, self._error):
            values.update(histogram.samples())
        if reset_window:
            self._prompt = _Window()
            self._predicted = _Window()
        return values


def _seconds(name: str) -> Histogram:
    return Histogram(name, SECONDS, sized=True)
