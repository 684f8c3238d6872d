"""From a body of OpenAI's Responses API to one of chat completions.

Source: https://platform.openai.com/docs/api-reference/responses; where that leaves a choice,
llama-server's conversion (tools/server/server-chat.cpp) is followed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from ..errors import ApiError
from .fields import Object, expect, object_of, skipped, text_of
from .fitting import joined

OWN = (  # fields that are translated, or that say nothing to a server without memory or accounts
    "background",
    "context_management",
    "conversation",
    "include",
    "input",
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "metadata",
    "previous_response_id",
    "prompt_cache_key",
    "prompt_cache_retention",
    "reasoning",
    "safety_identifier",
    "service_tier",
    "store",
    "stream_options",
    "text",
    "tool_choice",
    "tools",
    "top_logprobs",
    "truncation",
    "user",
)
UNSUPPORTED = ("previous_response_id", "conversation", "background", "prompt")
COUNTS = ("n", "n_cmpl")  # of choices in chat; a response has one
CALLS = ("function_call", "custom_tool_call")
OUTPUTS = ("function_call_output", "custom_tool_call_output")


def chat_body(body: Object) -> Object:
    """The chat request that asks for the same. `ApiError` names the field that is wrong."""
    for name in UNSUPPORTED:
        if body.get(name):
            raise ApiError(f"'{name}' is not supported: this server keeps no responses")
    for name in COUNTS:
        if body.get(name, 1) != 1:
            raise ApiError(f"'{name}' is not supported: a response has one choice")
    if "input" not in body:
        raise ApiError("'input' is required")
    chat = {name: value for name, value in body.items() if name not in OWN}
    chat["messages"] = _messages(body)
    tools = expect(body.get("tools", []), list, "tools")
    if found := list(_tools(tools)):
        chat["tools"] = found
        _choose_tool(body.get("tool_choice", "auto"), chat)
    if "max_output_tokens" in body:
        chat["max_tokens"] = body["max_output_tokens"]
    effort = object_of(body.get("reasoning", {}), "reasoning").get("effort")
    if effort is not None:
        chat["reasoning_effort"] = effort
    _format_output(object_of(body.get("text", {}), "text"), chat)
    return chat


def _messages(body: Object) -> list[Object]:
    messages: list[Object] = []
    if "instructions" in body:
        text = expect(body["instructions"], str, "instructions")
        messages.append({"role": "system", "content": text})
    items = expect(body["input"], (str, list), "input")
    if isinstance(items, str):
        return [*messages, {"role": "user", "content": items}]
    for number, item in enumerate(items):
        where = f"input[{number}]"
        _add_item(object_of(item, where), where, messages)
    return messages


def _add_item(item: Object, where: str, messages: list[Object]) -> None:
    kind = item.get("type", "message")
    if kind == "message":
        _add_message(item, where, messages)
    elif kind in CALLS:
        _assistant(messages).setdefault("tool_calls", []).append(_call(item, kind, where))
    elif kind in OUTPUTS:
        content = _tool_output(item.get("output", ""), f"{where}.output")
        call = text_of(item, "call_id", where)
        messages.append({"role": "tool", "tool_call_id": call, "content": content})
    elif kind == "reasoning":
        if text := _thoughts(item, where):
            own = _assistant(messages)
            own["reasoning_content"] = own.get("reasoning_content", "") + text
    else:  # what a server of theirs has done: web_search_call, item_reference, ...
        skipped("an item of type", kind, where)


def _assistant(messages: list[Object]) -> Object:
    """The assistant's message that is being put together from several items."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _add_message(item: Object, where: str, messages: list[Object]) -> None:
    role = text_of(item, "role", where)
    content = expect(item.get("content", ""), (str, list), f"{where}.content")
    parts = content
    if not isinstance(content, str):
        parts = [_part(p, f"{where}.content[{i}]") for i, p in enumerate(content)]
    if role != "assistant":
        messages.append({"role": role, "content": parts})
        return
    own = _assistant(messages)
    own["content"] = joined(own["content"], parts)


def _part(part: Any, where: str) -> Object:
    part = object_of(part, where)
    kind = text_of(part, "type", where)
    if kind in ("input_text", "output_text", "text"):
        return {"type": "text", "text": text_of(part, "text", where)}
    if kind == "refusal":
        return {"type": "text", "text": text_of(part, "refusal", where)}
    if kind == "input_image":
        return {"type": "image_url", "image_url": {"url": text_of(part, "image_url", where)}}
    if kind == "input_audio":
        return {"type": "input_audio", "input_audio": part.get("input_audio")}
    raise ApiError(f"{where}.type: '{kind}' is not supported")


def _tool_output(output: Any, where: str) -> Any:
    """A text; or parts, where there is more than text in them."""
    if isinstance(output, str):
        return output
    parts = [_part(p, f"{where}[{i}]") for i, p in enumerate(expect(output, (str, list), where))]
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _call(item: Object, kind: str, where: str) -> Object:
    if kind == "function_call":
        arguments = _arguments(text_of(item, "arguments", where))
    else:
        arguments = orjson.dumps({"input": text_of(item, "input", where)}).decode()
    function = {"name": text_of(item, "name", where), "arguments": arguments}
    return {"id": text_of(item, "call_id", where), "type": "function", "function": function}


def _arguments(text: str) -> str:
    """A call's arguments as an object. One that was cut off would be refused, with the whole
    conversation that it is part of.
    """
    text = text or "{}"
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        value = None
    return text if isinstance(value, dict) else orjson.dumps({"input": text}).decode()


def _thoughts(item: Object, where: str) -> str:
    """What was thought; its summary where nothing else came back, "" where it is encrypted."""
    for name in ("content", "summary"):
        parts = expect(item.get(name, []), list, f"{where}.{name}")
        text = "".join(
            text_of(object_of(part, f"{where}.{name}[{i}]"), "text", f"{where}.{name}[{i}]")
            for i, part in enumerate(parts)
        )
        if text:
            return text
    return ""


def _tools(tools: list[Any]) -> Iterator[Object]:
    for number, tool in enumerate(tools):
        where = f"tools[{number}]"
        tool = object_of(tool, where)
        kind = text_of(tool, "type", where)
        if kind != "function":  # web_search, custom, namespace, mcp, ...
            skipped("a tool of type", kind, where)
            continue
        function = {name: value for name, value in tool.items() if name != "type"}
        function["name"] = text_of(tool, "name", where)
        yield {"type": "function", "function": {"strict": True, "parameters": {}, **function}}


def _choose_tool(choice: Any, chat: Object) -> None:
    if isinstance(choice, str):
        chat["tool_choice"] = choice
        return
    kind = text_of(expect(choice, (str, dict), "tool_choice"), "type", "tool_choice")
    if kind == "function":
        name = text_of(choice, "name", "tool_choice")
        chat["tool_choice"] = {"type": "function", "function": {"name": name}}
    elif kind == "allowed_tools":
        allowed = expect(choice.get("tools"), list, "tool_choice.tools")
        names = [object_of(tool, "tool_choice.tools").get("name") for tool in allowed]
        chat["tools"] = [tool for tool in chat["tools"] if tool["function"]["name"] in names]
        chat["tool_choice"] = choice.get("mode", "auto")
    else:
        raise ApiError(f"tool_choice.type: there is no tool of type '{kind}' here")


def _format_output(text: Object, chat: Object) -> None:
    wanted = object_of(text.get("format", {}), "text.format")
    kind = wanted.get("type", "text")
    if kind == "json_schema":
        schema = expect(wanted.get("schema"), dict, "text.format.schema")
        chat["response_format"] = {"type": "json_schema", "json_schema": {"schema": schema}}
    elif kind != "text":
        chat["response_format"] = {"type": kind}
