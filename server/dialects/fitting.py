"""Chats in the form that a model's template takes.

Agents send system messages in the middle of a chat (Claude Code tells so which tools and how many
tokens there are, Codex CLI how it may be used), and several messages of a user one after the other.
Some templates refuse that, some show nothing of a late system message, and some move it to the
beginning, so that no prompt is ever the beginning of the next one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import orjson

from .fields import Object

SYSTEM = ("system", "developer")
ASK_LATE = (("user", "said-1"), ("system", "said-2"), ("assistant", "said-3"), ("user", "said-4"))
ASK_ROWS = (("user", "said-1"), ("user", "said-2"))
FOLLOWS = {"user": "user", "tool": "user", "assistant": "assistant"}  # in a row of one side

Render = Callable[[bytes], bytes]  # from the body of POST /apply-template to its reply


class Fitting:
    """Fits chats to one model's template, which is asked when it first matters.

    What is said stays in its place, whatever comes later: a chat that has grown begins as before.
    """

    def __init__(self, render: Render):
        self._render = render

    def __call__(self, messages: list[Object]) -> list[Object]:
        """The same chat. Its system messages before all others become one, and so do an
        assistant's in a row, which llama.cpp refuses at the end. Later system messages, and a
        user's in a row, stay as they are where the template takes them; otherwise they become part
        of what is said there.
        """
        first = next((i for i, m in enumerate(messages) if m["role"] not in SYSTEM), len(messages))
        late = messages[first:]
        if any(message["role"] in SYSTEM for message in late) and not self._takes_late:
            late = _as_reminders(late)
        if any(_goes_on(*pair) for pair in pairwise(late)):
            late = _in_turn(late, ("assistant",))
        if any(_goes_on(*pair) for pair in pairwise(late)) and not self._takes_rows:
            late = _in_turn(late, ("user",))
        return [*_as_one(messages[:first]), *late]

    @functools.cached_property
    def _takes_late(self) -> bool:
        return self._shows(ASK_LATE)

    @functools.cached_property
    def _takes_rows(self) -> bool:
        return self._shows(ASK_ROWS)

    def _shows(self, chat: Sequence[tuple[str, str]]) -> bool:
        """Whether a prompt has all that is said, in this order."""
        messages = [{"role": role, "content": text} for role, text in chat]
        try:
            reply = self._render(orjson.dumps({"messages": messages}))
        except Exception as error:
            if not hasattr(error, "message"):  # not the template's refusal
                raise
            return False
        prompt: str = orjson.loads(reply)["prompt"]
        places = [prompt.rfind(text) for _, text in chat]
        return places[0] >= 0 and places == sorted(places)


def _goes_on(message: Object, following: Object) -> bool:
    """Whether the second of two neighbours is more of what the first one's side says."""
    same = FOLLOWS.get(message["role"]) == following["role"]
    return same and not message.get("tool_calls")


def _as_one(messages: list[Object]) -> list[Object]:
    return [functools.reduce(_with, messages)] if messages else []


def _with(message: Object, following: Object) -> Object:
    both = {**following, **message}  # its calls and reasoning; role and id of the first
    return {**both, "content": joined(message.get("content"), following.get("content"))}


def _in_turn(messages: Iterable[Object], sides: Sequence[str]) -> list[Object]:
    found: list[Object] = []
    for message in messages:
        if found and message["role"] in sides and _goes_on(found[-1], message):
            found[-1] = _with(found[-1], message)
        else:
            found.append(message)
    return found


def _as_reminders(messages: Iterable[Object]) -> list[Object]:
    found: list[Object] = []
    for message in messages:
        if message["role"] not in SYSTEM:
            found.append(message)
            continue
        reminder = {"role": "user", "content": _tagged(message["content"])}
        if found and found[-1]["role"] in ("user", "tool"):
            found[-1] = _with(found[-1], reminder)
        else:
            found.append(reminder)
    return found


def _tagged(content: Any) -> Any:
    """As Claude Code marks such texts for models without late system messages."""
    return joined(joined("<system-reminder>", content, "\n"), "</system-reminder>", "\n")


def joined(first: Any, second: Any, gap: str = "\n\n") -> Any:
    """Two contents of messages, each a text or parts, one after the other. A text comes out alike
    in both forms: clients send it once as the one and once as the other.
    """
    first, second = _flat(first), _flat(second)
    if isinstance(first, str) and isinstance(second, str):
        return first + gap + second if first and second else first or second
    return [*_parts(first), *_parts(second)]


def _flat(content: Any) -> Any:
    """Parts that are all text as one, put together as llama-server does; others as they are."""
    if isinstance(content, list) and all(part["type"] == "text" for part in content):
        return "\n".join(part["text"] for part in content)
    return content or ""


def _parts(content: Any) -> list[Object]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    parts: list[Object] = content
    return parts
