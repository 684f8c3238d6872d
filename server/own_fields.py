"""Request fields that are Strata's own: how much a request hurries, and who may reuse what is
computed for it. All dialects have them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import msgspec

from .errors import ApiError

FIELDS = {
    "priority": "whole number, 0 by default: higher goes first, before all fairness. Below 0 is "
    "always allowed, above 0 as far as `--max-priority` says, for all keys or for single ones",
    "itl_slo_ms": "milliseconds, above 0: the longest time between two of this request's tokens "
    "that reading other prompts should cause, instead of `--itl-slo-ms`",
    "cache_salt": "text: what is computed for this request is reused only for requests with the "
    "same salt (and API key), in the KV cache, in RAM and on disk",
}
LONGEST_SALT = 1024  # characters
LOWEST = -(1 << 31)


@dataclass(frozen=True)
class OwnFields:
    """The fields, checked."""

    priority: int = 0
    itl_slo_ms: float = 0.0  # 0: the server's target
    cache_salt: str = ""


class _Fields(msgspec.Struct):
    """Reads them and skips the rest of a body without making objects of it."""

    priority: Any = None
    itl_slo_ms: Any = None
    cache_salt: Any = None


_read = msgspec.json.Decoder(_Fields).decode


def mentions_own_fields(body: bytes) -> bool:
    """Whether `body` may have one of the fields; most have none and need not be parsed twice.

    Inside a JSON string the quotes would have backslashes before them.
    """
    return b'"priority"' in body or b'"itl_slo_ms"' in body or b'"cache_salt"' in body


def read_own_fields(body: bytes, max_priority: int) -> OwnFields:
    """The fields of a JSON object; `ApiError` when one can't be used. null is as good as absent."""
    try:
        fields = _read(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(f"priority, itl_slo_ms and cache_salt can't be read: {error}") from None
    return OwnFields(
        _priority(fields.priority, max_priority),
        _target(fields.itl_slo_ms),
        _salt(fields.cache_salt),
    )


def _priority(value: Any, highest: int) -> int:
    if value is None:
        return 0
    if type(value) is not int or value < LOWEST:
        raise ApiError(f"priority: expected a whole number from {LOWEST} on")
    if value > highest:
        raise ApiError(
            f"priority: {value} is above the highest that this server allows "
            f"to this client ({highest}, --max-priority)"
        )
    return value


def _target(value: Any) -> float:
    if value is None:
        return 0.0
    if type(value) not in (int, float) or not 0 < value < math.inf:
        raise ApiError("itl_slo_ms: expected a number of milliseconds above 0")
    try:
        return float(value)
    except OverflowError:  # an integer of hundreds of digits
        raise ApiError("itl_slo_ms: the number is too large") from None


def _salt(value: Any) -> str:
    if value is None:
        return ""
    if type(value) is not str or len(value) > LONGEST_SALT:
        raise ApiError(f"cache_salt: expected text of at most {LONGEST_SALT} characters")
    return value
