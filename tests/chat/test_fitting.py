"""Chats of agents through every template that comes with llama.cpp: all that is said is shown, in
its order, and a chat that has grown begins as before.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from strata_server.dialects.fitting import Fitting
from tests.chat.templates import need_templates, template_frontend, template_names

need_templates()

CHAT = [
    {"role": "system", "content": "said-01"},
    {"role": "developer", "content": "said-02"},
    {"role": "user", "content": "said-03"},
    {"role": "user", "content": [{"type": "text", "text": "said-04"}]},
    {"role": "system", "content": "said-05"},
    {"role": "assistant", "content": "said-06"},
    {"role": "assistant", "content": "said-07"},
    {"role": "user", "content": "said-08"},
    {"role": "system", "content": [{"type": "text", "text": "said-09"}]},
]
MORE = [
    {"role": "assistant", "content": "said-10"},
    {"role": "developer", "content": "said-11"},
    {"role": "user", "content": "said-12"},
]
MOVES_THE_FIRST = {"mistralai-Mistral-Nemo-Instruct-2407"}  # to the last thing that a user says


def render(template: str, messages: list[Any]) -> str:
    frontend = template_frontend(template)
    chat = {"messages": Fitting(frontend.apply_template)(messages)}
    prompt: str = json.loads(frontend.apply_template(json.dumps(chat).encode()))["prompt"]
    return prompt


@pytest.mark.parametrize("template", template_names())
def test_all_that_is_said_is_shown_in_its_order(template: str) -> None:
    prompt = render(template, [*CHAT, *MORE])
    places = [prompt.find(f"said-{number:02}") for number in range(1, 13)]
    assert min(places) >= 0
    assert sorted(places[2:]) == places[2:]
    assert max(places[:2]) < places[2] or template in MOVES_THE_FIRST


@pytest.mark.parametrize("template", sorted({*template_names()} - MOVES_THE_FIRST))
def test_a_longer_chat_begins_as_before(template: str) -> None:
    short, long = render(template, CHAT), render(template, [*CHAT, *MORE])
    assert long.startswith(short[: short.index("said-09") + len("said-09")])
