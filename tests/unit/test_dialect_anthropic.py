"""Anthropic's Messages API: what a request asks of chat."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from strata_server.dialects.anthropic_request import chat_body
from strata_server.errors import ApiError

HELLO: list[Any] = [{"role": "user", "content": "hello"}]
EPHEMERAL = {"cache_control": {"type": "ephemeral"}}
TOOL = {"name": "f", "description": "does it", "input_schema": {"type": "object"}}
CHAT_TOOL = {
    "type": "function",
    "function": {"name": "f", "description": "does it", "parameters": {"type": "object"}},
}


def chat(**body: Any) -> Any:
    return chat_body({"messages": HELLO, **body})


def messages_of(*messages: Any, **body: Any) -> Any:
    return chat_body({"messages": list(messages), **body})["messages"]


def said(*blocks: Any, role: str = "user") -> Any:
    return {"role": role, "content": list(blocks)}


def text(value: str, **more: Any) -> Any:
    return {"type": "text", "text": value, **more}


# ---- messages ------------------------------------------------------------------------------------


def test_texts_and_blocks() -> None:
    assert messages_of(*HELLO) == HELLO
    assert messages_of(said(text("a", **EPHEMERAL), text("b"))) == [said(text("a"), text("b"))]
    assert messages_of({"role": "user", "content": []}) == [{"role": "user", "content": ""}]
    assert messages_of({"role": "user", "content": None}) == [{"role": "user", "content": ""}]
    assert messages_of({"role": "assistant", "content": []}, {"role": "assistant"}) == []


def test_the_system_text_comes_first_in_any_form() -> None:
    parts = [text("x-anthropic-billing-header: cc_version=2; cch=a5145;"), text("Hi", **EPHEMERAL)]
    stamped = "x-anthropic-billing-header: cc_version=2; cch=fffff;Hi"
    for system, shown in (("Be kind.", "Be kind."), (parts, stamped), ([], ""), ([text("")], "")):
        wanted = [{"role": "system", "content": shown}, *HELLO]
        assert chat(system=system)["messages"] == wanted
    assert chat_body({"system": parts, "messages": []}, normalise=False)["messages"] == [
        {"role": "system", "content": "x-anthropic-billing-header: cc_version=2; cch=a5145;Hi"}
    ]


def test_a_system_message_in_the_middle_stays_there() -> None:
    late = {"role": "system", "content": [text("now", **EPHEMERAL)]}
    answer = {"role": "assistant", "content": "hi"}
    found = messages_of(*HELLO, late, answer, {"role": "system", "content": "then"})
    assert [m["role"] for m in found] == ["user", "system", "assistant", "system"]
    assert found[1]["content"] == [text("now")]


def test_thinking_is_given_back_and_what_is_hidden_is_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    hidden = {"type": "redacted_thinking", "data": "xyz"}
    thinking = {"type": "thinking", "thinking": "hm", "signature": "s"}
    found = messages_of(said(thinking, hidden, text("a"), role="assistant"))
    assert found == [{"role": "assistant", "content": [text("a")], "reasoning_content": "hm"}]
    assert "skipped a block of type 'redacted_thinking' at messages[0].content[1]" in caplog.text
    assert messages_of(said(hidden, role="assistant")) == []
    only = messages_of(said({"type": "thinking", "thinking": "hm"}, role="assistant"))
    assert only == [{"role": "assistant", "content": "", "reasoning_content": "hm"}]


def test_tool_calls_go_with_the_text_around_them() -> None:
    call = {"type": "tool_use", "id": "1", "name": "f", "input": {"a": [1, "ü"]}, **EPHEMERAL}
    for blocks in ([text("a"), call], [call, text("a")]):
        assert messages_of(said(*blocks, role="assistant")) == [
            {
                "role": "assistant",
                "content": [text("a")],
                "tool_calls": [
                    {
                        "id": "1",
                        "type": "function",
                        "function": {"name": "f", "arguments": '{"a":[1,"ü"]}'},
                    }
                ],
            }
        ]
    bare = messages_of(said({"type": "tool_use", "id": "1", "name": "f"}, role="assistant"))
    assert bare[0]["content"] == "" and bare[0]["tool_calls"][0]["function"]["arguments"] == "{}"


def test_results_come_before_what_the_user_says_with_them() -> None:
    def result(number: str, **content: Any) -> Any:
        return {"type": "tool_result", "tool_use_id": number, **content}

    found = messages_of(
        said(
            result("1", content="one", is_error=True),
            text("and now?"),
            result("2", content=[text("two"), text("2")]),
            result("3"),
            result("4", content=None),
        )
    )
    assert found == [
        {"role": "tool", "tool_call_id": "1", "content": "one"},
        {"role": "tool", "tool_call_id": "2", "content": "two2"},
        {"role": "tool", "tool_call_id": "3", "content": ""},
        {"role": "tool", "tool_call_id": "4", "content": ""},
        {"role": "user", "content": [text("and now?")]},
    ]


def test_images_and_documents() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A"}}
    link = {"type": "image", "source": {"type": "url", "url": "https://a.b/c"}}
    found = messages_of(said(image, link))[0]["content"]
    urls = [part["image_url"]["url"] for part in found]
    assert urls == ["data:image/png;base64,A", "https://a.b/c"]
    result = {"type": "tool_result", "tool_use_id": "1", "content": [text("see"), image]}
    shown = messages_of(said(result))[0]["content"]
    assert [part["type"] for part in shown] == ["text", "image_url"]
    plain = {"type": "document", "source": {"type": "text", "data": "page"}, "title": "t"}
    inner = {"type": "document", "source": {"type": "content", "content": [text("a"), text("b")]}}
    found = {"type": "search_result", "source": "s", "title": "t", "content": [text("hit")]}
    content = messages_of(said(plain, inner, found))[0]["content"]
    assert content == [text("page"), text("ab"), text("hit")]


def test_what_a_server_of_theirs_did_is_skipped_with_a_line_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kinds = ("server_tool_use", "web_search_tool_result", "mcp_tool_use", "container_upload", "new")
    blocks = [{"type": kind, "id": "1", "content": {}} for kind in kinds]
    with caplog.at_level(logging.DEBUG):
        found = messages_of(said(*blocks, text("a"), role="assistant"))
    assert found == [{"role": "assistant", "content": [text("a")]}]
    assert [kind in caplog.text for kind in kinds] == [True] * len(kinds)


# ---- the rest of a request -----------------------------------------------------------------------


def test_tools_and_those_that_run_elsewhere(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    typed = {**TOOL, "type": "custom", "strict": True, "eager_input_streaming": True, **EPHEMERAL}
    assert chat(tools=[TOOL, typed])["tools"] == [CHAT_TOOL, CHAT_TOOL]
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}
    shell = {"type": "bash_20250124", "name": "bash"}
    assert chat(tools=[search, TOOL, shell])["tools"] == [CHAT_TOOL]
    assert "skipped a tool of type 'web_search_20250305'" in caplog.text
    assert "tools" not in chat(tools=[search], tool_choice={"type": "any"})
    bare = chat(tools=[{"name": "f", "description": None}])["tools"][0]["function"]
    assert bare == {"name": "f", "description": "", "parameters": {}}


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "f"}, {"type": "function", "function": {"name": "f"}}),
    ],
)
def test_tool_choice(choice: Any, wanted: Any) -> None:
    found = chat(tools=[TOOL], tool_choice=choice)
    assert found["tool_choice"] == wanted
    assert "parallel_tool_calls" not in found
    one = chat(tools=[TOOL], tool_choice={**choice, "disable_parallel_tool_use": True})
    assert one["parallel_tool_calls"] is False
    many = chat(tools=[TOOL], tool_choice={**choice, "disable_parallel_tool_use": False})
    assert "parallel_tool_calls" not in many


def test_thinking() -> None:
    enabled = chat(thinking={"type": "enabled", "budget_tokens": 2000})
    assert enabled["thinking_budget_tokens"] == 2000
    assert chat(thinking={"type": "enabled"})["thinking_budget_tokens"] == 10000
    disabled = chat(thinking={"type": "disabled"}, chat_template_kwargs={"a": 1})
    assert disabled["chat_template_kwargs"] == {"enable_thinking": False, "a": 1}
    for open_to_the_model in ({}, {"thinking": {"type": "adaptive", "display": "omitted"}}):
        found = chat(**open_to_the_model)
        assert not found.keys() & {"thinking_budget_tokens", "chat_template_kwargs"}
    for effort, shown in (("low", "low"), ("high", "high"), ("max", "high"), ("xhigh", "high")):
        assert chat(output_config={"effort": effort})["reasoning_effort"] == shown


def test_lengths_stops_and_sampling() -> None:
    assert chat()["max_tokens"] == 4096
    assert chat(max_tokens=5, stop_sequences=["x", "y"])["stop"] == ["x", "y"]
    same = {"temperature": 0.5, "top_p": 0.9, "top_k": 40, "stream": True, "cache_prompt": False}
    found = chat(max_tokens=5, **same)
    assert found == {"messages": HELLO, "max_tokens": 5, **same}


def test_structured_output_in_both_spellings() -> None:
    schema = {"type": "object", "properties": {"default": {"default": None}}}
    wanted = {"type": "json_schema", "json_schema": {"schema": schema}}
    form = {"type": "json_schema", "schema": schema}
    assert chat(output_config={"format": form})["response_format"] == wanted
    assert chat(output_format=form)["response_format"] == wanted
    assert "response_format" not in chat(output_config={"effort": "low"})


def test_fields_that_mean_nothing_here_are_ignored() -> None:
    request = {
        "model": "claude-x",
        "metadata": {"user_id": "u"},
        "service_tier": "auto",
        "context_management": {"edits": []},
        "container": None,
        "mcp_servers": [],
        "betas": ["x"],
        "speed": "fast",
        "n": 3,
        "made_up": {"a": [1]},
    }
    assert chat(**request) == chat()


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"messages": "a"}, "messages"),
        ({"messages": ["a"]}, "messages[0]"),
        ({"messages": [{}]}, "messages[0].role"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [said("a")]}, "messages[0].content[0]"),
        ({"messages": [said({})]}, "messages[0].content[0].type"),
        ({"messages": [*HELLO, said({"type": "text"})]}, "messages[1].content[0].text"),
        ({"messages": [said({"type": "image"})]}, "messages[0].content[0].source"),
        (
            {"messages": [said({"type": "image", "source": {"type": "file"}})]},
            "messages[0].content[0].source.type",
        ),
        (
            {"messages": [said({"type": "document", "source": {"type": "base64"}})]},
            "messages[0].content[0].source.type",
        ),
        ({"messages": [said({"type": "tool_use", "id": "1"})]}, "messages[0].content[0].name"),
        (
            {"messages": [said({"type": "tool_use", "id": "1", "name": "f", "input": "{}"})]},
            "messages[0].content[0].input",
        ),
        ({"messages": [said({"type": "tool_result"})]}, "messages[0].content[0].tool_use_id"),
        (
            {"messages": [said({"type": "tool_result", "tool_use_id": "1", "content": [5]})]},
            "messages[0].content[0].content[0]",
        ),
        ({"messages": [said({"type": "thinking", "thinking": 5})]}, "content[0].thinking"),
        ({"system": 5}, "system"),
        ({"system": [5]}, "system[0]"),
        ({"system": [{"type": "text"}]}, "system[0].text"),
        ({"tools": {}}, "tools"),
        ({"tools": [{}]}, "tools[0].name"),
        ({"tools": [{"name": "f", "input_schema": []}]}, "tools[0].input_schema"),
        ({"tools": [{"name": "f", "description": 5}]}, "tools[0].description"),
        ({"tools": [TOOL], "tool_choice": "auto"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "all"}}, "tool_choice.type"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"stop_sequences": [5]}, "stop_sequences"),
        ({"thinking": True}, "thinking"),
        ({"thinking": {"type": "enabled", "budget_tokens": "5"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": True}}, "thinking.budget_tokens"),
        ({"output_config": []}, "output_config"),
        ({"output_config": {"format": "json"}}, "output_config.format"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
    ],
)
def test_an_error_names_the_field(body: Any, field: str) -> None:
    with pytest.raises(ApiError) as caught:
        chat(**body)
    assert field in caught.value.message
    assert caught.value.code == 400


def test_messages_are_required() -> None:
    with pytest.raises(ApiError, match="'messages' is required"):
        chat_body({"max_tokens": 5})
