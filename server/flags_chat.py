"""Flags about chats: templates, thoughts, what is parsed and shown."""

from __future__ import annotations

from .flag import Flag, choice, file_text, flag, integer, json_object, switch, tristate


def reasoning(value: str) -> int:
    """1: on, 0: off, -1: as the template does."""
    return {"on": 1, "off": 0, "auto": -1}[tristate(value)]


def once(value: str) -> tuple[str, ...]:
    """One of several texts."""
    return (value,)


CHAT: tuple[Flag, ...] = (
    flag(
        "--chat-template",
        "Jinja template for chats, or the name of one that llama.cpp has built in",
        metavar="JINJA_TEMPLATE",
        env="LLAMA_ARG_CHAT_TEMPLATE",
        default="",
        shown="the model's",
    ),
    flag(
        "--chat-template-file",
        "file with such a template",
        file_text,
        metavar="JINJA_TEMPLATE_FILE",
        env="LLAMA_ARG_CHAT_TEMPLATE_FILE",
    ),
    flag(
        "--chat-template-kwargs",
        "JSON object of variables for the template",
        json_object,
        metavar="STRING",
        env="LLAMA_ARG_CHAT_TEMPLATE_KWARGS",
        many=True,
        default={},
    ),
    switch(
        "--jinja",
        "render chats with Jinja; off: with llama.cpp's built-in templates",
        "--no-jinja",
        env="LLAMA_ARG_JINJA",
        default=True,
    ),
    flag(
        "--reasoning-format",
        "where thoughts go: none (left in the text), deepseek (reasoning_content), "
        "deepseek-legacy (both) or auto",
        choice("auto", "none", "deepseek", "deepseek-legacy"),
        metavar="FORMAT",
        env="LLAMA_ARG_THINK",
        default="auto",
    ),
    flag(
        "-rea --reasoning",
        "let the model think: on, off or auto (as its template does)",
        reasoning,
        metavar="[on|off|auto]",
        env="LLAMA_ARG_REASONING",
        default=-1,
        shown="auto",
    ),
    flag(
        "--reasoning-effort",
        "effort given to the template, such as low, medium or high",
        metavar="LEVEL",
        env="LLAMA_ARG_REASONING_EFFORT",
        default="default",
    ),
    flag(
        "--reasoning-budget",
        "most tokens of thought; -1: no limit, 0: end at once",
        integer(-1, (1 << 31) - 1),
        metavar="N",
        env="LLAMA_ARG_THINK_BUDGET",
        default=-1,
    ),
    flag(
        "--reasoning-budget-message",
        "text put before the end of the thoughts when the budget is used up",
        metavar="MESSAGE",
        env="LLAMA_ARG_THINK_BUDGET_MESSAGE",
        default="",
    ),
    switch(
        "--reasoning-preserve",
        "keep the thoughts of all turns in the prompt, where the template can",
        "--no-reasoning-preserve",
        env="LLAMA_ARG_REASONING_PRESERVE",
        default=True,
    ),
    switch(
        "--skip-chat-parsing",
        "leave everything that the model says in the text, tool calls and thoughts included",
        "--no-skip-chat-parsing",
        env="LLAMA_ARG_SKIP_CHAT_PARSING",
    ),
    switch(
        "--prefill-assistant",
        "continue an assistant's message that ends a chat",
        "--no-prefill-assistant",
        env="LLAMA_ARG_PREFILL_ASSISTANT",
        default=True,
    ),
    switch("-sp --special", "show special tokens in the text"),
    switch("--spm-infill", "infill in the order suffix, prefix, middle"),
    flag(
        "-r --reverse-prompt",
        "text that ends every answer",
        once,
        metavar="PROMPT",
        many=True,
        default=(),
    ),
    switch(
        "-e --escape",
        r"read \n, \t and the like in -r and --dry-sequence-breaker",
        "--no-escape",
        default=True,
    ),
)
