"""The writer of dialects that are made from chat: unpacks what the native writer says in chat's
form and hands it on in pieces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from ..ports import BEGIN, PROGRESS, TOKENS, ReplyPort
from .blocks import Blocks, Change


@dataclass(frozen=True)
class Counts:
    """Tokens of a request so far."""

    prompt: int
    cached: int
    generated: int


@dataclass(frozen=True)
class Ending:
    """How an answer ended."""

    counts: Counts
    finish_reason: str  # chat's: stop, length, tool_calls
    stopping_word: str
    timings: Any  # llama-server's object


class ChatReply:
    """A `ReplyPort` on top of the native one; what its dialect writes is in `_begin`, `_changes`,
    `_end`, `_whole` and, where it has it, `_progress`. Each returns bytes to send.
    """

    def __init__(self, inner: ReplyPort):
        self._inner = inner
        self._blocks = Blocks()
        self._begun = False
        self._cut_off = False  # by the limit of tokens

    def chunk(self, *, sse: bool, kind: int = TOKENS, **fields: Any) -> bytes:
        """One streamed piece, as bytes of the event stream."""
        opening = self._opening(_counts(fields))
        if kind == BEGIN:
            return opening
        chunks = _chunks(self._inner.chunk(sse=False, kind=kind, **fields))
        if kind == PROGRESS:
            progress = next((c["prompt_progress"] for c in chunks if "prompt_progress" in c), None)
            return opening + self._progress(progress)
        return opening + self._changes(self._follow(chunks))

    def final(self, *, sse: bool, stopping_word: str = "", **fields: Any) -> bytes:
        """The end of the answer: bytes of the event stream (`sse`), or the whole reply."""
        counts = _counts(fields)
        chunks = _chunks(self._inner.final(sse=False, stopping_word=stopping_word, **fields))
        choices = [choice for chunk in chunks for choice in chunk.get("choices", ())]
        reason = next((c["finish_reason"] for c in choices if c.get("finish_reason")), "stop")
        timings = next((c["timings"] for c in chunks if "timings" in c), None)
        ending = Ending(counts, reason, stopping_word, timings)
        self._cut_off = reason == "length"
        if not sse:
            self._blocks.add_message(choices[0]["message"])
            return self._whole(ending)
        opening = self._opening(counts)
        changes = [*self._follow(chunks), *self._blocks.close()]
        return opening + self._changes(changes) + self._end(ending)

    def _opening(self, counts: Counts) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        return self._begin(counts)

    def _follow(self, chunks: Sequence[dict[str, Any]]) -> list[Change]:
        return [
            change
            for chunk in chunks
            for choice in chunk.get("choices", ())
            for change in self._blocks.add_delta(choice.get("delta") or {})
        ]

    def _begin(self, counts: Counts) -> bytes:
        raise NotImplementedError

    def _changes(self, changes: Sequence[Change]) -> bytes:
        raise NotImplementedError

    def _progress(self, progress: Any) -> bytes:
        return b""

    def _end(self, ending: Ending) -> bytes:
        raise NotImplementedError

    def _whole(self, ending: Ending) -> bytes:
        raise NotImplementedError


def event(name: str, /, **data: Any) -> bytes:
    """One event of a stream, whose name is also its `type`."""
    shown = orjson.dumps({"type": name, **data})
    return b"event: " + name.encode() + b"\ndata: " + shown + b"\n\n"


def _counts(fields: Mapping[str, Any]) -> Counts:
    return Counts(*(fields.get(name, 0) for name in ("n_prompt", "n_cached", "n_decoded")))


def _chunks(value: bytes) -> list[dict[str, Any]]:
    found = orjson.loads(value)
    if found is None:
        return []
    chunks: list[dict[str, Any]] = found if isinstance(found, list) else [found]
    return chunks
