"""Anthropic's Messages API, as its clients (Claude Code among them) expect it."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import orjson

from ..errors import ApiError, ErrorForm
from ..ports import Kind, ReplyPort
from .anthropic_request import chat_body, stops
from .blocks import Block, Change, Closed, Grown, Opened
from .chat_reply import ChatReply, Counts, Ending, event
from .dialect import Words
from .fields import Object, read_object
from .fitting import Fitting
from .names import fresh_id

PING = event("ping")


class Anthropic:
    """The dialect of POST /v1/messages."""

    name = "anthropic"
    kind = Kind.OAI_CHAT
    errors = ErrorForm.ANTHROPIC
    done = b""
    ping = PING

    def __init__(self, model: str, normalise: bool = True, fit: Fitting | None = None):
        self._model = model
        self._normalise = normalise
        self._fit = fit

    def read(self, body: bytes) -> tuple[bytes, Any]:
        """The chat body; the second value is the request as it came."""
        request = read_object(body)
        chat = chat_body(request, self._normalise)
        if self._fit is not None:
            chat["messages"] = self._fit(chat["messages"])
        return orjson.dumps(chat), request

    def reply(self, inner: ReplyPort, request: Any, count_tokens: Words) -> ReplyPort:
        """The writer of a message."""
        return MessageReply(inner, self._model, stops(request))

    def failure(self, error: ApiError, writer: ReplyPort) -> bytes:
        """The event that ends a failed stream."""
        return error.event(self.errors)


class MessageReply(ChatReply):
    """Writes a message, or its events: each block ends before the next one begins."""

    def __init__(self, inner: ReplyPort, model: str, stop_sequences: Sequence[str]):
        super().__init__(inner)
        self._model = model
        self._stops = set(stop_sequences)
        self._id = fresh_id("msg")

    def _begin(self, counts: Counts) -> bytes:
        message = self._message([], None, None, _usage(counts, 0))
        return event("message_start", message=message)

    def _progress(self, progress: Any) -> bytes:
        return event("ping", prompt_progress=progress)

    def _changes(self, changes: Sequence[Change]) -> bytes:
        return b"".join(self._change(change) for change in changes)

    def _change(self, change: Change) -> bytes:
        block, index = change.block, change.block.index
        match change:
            case Opened():
                content = {**_EMPTY[block.kind], **_tool_name(block)}
                return event("content_block_start", index=index, content_block=content)
            case Grown():
                kind, field = _DELTAS[block.kind]
                delta = {"type": kind, field: change.text}
                return event("content_block_delta", index=index, delta=delta)
            case Closed():
                stop = event("content_block_stop", index=index)
                if block.kind != "reasoning":
                    return stop
                delta = {"type": "signature_delta", "signature": signature(block.text)}
                return event("content_block_delta", index=index, delta=delta) + stop

    def _end(self, ending: Ending) -> bytes:
        reason, sequence = self._stop(ending)
        delta = event(
            "message_delta",
            delta={"stop_reason": reason, "stop_sequence": sequence},
            usage=_usage(ending.counts, ending.counts.generated),
        )
        timings = {} if ending.timings is None else {"timings": ending.timings}
        return delta + event("message_stop", **timings)

    def _whole(self, ending: Ending) -> bytes:
        usage = _usage(ending.counts, ending.counts.generated)
        blocks = [_content(block) for block in self._blocks.all]
        message = self._message(blocks, *self._stop(ending), usage)
        if ending.timings is not None:
            message["timings"] = ending.timings
        return orjson.dumps(message)

    def _message(
        self, content: list[Object], reason: str | None, sequence: str | None, usage: Object
    ) -> Object:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self._model,
            "stop_reason": reason,
            "stop_sequence": sequence,
            "usage": usage,
        }

    def _stop(self, ending: Ending) -> tuple[str, str | None]:
        if ending.finish_reason == "length":
            return "max_tokens", None
        if ending.finish_reason == "tool_calls":
            return "tool_use", None
        if ending.stopping_word in self._stops:
            return "stop_sequence", ending.stopping_word
        return "end_turn", None


def signature(thinking: str) -> str:
    """What a thinking block is signed with: a hash, since there is nothing to prove here."""
    digest = blake2b(thinking.encode(), digest_size=24, person=b"thinking").digest()
    return b64encode(digest).decode()


_EMPTY: dict[str, Object] = {
    "reasoning": {"type": "thinking", "thinking": "", "signature": ""},
    "text": {"type": "text", "text": ""},
    "tool": {"type": "tool_use", "input": {}},
}
_DELTAS = {
    "reasoning": ("thinking_delta", "thinking"),
    "text": ("text_delta", "text"),
    "tool": ("input_json_delta", "partial_json"),
}


def _tool_name(block: Block) -> Object:
    return {"id": block.call_id, "name": block.name} if block.kind == "tool" else {}


def _content(block: Block) -> Object:
    if block.kind == "reasoning":
        return {"type": "thinking", "thinking": block.text, "signature": signature(block.text)}
    if block.kind == "text":
        return {"type": "text", "text": block.text}
    return {"type": "tool_use", **_tool_name(block), "input": _arguments(block.text)}


def _arguments(text: str) -> Object:
    """A call's arguments; what was cut off in the middle is no object, and shown as none."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def _usage(counts: Counts, generated: int) -> Object:
    return {
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": counts.cached,
        "input_tokens": counts.prompt - counts.cached,
        "output_tokens": generated,
    }
