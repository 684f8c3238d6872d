"""Which messages and histories are taken, gone on with, or refused: nothing that a client sends is
the server's fault. The model says what each test wants to hear, see `tests.chat.scripted`.
"""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.http.asking import SAID, USER, ask, error_of, post


@pytest.fixture
def client(scripted_client: httpx.Client) -> httpx.Client:
    return scripted_client


# ---- continued messages -------------------------------------------------------------------------

BEGUN = {"role": "assistant", "content": "Hello"}


@pytest.mark.parametrize(
    ("fields", "streamed"),
    [
        ({}, "Hello there."),
        ({"continue_final_message": True, "add_generation_prompt": False}, " there."),
    ],
)
def test_a_message_that_was_begun_is_gone_on_with(
    client: httpx.Client, fields: dict[str, Any], streamed: str
) -> None:
    # llama-server repeats what was begun, but not in a stream that was asked to continue
    request = {"messages": [USER, BEGUN], **fields}
    assert ask(client, **request).message.content == "Hello there."
    assert ask(client, stream=True, **request).message.content == streamed


def test_reasoning_that_was_begun_is_gone_on_with(client: httpx.Client) -> None:
    begun = {"role": "assistant", "content": "", "reasoning_content": "A greeting"}
    answer = ask(client, messages=[USER, begun])
    assert answer.message == SAID["reasoning"]


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [USER, BEGUN, BEGUN]},
        {"messages": [USER, BEGUN], "continue_final_message": True, "add_generation_prompt": True},
        {
            "messages": [
                USER,
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [
                        {
                            "id": "c",
                            "type": "function",
                            "function": {"name": "add_note", "arguments": "{}"},
                        }
                    ],
                },
            ]
        },
    ],
)
def test_what_cannot_be_continued_is_refused(client: httpx.Client, fields: dict[str, Any]) -> None:
    assert error_of(post(client, **fields))


# ---- odd messages -------------------------------------------------------------------------------


def called(**function: Any) -> list[Any]:
    """A history with one call."""
    call = {"id": "c1", "type": "function", "function": {"name": "add_note", **function}}
    return [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "ok"},
    ]


TAKEN: dict[str, list[Any]] = {
    "system in the middle": [USER, BEGUN, {"role": "system", "content": "S"}, USER],
    "several systems": [{"role": "system", "content": c} for c in "ab"] + [USER],
    "only a system": [{"role": "system", "content": "S"}],
    "developer": [{"role": "developer", "content": "D"}, USER],
    "developer in the middle": [USER, BEGUN, {"role": "developer", "content": "D"}, USER],
    "unknown role": [{"role": "wizard", "content": "x"}, USER],
    "empty text": [{"role": "user", "content": ""}],
    "no parts": [{"role": "user", "content": []}],
    "null": [{"role": "user", "content": None}],
    "null of an assistant": [USER, {"role": "assistant", "content": None}, USER],
    "parts": [{"role": "user", "content": [{"type": "text", "text": t} for t in "ab"]}],
    "parts of a system": [{"role": "system", "content": [{"type": "text", "text": "a"}]}, USER],
    "null with calls": called(arguments='{"text": "x"}'),
    "arguments as an object": called(arguments={"text": "x"}),
    "null arguments": called(arguments=None),
    "no calls": [USER, {"role": "assistant", "content": "x", "tool_calls": []}, USER],
    "null calls": [USER, {"role": "assistant", "content": "x", "tool_calls": None}, USER],
    "result without a call": [USER, {"role": "tool", "tool_call_id": "z", "content": "ok"}],
    "result without an id": [USER, {"role": "tool", "content": "ok"}],
    "result in parts": [
        *called(arguments="{}")[:-1],
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "ok"}]},
    ],
    "unknown fields": [{"role": "user", "name": "bob", "content": "x", "zzz": {"a": [1]}}],
    "no messages": [],
}


@pytest.mark.parametrize("name", TAKEN)
def test_odd_messages_are_taken(client: httpx.Client, name: str) -> None:
    extra: dict[str, Any] = {"foo": {"bar": 1}, "user": "me", "metadata": {"a": "b"}, "store": True}
    for stream in (False, True):
        answer = ask(client, messages=TAKEN[name], stream=stream, **extra)
        assert answer.message.content == "Hello there."


REFUSED: dict[str, Any] = {
    "no list": {"messages": {}},
    "null for a list": {"messages": None},
    "a text": {"messages": ["x"]},
    "null": {"messages": [None]},
    "a number as content": {"messages": [{"role": "user", "content": 5}]},
    "an object as content": {"messages": [{"role": "user", "content": {"a": 1}}]},
    "an unknown part": {"messages": [{"role": "user", "content": [{"type": "zzz"}]}]},
    "a text as a part": {"messages": [{"role": "user", "content": ["x"]}]},
    "no content": {"messages": [{"role": "user"}]},
    "nothing said": {"messages": [{"role": "assistant", "reasoning_content": "x"}]},
    "no choices": {"n": 0},
    "too many choices": {"n": 99},
    "a text as a number": {"temperature": "hot"},
    "probabilities of nothing": {"top_logprobs": 2},
    "a text as parameters": {
        "tools": [{"type": "function", "function": {"name": "x", "parameters": "y"}}]
    },
}
# llama-server answers these with 500, on which clients try again
REFUSED_AS_OURS: dict[str, Any] = {
    "no role": {"messages": [{"content": "x"}]},
    "a number as a role": {"messages": [{"role": 5, "content": "x"}]},
    "a part without its text": {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
    "an image": {
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
                ],
            }
        ]
    },
    "no arguments": {"messages": called()},
    "broken arguments": {"messages": called(arguments='{"te')},
    "a call without a type": {
        "messages": [USER, {"role": "assistant", "content": "x", "tool_calls": [5]}, USER]
    },
    "a number as reasoning": {
        "messages": [USER, {"role": "assistant", "content": "x", "reasoning_content": 5}, USER]
    },
    "a text as tools": {"tools": "x"},
    "a tool without a type": {"tools": [{}]},
    "a tool of an unknown type": {"tools": [{"type": "web_search"}]},
    "a tool without a name": {"tools": [{"type": "function", "function": {}}]},
    "an unknown reasoning format": {"reasoning_format": "zzz"},
}
# llama-server answers these with 500 although nothing is wrong with them
REFUSED_FOR_NULL: dict[str, Any] = {
    "empty arguments": {"messages": called(arguments="")},
    "null as reasoning": {
        "messages": [USER, {"role": "assistant", "content": "x", "reasoning_content": None}, USER]
    },
    "null as an id": {"messages": [USER, {"role": "tool", "tool_call_id": None, "content": "x"}]},
    "null as a description": {
        "tools": [
            {
                "type": "function",
                "function": {"name": "x", "description": None, "parameters": {"type": "object"}},
            }
        ]
    },
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_with_a_request_is_the_clients_fault(client: httpx.Client, name: str) -> None:
    for stream in (False, True):
        assert error_of(post(client, stream=stream, **REFUSED[name]))


@pytest.mark.parametrize("name", REFUSED_AS_OURS)
def test_what_llama_server_calls_its_own_fault_is_the_clients(
    client: httpx.Client, name: str
) -> None:
    assert error_of(post(client, **REFUSED_AS_OURS[name]))


@pytest.mark.parametrize("name", REFUSED_FOR_NULL)
def test_a_field_that_is_null_is_as_good_as_none(client: httpx.Client, name: str) -> None:
    assert ask(client, **REFUSED_FOR_NULL[name]).message.content == "Hello there."
