"""OpenAI's Responses API: what a request asks of chat."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from strata_server.dialects import fields
from strata_server.dialects.responses_request import chat_body
from strata_server.errors import ApiError

TOOL = {
    "type": "function",
    "name": "f",
    "description": "does it",
    "strict": False,
    "parameters": {"type": "object"},
}
CHAT_TOOL = {
    "type": "function",
    "function": {name: value for name, value in TOOL.items() if name != "type"},
}


def chat(given: Any = "hello", **body: Any) -> Any:
    return chat_body({"input": given, **body})


def messages_of(*items: Any) -> Any:
    return chat(list(items))["messages"]


def message(role: str, *texts: str, kind: str = "input_text", **more: Any) -> Any:
    content = [{"type": kind, "text": text, "annotations": []} for text in texts]
    return {"type": "message", "role": role, "content": content, **more}


def text(value: str) -> Any:
    return {"type": "text", "text": value}


def call(number: str, name: str = "f", arguments: str = "{}") -> Any:
    return {
        "type": "function_call",
        "id": f"fc_{number}",
        "call_id": number,
        "name": name,
        "arguments": arguments,
        "status": "completed",
    }


def output(number: str, value: Any) -> Any:
    return {"type": "function_call_output", "call_id": number, "output": value}


def as_tool_call(number: str, name: str = "f", arguments: str = "{}") -> Any:
    function = {"name": name, "arguments": arguments}
    return {"id": number, "type": "function", "function": function}


# ---- items ---------------------------------------------------------------------------------------


def test_a_text_is_what_the_user_says() -> None:
    assert chat("hello")["messages"] == [{"role": "user", "content": "hello"}]
    assert chat("hello", instructions="Be kind.")["messages"] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "hello"},
    ]
    assert chat([])["messages"] == []


def test_messages_with_and_without_a_type() -> None:
    assert messages_of(
        {"role": "developer", "content": "a"},
        message("system", "b"),
        {"role": "user", "content": [{"type": "input_text", "text": "c"}]},
        {"role": "assistant", "content": "d"},
        {"role": "user", "content": "e"},
        message("assistant", "f", kind="output_text", id="msg_1", status="completed", phase=None),
    ) == [
        {"role": "developer", "content": "a"},
        {"role": "system", "content": [text("b")]},
        {"role": "user", "content": [text("c")]},
        {"role": "assistant", "content": "d"},
        {"role": "user", "content": "e"},
        {"role": "assistant", "content": "f"},
    ]


def test_an_assistant_s_items_are_one_message() -> None:
    thought = {
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "hm"}],
        "encrypted_content": "",
    }
    said = message("assistant", "So.", kind="output_text")
    calls = [call("1"), call("2", "g", '{"a": 1}')]
    wanted = {
        "role": "assistant",
        "content": "So.",
        "reasoning_content": "hm",
        "tool_calls": [as_tool_call("1"), as_tool_call("2", "g", '{"a": 1}')],
    }
    for items in ([thought, said, *calls], [thought, calls[0], said, calls[1]]):
        found = messages_of(*items, output("1", "x"), output("2", "y"), thought, said)
        assert found == [
            wanted,
            {"role": "tool", "tool_call_id": "1", "content": "x"},
            {"role": "tool", "tool_call_id": "2", "content": "y"},
            {"role": "assistant", "content": "So.", "reasoning_content": "hm"},
        ]


def test_outputs_of_several_parts() -> None:
    texts = [{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b"}]
    image = {"type": "input_image", "image_url": "data:,", "detail": "auto"}
    found = messages_of(output("1", texts), output("2", [*texts, image]), output("3", []))
    assert [m["content"] for m in found] == [
        "ab",
        [text("a"), text("b"), {"type": "image_url", "image_url": {"url": "data:,"}}],
        "",
    ]


def test_reasoning_in_all_the_forms_that_come_back() -> None:
    def thought_of(**item: Any) -> Any:
        return messages_of({"type": "reasoning", "id": "rs_1", **item}, call("1"))[0]

    content = [{"type": "reasoning_text", "text": "a"}, {"type": "reasoning_text", "text": "b"}]
    summary = [{"type": "summary_text", "text": "short"}]
    assert thought_of(summary=summary, content=content)["reasoning_content"] == "ab"
    assert thought_of(summary=summary, content=None)["reasoning_content"] == "short"
    assert thought_of(summary=summary)["reasoning_content"] == "short"
    for hidden in ({}, {"encrypted_content": "xyz"}, {"content": [], "encrypted_content": None}):
        assert "reasoning_content" not in thought_of(summary=[], **hidden)


def test_calls_of_custom_tools() -> None:
    made = {"type": "custom_tool_call", "call_id": "1", "name": "apply_patch", "input": "***\nü"}
    found = messages_of(made, {"type": "custom_tool_call_output", "call_id": "1", "output": "ok"})
    assert found == [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [as_tool_call("1", "apply_patch", '{"input":"***\\nü"}')],
        },
        {"role": "tool", "tool_call_id": "1", "content": "ok"},
    ]


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"a": 1}', '{"a": 1}'),
        ("", "{}"),
        ('{"a": [1, ', '{"input":"{\\"a\\": [1, "}'),
        ("[1]", '{"input":"[1]"}'),
        ("null", '{"input":"null"}'),
    ],
)
def test_a_call_that_was_cut_off_ends_no_conversation(arguments: str, shown: str) -> None:
    found = messages_of(call("1", arguments=arguments))[0]["tool_calls"]
    assert found == [as_tool_call("1", arguments=shown)]


def test_what_a_server_of_theirs_did_is_skipped_with_a_line_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    kinds = ("web_search_call", "item_reference", "image_generation_call", "compaction", "new")
    items = [{"type": kind, "id": "x"} for kind in kinds]
    found = messages_of(*items, message("user", "a"))
    assert found == [{"role": "user", "content": [text("a")]}]
    assert [f"'{kind}' at input[{i}]" in caplog.text for i, kind in enumerate(kinds)] == [True] * 5


def test_the_log_tells_once_of_each_kind_in_one_short_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fields, "_told", set())
    for _ in range(3):
        messages_of({"type": "new"}, {"type": "evil\nI request: done\x1b[31m" + "x" * 100})
    told = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert told == [
        "skipped an item of type 'new' at input[0]",
        f"skipped an item of type 'evilI request: done[31m{'x' * 17}' at input[1]",
    ]
    monkeypatch.setattr(fields, "MOST_TOLD", 5)
    messages_of(*({"type": f"kind {n}"} for n in range(9)))
    assert len(fields._told) == 5


def test_parts_of_messages() -> None:
    image = {"type": "input_image", "image_url": "https://a.b/c", "detail": None, "file_id": None}
    audio = {"type": "input_audio", "input_audio": {"data": "A", "format": "wav"}}
    refusal = {"type": "refusal", "refusal": "no"}
    found = messages_of({"role": "user", "content": [image, audio, refusal]})[0]["content"]
    assert found == [
        {"type": "image_url", "image_url": {"url": "https://a.b/c"}},
        audio,
        text("no"),
    ]


# ---- the rest of a request -----------------------------------------------------------------------


def test_tools_and_those_that_run_elsewhere(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    others = [
        {"type": "web_search", "external_web_access": False},
        {"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}},
        {"type": "namespace", "name": "mcp", "tools": [TOOL]},
        {"type": "local_shell"},
    ]
    assert chat(tools=[others[0], TOOL, *others[1:]])["tools"] == [CHAT_TOOL]
    for other in others:
        assert f"skipped a tool of type '{other['type']}'" in caplog.text
    bare = chat(tools=[{"type": "function", "name": "f", "parameters": None, "strict": None}])
    assert bare["tools"][0]["function"] == {"name": "f", "strict": True, "parameters": {}}
    assert "tools" not in chat(tools=others, tool_choice="auto")


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        ("none", "none"),
        ("required", "required"),
        ({"type": "function", "name": "f"}, {"type": "function", "function": {"name": "f"}}),
        (None, "auto"),
    ],
)
def test_tool_choice(choice: Any, wanted: Any) -> None:
    given = {} if choice is None else {"tool_choice": choice}
    assert chat(tools=[TOOL], **given)["tool_choice"] == wanted


def test_allowed_tools_are_the_only_ones_shown() -> None:
    other = {**TOOL, "name": "g"}
    allowed = {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "function", "name": "g"}],
    }
    found = chat(tools=[TOOL, other], tool_choice=allowed)
    assert [tool["function"]["name"] for tool in found["tools"]] == ["g"]
    assert found["tool_choice"] == "required"


def test_structured_output() -> None:
    schema = {"type": "object"}
    form = {"type": "json_schema", "name": "x", "strict": True, "schema": schema}
    assert chat(text={"format": form, "verbosity": "low"})["response_format"] == {
        "type": "json_schema",
        "json_schema": {"schema": schema},
    }
    found = chat(text={"format": {"type": "json_object"}})
    assert found["response_format"] == {"type": "json_object"}
    for plain in ({}, {"format": {"type": "text"}}, {"format": None}, {"verbosity": "high"}):
        assert "response_format" not in chat(text=plain)


def test_fields_with_another_name_in_chat_and_the_same_one() -> None:
    found = chat(max_output_tokens=7, reasoning={"effort": "low", "summary": "auto"}, top_p=0.5)
    assert (found["max_tokens"], found["reasoning_effort"], found["top_p"]) == (7, "low", 0.5)
    assert "reasoning" not in found and "max_output_tokens" not in found
    for reasoning in ({"summary": "auto"}, {"effort": None}):
        assert "reasoning_effort" not in chat(reasoning=reasoning)


def test_fields_that_mean_nothing_here_are_ignored() -> None:
    request = {
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "k",
        "service_tier": "auto",
        "truncation": "disabled",
        "metadata": {},
        "user": "u",
        "safety_identifier": "s",
        "max_tool_calls": 3,
        "top_logprobs": 0,
        "stream_options": {"include_obfuscation": False},
        "context_management": [{"type": "compaction"}],
        "previous_response_id": "",
        "conversation": {},
        "background": False,
    }
    assert chat(**request) == chat()


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "input"),
        ({"input": 5}, "input"),
        ({"input": ["a"]}, "input[0]"),
        ({"input": [{}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": 5}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{}]}]}, "input[0].content[0].type"),
        ({"input": [message("user"), {"type": "function_call"}]}, "input[1].arguments"),
        ({"input": [{**call("1"), "call_id": None}]}, "input[0].call_id"),
        ({"input": [output("1", 5)]}, "input[0].output"),
        ({"input": [output("1", [{"type": "input_text"}])]}, "input[0].output[0].text"),
        ({"input": [{"type": "function_call_output", "output": ""}]}, "input[0].call_id"),
        ({"input": [{"type": "reasoning", "content": "a"}]}, "input[0].content"),
        ({"input": [{"type": "reasoning", "summary": [{}]}]}, "input[0].summary[0].text"),
        ({"input": [{"type": "custom_tool_call", "call_id": "1"}]}, "input[0].input"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}]},
            "input[0].content[0].type",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].image_url",
        ),
        ({"input": "a", "instructions": ["b"]}, "instructions"),
        ({"input": "a", "tools": {}}, "tools"),
        ({"input": "a", "tools": [{}]}, "tools[0].type"),
        ({"input": "a", "tools": [{"type": "function"}]}, "tools[0].name"),
        ({"input": "a", "tools": [TOOL], "tool_choice": 5}, "tool_choice"),
        ({"input": "a", "tools": [TOOL], "tool_choice": {}}, "tool_choice.type"),
        (
            {"input": "a", "tools": [TOOL], "tool_choice": {"type": "function"}},
            "tool_choice.name",
        ),
        (
            {"input": "a", "tools": [TOOL], "tool_choice": {"type": "mcp", "server_label": "x"}},
            "tool_choice.type",
        ),
        (
            {"input": "a", "tools": [TOOL], "tool_choice": {"type": "allowed_tools"}},
            "tool_choice.tools",
        ),
        ({"input": "a", "reasoning": "high"}, "reasoning"),
        ({"input": "a", "text": "json"}, "text"),
        ({"input": "a", "text": {"format": "json"}}, "text.format"),
        ({"input": "a", "text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"input": "a", "previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": "a", "conversation": "conv_1"}, "conversation"),
        ({"input": "a", "background": True}, "background"),
        ({"input": "a", "prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"input": "a", "n": 2}, "'n'"),
    ],
)
def test_an_error_names_the_field(body: Any, field: str) -> None:
    with pytest.raises(ApiError) as caught:
        chat_body(body)
    assert field in caught.value.message
    assert caught.value.code == 400
