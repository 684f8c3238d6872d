"""What goes wrong in llama.cpp's own parsers, or in templates: llama-server answers the same.

Each is tested as a failure that has to stay one: whoever brings a newer llama.cpp sees what has
been repaired. "Tested there" says what llama.cpp's tests/test-chat.cpp has to the template.
"""

from __future__ import annotations

from typing import Any

import pytest

_CALLS = ("call", "calls", "reasoning-call", "text-call")
_ALL = ("text", "reasoning", *_CALLS)
_FAULTS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    (
        "Apriel-1.6-15b-Thinker-fixed",
        _ALL,
        "what the prompt says of the thought is shown as part of it; tested there to be so",
    ),
    (
        "CohereForAI-c4ai-command-r-plus-tool_use",
        ("text-call",),
        "a call is read only where nothing is said before it; not tested there",
    ),
    (
        "LFM2-8B-A1B",
        ("reasoning",),
        "the parser names tags of reasoning, but reads none unless the template has them",
    ),
    (
        "LFM2.5-Instruct",
        ("reasoning",),
        "the parser names tags of reasoning, but reads none unless the template has them",
    ),
    (
        "LFM2.5-8B-A1B",
        ("calls", "reasoning-call", "text-call"),
        "a line break in a text argument is passed on as it is: no JSON; not tested there",
    ),
    (
        "MiniMax-M1",
        ("calls",),
        "calls are expected to be separated by commas, not by lines; no tests there",
    ),
    (
        "MiniMax-M2",
        ("calls",),
        "calls are expected to be separated by commas, not by nothing; only one call tested there",
    ),
    (
        "Mistral-Small-3.2-24B-Instruct-2506",
        _CALLS,
        "[ARGS] is expected twice, where the model has an end token; tested there without one",
    ),
    (
        "NVIDIA-Nemotron-Nano-v2",
        ("text-call",),
        "the template writes a last message with text and calls twice, in different forms",
    ),
    (
        "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
        ("text-call",),
        "the template puts text after the calls and after the end of the turn",
    ),
    (
        "google-gemma-4-31B-it",
        ("text-call",),
        "text after a call, where the template puts it, is dropped; tested there only before one",
    ),
    (
        "llama-cpp-deepseek-r1",
        ("text-call",),
        "the template leaves out the calls of a message with text",
    ),
    (
        "llama-cpp-rwkv-world",
        ("text", "reasoning"),
        "the template ends each text in an opened thought, which hides that from the parser",
    ),
    (
        "meetkai-functionary-medium-v3.2",
        ("calls", "text-call"),
        "what separates a call from what stands before it is not read; only one call tested there",
    ),
    (
        "openai-gpt-oss-120b",
        ("text-call",),
        "the template writes text beside a call as reasoning",
    ),
    (
        "unsloth-mistral-Devstral-Small-2507",
        ("reasoning",),
        "reasoning takes the place of the text in a history; not tested there",
    ),
    (
        "upstage-Solar-Open-100B",
        _CALLS,
        "a call's id has to be the one by which the template was analysed; no tests there",
    ),
)
_REASONS = {(template, name): why for template, names, why in _FAULTS for name in names}


def known_fault(template: str, name: str) -> tuple[Any, ...]:
    """The mark of a test that fails for a known reason; empty for any other."""
    why = _REASONS.get((template, name))
    return (pytest.mark.xfail(strict=True, reason=why),) if why else ()


def faulty_templates() -> set[str]:
    """Names of the templates in the table."""
    return {template for template, _ in _REASONS}
