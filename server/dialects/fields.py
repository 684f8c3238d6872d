"""Reading a request's fields with errors that name them."""

from __future__ import annotations

import json
import logging
from itertools import islice
from typing import Any

import orjson

from ..errors import ApiError

log = logging.getLogger("strata.requests")

Object = dict[str, Any]
LONGEST_KIND = 40  # characters of what a client calls it
MOST_TOLD = 1000
_told: set[tuple[str, str]] = set()


def read_object(body: bytes) -> Object:
    """The JSON object in `body`; null fields are left out. `ApiError` when it is none."""
    value = read_value(body)
    if not isinstance(value, dict):
        raise ApiError("The body must be a JSON object")
    return _without_nulls(value)


def read_value(body: bytes) -> Any:
    """The JSON value in `body`; `ApiError` when it is none."""
    try:
        return _read(body)
    except (ValueError, RecursionError) as error:
        raise ApiError(f"The body is not JSON: {error}") from None


def _read(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        # JavaScript's clients cut texts between the two halves of a character, and would send the
        # half of one in each further request
        if b"\\ud" not in body and b"\\uD" not in body:
            raise
        whole = json.dumps(json.loads(body), ensure_ascii=False).encode(errors="replace")
        return orjson.loads(whole)


def object_of(value: Any, where: str) -> Object:
    """The object that `value` is, without its null fields; `ApiError` naming `where` otherwise."""
    return _without_nulls(expect(value, dict, where))


def _without_nulls(value: Object) -> Object:
    return {name: field for name, field in value.items() if field is not None}


def expect(value: Any, kind: type | tuple[type, ...], where: str) -> Any:
    """`value` where it is of `kind`; `ApiError` naming `where` otherwise."""
    if isinstance(value, kind) and not (isinstance(value, bool) and kind is int):
        return value
    kinds = kind if isinstance(kind, tuple) else (kind,)
    raise ApiError(f"{where}: expected {' or '.join(_WORDS[k] for k in kinds)}")


def text_of(item: Object, name: str, where: str) -> str:
    """A text that must be there."""
    if name not in item:
        raise ApiError(f"{where}.{name}: is required")
    text: str = expect(item[name], str, f"{where}.{name}")
    return text


def skipped(what: str, kind: Any, where: str) -> None:
    """A line in the log for something that a request has and we don't; agents send the same with
    each request, so only the first of its kind is a warning.
    """
    shown = "".join(islice(filter(str.isprintable, str(kind)), LONGEST_KIND))
    news = (what, shown) not in _told
    if news and len(_told) < MOST_TOLD:
        _told.add((what, shown))
    log.log(logging.WARNING if news else logging.DEBUG, "skipped %s '%s' at %s", what, shown, where)


_WORDS = {
    str: "a text",
    list: "an array",
    dict: "an object",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}
