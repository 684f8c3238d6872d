"""Metrics in Prometheus' text format, under llama-server's names."""

from __future__ import annotations

from collections.abc import Mapping

COUNTERS = {
    "prompt_tokens_total": "Prompt tokens computed, those found in a cache not counted",
    "prompt_tokens_cached_total": "Prompt tokens found in a cache",
    "prompt_seconds_total": "Seconds spent computing prompts",
    "tokens_predicted_total": "Tokens generated",
    "tokens_predicted_seconds_total": "Seconds spent generating tokens",
    "n_decode_total": "Calls of llama_decode()",
    "n_tokens_max": "Longest sequence so far (prompt and generation), in tokens",
    "spec_decode_num_draft_tokens_total": "Speculative decoding: tokens drafted",
    "spec_decode_num_accepted_tokens_total": "Speculative decoding: drafted tokens accepted",
    "spec_decode_num_drafts_total": "Speculative decoding: drafts verified",
}
GAUGES = {
    "prompt_tokens_seconds": "Prompt tokens per second since the last scrape",
    "predicted_tokens_seconds": "Generated tokens per second since the last scrape",
    "requests_processing": "Requests that have a slot",
    "requests_deferred": "Requests waiting for a slot",
    "n_busy_slots_per_decode": "Busy slots per call of llama_decode(), on average",
}


def render(values: Mapping[str, float]) -> str:
    """The reply of GET /metrics. Names we do not know are ours and go under `strata:` as gauges."""
    lines: list[str] = []
    for kind, table in (("counter", COUNTERS), ("gauge", GAUGES)):
        for name, text in table.items():
            _add(lines, "llamacpp:" + name, kind, text, values.get(name, 0.0))
    for name in sorted(values.keys() - COUNTERS.keys() - GAUGES.keys()):
        _add(lines, "strata:" + name, "gauge", name.replace("_", " "), values[name])
    return "\n".join(lines) + "\n"


def _add(lines: list[str], name: str, kind: str, text: str, value: float) -> None:
    shown = str(int(value)) if float(value).is_integer() else repr(float(value))
    lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}", f"{name} {shown}"]
