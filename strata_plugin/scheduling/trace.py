"""Reads a trace of requests in Mooncake's JSONL form: lengths, arrivals, shared prefixes, no text.

One JSON object a line: `timestamp` (ms since the trace began), `input_length` and `output_length`
(tokens), and `hash_ids`, one for each block of `BLOCK_TOKENS` prompt tokens, the last one possibly
in part. Two prompts that begin with the same ids begin with the same tokens. Lines may add `tenant`
(who sent it) and `cancel_after_ms` (the client leaves that long after sending); other fields are
ignored. A damaged trace is refused with the number of its line, since a replay of what is left of
it would measure something else.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

BLOCK_TOKENS = 512
MAX_TOKENS = 1 << 31  # a longer prompt is a mistake in the trace


class TraceError(ValueError):
    """The trace is damaged; the message begins with the line's number."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(f"line {line}: {problem}")
        self.line = line


@dataclass(frozen=True)
class TraceRequest:
    """One request of a trace. Lengths are tokens; `cancel_after_s` counts from its arrival."""

    arrival_s: float  # since the trace began
    n_prompt: int
    n_output: int
    hash_ids: tuple[int, ...]  # one for each begun block of the prompt
    tenant: str = ""
    cancel_after_s: float | None = None  # None: the client stays to the end


def read_trace(lines: Iterable[str]) -> list[TraceRequest]:
    """All requests in order of arrival; raises `TraceError` at the first damaged line."""
    requests: list[TraceRequest] = []
    empty = 0  # number of the first empty line that nothing has followed yet
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            empty = empty or number
            continue
        if empty:
            raise TraceError(empty, "the trace has a hole: an empty line between requests")
        request = _request(number, line)
        if requests and request.arrival_s < requests[-1].arrival_s:
            raise TraceError(
                number,
                f"timestamps go back, from {_ms(requests[-1].arrival_s)} to "
                f"{_ms(request.arrival_s)} ms",
            )
        requests.append(request)
    if not requests:
        raise TraceError(1, "the trace holds no requests")
    return requests


def common_prefix(one: TraceRequest, other: TraceRequest) -> int:
    """How many tokens both prompts begin with alike."""
    blocks = 0
    for a, b in zip(one.hash_ids, other.hash_ids, strict=False):
        if a != b:
            break
        blocks += 1
    return min(one.n_prompt, other.n_prompt, blocks * BLOCK_TOKENS)


def _request(number: int, line: str) -> TraceRequest:
    try:
        fields = json.loads(line)
    except ValueError as exc:
        raise TraceError(number, f"not JSON: {exc}") from exc
    except RecursionError as exc:
        raise TraceError(number, "not a request: nested too deeply") from exc
    if not isinstance(fields, dict):
        raise TraceError(number, f"expected a JSON object, not {_shown(fields)}")
    n_prompt = _tokens(number, fields, "input_length")
    cancel_ms = None
    if fields.get("cancel_after_ms") is not None:
        cancel_ms = _milliseconds(number, fields, "cancel_after_ms")
    return TraceRequest(
        arrival_s=_milliseconds(number, fields, "timestamp") / 1e3,
        n_prompt=n_prompt,
        n_output=_tokens(number, fields, "output_length"),
        hash_ids=_hash_ids(number, fields, n_prompt),
        tenant=_tenant(number, fields),
        cancel_after_s=None if cancel_ms is None else cancel_ms / 1e3,
    )


def _field(number: int, fields: Mapping[str, Any], name: str) -> Any:
    if name not in fields:
        raise TraceError(number, f"`{name}` is missing")
    return fields[name]


def _milliseconds(number: int, fields: Mapping[str, Any], name: str) -> float:
    value = _field(number, fields, name)
    # bool is an int in Python, and JSON as Python reads it may hold NaN and Infinity
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TraceError(number, f"`{name}` must be a number, not {_shown(value)}")
    try:
        milliseconds = float(value)
    except OverflowError:  # an integer of hundreds of digits
        milliseconds = math.inf
    if not math.isfinite(milliseconds) or milliseconds < 0:
        raise TraceError(number, f"`{name}` must be 0 or more, not {_shown(value)}")
    return milliseconds


def _tokens(number: int, fields: Mapping[str, Any], name: str) -> int:
    value = _field(number, fields, name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise TraceError(number, f"`{name}` must be a whole number, not {_shown(value)}")
    if not 1 <= value <= MAX_TOKENS:
        raise TraceError(number, f"`{name}` must be 1 to {MAX_TOKENS}, not {_shown(value)}")
    return value


def _hash_ids(number: int, fields: Mapping[str, Any], n_prompt: int) -> tuple[int, ...]:
    value = _field(number, fields, "hash_ids")
    if not isinstance(value, list):
        raise TraceError(number, f"`hash_ids` must be a list, not {_shown(value)}")
    for one in value:
        if isinstance(one, bool) or not isinstance(one, int) or one < 0:
            raise TraceError(
                number, f"`hash_ids` must be whole numbers of 0 or more, not {_shown(one)}"
            )
    wanted = -(-n_prompt // BLOCK_TOKENS)
    if len(value) != wanted:
        raise TraceError(
            number,
            f"{n_prompt} prompt tokens are {wanted} blocks of {BLOCK_TOKENS}, "
            f"but `hash_ids` has {len(value)}",
        )
    return tuple(value)


def _tenant(number: int, fields: Mapping[str, Any]) -> str:
    value = fields.get("tenant")
    if value is None:
        return ""
    if not isinstance(value, str):
        raise TraceError(number, f"`tenant` must be a string, not {_shown(value)}")
    return value


def _shown(value: object) -> str:
    text = json.dumps(value) if not isinstance(value, (list, dict)) else type(value).__name__
    return text if len(text) <= 40 else text[:40] + "…"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.0f}"
