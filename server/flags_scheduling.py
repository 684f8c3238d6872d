"""Strata's own flags: how prompts and generating requests share the engine's time, and whom it
takes."""

from __future__ import annotations

import re

from .flag import Flag, Reader, Status, choice, file_path, flag, integer, names, number
from .settings import PriorityLimits

OURS = Status.OURS
BIG = 1 << 31
AUTO = 0  # what `count_or_auto` makes of "auto"


def milliseconds(value: str) -> float:
    """A target in milliseconds, above 0."""
    found: float = number(None, 1e9)(value)
    if found <= 0:
        raise ValueError(f"must be above 0, got {value}")
    return found


def share(value: str) -> float:
    """A part of the time: above 0 and below 1."""
    found: float = number()(value)
    if not 0 < found < 1:
        raise ValueError(f"must be above 0 and below 1, got {value}")
    return found


def count_or_auto(value: str) -> int:
    """A number of steps, at least 1, or "auto" (`AUTO`)."""
    if value == "auto":
        return AUTO
    read: Reader = integer(None, BIG)
    try:
        found = int(read(value))
    except ValueError as error:
        raise ValueError(f"{error} (or write auto)") from None
    if found < 1:
        raise ValueError(f"must be at least 1, or auto; got {value}")
    return found


def priority_limits(value: str) -> PriorityLimits:
    """N, NAME=N or several of them with commas between: for all, for one key, by its name."""
    read: Reader = integer(0, BIG - 1)
    others: int | None = None
    of_key: dict[str, int] = {}
    for item in names(value) or ("",):
        name, given, number_of_it = item.rpartition("=")
        if not given and others is None:
            others = read(item)
        elif not re.fullmatch(r"key-[1-9][0-9]{0,8}", name):
            raise ValueError(f"expected N or key-1=N, key-2=N, ...; got '{item}'")
        elif name in of_key:
            raise ValueError(f"{name} is there twice")
        else:
            of_key[name] = read(number_of_it)
    return PriorityLimits(others or 0, of_key)


def path_or_none(value: str) -> str:
    """A file that can be written to, or "none" ("": nowhere)."""
    return "" if value == "none" else file_path(value)


SCHEDULING: tuple[Flag, ...] = (
    flag(
        "--scheduler",
        "strata: as the flags below say; upstream: llama-server's order and its steps of -b "
        "tokens, to compare with",
        choice("strata", "upstream"),
        metavar="NAME",
        env="STRATA_SCHEDULER",
        default="strata",
        status=OURS,
    ),
    flag(
        "--itl-slo-ms",
        "longest time between two tokens of a stream that reading other prompts should cause, in "
        "milliseconds; a request may set its own with the field itl_slo_ms",
        milliseconds,
        metavar="MS",
        env="STRATA_ITL_SLO_MS",
        default=150.0,
        status=OURS,
    ),
    flag(
        "--prefill-quantum-ms",
        "longest step of prompt reading while nobody generates, in milliseconds: how long a "
        "newcomer or a cancel may have to wait",
        number(1, 1e6),
        metavar="N",
        env="STRATA_PREFILL_QUANTUM_MS",
        default=500.0,
        status=OURS,
    ),
    flag(
        "--prefill-min-share",
        "part of the time, above 0 and below 1, that prompts get where generating alone takes "
        "longer than --itl-slo-ms",
        share,
        metavar="SHARE",
        env="STRATA_PREFILL_MIN_SHARE",
        default=0.1,
        status=OURS,
    ),
    flag(
        "--prefill-budget",
        "prompt tokens in each step, whatever the targets say; 0: as many as they allow",
        integer(0, BIG),
        metavar="N",
        env="STRATA_PREFILL_BUDGET",
        default=0,
        status=OURS,
    ),
    flag(
        "--short-read",
        "a prompt with no more than N tokens left is read in steps that those who generate "
        "hardly notice; 0: off",
        integer(0, BIG),
        metavar="N",
        env="STRATA_SHORT_READ",
        default=256,
        status=OURS,
    ),
    flag(
        "--prefill-yield-chunks",
        "for models whose steps have a high fixed cost: large chunks of prompts in a row before "
        "those who generate get their turn; auto: as measured",
        count_or_auto,
        metavar="K",
        env="STRATA_PREFILL_YIELD_CHUNKS",
        default=AUTO,
        shown="auto",
        status=OURS,
    ),
    flag(
        "--prefill-steps",
        "how many steps that turn lasts; auto: as measured",
        count_or_auto,
        metavar="M",
        env="STRATA_PREFILL_STEPS",
        default=AUTO,
        shown="auto",
        status=OURS,
    ),
    flag(
        "--max-prompt-tokens",
        "refuse longer prompts at once; 0: only the context bounds them",
        integer(0, BIG),
        metavar="N",
        env="STRATA_MAX_PROMPT_TOKENS",
        default=0,
        status=OURS,
    ),
    flag(
        "--max-queue",
        "requests that may wait; more are refused with 429 and a Retry-After; 0: any number",
        integer(0, BIG),
        metavar="N",
        env="STRATA_MAX_QUEUE",
        default=0,
        status=OURS,
    ),
    flag(
        "--max-priority",
        "highest priority that a request may ask for with the field priority; those below 0 are "
        "always allowed. 0,key-2=5 allows more to the second API key alone",
        priority_limits,
        metavar="N",
        env="STRATA_MAX_PRIORITY",
        default=PriorityLimits(),
        shown="0",
        status=OURS,
    ),
    flag(
        "--cost-model",
        "file in which the measured times of steps are kept for the next start; none: forget them",
        path_or_none,
        metavar="FILE",
        env="STRATA_COST_MODEL",
        shown="one for each model, machine and set of flags in ~/.cache/strata/cost",
        status=OURS,
    ),
)
