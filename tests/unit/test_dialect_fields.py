"""Reading bodies: what is no JSON object is refused in words; nulls are absent; half a character is
no reason to refuse.
"""

from __future__ import annotations

import json

import pytest

from strata_server.dialects.fields import expect, object_of, read_object, text_of
from strata_server.errors import ApiError


def test_null_fields_are_absent_and_values_inside_stay() -> None:
    assert read_object(b'{"a": null, "b": {"c": null}, "d": [null]}') == {
        "b": {"c": None},
        "d": [None],
    }
    assert object_of({"a": None, "b": 0}, "x") == {"b": 0}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"a": NaN}',
        b'{"a": "\xff"}',
        b'{"a": 1e999}',
        b'{"a": "\\ud83d", "b": NaN}',
        b'{"a": "\\ud83d"',
        b'{"a": ' + b"[" * 100_000,
        b'{"\\ud83d": ' + b"[" * 100_000,
    ],
)
def test_what_is_no_json_is_refused(body: bytes) -> None:
    with pytest.raises(ApiError, match="not JSON") as caught:
        read_object(body)
    assert caught.value.code == 400


@pytest.mark.parametrize("body", [b"null", b"[]", b'"a"', b"5", b"true"])
def test_what_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(ApiError, match="must be a JSON object"):
        read_object(body)


def test_half_a_character_becomes_a_mark() -> None:
    text = "cut \ud83d here"
    assert read_object(json.dumps({"a": text, "\ude42": ["\ude42"]}).encode()) == {
        "a": "cut ? here",
        "?": ["?"],
    }
    whole = {"a": "🙂 \\ud83d"}
    for ascii_only in (True, False):
        assert read_object(json.dumps(whole, ensure_ascii=ascii_only).encode()) == whole


def test_errors_name_what_was_expected() -> None:
    assert expect(5, int, "x") == 5
    for value, kind, told in (
        (True, int, "x: expected a whole number"),
        (5, str, "x: expected a text"),
        (None, (str, list), "x: expected a text or an array"),
    ):
        with pytest.raises(ApiError, match=told):
            expect(value, kind, "x")
    with pytest.raises(ApiError, match=r"x\.a: is required"):
        text_of({}, "a", "x")
