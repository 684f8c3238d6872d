"""`python -m bench parsing`: what reading a tool call costs the HTTP process while it is streamed.

The chat parser reads the whole text again for each chunk. A model that writes a long argument is
played: tokens of four bytes come evenly, chunks are made of them by the server's own rule
(`server/pacing.py`), and written by the server's own writer. CPU time is taken, the clock of the
tokens is not, so that a run lasts as long as its CPU time.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from strata_plugin.engine.messages import Token
from strata_plugin.runtime.library import log_to_stderr
from strata_plugin.runtime.model import VocabularyModel
from strata_plugin.runtime.native import Frontend, Kind
from strata_server.choice import Choice, Wanted
from strata_server.model_file import default_model
from strata_server.pacing import MAX_HOLD_S, Pacer
from strata_server.stages import WRITING, Stages

TARGET_CPU_S = 1.0  # for 8,000 tokens
TARGET_SHARE = 0.01  # of the time in which they come, where that is more
TOKEN_BYTES = 4

_HEAD = """{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.content %}{{ m.content }}{% endif %}"""
_TAIL = """<|im_end|>
{% endfor %}{% if tools %}{{ tools | tojson }}{% endif -%}
{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


@dataclass(frozen=True)
class Format:
    """A way of writing calls: its template, and a call of `add_note` around its text argument."""

    template: str
    before: str
    after: str
    escaped: bool  # whether the argument is JSON


FORMATS = {
    "json": Format(
        _HEAD
        + """{% for c in m.tool_calls %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}"""
        + _TAIL,
        '<tool_call>\n{"name": "add_note", "arguments": {"text": ',
        "}}\n</tool_call>",
        escaped=True,
    ),
    "tags": Format(
        _HEAD
        + """{% for c in m.tool_calls %}<tool_call>
<function={{ c.function.name }}>
{% for name, value in c.function.arguments.items() %}<parameter={{ name }}>
{{ value }}
</parameter>
{% endfor %}</function>
</tool_call>{% endfor %}"""
        + _TAIL,
        "<tool_call>\n<function=add_note>\n<parameter=text>\n",
        "\n</parameter>\n</function>\n</tool_call>",
        escaped=False,
    ),
}
TOOL = {
    "type": "function",
    "function": {
        "name": "add_note",
        "description": "Keeps a note.",
        "parameters": {
            "type": "object",
            "properties": {"text": {"type": "string"}},
            "required": ["text"],
        },
    },
}


@dataclass(frozen=True)
class Cost:
    """What one call cost."""

    format: str
    tokens_per_s: float  # 0: each token is sent by itself
    chunks: int
    cpu_s: float
    last_chunk_ms: float  # CPU time
    longest_hold_ms: float


def program(size: int) -> str:
    """`size` bytes of code: quotes, brackets and angle brackets as in what agents write."""
    lines = (f'def f{n}(a, b):\n    return {{"k": a}} if a < {n} else [b]\n\n' for n in range(size))
    text = ""
    for line in lines:
        if len(text) >= size:
            break
        text += line
    return text[:size]


def pieces(name: str, n_tokens: int) -> list[str]:
    """The text of a call whose argument has `n_tokens`, token by token."""
    form = FORMATS[name]
    argument = program(n_tokens * TOKEN_BYTES)
    said = json.dumps(argument) if form.escaped else argument
    text = form.before + said + form.after
    return [text[i : i + TOKEN_BYTES] for i in range(0, len(text), TOKEN_BYTES)]


def measure(name: str, tokens_per_s: float, n_tokens: int, model: VocabularyModel) -> Cost:
    """Stream one call; `tokens_per_s` 0 sends each token by itself."""
    config = {"model_name": "any", "verbosity": 0, "chat_template": FORMATS[name].template}
    body = {"messages": [{"role": "user", "content": "x"}], "tools": [TOOL], "stream": True}
    prepared = Frontend(model.handle, config).prepare(Kind.OAI_CHAT, json.dumps(body).encode())
    wanted = Wanted(stream=True, tokens=False, timings=False, probs=False, chat=True)
    stages = Stages("bench", comments=False)
    stages.stage = WRITING
    choice = Choice(prepared.reply(0, 0), 10, wanted, len, stages)
    pacer = Pacer(mergeable=tokens_per_s > 0)
    events = [
        Token(request_id=0, token=5, text=piece.encode(), n_decoded=number)
        for number, piece in enumerate(pieces(name, n_tokens), 1)
    ]
    within = 1 + int(MAX_HOLD_S * tokens_per_s)
    out, hold, at = [], 0.0, 0
    began = last = time.thread_time()
    while at < len(events):
        size = min(pacer.company, within, len(events) - at)
        if size > 1 or pacer.company > 1:
            full = size == pacer.company
            hold = max(hold, (size - 1) / tokens_per_s if full else MAX_HOLD_S)
        last = time.thread_time()
        out.append(pacer.pieces(choice, events[at : at + size], pacer.company > 1))
        at += size
    ended = time.thread_time()
    _check(b"".join(out), n_tokens)
    return Cost(name, tokens_per_s, choice.calls, ended - began, (ended - last) * 1e3, hold * 1e3)


def _check(stream: bytes, n_tokens: int) -> None:
    """What was streamed is the call that was written."""
    said = ""
    for line in stream.decode().splitlines():
        if line.startswith("data: "):
            delta: dict[str, Any] = json.loads(line[6:])["choices"][0]["delta"]
            for call in delta.get("tool_calls", ()):
                said += call["function"].get("arguments", "")
    if json.loads(said)["text"].strip() != program(n_tokens * TOKEN_BYTES).strip():
        raise RuntimeError("the call that was read is not the one that was written")


def main(arguments: Sequence[str]) -> int:
    """Measure and print; 0 where the CPU time is within the targets."""
    parser = argparse.ArgumentParser(prog="python -m bench parsing", description=__doc__)
    parser.add_argument("--tokens", type=int, default=8000, help="of the argument")
    parser.add_argument(
        "--rates", type=float, nargs="*", default=[25, 50, 100, 200], metavar="TOKENS_PER_S"
    )
    parser.add_argument("--model", type=Path, help="GGUF whose vocabulary is used")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args(arguments)
    log_to_stderr(0)
    model = VocabularyModel(str(options.model or default_model().path))
    rates = (0.0, *options.rates)
    costs = [measure(name, rate, options.tokens, model) for name in FORMATS for rate in rates]
    if options.json:
        print(json.dumps([asdict(cost) for cost in costs], indent=1))
    else:
        target = f"{TARGET_CPU_S:g} s for 8,000, or {TARGET_SHARE:.0%} of their time"
        print(f"one call with an argument of {options.tokens} tokens; CPU of its chunks")
        print(f"(target: {target})")
        for cost in costs:
            how = f"{cost.tokens_per_s:g} tok/s" if cost.tokens_per_s else "token by token"
            print(
                f"{cost.format:4s} {how:>14s}: {cost.cpu_s:.2f} s in {cost.chunks} chunks, "
                f"the last {cost.last_chunk_ms:.2f} ms; longest hold {cost.longest_hold_ms:.0f} ms"
            )
    return 0 if all(_within_target(cost, options.tokens) for cost in costs) else 1


def _within_target(cost: Cost, n_tokens: int) -> bool:
    """Always where nothing was merged: that is the figure to compare with."""
    if not cost.tokens_per_s:
        return True
    seconds = TARGET_SHARE * n_tokens / cost.tokens_per_s
    return cost.cpu_s <= max(TARGET_CPU_S * n_tokens / 8000, seconds)
