"""What a replay gave: the figures of one request, and their sums by length of prompt."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.client import Reply
from bench.stats import median, quantile
from strata_plugin.scheduling.sizes import SIZES, size_of

QUANTILES: Mapping[str, float] = {"p50": 0.50, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True)
class Outcome:
    """One request of the trace on one server. Times are None where they never came."""

    arrival_s: float  # when it was sent, since the replay began
    late_s: float  # after its time: the client itself was too slow
    n_prompt: int
    tenant: str
    status: int  # 0: no HTTP status arrived
    error: str  # empty for a complete reply, and for one that the trace cancels
    cancelled: bool  # the client left before its end
    ttft_s: float | None
    end_s: float  # since the replay began
    gaps_ms: tuple[float, ...] = ()
    cached: int | None = None  # prompt tokens that were not read again
    predicted_ttft_s: float | None = None

    @property
    def bucket(self) -> str:
        """Its length, in a word."""
        return size_of(self.n_prompt)

    @property
    def refused(self) -> bool:
        """Whether the server answered with anything but 200."""
        return self.status not in (0, 200)

    @property
    def failed(self) -> bool:
        """Whether it broke in any other way."""
        return bool(self.error) and not self.refused


def outcome(
    reply: Reply, *, arrival_s: float, late_s: float, n_prompt: int, tenant: str
) -> Outcome:
    """The figures of one reply from /completion."""
    told = [event for event in reply.events if isinstance(event.data, dict)]
    # the closing event carries no token, but the numbers
    at = [one.at for one in told if "content" in one.data and not one.data.get("stop")]
    timings = told[-1].data.get("timings") if told and told[-1].data.get("stop") else None
    predicted = reply.headers.get("x-predicted-ttft-ms")
    return Outcome(
        arrival_s=arrival_s,
        late_s=late_s,
        n_prompt=n_prompt,
        tenant=tenant,
        status=reply.status,
        error=reply.error,
        cancelled=reply.cut,
        ttft_s=at[0] if at else None,
        end_s=arrival_s + reply.end_at,
        gaps_ms=tuple((b - a) * 1e3 for a, b in itertools.pairwise(at)),
        cached=int(timings["cache_n"]) if timings else None,
        predicted_ttft_s=float(predicted) / 1e3 if predicted else None,
    )


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """All sums over the outcomes of one server, ready for JSON."""
    counted = [one for one in outcomes if one.cached is not None]
    prompt_tokens = sum(one.n_prompt for one in counted)
    groups: dict[str, list[Outcome]] = {"all": list(outcomes)}
    for one in outcomes:
        groups.setdefault(one.bucket, []).append(one)
    return {
        "requests": len(outcomes),
        "refused": sum(one.refused for one in outcomes),
        "failed": sum(one.failed for one in outcomes),
        "cancelled": sum(one.cancelled for one in outcomes),
        "makespan_s": max((one.end_s for one in outcomes), default=0.0),
        "late_p99_s": quantile([one.late_s for one in outcomes], 0.99) if outcomes else 0.0,
        "hit_rate": sum(one.cached or 0 for one in counted) / max(1, prompt_tokens),
        "prediction": _prediction(outcomes),
        "buckets": {
            name: {
                "requests": len(groups[name]),
                "ttft_s": _spread(one.ttft_s for one in groups[name]),
                "gap_ms": _spread(gap for one in groups[name] for gap in one.gaps_ms),
            }
            for name in ("all", *SIZES)
            if name in groups
        },
    }


def brief(one: Outcome) -> dict[str, Any]:
    """One request for JSON: its gaps are too many to be listed."""
    return {
        "arrival_s": round(one.arrival_s, 4),
        "n_prompt": one.n_prompt,
        "tenant": one.tenant,
        "status": one.status,
        "error": one.error,
        "cancelled": one.cancelled,
        "ttft_s": one.ttft_s,
        "end_s": one.end_s,
        "gap_p50_ms": median(one.gaps_ms) if one.gaps_ms else None,
        "gap_max_ms": max(one.gaps_ms, default=None),
        "cached": one.cached,
        "predicted_ttft_s": one.predicted_ttft_s,
    }


def table(sides: Mapping[str, Mapping[str, Any]]) -> str:
    """Summaries side by side in Markdown; the keys are the servers' names."""
    lines = ["| figure | " + " | ".join(sides) + " |", "|---|" + "---:|" * len(sides)]

    def row(label: str, cells: Iterable[str]) -> None:
        lines.append(f"| {label} | " + " | ".join(cells) + " |")

    every = list(sides.values())
    for key in ("requests", "refused", "failed", "cancelled"):
        row(key, (str(side[key]) for side in every))
    row("all done after, s", (f"{side['makespan_s']:.1f}" for side in every))
    row("prompt tokens not read again", (f"{side['hit_rate']:.1%}" for side in every))
    row("most memory, RSS, MB", (_memory(side.get("memory"), "rss_mb") for side in every))
    row("most memory, PSS, MB", (_memory(side.get("memory"), "pss_mb") for side in every))
    predictions = [side["prediction"] for side in every]
    if any(predictions):
        for key, label in (("median", "median"), ("p90", "p90")):
            cells = ("" if p is None else f"{p[key]:.0%} of {p['count']}" for p in predictions)
            row(f"error of the predicted TTFT, {label}", cells)
    for name in ("all", *SIZES):
        if any(name in side["buckets"] for side in every):
            for key, label, form in (("ttft_s", "TTFT, s", ".2f"), ("gap_ms", "gap, ms", ".0f")):
                row(f"{name}: {label}", (_cell(side["buckets"], name, key, form) for side in every))
    lines += ["", "TTFT and gap: p50 / p95 / p99 (how many). " + _bounds()]
    late = max(side["late_p99_s"] for side in every)
    if late > 0.05:
        lines.append(f"The client itself sent up to {late:.2f} s late (p99): the machine was busy.")
    return "\n".join(lines) + "\n"


def _spread(values: Iterable[float | None]) -> dict[str, float] | None:
    found = [value for value in values if value is not None]
    if not found:
        return None
    return {"count": len(found)} | {name: quantile(found, q) for name, q in QUANTILES.items()}


def _prediction(outcomes: Sequence[Outcome]) -> dict[str, float] | None:
    """How far the predicted TTFT is off, relative to what it became."""
    errors = [
        abs(one.predicted_ttft_s - one.ttft_s) / one.ttft_s
        for one in outcomes
        if one.predicted_ttft_s is not None and one.ttft_s
    ]
    if not errors:
        return None
    return {"count": len(errors), "median": median(errors), "p90": quantile(errors, 0.9)}


def _memory(memory: Mapping[str, float] | None, key: str) -> str:
    return "not ours to see" if memory is None else f"{memory[key]:.0f}"


def _cell(buckets: Mapping[str, Any], name: str, key: str, form: str) -> str:
    spread = buckets.get(name, {}).get(key)
    if spread is None:
        return ""
    return " / ".join(f"{spread[q]:{form}}" for q in QUANTILES) + f" ({spread['count']})"


def _bounds() -> str:
    words = [f"{name} up to {most:.0f}" for name, most in SIZES.items() if most < float("inf")]
    return f"By prompt tokens: {', '.join(words)}, extreme above."
