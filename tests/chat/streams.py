"""Clients of the three dialects that parse: they read an answer's events and accept none that is
out of order, says something twice, or takes something back.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.chat.speaking import Call, Message

Object = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """An answer as its client has it in the end."""

    message: Message
    reason: str  # why it ended: chat's finish_reason
    ids: tuple[str, ...]  # of the tool calls


def events(data: bytes) -> Iterator[tuple[str, Any]]:
    """Name ("" where there is none) and value of each event; `None` for `[DONE]`."""
    for block in data.decode().split("\n\n"):
        fields = dict(line.partition(": ")[::2] for line in block.splitlines() if line[0] != ":")
        if fields:
            assert fields.keys() <= {"event", "data"}, block
            value = fields["data"]
            yield fields.get("event", ""), None if value == "[DONE]" else json.loads(value)


def arguments_of(text: str) -> Any:
    """A call's arguments; AssertionError where they are no JSON object."""
    try:
        value = json.loads(text)
    except ValueError:
        raise AssertionError(f"arguments are no JSON: {text!r}") from None
    assert isinstance(value, dict), text
    return value


def answer(content: str, reasoning: str, calls: list[Object], reason: str) -> Answer:
    """`calls` have id, name and arguments (text); an answer cut off may end within those."""
    ids = tuple(call["id"] for call in calls)
    assert all(ids) and len(set(ids)) == len(ids), ids
    assert all(call["name"] for call in calls), calls
    assert (reason == "tool_calls") == (bool(calls) and reason != "length"), (reason, calls)
    as_read = str if reason == "length" else arguments_of
    read = tuple(Call(call["name"], as_read(call["arguments"])) for call in calls)
    return Answer(Message(content, reasoning, read), reason, ids)


# ---- OpenAI's chat completions ------------------------------------------------------------------


def read_chat(data: bytes) -> Answer:
    """The answer in a stream of `chat.completion.chunk`."""
    content, reasoning, reason = "", "", ""
    calls: list[Object] = []
    names = set()
    first = True
    for _, chunk in events(data):
        if chunk is None:
            continue
        assert chunk["object"] == "chat.completion.chunk"
        names.add(chunk["id"])
        if not chunk["choices"]:
            assert reason, "usage before the end"
            continue
        (choice,) = chunk["choices"]
        assert not reason, "something after the end"
        delta = choice["delta"]
        if first:
            assert delta == {"role": "assistant", "content": None}
            first = False
            continue
        assert delta.keys() <= {"content", "reasoning_content", "tool_calls"}, delta
        reason = choice["finish_reason"] or ""
        assert bool(delta) != bool(reason), choice
        for name in ("content", "reasoning_content"):
            assert name not in delta or (isinstance(delta[name], str) and delta[name]), delta
        content += delta.get("content", "")
        reasoning += delta.get("reasoning_content", "")
        for piece in delta.get("tool_calls", ()):
            _add_piece(calls, piece)
    assert not first and len(names) == 1
    return answer(content, reasoning, calls, reason)


def _add_piece(calls: list[Object], piece: Object) -> None:
    """A call begins once, after all before it, with its id and name; then only arguments grow."""
    index, function = piece["index"], piece.get("function", {})
    if index == len(calls):
        assert piece["type"] == "function"
        calls.append({"id": piece["id"], "name": function["name"], "arguments": ""})
    else:
        assert index == len(calls) - 1, f"call {index} goes on after call {len(calls) - 1}"
        assert piece.keys() == {"index", "function"}, piece
        assert function.keys() == {"arguments"}, piece
    calls[-1]["arguments"] += function.get("arguments", "")


def read_whole_chat(data: bytes) -> Answer:
    """The answer in a `chat.completion`."""
    (choice,) = json.loads(data)["choices"]
    said = choice["message"]
    assert said["role"] == "assistant"
    assert said.keys() <= {"role", "content", "reasoning_content", "tool_calls"}
    calls = [{"id": c["id"], **c["function"]} for c in said.get("tool_calls", ())]
    assert all(c["type"] == "function" for c in said.get("tool_calls", ()))
    return answer(
        said["content"] or "", said.get("reasoning_content", ""), calls, choice["finish_reason"]
    )


# ---- Anthropic's messages -----------------------------------------------------------------------

_ANTHROPIC_DELTAS = {
    "text": {"text_delta": "text"},
    "thinking": {"thinking_delta": "thinking", "signature_delta": "signature"},
    "tool_use": {"input_json_delta": "partial_json"},
}
_ANTHROPIC_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
}


def read_anthropic(data: bytes) -> Answer:
    """The answer in the events of a message; one block is open at a time."""
    blocks: list[Object] = []
    is_open = False
    seen = []
    reason = ""
    for name, event in events(data):
        assert event["type"] == name
        seen.append(name)
        if name == "message_start":
            assert len(seen) == 1 and event["message"]["content"] == []
        elif name == "content_block_start":
            assert not is_open and event["index"] == len(blocks)
            blocks.append({"said": "", "signature": "", **event["content_block"]})
            is_open = True
        elif name == "content_block_delta":
            assert is_open and event["index"] == len(blocks) - 1
            field = _ANTHROPIC_DELTAS[blocks[-1]["type"]][event["delta"]["type"]]
            assert isinstance(event["delta"][field], str)
            part = "signature" if field == "signature" else "said"
            assert part == "signature" or not blocks[-1]["signature"], "said after its signature"
            blocks[-1][part] += event["delta"][field]
        elif name == "content_block_stop":
            assert is_open and event["index"] == len(blocks) - 1
            is_open = False
        elif name == "message_delta":
            assert not is_open
            reason = _ANTHROPIC_REASONS[event["delta"]["stop_reason"]]
    assert seen[-2:] == ["message_delta", "message_stop"], seen
    return _from_blocks(blocks, reason)


def read_whole_anthropic(data: bytes) -> Answer:
    """The answer in a message."""
    message = json.loads(data)
    blocks = []
    for block in message["content"]:
        inputs = {"said": json.dumps(block["input"])} if block["type"] == "tool_use" else {}
        blocks.append({"said": block.get("text", block.get("thinking")), **block, **inputs})
    return _from_blocks(blocks, _ANTHROPIC_REASONS[message["stop_reason"]])


def _from_blocks(blocks: list[Object], reason: str) -> Answer:
    def said(kind: str) -> str:
        return "".join(block["said"] for block in blocks if block["type"] == kind)

    calls = [
        {"id": block["id"], "name": block["name"], "arguments": block["said"] or "{}"}
        for block in blocks
        if block["type"] == "tool_use"
    ]
    return answer(said("text"), said("thinking"), calls, reason)


# ---- OpenAI's responses -------------------------------------------------------------------------

_ITEM_DELTAS = {
    "message": "response.output_text.delta",
    "reasoning": "response.reasoning_text.delta",
    "function_call": "response.function_call_arguments.delta",
}


def read_responses(data: bytes) -> Answer:
    """The answer in the events of a response; items are added and done one after the other, and
    what was streamed of each is what it is in the end.
    """
    items: list[Object] = []
    streamed: list[str] = []
    is_open = part_open = False
    for number, (name, event) in enumerate(events(data)):
        assert event["type"] == name and event["sequence_number"] == number
        if number < 2:
            assert name == ("response.created", "response.in_progress")[number]
        elif name == "response.output_item.added":
            assert not is_open and event["output_index"] == len(items)
            assert event["item"]["status"] == "in_progress"
            items.append(event["item"])
            streamed.append("")
            is_open = True
        elif name == "response.output_item.done":
            assert is_open and not part_open and event["output_index"] == len(items) - 1
            assert event["item"]["id"] == items[-1]["id"]
            assert _said(event["item"]) == streamed[-1]
            items[-1] = event["item"]
            is_open = False
        elif name in ("response.completed", "response.incomplete"):
            assert not is_open
            assert event["response"]["output"] == items
            return _from_items(event["response"])
        else:
            assert is_open and event["item_id"] == items[-1]["id"], name
            kind = items[-1]["type"]
            if name == "response.content_part.added":
                assert kind != "function_call" and not part_open
                part_open = True
            elif name == "response.content_part.done":
                assert part_open
                part_open = False
            elif name.endswith(".delta"):
                assert name == _ITEM_DELTAS[kind] and part_open == (kind != "function_call")
                streamed[-1] += event["delta"]
            else:
                assert name == _ITEM_DELTAS[kind].removesuffix("delta") + "done"
                assert event.get("text", event.get("arguments")) == streamed[-1]
    raise AssertionError("the response has no end")


def read_whole_response(data: bytes) -> Answer:
    """The answer in a response."""
    return _from_items(json.loads(data))


def _said(item: Object) -> str:
    if item["type"] == "function_call":
        return str(item["arguments"])
    return "".join(part["text"] for part in item["content"])


def _from_items(response: Object) -> Answer:
    items = response["output"]
    assert len({item["id"] for item in items}) == len(items)

    def said(kind: str) -> str:
        return "".join(_said(item) for item in items if item["type"] == kind)

    calls = [
        {"id": item["call_id"], "name": item["name"], "arguments": item["arguments"]}
        for item in items
        if item["type"] == "function_call"
    ]
    ended = {"completed": "tool_calls" if calls else "stop", "incomplete": "length"}
    return answer(said("message"), said("reasoning"), calls, ended[response["status"]])
