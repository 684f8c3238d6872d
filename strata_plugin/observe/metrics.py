"""Counters of one engine, under the names that llama-server's /metrics gives them (without prefix).
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class _Window:
    """Tokens, decode steps and seconds since the last scrape; only the rate is read from it."""

    steps: int = 0
    seconds: float = 0.0

    def rate(self) -> float:
        return self.steps / self.seconds if self.seconds > 0 else 0.0


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

    def step_done(self, n_busy: int, n_tokens_max: int) -> None:
        """A step has run for `n_busy` slots; the longest sequence has `n_tokens_max` tokens."""
        self.n_decode += 1
        self.n_busy_slots += n_busy
        self.n_tokens_max = max(self.n_tokens_max, n_tokens_max)

    def values(self, *, processing: int, deferred: int, reset_window: bool) -> dict[str, float]:
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
        }
        if reset_window:
            self._prompt = _Window()
            self._predicted = _Window()
        return values
