"""Whole turns of coding agents, in the shape that they send them: the model calls a tool, reads its
result, answers, and nothing of the first turn is read again in the second.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.chat.speaking import Call
from tests.chat.streams import read_anthropic, read_responses
from tests.http.calling import (
    ANSWER,
    ANTHROPIC_TOOL,
    ARGUMENTS,
    NAME,
    QUESTION,
    RESPONSES_TOOL,
    calling_server,
)
from tests.http.server_process import ServerProcess, need_native_library

EPHEMERAL = {"cache_control": {"type": "ephemeral"}}
SLACK = 8  # tokens at the end of a prompt that may be split otherwise when it goes on


@pytest.fixture(scope="module")
def strict_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """With a template that takes no system message but the first."""
    need_native_library()
    folder = tmp_path_factory.mktemp("templates")
    with calling_server(folder, takes_late_system=False) as process:
        yield process


@pytest.fixture(params=["tool_server", "strict_server"])
def client(request: Any) -> Iterator[httpx.Client]:
    with request.getfixturevalue(request.param).client() as client:
        yield client


def events_of(reply: httpx.Response) -> list[Any]:
    """The values of a stream's events."""
    assert reply.status_code == 200, reply.text
    return [
        json.loads(line.removeprefix("data: "))
        for line in reply.text.splitlines()
        if line.startswith("data: ")
    ]


# ---- Claude Code ---------------------------------------------------------------------------------

CLAUDE_HEADERS = {
    "Authorization": "Bearer none",
    "User-Agent": "claude-cli/2.1.240 (external, cli)",
    "X-App": "cli",
    "anthropic-version": "2023-06-01",
    "anthropic-dangerous-direct-browser-access": "true",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,"
    "context-management-2025-06-27,mid-conversation-system-2026-04-07",
}


def claude_request(messages: list[Any], stamp: str, **more: Any) -> Any:
    header = "x-anthropic-billing-header: cc_version=2.1.240.0d9; cc_entrypoint=cli; "
    return {
        "model": "claude-sonnet-5",
        "messages": messages,
        "system": [
            {"type": "text", "text": f"{header}cch={stamp};"},
            {"type": "text", "text": "You are Claude Code.", **EPHEMERAL},
            {"type": "text", "text": "\nBe short.", **EPHEMERAL},
        ],
        "tools": [
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
            {**ANTHROPIC_TOOL, "eager_input_streaming": True, **EPHEMERAL},
        ],
        "metadata": {"user_id": json.dumps({"device_id": "d", "session_id": "s"})},
        "max_tokens": 60,
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "medium"},
        "temperature": 0,
        "stream": True,
        **more,
    }


def test_claude_code_s_turns(client: httpx.Client) -> None:
    client.headers.update(CLAUDE_HEADERS)
    skills = [{"type": "text", "text": "These skills are there: none.", **EPHEMERAL}]
    asked: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": QUESTION}]},
        {"role": "system", "content": skills},
    ]
    counted = client.post(
        "/v1/messages/count_tokens?beta=true",
        json={k: v for k, v in claude_request(asked, "a5145").items() if k != "stream"},
    ).json()["input_tokens"]
    reply = client.post("/v1/messages?beta=true", json=claude_request(asked, "a5145"))
    usage = events_of(reply)[-2]["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == counted
    answer = read_anthropic(reply.content)
    assert answer.message.calls == (Call(NAME, ARGUMENTS),)

    (call,) = answer.ids
    use = {"type": "tool_use", "id": call, "name": NAME, "input": ARGUMENTS}
    said = [{"type": "text", "text": answer.message.content}] if answer.message.content else []
    result = {"type": "tool_result", "tool_use_id": call, "content": "hello", **EPHEMERAL}
    # what carried a mark for the cache before carries none now
    del skills[0]["cache_control"]
    asked += [
        {"role": "assistant", "content": [*said, use]},
        {"role": "user", "content": [{"type": "text", "text": "Go on."}, result]},
        {"role": "system", "content": "<total_tokens>3000 tokens left</total_tokens>"},
    ]
    reply = client.post("/v1/messages?beta=true", json=claude_request(asked, "0fe11", max_tokens=8))
    events = events_of(reply)
    assert events[0]["message"]["usage"]["cache_read_input_tokens"] >= counted - SLACK
    assert read_anthropic(reply.content).message.content == ANSWER


def test_claude_code_s_side_requests(client: httpx.Client) -> None:
    client.headers.update(CLAUDE_HEADERS)
    assert client.head("/").status_code == 200
    quota = {
        "model": "claude-haiku-4-5",
        "max_tokens": 1,
        "messages": [{"role": "user", "content": "quota"}],
    }
    assert client.post("/v1/messages?beta=true", json=quota).json()["usage"]["output_tokens"] == 1
    schema = {
        "type": "object",
        "properties": {"title": {"type": "string", "maxLength": 20}},
        "required": ["title"],
        "additionalProperties": False,
    }
    title = {
        **quota,
        "max_tokens": 40,
        "system": [{"type": "text", "text": "Give it a title."}],
        "thinking": {"type": "disabled"},
        "temperature": 0,
        "output_config": {"format": {"type": "json_schema", "schema": schema}},
        "tools": [],
    }
    reply = client.post("/v1/messages?beta=true", json=title).json()
    (said,) = (block["text"] for block in reply["content"] if block["type"] == "text")
    assert json.loads(said).keys() == {"title"}


# ---- Codex CLI -----------------------------------------------------------------------------------

CODEX_HEADERS = {
    "Authorization": "Bearer none",
    "User-Agent": "codex_cli_rs/0.162.1 (Linux; x86_64) xterm",
    "Accept": "text/event-stream",
    "originator": "codex_cli_rs",
    "session_id": "0199a213",
    "conversation_id": "0199a213",
}


def codex_request(items: list[Any], **more: Any) -> Any:
    grammar = {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'}
    return {
        "model": "gpt-5.5",
        "instructions": "You are Codex. Be short.",
        "input": items,
        "tools": [
            RESPONSES_TOOL,
            {"type": "custom", "name": "apply_patch", "description": "p", "format": grammar},
            {"type": "web_search", "external_web_access": False},
            {"type": "namespace", "name": "mcp__x", "tools": [RESPONSES_TOOL]},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "service_tier": None,
        "prompt_cache_key": "0199a213",
        "text": {"verbosity": "low"},
        "client_metadata": {"x-codex-installation-id": "i"},
        "temperature": 0,
        **more,
    }


def codex_message(role: str, text: str) -> Any:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def test_codex_s_turns(client: httpx.Client) -> None:
    client.headers.update(CODEX_HEADERS)
    items = [
        codex_message("developer", "You may write into the folder."),
        codex_message("user", "<environment_context>bash</environment_context>"),
        codex_message("user", QUESTION),
    ]
    reply = client.post("/v1/responses", json=codex_request(items, max_output_tokens=60))
    events = events_of(reply)
    assert read_responses(reply.content).message.calls == (Call(NAME, ARGUMENTS),)
    n_first = events[-1]["response"]["usage"]["input_tokens"]

    done = [e["item"] for e in events if e["type"] == "response.output_item.done"]
    # it sends its items back without the names that we gave them
    items += [{k: v for k, v in item.items() if k not in ("id", "status")} for item in done]
    (call,) = (item["call_id"] for item in done if item["type"] == "function_call")
    items += [
        {"type": "function_call_output", "call_id": call, "output": "hello"},
        codex_message("developer", "You may read the network now."),
    ]
    reply = client.post("/v1/responses", json=codex_request(items, max_output_tokens=8))
    answer = read_responses(reply.content)
    usage = events_of(reply)[-1]["response"]["usage"]
    assert answer.message.content == ANSWER
    assert usage["input_tokens_details"]["cached_tokens"] >= n_first - SLACK


def test_codex_s_probe_with_nothing_to_say(client: httpx.Client) -> None:
    client.headers.update(CODEX_HEADERS)
    reply = client.post("/v1/responses", json=codex_request([], max_output_tokens=1))
    assert events_of(reply)[-1]["type"] in ("response.incomplete", "response.completed")
