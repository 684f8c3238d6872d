"""Anthropic's Messages API: what is made of chat's answer, streamed and whole."""

from __future__ import annotations

from typing import Any

import pytest

from strata_server.dialects.anthropic import Anthropic, signature
from tests.unit.chat_writer import (
    CALLS,
    PROGRESS,
    TEXT,
    THOUGHT,
    ChatWriter,
    read_events,
    streamed,
    whole,
)

DIALECT = Anthropic("model")
USAGE = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 4, "input_tokens": 6}


def test_blocks_come_one_after_the_other() -> None:
    events = streamed(DIALECT, {}, [*THOUGHT, *TEXT, *CALLS], "tool_calls")
    order = [
        (event["type"].removeprefix("content_block_"), event["index"])
        for event in events
        if "index" in event
    ]
    deltas = "delta"
    assert order == [
        ("start", 0), (deltas, 0), (deltas, 0), (deltas, 0), ("stop", 0),
        ("start", 1), (deltas, 1), (deltas, 1), ("stop", 1),
        ("start", 2), (deltas, 2), (deltas, 2), ("stop", 2),
        ("start", 3), (deltas, 3), ("stop", 3),
    ]  # fmt: skip
    starts = [e["content_block"] for e in events if e["type"] == "content_block_start"]
    assert starts == [
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "text", "text": ""},
        {"type": "tool_use", "id": "c1", "name": "f", "input": {}},
        {"type": "tool_use", "id": "c2", "name": "g", "input": {}},
    ]
    found = [e["delta"] for e in events if e["type"] == "content_block_delta"]
    assert found == [
        {"type": "thinking_delta", "thinking": "Let me "},
        {"type": "thinking_delta", "thinking": "see."},
        {"type": "signature_delta", "signature": signature("Let me see.")},
        {"type": "text_delta", "text": "It is "},
        {"type": "text_delta", "text": "here."},
        {"type": "input_json_delta", "partial_json": '{"a":'},
        {"type": "input_json_delta", "partial_json": "1}"},
        {"type": "input_json_delta", "partial_json": "{}"},
    ]


def test_a_stream_begins_and_ends_with_all_that_is_known() -> None:
    events = streamed(DIALECT, {}, TEXT)
    start, stop = events[0], events[-1]
    message = start["message"]
    assert start["type"] == "message_start" and message.pop("id").startswith("msg_")
    assert message == {
        "type": "message",
        "role": "assistant",
        "content": [],
        "model": "model",
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {**USAGE, "output_tokens": 0},
    }
    assert events[-2] == {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": {**USAGE, "output_tokens": 2},
    }
    assert stop == {"type": "message_stop", "timings": {"predicted_n": 2}}


def test_a_whole_message_has_the_same_blocks() -> None:
    message = whole(DIALECT, {}, [*THOUGHT, *TEXT, *CALLS], "tool_calls")
    assert message["content"] == [
        {"type": "thinking", "thinking": "Let me see.", "signature": signature("Let me see.")},
        {"type": "text", "text": "It is here."},
        {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}},
        {"type": "tool_use", "id": "c2", "name": "g", "input": {}},
    ]
    assert message["usage"] == {**USAGE, "output_tokens": 8}
    assert (message["type"], message["role"], message["model"]) == ("message", "assistant", "model")


def test_progress_is_told_in_pings_which_all_clients_pass_over() -> None:
    reply = DIALECT.reply(ChatWriter([], "stop", True), {}, len)
    start, ping = read_events(reply.chunk(sse=True, kind=PROGRESS, progress_processed=5))
    assert start["type"] == "message_start"
    assert ping == {"type": "ping", "prompt_progress": {"processed": 5}}


def test_an_empty_answer_has_no_blocks() -> None:
    assert whole(DIALECT, {}, [])["content"] == []
    kinds = [event["type"] for event in streamed(DIALECT, {}, [])]
    assert kinds == ["message_start", "message_delta", "message_stop"]


@pytest.mark.parametrize(
    ("deltas", "reason", "word", "wanted"),
    [
        (TEXT, "stop", "", ("end_turn", None)),
        (TEXT, "stop", "<|end|>", ("end_turn", None)),  # the template's, not the client's
        (TEXT, "stop", "END", ("stop_sequence", "END")),
        (TEXT, "length", "", ("max_tokens", None)),
        (CALLS, "tool_calls", "", ("tool_use", None)),
        (CALLS, "length", "", ("max_tokens", None)),
    ],
)
def test_stop_reasons(deltas: Any, reason: str, word: str, wanted: Any) -> None:
    request = {"stop_sequences": ["END"]}
    message = whole(DIALECT, request, deltas, reason, stopping_word=word)
    assert (message["stop_reason"], message["stop_sequence"]) == wanted
    delta = streamed(DIALECT, request, deltas, reason, stopping_word=word)[-2]["delta"]
    assert (delta["stop_reason"], delta["stop_sequence"]) == wanted


@pytest.mark.parametrize("arguments", ['{"a": [1, ', "", "3", "null"])
def test_arguments_that_are_no_object_are_shown_as_none(arguments: str) -> None:
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": arguments}}
    message = whole(DIALECT, {}, [{"tool_calls": [call]}], "length")
    assert message["content"][0]["input"] == {}


def test_a_signature_is_of_what_was_thought() -> None:
    assert signature("a") == signature("a") != signature("b")
    assert signature("")
