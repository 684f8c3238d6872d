"""Reading the command line and the environment against the flag tables.

Imports nothing heavy: the engine process is started as soon as this is done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .flag import FALSE, TRUE, Flag, Status, boolean
from .flags_absent import ABSENT, REMOVED
from .flags_cache import CACHE
from .flags_chat import CHAT
from .flags_context import CONTEXT
from .flags_embedding import EMBEDDING
from .flags_lora import LORA
from .flags_model import MODEL
from .flags_sampling import SAMPLING
from .flags_scheduling import SCHEDULING
from .flags_server import LOGGING, SERVER

GROUPS: tuple[tuple[str, tuple[Flag, ...]], ...] = (
    ("Model", MODEL),
    ("Context and speed", CONTEXT),
    ("Scheduling", SCHEDULING),
    ("Prefix cache", CACHE),
    ("Sampling defaults", SAMPLING),
    ("Chat", CHAT),
    ("LoRA adapters", LORA),
    ("Embeddings and ranks", EMBEDDING),
    ("Server", SERVER),
    ("Log and information", LOGGING),
)
AVAILABLE: tuple[Flag, ...] = tuple(flag for _, flags in GROUPS for flag in flags)
ALL: tuple[Flag, ...] = AVAILABLE + ABSENT + REMOVED
BY_NAME: dict[str, tuple[Flag, bool]] = {
    name: (flag, name not in flag.off) for flag in ALL for name in flag.all_names
}


class UsageError(Exception):
    """The command line or the environment cannot be used; one line for a person."""


@dataclass
class Parsed:
    """Values by `Flag.key`; `given` are the keys that the user set; `warnings` are single lines."""

    values: dict[str, Any]
    given: set[str] = field(default_factory=set)
    warnings: list[str] = field(default_factory=list)

    def __getitem__(self, key: str) -> Any:
        return self.values[key]


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Parsed:
    """Read flags; what is on the command line wins over the environment. Raises `UsageError`."""
    parsed = Parsed({flag.key: flag.default for flag in AVAILABLE})
    for flag in ALL:
        _read_env(parsed, flag, environ)
    from_env = set(parsed.given)
    seen: set[str] = set()
    words = iter(argv)
    for word in words:
        name = "--" + word[2:].replace("_", "-") if word.startswith("--") else word
        if name not in BY_NAME:
            raise UsageError(_unknown(name))
        flag, positive = BY_NAME[name]
        if name in seen and not flag.many:
            parsed.warnings.append(f"{name} is given several times; the last one counts")
        seen.add(name)
        if flag.key in from_env and not flag.many:
            parsed.warnings.append(f"{name} wins over the environment variable {flag.env}")
        values = []
        for _ in range(flag.n_values if flag.read else 0):
            value = next(words, None)
            if value is None:
                raise UsageError(f"{name}: expected a value")
            values.append(value)
        _apply(parsed, flag, name, values, positive)
    return parsed


def _read_env(parsed: Parsed, flag: Flag, environ: Mapping[str, str]) -> None:
    if flag.off_env and flag.off_env in environ:
        _apply(parsed, flag, flag.off_env, [], False)
        return
    value = environ.get(flag.env) if flag.env else None
    if value is None:
        return
    if flag.read is not None:
        _apply(parsed, flag, flag.env, [value], True)
    elif flag.off:
        try:
            _apply(parsed, flag, flag.env, [], boolean(value))
        except ValueError as error:
            raise UsageError(f"{flag.env}: {error}") from None
    elif value in TRUE:  # llama-server ignores other values of switches that can't be turned off
        _apply(parsed, flag, flag.env, [], True)
    elif value not in FALSE:
        parsed.warnings.append(f"{flag.env}: '{value}' is none of on, true, 1; ignored")


def _apply(parsed: Parsed, flag: Flag, name: str, values: list[str], positive: bool) -> None:
    """Take one occurrence of `flag`, named `name` where the user wrote it."""
    if flag.status is Status.REMOVED:
        raise UsageError(f"{name}: removed from llama-server; {flag.note}")
    if flag.status is Status.ABSENT:
        asked = values[0] if values else "on" if positive else "off"
        if asked not in flag.harmless:
            raise UsageError(f"{name}: known llama-server flag, not available in strata yet")
        return
    if flag.status is Status.MOOT and flag.note:
        parsed.warnings.append(f"{name} changes nothing here: {flag.note}")
    value: Any = positive
    if flag.read is not None:
        try:
            value = flag.read(values[0])
        except ValueError as error:
            raise UsageError(f"{name}: {error}") from None
    if flag.many:
        before = parsed.values[flag.key]
        value = {**before, **value} if isinstance(before, dict) else before + value
    parsed.values[flag.key] = value
    parsed.given.add(flag.key)


def _unknown(name: str) -> str:
    head, equals, tail = name.partition("=")
    if equals and head in BY_NAME:
        return f"{name}: write '{head} {tail}', without the equals sign"
    if not name.startswith("-"):
        return f"unexpected argument '{name}'; a model is given with -m"
    from difflib import get_close_matches

    ours = [n for flag in AVAILABLE for n in flag.all_names]
    near = get_close_matches(name, ours, n=1, cutoff=0.7) or get_close_matches(name, BY_NAME, n=1)
    return f"{name}: unknown flag" + (f"; did you mean {near[0]}?" if near else "")
