"""A schema that can't be followed is refused, and the refusal names the place: never is an answer
given that nothing holds to it.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from strata_plugin.runtime.native import Kind, NativeError
from tests.chat.broken_schemas import CONTRADICTIONS, LEFT_OUT, NOT_SCHEMAS, REFUSED, prop
from tests.chat.scripted import TEMPLATE
from tests.chat.speaking import USER
from tests.engine.smollm2 import need_native_library, new_frontend

need_native_library()

ASK: dict[str, Any] = {"messages": [USER]}


def format_of(schema: Any) -> dict[str, Any]:
    return {
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    }


def tool_of(schema: Any) -> dict[str, Any]:
    tool = {"type": "function", "function": {"name": "t", "parameters": schema}}
    return {"tools": [tool], "tool_choice": "required"}


# ways for a client to hand in a schema
WAYS: dict[str, tuple[Kind, Callable[[Any], dict[str, Any]]]] = {
    "response_format": (Kind.OAI_CHAT, lambda schema: {**ASK, **format_of(schema)}),
    "tool": (Kind.OAI_CHAT, lambda schema: {**ASK, **tool_of(schema)}),
    "json_schema": (Kind.COMPLETION, lambda schema: {"prompt": "x", "json_schema": schema}),
}


def sampling(kind: Kind, body: dict[str, Any]) -> dict[str, Any]:
    prepared = new_frontend(chat_template=TEMPLATE).prepare(kind, json.dumps(body).encode())
    found: dict[str, Any] = json.loads(prepared.sampling())
    return found


def is_bound(found: dict[str, Any]) -> bool:
    """Whether something holds an answer to a form."""
    return bool(found.get("grammar")) or "json_schema" in found


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", REFUSED)
def test_a_schema_that_cannot_be_followed_is_refused_with_its_place(name: str, way: str) -> None:
    schema, place = REFUSED[name]
    kind, body = WAYS[way]
    with pytest.raises(NativeError) as caught:
        sampling(kind, body(schema))
    assert caught.value.code == 400
    assert place in caught.value.message


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_is_left_out_of_a_schema_leaves_the_rest_in_force(name: str, way: str) -> None:
    kind, body = WAYS[way]
    assert is_bound(sampling(kind, body(LEFT_OUT[name])))


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/n", "$defs": {"n": prop({"$ref": "#/$defs/n"})}},
        {"type": "object", "properties": {"c": {"$ref": "#/$defs/n"}},
         "$defs": {"n": {"type": "object", "properties": {"c": {"$ref": "#/$defs/n"}}}}},
    ],
)  # fmt: skip
@pytest.mark.parametrize("way", WAYS)
def test_schemas_that_contain_themselves_are_followed(schema: Any, way: str) -> None:
    kind, body = WAYS[way]
    assert is_bound(sampling(kind, body(schema)))


@pytest.mark.parametrize("name", NOT_SCHEMAS)
@pytest.mark.parametrize("way", WAYS)
def test_what_is_no_schema_is_refused(name: str, way: str) -> None:
    kind, body = WAYS[way]
    with pytest.raises(NativeError) as caught:
        sampling(kind, body(NOT_SCHEMAS[name]))
    assert caught.value.code == 400


# ---- what would never end -----------------------------------------------------------------------

_PREPARE_ALL = """
import json, sys
from strata_plugin.runtime.native import Kind, NativeError
from tests.engine.smollm2 import frontend
for kind, body in json.load(sys.stdin):
    try:
        frontend().prepare(Kind(kind), json.dumps(body).encode())
        print("taken", flush=True)
    except NativeError as error:
        print(error.code, error.message, flush=True)
"""


def prepare_elsewhere(bodies: list[tuple[Kind, dict[str, Any]]], seconds: float) -> list[str]:
    """What a process of its own says to each body; TimeoutExpired when it does not come back."""

    def limit_memory() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))

    done = subprocess.run(
        [sys.executable, "-c", _PREPARE_ALL],
        input=json.dumps(bodies).encode(),
        capture_output=True,
        timeout=seconds,
        check=True,
        preexec_fn=limit_memory,
    )
    return done.stdout.decode().splitlines()


def test_a_least_that_is_more_than_the_most_is_refused() -> None:
    kind, body = WAYS["json_schema"]
    bodies = [(kind, body(schema)) for schema in CONTRADICTIONS.values()]
    bodies.append((Kind.COMPLETION, {"prompt": "x", "grammar": 'root ::= "a"{3,2}'}))
    answers = prepare_elsewhere(bodies, 7)
    assert [answer.split()[0] for answer in answers] == ["400"] * len(bodies)
