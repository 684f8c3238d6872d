"""Reading a request's fields with errors that name them."""

from __future__ import annotations

import logging
from typing import Any

import orjson

from ..errors import ApiError

log = logging.getLogger("strata.requests")

Object = dict[str, Any]


def read_object(body: bytes) -> Object:
    """The JSON object in `body`; null fields are left out. `ApiError` when it is none."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ApiError(f"The body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ApiError("The body must be a JSON object")
    return _without_nulls(value)


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


def skipped(what: str) -> None:
    """One line in the log for something that a request has and we don't."""
    log.warning("skipped %s", what)


_WORDS = {
    str: "a text",
    list: "an array",
    dict: "an object",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}
