"""A chat writer that says what a test wants, in place of the native one, and readers of what a
dialect makes of it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

Delta = dict[str, Any]
BEGIN, PROGRESS = 2, 1  # strata_chunk.kind

THOUGHT: list[Delta] = [{"reasoning_content": "Let me "}, {"reasoning_content": "see."}]
TEXT: list[Delta] = [{"content": "It is "}, {"content": "here."}]
CALLS: list[Delta] = [
    {"tool_calls": [_call]}
    for _call in (
        {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}},
        {"index": 0, "function": {"arguments": '{"a":'}},
        {"index": 0, "function": {"arguments": "1}"}},
        {"index": 1, "id": "c2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
    )
]


class ChatWriter:
    """A `ReplyPort` whose chunks have the given deltas, one each, as the native writer's do."""

    def __init__(self, deltas: Sequence[Delta], reason: str, streams: bool):
        self._deltas = list(deltas)
        self._reason = reason
        self._streams = streams

    def chunk(self, *, sse: bool, kind: int = 0, **fields: Any) -> bytes:
        assert not sse
        if kind == PROGRESS:
            progress = {"processed": fields["progress_processed"]}
            return json.dumps([{"choices": [], "prompt_progress": progress}]).encode()
        return json.dumps([_chunk(self._deltas.pop(0), None)]).encode()

    def final(self, *, sse: bool, **fields: Any) -> bytes:
        assert not sse
        timings = {"predicted_n": fields["n_decoded"]}
        if self._streams:
            ends: list[Any] = [_chunk(delta, None) for delta in self._deltas]
            ends.append({**_chunk({}, self._reason), "timings": timings})
            return json.dumps(ends).encode()
        choice = {"message": _message(self._deltas), "finish_reason": self._reason, "index": 0}
        return json.dumps({"choices": [choice], "timings": timings}).encode()


def _chunk(delta: Delta, reason: str | None) -> Any:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


def _message(deltas: Sequence[Delta]) -> Delta:
    message: Delta = {"role": "assistant", "content": ""}
    calls: list[Any] = []
    for delta in deltas:
        for name in ("content", "reasoning_content"):
            if name in delta:
                message[name] = message.get(name, "") + delta[name]
        for call in delta.get("tool_calls", ()):
            if call["index"] == len(calls):
                calls.append({"id": call["id"], "type": "function", "function": call["function"]})
            else:
                function = calls[-1]["function"]
                calls[-1]["function"] = {
                    **function,
                    "arguments": function["arguments"] + call["function"]["arguments"],
                }
    return {**message, "tool_calls": calls} if calls else message


def streamed(
    dialect: Any, request: Any, deltas: Sequence[Delta], reason: str = "stop", **more: Any
) -> list[Any]:
    """The events of an answer whose prompt had 10 tokens, 4 of them cached."""
    reply = dialect.reply(ChatWriter(deltas, reason, True), request, len)
    out = [reply.chunk(sse=True, kind=BEGIN, n_prompt=10, n_cached=4)]
    for number, _ in enumerate(deltas, 1):
        out.append(reply.chunk(sse=True, n_decoded=number, n_prompt=10, n_cached=4))
    n_decoded = len(deltas)
    out.append(reply.final(sse=True, n_decoded=n_decoded, n_prompt=10, n_cached=4, **more))
    return read_events(b"".join(out))


def whole(
    dialect: Any, request: Any, deltas: Sequence[Delta], reason: str = "stop", **more: Any
) -> Any:
    """The same answer in one piece."""
    reply = dialect.reply(ChatWriter(deltas, reason, False), request, len)
    n_decoded = len(deltas)
    value = reply.final(sse=False, n_decoded=n_decoded, n_prompt=10, n_cached=4, **more)
    return json.loads(value)


def read_events(data: bytes) -> list[Any]:
    """The events of a stream, each by its name and with the same `type` in it."""
    found = []
    for block in data.decode().strip().split("\n\n"):
        name, _, value = block.partition("\n")
        event = json.loads(value.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
    return found
