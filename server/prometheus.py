"""Metrics in Prometheus' text format: llama-server's under its names, ours under `strata:`."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

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
OWN_GAUGES = {
    "queue_length": "Requests for which nothing has been computed yet",
    "itl_feasible": "1: the inter-token target can be met, 0: generating alone takes longer",
    "cache_bytes": "Bytes that a tier of the prefix cache (resident, ram, disk) takes",
    "cache_limit_bytes": "Most bytes that a tier may take",
    "cache_blocks": "Blocks that a tier holds",
    "cache_tokens": "Tokens whose states a tier holds",
    "cache_sequences": "Sequences in the KV cache",
    "cache_restore_bytes_per_second": "How quickly states came out of a tier so far; 0: none did",
}
OWN_COUNTERS = {
    "cache_hit_tokens_total": "Prompt tokens that needed not be computed thanks to a tier",
    "engine_restarts_total": "Engines that have died, or hung, and were replaced",
    "cache_evicted_blocks_total": "Blocks that were dropped from a tier to make room",
}
HISTOGRAMS = {
    "ttft_seconds": "From a request's arrival to its first token, by length of the prompt",
    "itl_seconds": "Gap between two tokens of a request",
    "queue_seconds": "From a request's arrival until its prompt was begun to be read",
    "step_seconds": "Duration of the engine's steps",
    "ttft_prediction_error_ratio": "Measured time to the first token, divided by what was "
    "predicted on arrival; 1: as predicted",
}

_SAMPLE = re.compile(r"(\w+)(?:\{(.*)\})?")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
Labels = tuple[tuple[str, str], ...]
Sample = tuple[Labels, float]


def render(values: Mapping[str, float]) -> str:
    """The reply of GET /metrics.

    Keys of `values` are names, with labels where there are several of one: `name{label="x"}`.
    A name we do not know is a gauge of ours, or a histogram where its samples say so.
    """
    lines: list[str] = []
    for kind, table in (("counter", COUNTERS), ("gauge", GAUGES)):
        for name, text in table.items():
            _add(lines, "llamacpp:" + name, kind, text, [("", (), values.get(name, 0.0))])
    own = _by_name({k: v for k, v in values.items() if k not in COUNTERS and k not in GAUGES})
    for name in _histogram_names(own):
        parts = [own.pop(name + end, []) for end in ("_bucket", "_sum", "_count")]
        text = HISTOGRAMS.get(name, name.replace("_", " "))
        _add(lines, "strata:" + name, "histogram", text, _histogram(*parts))
    for name in sorted(own):
        samples = [("", labels, value) for labels, value in sorted(own[name])]
        kind = "counter" if name in OWN_COUNTERS else "gauge"
        text = {**OWN_GAUGES, **OWN_COUNTERS}.get(name, name.replace("_", " "))
        _add(lines, "strata:" + name, kind, text, samples)
    return "\n".join(lines) + "\n"


def _by_name(values: Mapping[str, float]) -> dict[str, list[Sample]]:
    found: defaultdict[str, list[Sample]] = defaultdict(list)
    for key, value in values.items():
        match = _SAMPLE.fullmatch(key)
        if match is None:
            raise ValueError(f"no metric has such a name: {key!r}")
        labels = _LABEL.findall(match[2] or "")
        found[match[1]].append((tuple((n, v) for n, v in labels), value))
    return found


def _histogram_names(own: Mapping[str, list[Sample]]) -> list[str]:
    """Names whose buckets are there."""
    end = "_bucket"
    return [name[: -len(end)] for name in sorted(own) if name.endswith(end)]


def _histogram(
    buckets: list[Sample], sums: list[Sample], counts: list[Sample]
) -> Iterator[tuple[str, Labels, float]]:
    """Samples in Prometheus' order: of each set of labels its buckets upwards, sum and count."""
    sets: defaultdict[Labels, list[tuple[float, float]]] = defaultdict(list)
    for labels, value in buckets:
        rest = tuple(label for label in labels if label[0] != "le")
        sets[rest].append((float(dict(labels)["le"]), value))
    total, count = dict(sums), dict(counts)
    for labels, steps in sorted(sets.items()):
        steps.sort()
        in_all = count.get(labels, steps[-1][1])
        for bound, value in steps:
            yield "_bucket", (*labels, ("le", _number(bound))), value
        if steps[-1][0] != float("inf"):  # a histogram without it is not one
            yield "_bucket", (*labels, ("le", "+Inf")), in_all
        yield "_sum", labels, total.get(labels, 0.0)
        yield "_count", labels, in_all


def _add(
    lines: list[str],
    name: str,
    kind: str,
    text: str,
    samples: list[tuple[str, Labels, float]] | Iterator[tuple[str, Labels, float]],
) -> None:
    lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    for suffix, labels, value in samples:
        shown = ",".join(f'{label}="{text}"' for label, text in labels)
        lines.append(f"{name}{suffix}{'{' + shown + '}' if shown else ''} {_number(value)}")


def _number(value: float) -> str:
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if float(value).is_integer() else repr(float(value))
