"""OpenAI's Responses API, as its clients (Codex CLI among them) expect it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import orjson

from ..errors import ApiError, ErrorForm
from ..ports import Kind, ReplyPort
from .blocks import Block, Change, Closed, Grown, Opened
from .chat_reply import ChatReply, Counts, Ending, event
from .dialect import Words
from .fields import Object, read_object
from .fitting import Fitting
from .names import fresh_id
from .responses_request import chat_body


class Responses:
    """The dialect of POST /v1/responses."""

    name = "openai-responses"
    kind = Kind.OAI_CHAT
    errors = ErrorForm.RESPONSES
    done = b""
    ping = b":\n\n"

    def __init__(self, model: str, fit: Fitting | None = None):
        self._model = model
        self._fit = fit

    def read(self, body: bytes) -> tuple[bytes, Any]:
        """The chat body; the second value is the request as it came."""
        request = read_object(body)
        chat = chat_body(request)
        if self._fit is not None:
            chat["messages"] = self._fit(chat["messages"])
        return orjson.dumps(chat), request

    def reply(self, inner: ReplyPort, request: Any, count_tokens: Words) -> ReplyPort:
        """The writer of a response."""
        return ResponseReply(inner, self._model, request, count_tokens)

    def failure(self, error: ApiError, writer: ReplyPort) -> bytes:
        """The events that end a failed response."""
        assert isinstance(writer, ResponseReply)
        return writer.failure(error)


class ResponseReply(ChatReply):
    """Writes a response, or its events: numbered, each item done before the next is added."""

    def __init__(self, inner: ReplyPort, model: str, request: Object, count_tokens: Words):
        super().__init__(inner)
        self._model = model
        self._request = request
        self._count_tokens = count_tokens
        self._id = fresh_id("resp")
        self._created = int(time.time())
        self._number = 0

    def failure(self, error: ApiError) -> bytes:
        """What ends the stream in place of the rest: the response as it is known to have failed,
        then the error for clients that only look for one.
        """
        opening = self._opening(Counts(0, 0, 0))
        code = FAILURES.get(error.error_type, "server_error")
        short = {"code": code, "message": error.message}
        items = [_item(block, "completed") for block in self._blocks.all]
        if still_open := self._blocks.open:
            items[-1] = _item(still_open, "incomplete")
        failed = self._response("failed", items, None)
        failed["error"] = short
        told = error.as_object(ErrorForm.RESPONSES)
        return (
            opening
            + self._event("response.failed", response=failed)
            + self._event("error", **short, param=None, error=told)
        )

    def _event(self, kind: str, /, **data: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return event(kind, sequence_number=number, **data)

    def _begin(self, counts: Counts) -> bytes:
        response = self._response("in_progress", [], None)
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def _progress(self, progress: Any) -> bytes:
        response = self._response("in_progress", [], None)
        return self._event("response.in_progress", response=response, prompt_progress=progress)

    def _changes(self, changes: Sequence[Change]) -> bytes:
        return b"".join(self._change(change) for change in changes)

    def _change(self, change: Change) -> bytes:
        block = change.block
        if isinstance(change, Opened):
            block.item_id = fresh_id(_PREFIX[block.kind])
        place = {"item_id": block.item_id, "output_index": block.index}
        inner = place if block.kind == "tool" else {**place, "content_index": 0}
        match change:
            case Opened():
                added = self._event(
                    "response.output_item.added",
                    output_index=block.index,
                    item=_item(block, "in_progress"),
                )
                if block.kind == "tool":
                    return added
                return added + self._event(
                    "response.content_part.added", **inner, part=_part(block, "")
                )
            case Grown():
                return self._event(
                    _DELTA[block.kind], **inner, delta=change.text, **_logprobs(block)
                )
            case Closed():
                return self._close(block, inner)

    def _close(self, block: Block, place: Object) -> bytes:
        text = block.text
        if block.kind == "tool":
            done = self._event(
                "response.function_call_arguments.done", **place, name=block.name, arguments=text
            )
        else:
            done = self._event(_DONE[block.kind], **place, text=text, **_logprobs(block))
            done += self._event("response.content_part.done", **place, part=_part(block, text))
        return done + self._event(
            "response.output_item.done",
            output_index=block.index,
            item=_item(block, self._status(block)),
        )

    def _status(self, block: Block) -> str:
        return "incomplete" if self._cut_off and block is self._blocks.all[-1] else "completed"

    def _end(self, ending: Ending) -> bytes:
        response = self._ended(ending)
        more = {} if ending.timings is None else {"timings": ending.timings}
        return self._event(f"response.{response['status']}", response=response, **more)

    def _whole(self, ending: Ending) -> bytes:
        for block in self._blocks.all:
            block.item_id = fresh_id(_PREFIX[block.kind])
        response = self._ended(ending)
        if ending.timings is not None:
            response["timings"] = ending.timings
        return orjson.dumps(response)

    def _ended(self, ending: Ending) -> Object:
        status = "incomplete" if ending.finish_reason == "length" else "completed"
        output = [_item(block, self._status(block)) for block in self._blocks.all]
        return self._response(status, output, self._usage(ending.counts))

    def _usage(self, counts: Counts) -> Object:
        thought = "".join(b.text for b in self._blocks.all if b.kind == "reasoning")
        return {
            "input_tokens": counts.prompt,
            "input_tokens_details": {"cached_tokens": counts.cached},
            "output_tokens": counts.generated,
            "output_tokens_details": {
                "reasoning_tokens": min(self._count_tokens(thought), counts.generated)
                if thought
                else 0
            },
            "total_tokens": counts.prompt + counts.generated,
        }

    def _response(self, status: str, output: list[Object], usage: Object | None) -> Object:
        asked = self._request.get
        incomplete = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "completed_at": int(time.time()) if usage else None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": incomplete,
            "instructions": asked("instructions"),
            "max_output_tokens": asked("max_output_tokens"),
            "metadata": asked("metadata", {}),
            "model": self._model,
            "output": output,
            "parallel_tool_calls": asked("parallel_tool_calls", True),
            "previous_response_id": None,
            "reasoning": asked("reasoning", {"effort": None, "summary": None}),
            "store": False,
            "temperature": asked("temperature"),
            "text": asked("text", {"format": {"type": "text"}}),
            "tool_choice": asked("tool_choice", "auto"),
            "tools": asked("tools", []),
            "top_p": asked("top_p"),
            "truncation": "disabled",
            "usage": usage,
        }


FAILURES = {  # what OpenAI's API calls the failure of a response, by the type of our error
    "exceed_context_size_error": "context_length_exceeded",
    "invalid_request_error": "invalid_prompt",
    "rate_limit_error": "rate_limit_exceeded",
}
_PREFIX = {"reasoning": "rs", "text": "msg", "tool": "fc"}
_DELTA = {
    "reasoning": "response.reasoning_text.delta",
    "text": "response.output_text.delta",
    "tool": "response.function_call_arguments.delta",
}
_DONE = {"reasoning": "response.reasoning_text.done", "text": "response.output_text.done"}


def _logprobs(block: Block) -> Object:
    return {"logprobs": []} if block.kind == "text" else {}


def _part(block: Block, text: str) -> Object:
    if block.kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _item(block: Block, status: str) -> Object:
    said = status != "in_progress"
    content = [_part(block, block.text)] if said else []
    item: Object = {"id": block.item_id, "status": status}
    if block.kind == "reasoning":
        return {
            "type": "reasoning",
            **item,
            "summary": [],
            "content": content,
            "encrypted_content": "",
        }
    if block.kind == "text":
        return {"type": "message", **item, "role": "assistant", "content": content}
    return {
        "type": "function_call",
        **item,
        "call_id": block.call_id,
        "name": block.name,
        "arguments": block.text if said else "",
    }
