"""What a model writes in its template's format is what its client reads, whatever pieces the text
comes in: every template that comes with llama.cpp, in all three dialects that parse. They are made
from the native library's chat: its own writers of the other two leave blocks open side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from strata_server.dialects.anthropic import Anthropic
from strata_server.dialects.dialect import OPENAI_CHAT, Dialect
from strata_server.dialects.responses import Responses
from tests.chat.known_faults import faulty_templates, known_fault
from tests.chat.speaking import MESSAGES, Inexpressible, Message, Spoken, speaker
from tests.chat.streams import (
    Answer,
    read_anthropic,
    read_chat,
    read_responses,
    read_whole_anthropic,
    read_whole_chat,
    read_whole_response,
)
from tests.chat.templates import need_templates, template_frontend, template_names

need_templates()

EOS, LIMIT = 1, 3  # strata_final.stop


@dataclass(frozen=True)
class Client:
    """A dialect and how its clients read it."""

    dialect: Dialect
    stream: Callable[[bytes], Answer]
    whole: Callable[[bytes], Answer]


CLIENTS = (
    Client(OPENAI_CHAT, read_chat, read_whole_chat),
    Client(Anthropic("any"), read_anthropic, read_whole_anthropic),
    Client(Responses("any"), read_responses, read_whole_response),
)


def cases(*messages: str) -> list[Any]:
    return [
        pytest.param(template, name, marks=known_fault(template, name), id=f"{template}-{name}")
        for template in template_names()
        for name in messages
    ]


def read(
    template: str, spoken: Spoken, client: Client, pieces: list[str] | None, stop: int = EOS
) -> Answer:
    """The model's text as `client` gets it: in these pieces, or (None) whole."""
    prepared = speaker(template).prepare(spoken.request, stream=pieces is not None)
    reply: Any = client.dialect.reply(prepared.reply(0, 0), {}, len)
    if pieces is None:
        whole = reply.final(sse=False, text=spoken.text.encode(), stop=stop, n_decoded=1)
        return client.whole(whole)
    out = [
        reply.chunk(sse=True, text=piece.encode(), tokens=(0,), n_decoded=number)
        for number, piece in enumerate(pieces, 1)
    ]
    out.append(reply.final(sse=True, stop=stop, n_decoded=len(pieces)))
    return client.stream(b"".join(out))


def trimmed(message: Message) -> Message:
    """Without white space around texts: it belongs to the template's format."""
    return replace(message, content=message.content.strip(), reasoning=message.reasoning.strip())


@pytest.mark.parametrize(("template", "name"), cases(*MESSAGES))
def test_what_a_model_writes_is_what_its_client_reads(template: str, name: str) -> None:
    wanted = MESSAGES[name]
    try:
        spoken = speaker(template).speak(wanted)
    except Inexpressible:  # the template has no words for it, and says so
        caps = template_frontend(template).info()["chat_template_caps"]
        one = len(wanted.calls) == 1
        assert not caps["supports_tool_calls" if one else "supports_parallel_tool_calls"]
        return
    if wanted.reasoning and not spoken.message.reasoning:
        assert speaker(template).thinking_tags(spoken.request) == ("", "")
    assert wanted.calls or spoken.message.content == wanted.content
    for client in CLIENTS:
        whole = read(template, spoken, client, None)
        assert trimmed(whole.message) == spoken.message
        streamed = read(template, spoken, client, list(spoken.text))
        assert streamed.message == whole.message
        assert streamed.reason == whole.reason
    for end in range(1, len(spoken.text), 5):
        client = CLIENTS[end % len(CLIENTS)]
        assert read(template, spoken, client, [spoken.text[:end]], LIMIT).reason == "length"


def test_the_table_of_faults_names_templates_that_are_there() -> None:
    assert faulty_templates() <= set(template_names())
