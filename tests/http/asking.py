"""What agents ask for, and how a server with the scripted model answers it."""

from __future__ import annotations

from typing import Any

import httpx

from tests.chat.scripted import SCRIPTS
from tests.chat.speaking import Call, Message
from tests.chat.streams import Answer, read_chat, read_whole_chat

USER = {"role": "user", "content": "Hi"}


def tool(name: str, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {
        "type": "function",
        "function": {"name": name, "description": "does it", "parameters": schema},
    }


TOOLS = [
    tool("get_weather", city={"type": "string"}, days={"type": "integer"}),
    tool("add_note", text={"type": "string"}),
]
WEATHER = Call("get_weather", {"city": "Paris", "days": 2})
SAID = {
    "text": Message("Hello there."),
    "reasoning": Message("Hello there.", "A greeting"),
    "call": Message(calls=(WEATHER,)),
    "calls": Message(calls=(WEATHER, Call("add_note", {"text": "so"}))),
    "reasoning-call": Message(reasoning="A greeting", calls=(WEATHER,)),
}


def post(client: httpx.Client, script: str = "text", **fields: Any) -> httpx.Response:
    """A chat request to be answered with a script."""
    body = {"messages": [USER], "max_tokens": 100, "temperature": 0, **fields}
    return client.post("/v1/chat/completions", json={"logit_bias": SCRIPTS[script], **body})


def ask(client: httpx.Client, script: str = "text", **fields: Any) -> Answer:
    """The answer; streamed where the fields say so."""
    reply = post(client, script, **fields)
    assert reply.status_code == 200, reply.text
    return (read_chat if fields.get("stream") else read_whole_chat)(reply.content)


def error_of(reply: httpx.Response) -> dict[str, Any]:
    assert reply.status_code == 400, reply.text
    error: dict[str, Any] = reply.json()["error"]
    return error
