"""Chats are fitted to what a template takes: system messages in the middle, several messages of one
side in a row; and what has been said once stays where it is.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from strata_server.dialects.fitting import Fitting, joined
from tests.unit.fake_backend import Refused


def message(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def shows_all(body: bytes) -> bytes:
    """A template that takes anything."""
    said = "\n".join(f"{m['role']}: {m['content']}" for m in json.loads(body)["messages"])
    return json.dumps({"prompt": said}).encode()


def refuses_late(body: bytes) -> bytes:
    if any(m["role"] == "system" for m in json.loads(body)["messages"][1:]):
        raise Refused("System message must be at the beginning.", "server_error")
    return shows_all(body)


def loses_late(body: bytes) -> bytes:
    messages = json.loads(body)["messages"]
    kept = [m for i, m in enumerate(messages) if m["role"] != "system" or i == 0]
    return shows_all(json.dumps({"messages": kept}).encode())


def moves_to_the_top(body: bytes) -> bytes:
    messages = sorted(json.loads(body)["messages"], key=lambda m: m["role"] != "system")
    return shows_all(json.dumps({"messages": messages}).encode())


def wants_turns(body: bytes) -> bytes:
    roles = [m["role"] for m in json.loads(body)["messages"] if m["role"] in ("user", "assistant")]
    if any(role != ("user", "assistant")[i % 2] for i, role in enumerate(roles)):
        raise Refused("Conversation roles must alternate user/assistant", "server_error")
    return refuses_late(body)


STRICT = (refuses_late, loses_late, moves_to_the_top)
ALL = (shows_all, *STRICT, wants_turns)
LATE = message("system", "news")
REMINDER = "<system-reminder>\nnews\n</system-reminder>"


@pytest.mark.parametrize("template", ALL)
def test_system_messages_at_the_beginning_become_one(template: Any) -> None:
    messages = [message("system", "a"), message("developer", "b"), message("user", "c")]
    assert Fitting(template)(messages) == [message("system", "a\n\nb"), message("user", "c")]


@pytest.mark.parametrize("template", ALL)
def test_chats_without_late_ones_stay_as_they_are(template: Any) -> None:
    for roles in ((), ("user",), ("system", "user", "assistant", "user"), ("system",)):
        messages = [message(role, "x") for role in roles]
        assert Fitting(template)(messages) == messages


def test_a_template_that_takes_late_ones_gets_them() -> None:
    messages = [message("system", "a"), message("user", "b"), LATE, message("assistant", "c"), LATE]
    assert Fitting(shows_all)(messages) == messages


@pytest.mark.parametrize("template", STRICT)
def test_others_get_them_as_part_of_what_is_said_there(template: Any) -> None:
    tool = {**message("tool", "found"), "tool_call_id": "1"}
    messages = [
        message("system", "a"),
        message("user", "b"),
        LATE,
        message("assistant", "c"),
        tool,
        message("developer", "news"),
        message("assistant", "d"),
        LATE,
        LATE,
        message("user", "e"),
        message("user", "f"),
    ]
    assert Fitting(template)(messages) == [
        message("system", "a"),
        message("user", f"b\n\n{REMINDER}"),
        message("assistant", "c"),
        {**tool, "content": f"found\n\n{REMINDER}"},
        message("assistant", "d"),
        message("user", f"{REMINDER}\n\n{REMINDER}"),
        message("user", "e"),
        message("user", "f"),
    ]
    assert messages[1] == message("user", "b")  # the request itself is not changed


def test_who_has_to_take_turns_says_it_all_at_once() -> None:
    tool = {**message("tool", "found"), "tool_call_id": "1"}
    calls = {**message("assistant", "d"), "tool_calls": [{"id": "1"}]}
    messages = [
        message("user", "a"),
        message("user", [{"type": "text", "text": "b"}]),
        LATE,
        message("assistant", "c"),
        {**calls, "reasoning_content": "r"},
        tool,
        message("user", "e"),
        message("assistant", "f"),
    ]
    assert Fitting(wants_turns)(messages) == [
        message("user", f"a\n\nb\n\n{REMINDER}"),
        {**calls, "content": "c\n\nd", "reasoning_content": "r"},
        {**tool, "content": "found\n\ne"},
        message("assistant", "f"),
    ]
    asis = Fitting(shows_all)(messages)
    assert asis[:3] == messages[:3] and asis[4:] == messages[5:]


@pytest.mark.parametrize("template", ALL)
def test_an_assistant_s_messages_in_a_row_are_one(template: Any) -> None:
    messages = [message("user", "a"), message("assistant", "b"), message("assistant", "c")]
    assert Fitting(template)(messages) == [message("user", "a"), message("assistant", "b\n\nc")]


def test_calls_one_after_the_other_stay_apart() -> None:
    calls = {**message("assistant", ""), "tool_calls": [{"id": "1"}]}
    messages = [message("user", "a"), calls, calls, message("tool", "x"), message("tool", "y")]
    assert Fitting(wants_turns)(messages) == messages


@pytest.mark.parametrize("template", ALL)
def test_a_longer_chat_begins_with_the_shorter_one(template: Any) -> None:
    tool = {**message("tool", "found"), "tool_call_id": "1"}
    calls = {**message("assistant", ""), "tool_calls": [{"id": "1"}]}
    turns = [
        [message("system", "a"), message("developer", "a"), message("user", "b"), LATE],
        [calls, tool, message("user", "c"), LATE],
        [message("assistant", "d"), message("user", "e"), message("user", "f")],
        [message("assistant", "g"), LATE],
    ]
    fit = Fitting(template)
    chat: list[Any] = []
    for turn in turns:
        before, chat = fit(chat), [*chat, *turn]
        assert fit(chat)[: len(before)] == before


def test_a_text_is_the_same_as_its_only_part() -> None:
    part = [{"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}]
    fit = Fitting(refuses_late)
    found = [fit([message("user", content), LATE]) for content in ("b", part)]
    assert found[0] == found[1] == [message("user", f"b\n\n{REMINDER}")]


def test_images_keep_their_fit() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    text = {"type": "text", "text": "a"}
    assert joined([image], "b") == [image, {"type": "text", "text": "b"}]
    assert joined("b", [text, image]) == [{"type": "text", "text": "b"}, text, image]
    assert joined("", [image]) == [image]


def test_a_template_is_asked_once_and_only_where_it_matters() -> None:
    asked: list[bytes] = []

    def template(body: bytes) -> bytes:
        asked.append(body)
        return shows_all(body)

    fit = Fitting(template)
    fit([message("system", "a"), message("user", "b"), message("assistant", "c")])
    assert asked == []
    for _ in range(3):
        fit([message("user", "b"), LATE])
    assert len(asked) == 1
    for _ in range(3):
        fit([message("user", "b"), message("user", "c")])
    assert len(asked) == 2


def test_faults_of_our_own_are_not_taken_for_a_refusal() -> None:
    def broken(body: bytes) -> bytes:
        raise KeyError("prompt")

    with pytest.raises(KeyError):
        Fitting(broken)([message("user", "b"), LATE])
