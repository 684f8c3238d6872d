"""OpenAI's Responses API: what is made of chat's answer, streamed and whole."""

from __future__ import annotations

from typing import Any

import pytest

from strata_server.dialects.responses import Responses
from strata_server.errors import ApiError, context_exceeded
from tests.unit.chat_writer import BEGIN, CALLS, PROGRESS, TEXT, THOUGHT, ChatWriter, read_events
from tests.unit.chat_writer import streamed as stream_of
from tests.unit.chat_writer import whole as whole_of

TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
DIALECT = Responses("model")
EVERYTHING = [*THOUGHT, *TEXT, *CALLS]


def streamed(deltas: Any, reason: str = "stop", **request: Any) -> Any:
    return stream_of(DIALECT, request, deltas, reason)


def whole(deltas: Any, reason: str = "stop", **request: Any) -> Any:
    return whole_of(DIALECT, request, deltas, reason)


def test_items_come_one_after_the_other() -> None:
    events = streamed(EVERYTHING, "tool_calls")
    assert [(e["type"], e.get("output_index")) for e in events] == [
        ("response.created", None),
        ("response.in_progress", None),
        ("response.output_item.added", 0),
        ("response.content_part.added", 0),
        ("response.reasoning_text.delta", 0),
        ("response.reasoning_text.delta", 0),
        ("response.reasoning_text.done", 0),
        ("response.content_part.done", 0),
        ("response.output_item.done", 0),
        ("response.output_item.added", 1),
        ("response.content_part.added", 1),
        ("response.output_text.delta", 1),
        ("response.output_text.delta", 1),
        ("response.output_text.done", 1),
        ("response.content_part.done", 1),
        ("response.output_item.done", 1),
        ("response.output_item.added", 2),
        ("response.function_call_arguments.delta", 2),
        ("response.function_call_arguments.delta", 2),
        ("response.function_call_arguments.done", 2),
        ("response.output_item.done", 2),
        ("response.output_item.added", 3),
        ("response.function_call_arguments.delta", 3),
        ("response.function_call_arguments.done", 3),
        ("response.output_item.done", 3),
        ("response.completed", None),
    ]


def test_events_are_numbered_and_name_their_item() -> None:
    events = streamed(EVERYTHING, "tool_calls")
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    done = events[-1]["response"]["output"]
    prefixes = [item["id"].partition("_")[0] for item in done]
    assert prefixes == ["rs", "msg", "fc", "fc"] and len({item["id"] for item in done}) == 4
    for event in events:
        if "item_id" in event:
            assert event["item_id"] == done[event["output_index"]]["id"]
        if "item" in event:
            assert event["item"]["id"] == done[event["output_index"]]["id"]
    assert {e["response"]["id"] for e in events if "response" in e} == {events[0]["response"]["id"]}
    for event in events:
        if event["type"].startswith("response.output_text") or "content_part" in event["type"]:
            assert event["content_index"] == 0


def test_done_events_repeat_what_was_streamed() -> None:
    events = streamed(EVERYTHING, "tool_calls")
    by_type: dict[str, list[Any]] = {}
    for event in events:
        by_type.setdefault(event["type"], []).append(event)
    assert by_type["response.reasoning_text.done"][0]["text"] == "Let me see."
    assert by_type["response.output_text.done"][0]["text"] == "It is here."
    arguments = by_type["response.function_call_arguments.done"]
    assert [(e["name"], e["arguments"]) for e in arguments] == [("f", '{"a":1}'), ("g", "{}")]
    items = [event["item"] for event in by_type["response.output_item.done"]]
    assert items == events[-1]["response"]["output"]
    added = [event["item"] for event in by_type["response.output_item.added"]]
    assert [item["status"] for item in added] == ["in_progress"] * 4


def test_a_whole_response_has_the_same_items() -> None:
    response = whole(EVERYTHING, "tool_calls")
    items = streamed(EVERYTHING, "tool_calls")[-1]["response"]["output"]
    for item in [*response["output"], *items]:
        del item["id"]
    assert response["output"] == items == [
        {
            "type": "reasoning",
            "status": "completed",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "Let me see."}],
            "encrypted_content": "",
        },
        {
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [
                {
                    "type": "output_text",
                    "text": "It is here.",
                    "annotations": [],
                    "logprobs": [],
                }
            ],
        },
        {
            "type": "function_call",
            "status": "completed",
            "call_id": "c1",
            "name": "f",
            "arguments": '{"a":1}',
        },
        {
            "type": "function_call",
            "status": "completed",
            "call_id": "c2",
            "name": "g",
            "arguments": "{}",
        },
    ]


def test_usage_is_always_whole() -> None:
    for response in (whole(TEXT), streamed(TEXT)[-1]["response"]):
        assert response["usage"] == {
            "input_tokens": 10,
            "input_tokens_details": {"cached_tokens": 4},
            "output_tokens": 2,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 12,
        }
    # the stand-in for the tokenizer counts characters; more than were generated are never told
    assert whole(EVERYTHING)["usage"]["output_tokens_details"] == {"reasoning_tokens": 8}


def test_a_response_repeats_what_was_asked() -> None:
    asked = {
        "instructions": "Be kind.",
        "tools": [TOOL],
        "tool_choice": {"type": "function", "name": "f"},
        "temperature": 0.5,
        "top_p": 0.9,
        "max_output_tokens": 7,
        "metadata": {"a": "b"},
        "reasoning": {"effort": "low"},
        "parallel_tool_calls": False,
        "text": {"format": {"type": "text"}, "verbosity": "low"},
    }
    for response in (whole(TEXT, **asked), streamed(TEXT, **asked)[0]["response"]):
        assert {name: response[name] for name in asked} == asked
        assert (response["object"], response["store"], response["error"]) == (
            "response",
            False,
            None,
        )
        assert response["id"].startswith("resp_") and response["model"] == "model"


@pytest.mark.parametrize("deltas", [TEXT, THOUGHT, CALLS, EVERYTHING])
def test_an_answer_cut_off_is_incomplete_and_so_is_its_last_item(deltas: Any) -> None:
    events = streamed(deltas, "length")
    last = events[-1]
    assert last["type"] == "response.incomplete"
    for response in (last["response"], whole(deltas, "length")):
        assert response["status"] == "incomplete"
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
        statuses = [item["status"] for item in response["output"]]
        assert statuses == ["completed"] * (len(statuses) - 1) + ["incomplete"]
        assert response["usage"]["output_tokens"] == len(deltas)
    done = [e["item"] for e in events if e["type"] == "response.output_item.done"]
    assert done == last["response"]["output"]


def test_an_empty_answer_has_no_items() -> None:
    assert whole([])["output"] == []
    kinds = [event["type"] for event in streamed([])]
    assert kinds == ["response.created", "response.in_progress", "response.completed"]


def test_progress_is_an_event_of_its_own() -> None:
    reply = DIALECT.reply(ChatWriter([], "stop", True), {}, len)
    data = reply.chunk(sse=True, kind=PROGRESS, n_prompt=10, progress_processed=5)
    events = read_events(data)
    assert [e["type"] for e in events] == ["response.created"] + ["response.in_progress"] * 2
    assert events[2]["prompt_progress"] == {"processed": 5}
    assert events[2]["response"]["status"] == "in_progress"


def test_a_failure_is_the_end_of_the_numbered_events() -> None:
    reply = DIALECT.reply(ChatWriter([*THOUGHT, *TEXT], "stop", True), {}, len)
    data = reply.chunk(sse=True, kind=BEGIN)
    for _ in range(3):
        data += reply.chunk(sse=True)
    data += DIALECT.failure(ApiError("gone", "unavailable_error"), reply)
    events = read_events(data)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    failed, error = events[-2:]
    assert failed["type"] == "response.failed"
    response = failed["response"]
    assert (response["status"], response["usage"]) == ("failed", None)
    assert response["error"] == {"code": "server_error", "message": "gone"}
    assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]
    assert response["output"][1]["content"][0]["text"] == "It is "
    assert response["id"] == events[0]["response"]["id"]
    assert (error["type"], error["message"], error["code"]) == ("error", "gone", "server_error")
    assert error["error"] == {"code": 503, "message": "gone", "type": "unavailable_error"}


def test_a_failure_before_anything_else_has_a_beginning() -> None:
    reply = DIALECT.reply(ChatWriter([], "stop", True), {}, len)
    events = read_events(DIALECT.failure(context_exceeded(70, 64), reply))
    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "response.failed",
        "error",
    ]
    assert events[2]["response"]["error"]["code"] == "context_length_exceeded"
    assert events[3]["error"]["n_ctx"] == 64
