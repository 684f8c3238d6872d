"""A client that insists on a call gets nothing else: its answer is bound, or it is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from strata_plugin.runtime.native import Kind, NativeError
from tests.chat.speaking import MESSAGES, TOOLS, USER, Inexpressible, speaker
from tests.chat.streams import read_whole_chat
from tests.chat.templates import need_templates, template_frontend, template_names

need_templates()

WITHOUT_TOOLS = {
    "HuggingFaceTB-SmolLM3-3B",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    "google-gemma-2-2b-it",
    "ibm-granite-granite-3.3-2B-Instruct",
    "llama-cpp-rwkv-world",
    "microsoft-Phi-3.5-mini-instruct",
}


@pytest.mark.parametrize("template", template_names())
def test_a_forced_call_is_bound_by_a_grammar_or_refused(template: str) -> None:
    request = {"messages": [USER], "tools": TOOLS, "tool_choice": "required"}
    try:
        prepared = template_frontend(template).prepare(Kind.OAI_CHAT, json.dumps(request).encode())
    except NativeError as error:
        assert error.code == 400 and "cannot call tools" in error.message
        assert template in WITHOUT_TOOLS
        return
    found = json.loads(prepared.sampling())
    assert found["grammar"] and not found["grammar_lazy"]
    assert all(tool["function"]["name"] in found["grammar"] for tool in TOOLS)


SEVERAL_ALL_THE_SAME = {
    "Bielik-11B-v3.0-Instruct",
    "Kimi-K3",
    "MiMo-VL",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
    "Qwen-QwQ-32B",
    "Qwen-Qwen2.5-7B-Instruct",
    "Qwen-Qwen3-0.6B",
    "Reka-Edge",
    "ibm-granite-granite-4.0",
    "ibm-granite-granite-4.1",
}


def one_at_a_time(template: str) -> Any:
    why = "llama.cpp takes a second <tool_call> also where calls may not be parallel"
    mark = pytest.mark.xfail(strict=True, reason=why)
    return pytest.param(template, marks=[mark] if template in SEVERAL_ALL_THE_SAME else [])


@pytest.mark.parametrize("template", [one_at_a_time(name) for name in template_names()])
def test_two_calls_are_not_read_where_a_client_wants_one_at_a_time(template: str) -> None:
    try:
        spoken = speaker(template).speak(MESSAGES["calls"])
    except Inexpressible:
        return  # test_round_trips looks at why
    request = {**spoken.request, "parallel_tool_calls": False}
    reply = speaker(template).prepare(request, stream=False).reply(0, 0)
    try:
        whole = reply.final(sse=False, text=spoken.text.encode(), stop=1)
    except NativeError:
        return  # a grammar would not have let it be written
    assert len(read_whole_chat(whole).message.calls) == 1
