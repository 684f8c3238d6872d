"""From the native library's chat deltas to whole blocks, one after the other: reasoning, text, tool
calls. Dialects whose events open and close blocks write theirs from these.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

BlockKind = Literal["reasoning", "text", "tool"]


@dataclass
class Block:
    """One block of an answer, as far as it has come. `text` of a tool call is its arguments."""

    kind: BlockKind
    index: int  # its place in the answer
    name: str = ""  # of a tool
    call_id: str = ""
    parts: list[str] = field(default_factory=list)
    item_id: str = ""  # for dialects whose blocks have names

    @property
    def text(self) -> str:
        """All of it so far."""
        return "".join(self.parts)


@dataclass(frozen=True)
class Opened:
    """A block begins."""

    block: Block


@dataclass(frozen=True)
class Grown:
    """A block goes on with `text`."""

    block: Block
    text: str


@dataclass(frozen=True)
class Closed:
    """A block is complete."""

    block: Block


Change = Opened | Grown | Closed


class Blocks:
    """Follows one answer. At most one block is open; it is closed before the next one opens."""

    def __init__(self) -> None:
        self.all: list[Block] = []
        self.open: Block | None = None
        self._tool = -1  # number of the open tool call in the deltas

    def add_delta(self, delta: dict[str, Any]) -> list[Change]:
        """What the `delta` of a chat chunk changes."""
        changes: list[Change] = []
        if text := delta.get("reasoning_content"):
            self._grow("reasoning", text, changes)
        if text := delta.get("content"):
            self._grow("text", text, changes)
        for call in delta.get("tool_calls") or ():
            self._call(call, changes)
        return changes

    def add_message(self, message: dict[str, Any]) -> list[Change]:
        """All blocks of a whole chat message."""
        calls = [{**call, "index": i} for i, call in enumerate(message.get("tool_calls") or ())]
        return [*self.add_delta({**message, "tool_calls": calls}), *self.close()]

    def close(self) -> list[Change]:
        """The answer has ended."""
        if self.open is None:
            return []
        block, self.open = self.open, None
        return [Closed(block)]

    def _grow(self, kind: BlockKind, text: str, changes: list[Change]) -> None:
        block = self.open
        if block is None or block.kind != kind:
            block = self._begin(kind, changes)
        block.parts.append(text)
        changes.append(Grown(block, text))

    def _call(self, call: dict[str, Any], changes: list[Change]) -> None:
        function = call.get("function") or {}
        number = int(call.get("index", 0))
        block = self.open
        if block is None or block.kind != "tool" or number != self._tool:
            block = self._begin("tool", changes, function.get("name", ""), call.get("id", ""))
            self._tool = number
        if text := function.get("arguments"):
            block.parts.append(text)
            changes.append(Grown(block, text))

    def _begin(
        self, kind: BlockKind, changes: list[Change], name: str = "", call_id: str = ""
    ) -> Block:
        changes += self.close()
        block = Block(kind, len(self.all), name, call_id)
        self.all.append(block)
        self.open = block
        changes.append(Opened(block))
        return block
