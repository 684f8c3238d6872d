"""What agents rely on, through the real server and all dialects: calls, forced or not, formats,
choices, seeds, limits. The model says what each test wants to hear, see `tests.chat.scripted`.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.chat.speaking import Call, Message
from tests.chat.streams import (
    Answer,
    events,
    read_anthropic,
    read_chat,
    read_responses,
    read_whole_anthropic,
    read_whole_response,
)
from tests.http.asking import SAID, TOOLS, USER, WEATHER, ask, error_of, post


@pytest.fixture
def client(scripted_client: httpx.Client) -> httpx.Client:
    return scripted_client


# ---- what a model says, in each dialect ---------------------------------------------------------


@pytest.mark.parametrize("script", SAID)
def test_a_chat_is_read_alike_whole_and_streamed(client: httpx.Client, script: str) -> None:
    whole, streamed = (ask(client, script, tools=TOOLS, stream=stream) for stream in (False, True))
    assert whole.message == streamed.message == SAID[script]
    assert whole.reason == streamed.reason == ("tool_calls" if SAID[script].calls else "stop")


@pytest.mark.parametrize(
    ("path", "body", "whole", "stream"),
    [
        (
            "/v1/messages",
            {
                "messages": [USER],
                "tools": [
                    {"name": t["function"]["name"], "input_schema": t["function"]["parameters"]}
                    for t in TOOLS
                ],
                "tool_choice": {"type": "any"},
            },
            read_whole_anthropic,
            read_anthropic,
        ),
        (
            "/v1/responses",
            {
                "input": "Hi",
                "tools": [{"type": "function", **t["function"]} for t in TOOLS],
                "tool_choice": "required",
            },
            read_whole_response,
            read_responses,
        ),
    ],
    ids=["anthropic", "responses"],
)
def test_other_dialects_carry_a_forced_call(
    client: httpx.Client,
    path: str,
    body: dict[str, Any],
    whole: Callable[[bytes], Answer],
    stream: Callable[[bytes], Answer],
) -> None:
    answers = []
    for read, streamed in ((whole, False), (stream, True)):
        reply = client.post(path, json={**body, "temperature": 0, "stream": streamed})
        assert reply.status_code == 200, reply.text
        answers.append(read(reply.content))
    for answer in answers:
        assert answer.message == Message("Hello there.", calls=(WEATHER,))
        assert answer.reason == "tool_calls"


def test_no_two_answers_and_no_two_calls_have_the_same_id(client: httpx.Client) -> None:
    replies = [post(client, "calls", tools=TOOLS, n=2).json() for _ in range(3)]
    choices = [choice for reply in replies for choice in reply["choices"]]
    calls = [call["id"] for choice in choices for call in choice["message"]["tool_calls"]]
    assert len(calls) == len(set(calls)) == 12
    assert len({reply["id"] for reply in replies}) == 3


def test_an_answer_cut_off_within_a_call_has_no_call_to_make(client: httpx.Client) -> None:
    for limit in range(1, 9):
        for stream in (False, True):
            answer = ask(client, "call", tools=TOOLS, max_tokens=limit, stream=stream)
            assert answer.reason == "length"


# ---- forced calls -------------------------------------------------------------------------------


@pytest.mark.parametrize("script", SAID)
@pytest.mark.parametrize("stream", [False, True])
def test_a_required_call_comes_whatever_the_model_wants(
    client: httpx.Client, script: str, stream: bool
) -> None:
    answer = ask(client, script, tools=TOOLS, tool_choice="required", stream=stream)
    assert answer.reason == "tool_calls"
    assert answer.message.calls[0] == WEATHER


@pytest.mark.parametrize("script", ["text", "call", "reasoning-call"])
def test_a_tool_that_is_named_is_called(client: httpx.Client, script: str) -> None:
    for expected in (WEATHER, Call("add_note", {"text": "a < b"})):
        choice = {"type": "function", "function": {"name": expected.name}}
        answer = ask(client, script, tools=TOOLS, tool_choice=choice)
        assert answer.message.calls == (expected,)


def test_tools_that_may_not_be_called_are_not(client: httpx.Client) -> None:
    answer = ask(client, "call", tools=TOOLS, tool_choice="none")
    assert (answer.message.calls, answer.reason) == ((), "stop")


@pytest.mark.xfail(strict=True, reason="llama.cpp's grammar allows a second <tool_call>")
def test_calls_come_one_by_one_where_a_client_wants_it(client: httpx.Client) -> None:
    answer = ask(client, "calls", tools=TOOLS, parallel_tool_calls=False)
    assert answer.message.calls == (WEATHER,)


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "function", "function": {"name": "nonesuch"}},
        {"type": "function"},
        {"type": "function", "function": {"name": 5}},
        {"x": 1},
        "any",
        "nonesuch",
        5,
        [],
    ],
)
def test_a_choice_that_cannot_be_made_is_refused(client: httpx.Client, choice: Any) -> None:
    assert "tool_choice" in error_of(post(client, tools=TOOLS, tool_choice=choice))["message"]


def test_a_call_required_without_tools_is_refused(client: httpx.Client) -> None:
    assert error_of(post(client, tool_choice="required"))


# ---- formats ------------------------------------------------------------------------------------

BROKEN = {"type": "object", "properties": {"a": {"$ref": "#/$defs/nope"}}}


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"schema": BROKEN}}},
        {"response_format": {"type": "json_object", "schema": BROKEN}},
        {"json_schema": BROKEN},
        {"tools": [{"type": "function", "function": {"name": "t", "parameters": BROKEN}}]},
        {
            "tools": [{"type": "function", "function": {"name": "t", "parameters": BROKEN}}],
            "tool_choice": {"type": "function", "function": {"name": "t"}},
        },
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_that_cannot_be_followed_is_refused_with_its_place(
    client: httpx.Client, fields: dict[str, Any], stream: bool
) -> None:
    error = error_of(post(client, stream=stream, **fields))
    assert error["type"] == "invalid_request_error"
    assert "#/properties/a" in error["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_keeps_to_its_schema(client: httpx.Client, stream: bool) -> None:
    schema = {
        "type": "object",
        "properties": {
            "kind": {"enum": ["a", "b"]},
            "ok": {"type": "boolean"},
            "list": {"type": "array", "items": {"const": 1}, "minItems": 2, "maxItems": 2},
        },
        "required": ["kind", "ok", "list"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    answer = ask(client, response_format=wanted, stream=stream)
    assert answer.reason == "stop"
    value = json.loads(answer.message.content)
    assert value.keys() == {"kind", "ok", "list"}
    assert value["kind"] in ("a", "b") and value["list"] == [1, 1]


def test_any_object_will_do_where_one_is_asked_for(client: httpx.Client) -> None:
    answer = ask(client, response_format={"type": "json_object"}, max_tokens=200)
    assert answer.reason == "stop"
    assert isinstance(json.loads(answer.message.content), dict)


def test_a_format_that_is_none_is_refused(client: httpx.Client) -> None:
    assert error_of(post(client, response_format={"type": "xml"}))
    assert error_of(post(client, tools=TOOLS, grammar='root ::= "a"'))


@pytest.mark.parametrize(
    ("how", "content", "reasoning"),
    [
        ("deepseek", "Hello there.", "A greeting"),
        ("auto", "Hello there.", "A greeting"),
        ("none", "<think>A greeting</think>Hello there.", ""),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_is_shown_as_asked(
    client: httpx.Client, how: str, content: str, reasoning: str, stream: bool
) -> None:
    answer = ask(client, "reasoning", reasoning_format=how, stream=stream)
    assert answer.message == Message(content, reasoning)


# ---- several choices, probabilities, seeds ------------------------------------------------------


def test_choices_are_numbered_and_end_one_by_one(client: httpx.Client) -> None:
    whole = post(client, "calls", tools=TOOLS, n=2).json()
    assert [choice["index"] for choice in whole["choices"]] == [0, 1]
    streamed = post(client, "calls", tools=TOOLS, n=2, stream=True).content
    chunks = [chunk for _, chunk in events(streamed) if chunk]
    for index in (0, 1):
        own = [chunk for chunk in chunks if chunk["choices"][0]["index"] == index]
        answer = read_chat(b"".join(b"data: %s\n\n" % json.dumps(c).encode() for c in own))
        assert answer.message == SAID["calls"]
        assert answer.reason == "tool_calls"


def test_probabilities_come_with_each_token(client: httpx.Client) -> None:
    (choice,) = post(client, logprobs=True, top_logprobs=2).json()["choices"]
    shown = choice["logprobs"]["content"]
    assert "".join(one["token"] for one in shown) == "Hello there."
    assert all(len(one["top_logprobs"]) == 2 for one in shown)
    reply = post(client, logprobs=True, top_logprobs=2, stream=True)
    choices = [chunk["choices"][0] for _, chunk in events(reply.content) if chunk]
    streamed = [one for c in choices for one in (c.get("logprobs") or {}).get("content", ())]
    # the last is the end token, which has no chunk of its own
    assert [one["token"] for one in streamed] == [one["token"] for one in shown][:-1]


def test_one_seed_gives_one_text(client: httpx.Client) -> None:
    def text(seed: int) -> str:
        fields = {"temperature": 1.0, "seed": seed, "max_tokens": 30, "cache_prompt": False}
        return ask(client, "random", **fields).message.content

    texts = [text(seed) for seed in (1, 1, 2, 2)]
    assert texts[0] == texts[1] != texts[2] == texts[3]


def test_choices_of_one_seed_differ(client: httpx.Client) -> None:
    fields = {"temperature": 1.0, "seed": 1, "max_tokens": 30, "n": 2}
    first, second = post(client, "random", **fields).json()["choices"]
    assert first["message"]["content"] != second["message"]["content"]


# ---- limits -------------------------------------------------------------------------------------

LONG = "word " * 5000


def test_an_overflow_is_told_in_each_apis_words(client: httpx.Client) -> None:
    asked: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": LONG}]},
        "/v1/completions": {"prompt": LONG},
        "/v1/responses": {"input": LONG},
    }
    for (path, body), stream in itertools.product(asked.items(), (False, True)):
        error = error_of(client.post(path, json={**body, "stream": stream}))
        assert error["code"] == "context_length_exceeded", path
        assert "maximum context length is 4096 tokens" in error["message"]
    body = {"messages": [{"role": "user", "content": LONG}], "max_tokens": 5}
    reply = client.post("/v1/messages", json=body)
    assert reply.json()["type"] == "error"
    error = error_of(reply)
    assert error["type"] == "invalid_request_error"
    assert error["message"].startswith("prompt is too long: ")
    assert "tokens > 4096 maximum" in error["message"]


def test_an_answer_that_fills_the_context_ends_by_its_length(client: httpx.Client) -> None:
    almost = {"role": "user", "content": LONG[:3900]}  # each character is a token
    assert ask(client, "random", messages=[almost], max_tokens=-1).reason == "length"


def test_the_reason_for_the_end(client: httpx.Client) -> None:
    assert ask(client).reason == "stop"
    assert ask(client, max_tokens=2).reason == "length"
    answer = ask(client, stop=[" there"])
    assert (answer.reason, answer.message.content) == ("stop", "Hello")
    assert ask(client, "call", tools=TOOLS).reason == "tool_calls"
    assert ask(client, "call").reason == "stop"  # nobody asked for calls
