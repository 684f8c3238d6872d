"""A tool that the scripted model calls, in the form of each API, and servers where it does so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.chat.scripted import scripted_model
from tests.http.server_process import ServerProcess

NAME = "get_weather"
ARGUMENTS = {"city": "Paris", "days": 2}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
}
QUESTION = "How will the weather be?"
ANSWER = "Hello there."  # what the model says to any result
ASK: list[Any] = [{"role": "user", "content": QUESTION}]
DESCRIPTION = "Tells the weather."
CHAT_TOOL: Any = {
    "type": "function",
    "function": {"name": NAME, "description": DESCRIPTION, "parameters": SCHEMA},
}
RESPONSES_TOOL: Any = {
    "type": "function",
    "name": NAME,
    "description": DESCRIPTION,
    "parameters": SCHEMA,
    "strict": False,
}
ANTHROPIC_TOOL: Any = {"name": NAME, "description": DESCRIPTION, "input_schema": SCHEMA}

TEMPLATE = Path(__file__).parent / "agent.jinja"
_LOOP = "{%- for m in messages %}\n"
_REFUSAL = (
    "{%- if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}\n"
)


def calling_server(
    folder: Path, takes_late_system: bool = True, n_ctx: int = 8192
) -> ServerProcess:
    """A server whose model calls a tool once, then answers; its template goes into `folder`. One
    that takes no late system messages is like Qwen3.5's.
    """
    template = folder / "agent.jinja"
    source = TEMPLATE.read_text(encoding="utf-8")
    assert _LOOP in source
    if not takes_late_system:
        source = source.replace(_LOOP, _LOOP + _REFUSAL)
    template.write_text(source, encoding="utf-8")
    model = ("-m", str(scripted_model()), "--chat-template-file", str(template))
    # one thread: two that spin would wait for each other where the machine is busy
    return ServerProcess(*model, "-c", str(n_ctx), "-t", "1")
