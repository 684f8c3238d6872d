"""From a body of Anthropic's Messages API to one of chat completions.

Source: https://docs.anthropic.com/en/api/messages; where that leaves a choice, llama-server's
conversion (tools/server/server-chat.cpp) is followed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from ..errors import ApiError
from .churn import without_billing_stamp
from .fields import Object, expect, object_of, skipped, text_of

MAX_TOKENS = 4096  # where a request has no max_tokens: llama-server's default
SAME = (  # fields that chat has under the same name
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stream",
    "chat_template_kwargs",
    "cache_prompt",
    "id_slot",
    "lora",
    "return_progress",
    "timings_per_token",
    "sse_ping_interval",
)
EFFORTS = {"xhigh": "high", "max": "high"}  # where templates know nothing above
ROLES = ("user", "assistant", "system")


def chat_body(body: Object, normalise: bool = True) -> Object:
    """The chat request that asks for the same. `ApiError` names the field that is wrong.

    With `normalise` a stamp that changes with each request of a client is made constant.
    """
    chat: Object = {name: body[name] for name in SAME if name in body}
    if "messages" not in body:
        raise ApiError("'messages' is required")
    messages = _system(body.get("system"), normalise)
    for number, message in enumerate(expect(body["messages"], list, "messages")):
        messages += _message(object_of(message, f"messages[{number}]"), f"messages[{number}]")
    chat["messages"] = messages
    if tools := list(_tools(expect(body.get("tools", []), list, "tools"))):
        chat["tools"] = tools
        _choose_tool(object_of(body.get("tool_choice", {}), "tool_choice"), chat)
    chat["max_tokens"] = body.get("max_tokens", MAX_TOKENS)
    if "stop_sequences" in body:
        chat["stop"] = stops(body)
    _think(body, chat)
    _format_output(body, chat)
    return chat


def stops(body: Object) -> list[str]:
    """The request's own stop sequences."""
    found = expect(body.get("stop_sequences", []), list, "stop_sequences")
    return [expect(stop, str, "stop_sequences") for stop in found]


def _system(system: Any, normalise: bool) -> list[Object]:
    if system is None:
        return []
    if isinstance(system, str):
        texts = [system]
    else:
        given = expect(system, (str, list), "system")
        blocks = [object_of(block, f"system[{i}]") for i, block in enumerate(given)]
        texts = [
            text_of(block, "text", f"system[{i}]")
            for i, block in enumerate(blocks)
            if block.get("type", "text") == "text"
        ]
    if normalise:
        texts = [without_billing_stamp(text) for text in texts]
    return [{"role": "system", "content": "".join(texts)}]


def _message(message: Object, where: str) -> list[Object]:
    """Results of tools come before what else a message says: they answer the message before it."""
    role = text_of(message, "role", where)
    if role not in ROLES:
        raise ApiError(f"{where}.role: expected {', '.join(ROLES[:-1])} or {ROLES[-1]}")
    content = message.get("content")
    if content is None:
        return [] if role == "assistant" else [{"role": role, "content": ""}]
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    parts: list[Object] = []
    results: list[Object] = []
    calls: list[Object] = []
    thoughts: list[str] = []
    for number, value in enumerate(expect(content, (str, list), f"{where}.content")):
        at = f"{where}.content[{number}]"
        block = object_of(value, at)
        kind = text_of(block, "type", at)
        if kind == "tool_result":
            results.append(_result(block, at))
        elif kind == "tool_use":
            calls.append(_call(block, at))
        elif kind == "thinking":
            thoughts.append(expect(block.get("thinking", ""), str, f"{at}.thinking"))
        else:
            parts += _part(block, kind, at)
    found = results
    if parts or calls or any(thoughts):
        own: Object = {"role": role, "content": parts or ""}
        if calls:
            own["tool_calls"] = calls
        if any(thoughts):
            own["reasoning_content"] = "".join(thoughts)
        found = [*results, own]
    elif not results:
        found = [{"role": role, "content": ""}] if role != "assistant" else []
    return found


def _part(block: Object, kind: str, where: str) -> Iterator[Object]:
    if kind == "text":
        yield {"type": "text", "text": text_of(block, "text", where)}
    elif kind == "image":
        yield {"type": "image_url", "image_url": {"url": _image(block, where)}}
    elif kind == "document":
        yield {"type": "text", "text": _document(block, where)}
    elif kind == "search_result":
        for number, inner in enumerate(expect(block.get("content", []), list, f"{where}.content")):
            at = f"{where}.content[{number}]"
            yield from _part(object_of(inner, at), "text", at)
    else:  # what a server of theirs has done or hidden: redacted_thinking, server_tool_use, ...
        skipped("a block of type", kind, where)


def _image(block: Object, where: str) -> str:
    source = object_of(block.get("source"), f"{where}.source")
    if source.get("type") == "url":
        return text_of(source, "url", f"{where}.source")
    if source.get("type") == "base64":
        kind = source.get("media_type", "image/jpeg")
        return f"data:{kind};base64,{text_of(source, 'data', f'{where}.source')}"
    raise ApiError(f"{where}.source.type: expected base64 or url")


def _document(block: Object, where: str) -> str:
    source = object_of(block.get("source"), f"{where}.source")
    if source.get("type") == "text":
        return text_of(source, "data", f"{where}.source")
    if source.get("type") == "content":
        at = f"{where}.source.content"
        content = expect(source.get("content"), (str, list), at)
        if isinstance(content, str):
            return content
        return "".join(
            text_of(object_of(inner, f"{at}[{i}]"), "text", f"{at}[{i}]")
            for i, inner in enumerate(content)
        )
    raise ApiError(f"{where}.source.type: only documents of plain text can be read")


def _call(block: Object, where: str) -> Object:
    arguments = expect(block.get("input", {}), dict, f"{where}.input")
    return {
        "id": text_of(block, "id", where),
        "type": "function",
        "function": {
            "name": text_of(block, "name", where),
            "arguments": orjson.dumps(arguments).decode(),
        },
    }


def _result(block: Object, where: str) -> Object:
    content = expect(block.get("content", ""), (str, list), f"{where}.content")
    if not isinstance(content, str):
        parts: list[Object] = []
        for number, value in enumerate(content):
            at = f"{where}.content[{number}]"
            inner = object_of(value, at)
            parts += _part(inner, text_of(inner, "type", at), at)
        only_text = all(part["type"] == "text" for part in parts)
        content = "".join(part["text"] for part in parts) if only_text else parts
    return {
        "role": "tool",
        "tool_call_id": text_of(block, "tool_use_id", where),
        "content": content,
    }


def _tools(tools: list[Any]) -> Iterator[Object]:
    for number, value in enumerate(tools):
        where = f"tools[{number}]"
        tool = object_of(value, where)
        kind = tool.get("type", "custom")
        if kind != "custom" and "input_schema" not in tool:
            skipped("a tool of type", kind, where)
            continue
        schema = expect(tool.get("input_schema", {}), dict, f"{where}.input_schema")
        yield {
            "type": "function",
            "function": {
                "name": text_of(tool, "name", where),
                "description": expect(tool.get("description", ""), str, f"{where}.description"),
                "parameters": schema,
            },
        }


def _choose_tool(choice: Object, chat: Object) -> None:
    kind = choice.get("type", "auto")
    if kind == "tool":
        name = text_of(choice, "name", "tool_choice")
        chat["tool_choice"] = {"type": "function", "function": {"name": name}}
    elif kind in ("auto", "any", "none"):
        chat["tool_choice"] = "required" if kind == "any" else kind
    else:
        raise ApiError("tool_choice.type: expected auto, any, tool or none")
    if choice.get("disable_parallel_tool_use"):
        chat["parallel_tool_calls"] = False


def _think(body: Object, chat: Object) -> None:
    thinking = object_of(body.get("thinking", {}), "thinking")
    if thinking.get("type") == "enabled":
        budget = thinking.get("budget_tokens", 10000)
        chat["thinking_budget_tokens"] = expect(budget, int, "thinking.budget_tokens")
    elif thinking.get("type") == "disabled":
        given = expect(chat.get("chat_template_kwargs", {}), dict, "chat_template_kwargs")
        chat["chat_template_kwargs"] = {"enable_thinking": False, **given}


def _format_output(body: Object, chat: Object) -> None:
    config = object_of(body.get("output_config", {}), "output_config")
    if effort := config.get("effort"):
        chat["reasoning_effort"] = EFFORTS.get(expect(effort, str, "output_config.effort"), effort)
    wanted = object_of(
        config.get("format", body.get("output_format", {})), "output_config.format"
    )
    if wanted.get("type") == "json_schema":
        schema = expect(wanted.get("schema"), dict, "output_config.format.schema")
        chat["response_format"] = {"type": "json_schema", "json_schema": {"schema": schema}}
