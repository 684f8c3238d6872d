"""A command line flag as a value, and the readers that turn its text into a checked value."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

TRUE = frozenset({"on", "enabled", "true", "1"})
FALSE = frozenset({"off", "disabled", "false", "0"})

Reader = Callable[[str], Any]


class Status(Enum):
    """What we do with a flag that llama-server has."""

    HERE = "supported"
    MOOT = "accepted, changes nothing here"
    ABSENT = "not available yet"
    REMOVED = "removed from llama-server"
    OURS = "Strata's own"


@dataclass(frozen=True)
class Flag:
    """A row of the flag tables.

    A flag without `read` is a switch; `off` are the names that turn it off. `note` is the warning
    of a moot flag or the hint of a removed one. `harmless`: values of an absent flag which ask for
    what we do anyway. `n_values` is 2 for the one flag that takes two.
    """

    names: tuple[str, ...]
    help: str = ""
    read: Reader | None = None
    env: str = ""
    default: Any = None
    metavar: str = ""
    off: tuple[str, ...] = ()
    many: bool = False  # given several times, the values add up
    shown: str = ""  # the default as the help shows it
    status: Status = Status.HERE
    note: str = ""
    harmless: tuple[str, ...] = ()
    n_values: int = 1

    @property
    def key(self) -> str:
        """The flag's name in the parsed values: its first long name in snake case."""
        long = next((n for n in self.names if n.startswith("--")), self.names[0])
        return long.lstrip("-").replace("-", "_")

    @property
    def all_names(self) -> tuple[str, ...]:
        """Every spelling, those that turn it off included."""
        return self.names + self.off

    @property
    def off_env(self) -> str:
        """The environment name that turns a switch off ("" when there is none)."""
        usual = self.off and self.env.startswith("LLAMA_ARG_")
        return "LLAMA_ARG_NO_" + self.env[len("LLAMA_ARG_") :] if usual else ""


def flag(names: str, help: str, read: Reader | None = None, **fields: Any) -> Flag:
    """A flag that takes a value; `names` are separated by spaces."""
    return Flag(tuple(names.split()), help, read or text, **fields)


def switch(names: str, help: str, off: str = "", **fields: Any) -> Flag:
    """A flag that is given or not; `off` are the names for "not"."""
    fields.setdefault("default", False)
    return Flag(tuple(names.split()), help, None, off=tuple(off.split()), **fields)


# ---- readers ------------------------------------------------------------------------------------


def text(value: str) -> str:
    """Any text."""
    return value


def integer(low: int | None = None, high: int | None = None) -> Reader:
    """A whole number within bounds (both included)."""

    def read(value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            raise ValueError(f"expected a whole number, got '{value}'") from None
        return int(_within(number, low, high))

    return read


def number(low: float | None = None, high: float | None = None) -> Reader:
    """A finite number within bounds (both included)."""

    def read(value: str) -> float:
        try:
            found = float(value)
        except ValueError:
            raise ValueError(f"expected a number, got '{value}'") from None
        if not math.isfinite(found):
            raise ValueError(f"expected a finite number, got '{value}'")
        return float(_within(found, low, high))

    return read


def _within(found: Any, low: float | None, high: float | None) -> Any:
    if low is not None and found < low:
        raise ValueError(f"must be at least {low:g}, got {found:g}")
    if high is not None and found > high:
        raise ValueError(f"must be at most {high:g}, got {found:g}")
    return found


def choice(*allowed: str) -> Reader:
    """One of a few words."""

    def read(value: str) -> str:
        if value not in allowed:
            raise ValueError(f"'{value}' is none of {', '.join(allowed)}")
        return value

    return read


def tristate(value: str) -> str:
    """on, off or auto, in llama-server's spellings."""
    if value in TRUE:
        return "on"
    if value in FALSE:
        return "off"
    if value in ("auto", "-1"):
        return "auto"
    raise ValueError(f"'{value}' is none of on, off, auto")


def boolean(value: str) -> bool:
    """A switch's value in the environment."""
    if value in TRUE:
        return True
    if value in FALSE:
        return False
    raise ValueError(f"'{value}' is none of on, off, true, false, 1, 0")


def names(value: str) -> tuple[str, ...]:
    """A comma-separated list; blanks around the items and empty items are dropped."""
    return tuple(item.strip() for item in value.split(",") if item.strip())


def quoted_names(value: str) -> tuple[str, ...]:
    """A comma-separated list whose items may be put in double quotes."""
    import csv

    return tuple(item.strip() for item in next(csv.reader([value]), []) if item.strip())


def json_object(value: str) -> dict[str, Any]:
    """A JSON object."""
    try:
        found = json.loads(value)
    except ValueError as error:
        raise ValueError(f"not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError("expected a JSON object")
    return found


def file_text(value: str) -> str:
    """The content of a UTF-8 file."""
    try:
        with open(value, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ValueError(f"cannot read '{value}': {reason}") from None


def file_path(value: str) -> str:
    """Path of a file that can be written to or made."""
    folder = os.path.dirname(os.path.abspath(value))
    if not os.path.isdir(folder):
        raise ValueError(f"no such directory: {folder}")
    return value
