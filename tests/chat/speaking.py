"""What a model would write to say something, in the format of its template.

Nothing is written down here of any format: the template itself renders the message as history, and
what that adds to a prompt is what the model says.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from strata_plugin.runtime.native import Frontend, Kind, NativeError, Prepared
from tests.chat.templates import template_frontend

USER: dict[str, Any] = {"role": "user", "content": "Hello there"}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Tells the weather.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city", "days"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "add_note",
            "description": "Keeps a note.",
            "parameters": {
                "type": "object",
                "properties": {"text": {"type": "string"}},
                "required": ["text"],
            },
        },
    },
]


@dataclass(frozen=True)
class Call:
    """A tool call; its arguments as a client reads them."""

    name: str
    arguments: Any


@dataclass(frozen=True)
class Message:
    """What an assistant says."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()

    def as_history(self) -> dict[str, Any]:
        """As a client sends it back."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.calls:
            message["tool_calls"] = [
                {
                    "id": f"call{number:05d}",
                    "type": "function",
                    "function": {"name": c.name, "arguments": json.dumps(c.arguments)},
                }
                for number, c in enumerate(self.calls)
            ]
        return message


TEXT = "It is fine:\n20 °C, so {warm} & <b>dry</b>."
THOUGHT = "The user says hello; is 1 < 2?"
WEATHER = Call("get_weather", {"city": "São Paulo", "days": 3})
NOTE = Call("add_note", {"text": 'He said: "a < b".\n\n* {x}'})
MESSAGES: Mapping[str, Message] = {
    "text": Message(TEXT),
    "reasoning": Message(TEXT, THOUGHT),
    "call": Message(calls=(WEATHER,)),
    "calls": Message(calls=(WEATHER, NOTE)),
    "reasoning-call": Message(reasoning=THOUGHT, calls=(NOTE,)),
    "text-call": Message(TEXT, calls=(NOTE,)),
}

# Tokens that end a turn in the models that these templates are of. A model's vocabulary knows them,
# so its text ends before them.
END_OF_TURN = (
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|eot|>", "<|end|>", "<|call|>", "<|calls|>",
    "<|END_OF_TURN_TOKEN|>", "<|end_of_text|>", "<|end_of_msg|>", "<|message_sep|>", "<|role_end|>",
    "<end_of_turn>", "<turn|>", "<|tool_response>", "<end_of_sentence>", "<｜end▁of▁sentence｜>",
    "<seed:eos>", "<｜hy_eos:opensource｜>", "[e~[", "<SPECIAL_12>", "<sep>", "</assistant>",
)  # fmt: skip
# Ways of asking for an answer with and without reasoning
KWARGS: tuple[dict[str, Any], ...] = (
    {},
    {"enable_thinking": False},
    {"enable_thinking": True},
    {"reasoning_effort": "high"},
)


@dataclass(frozen=True)
class Spoken:
    """A model's text, what it says, and the request that it answers."""

    request: dict[str, Any] = field(repr=False)
    text: str
    message: Message


class Inexpressible(Exception):
    """The template has no words for a message."""


class Speaker:
    """Writes as a model with one template would."""

    def __init__(self, frontend: Frontend) -> None:
        self._frontend = frontend
        self._prompts: dict[bytes, str] = {}
        self._prepared: dict[bytes, Prepared] = {}

    def speak(self, message: Message) -> Spoken:
        """What a model would write to say `message`, or as much of it as its template can say.

        Raises `Inexpressible` where its calls are not among that.
        """
        best: Spoken | None = None
        for kwargs in KWARGS:
            request: dict[str, Any] = {"messages": [USER], "chat_template_kwargs": kwargs}
            if message.calls:
                request["tools"] = TOOLS
            spoken = self._answer(request, message)
            if spoken and spoken.message == message:
                return spoken
            best = best or spoken
            if not self.thinking_tags(request)[1]:
                break  # there is nothing to turn on or off
        if best is None:
            raise Inexpressible
        return best

    def thinking_tags(self, request: dict[str, Any]) -> tuple[str, str]:
        """What begins and ends reasoning to the parser of an answer; empty where it knows none."""
        sampling = json.loads(self.prepare(request, stream=False).sampling())
        ends = sampling.get("reasoning_budget_end_tags") or [""]
        return sampling.get("reasoning_budget_start_tag", ""), ends[0]

    def prepare(self, request: dict[str, Any], *, stream: bool) -> Prepared:
        """The request, ready to be answered. Each is prepared once: it takes 5 to 50 ms."""
        body = json.dumps({**request, "stream": stream}).encode()
        if body not in self._prepared:
            self._prepared[body] = self._frontend.prepare(Kind.OAI_CHAT, body)
        return self._prepared[body]

    def _answer(self, request: dict[str, Any], message: Message) -> Spoken | None:
        try:
            before, opened, text = self._added(request, message)
        except NativeError as error:
            raise Inexpressible(error.message) from error
        if any(call.name not in text for call in message.calls):
            raise Inexpressible
        start, end = (tag.strip() for tag in self.thinking_tags(request))
        thinks = bool(opened) or (bool(start) and before.rstrip().endswith(start))
        if opened and (not end or end in opened):
            return None  # no prompt for this message
        if end and ((thinks and end not in text) or message.reasoning not in text):
            # the template leaves thoughts out of a history
            said = re.sub(rf"^\s*({re.escape(start)})?\s*{re.escape(end)}", "", text)
            text = ("" if thinks else start) + message.reasoning + end + said
        content = message.content if message.content in text else ""
        reasoning = message.reasoning if message.reasoning in text else ""
        return Spoken(request, text, replace(message, content=content, reasoning=reasoning))

    def _added(self, request: dict[str, Any], message: Message) -> tuple[str, str, str]:
        """The prompt, what of its end a history does not have (an opened thought), and what the
        history has instead: the model's text.
        """
        before = self._render(request, USER, prompt=True)
        idle = self._render(request, USER, prompt=False)
        after = self._render(request, USER, message.as_history(), prompt=False)
        if idle == before:  # the template asks for an answer also where none is wanted
            at = max(_last_end(before), len(before) - _common(before[::-1], after[::-1]))
            after = after[: len(after) - len(before[at:])]
        elif not after.startswith(idle):  # its instructions come after all messages
            said = after[: len(after) - _common(idle[::-1], after[::-1])]
            after = before + said.rpartition(before[len(idle) :])[2]
        same = _common(before, after)
        if same < len(before):
            start, _ = self.thinking_tags(request)
            at = before.rfind(start) if start else -1
            if at <= same < at + len(start):
                same = at
        return before, before[same:], _without_end(after[same:], message)

    def _render(self, request: dict[str, Any], *messages: dict[str, Any], prompt: bool) -> str:
        fields = {**request, "messages": messages, "add_generation_prompt": prompt}
        body = json.dumps(fields).encode()
        if body not in self._prompts:
            self._prompts[body] = json.loads(self._frontend.apply_template(body))["prompt"]
        return self._prompts[body]


@functools.cache
def speaker(template: str) -> Speaker:
    """The one of this run for a template: rendering takes longer than all the rest."""
    return Speaker(template_frontend(template))


def _common(a: str, b: str) -> int:
    """Length of the common prefix."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))


def _last_end(text: str) -> int:
    """Where the last token that ends a turn ends; 0 where there is none."""
    return max((text.rfind(t) + len(t) for t in END_OF_TURN if t in text), default=0)


def _without_end(text: str, message: Message) -> str:
    """`text` before the token that ends the turn: the first with nothing of `message` after it."""
    said = [part for part in (message.content, message.reasoning) if part]
    said += [call.name for call in message.calls]
    for found in re.finditer("|".join(map(re.escape, END_OF_TURN)), text):
        if not any(part in text[found.end() :] for part in said):
            return text[: found.start()].rstrip()
    return text.rstrip()
