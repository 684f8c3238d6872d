"""Flags with the sampling defaults: what a request gets when it does not say otherwise.

`FIELDS` maps them to the request fields that they are the defaults of.
"""

from __future__ import annotations

import math
import re
from typing import Any

from .flag import Flag, file_text, flag, integer, json_object, number, switch

SAMPLERS = (
    "penalties",
    "dry",
    "top_n_sigma",
    "top_k",
    "typ_p",
    "top_p",
    "min_p",
    "xtc",
    "temperature",
    "adaptive_p",
    "infill",
)
SAMPLER_LETTERS = "edskypmxtai"  # in the order of SAMPLERS
ALIASES = {"nucleus", "temp", "typ"}
INT32 = (-(1 << 31), (1 << 31) - 1)


def samplers(value: str) -> tuple[str, ...]:
    """Sampler names separated by semicolons."""
    known = {name.replace("_", joint) for name in SAMPLERS for joint in ("_", "-", "")} | ALIASES
    found = tuple(item for item in value.split(";") if item)
    for item in found:
        if item.lower() not in known:
            raise ValueError(f"unknown sampler '{item}'; known are {', '.join(SAMPLERS)}")
    return found


def sampler_letters(value: str) -> tuple[str, ...]:
    """Samplers as letters."""
    for letter in value:
        if letter not in SAMPLER_LETTERS:
            raise ValueError(f"unknown sampler letter '{letter}'; known are {SAMPLER_LETTERS}")
    return tuple(SAMPLERS[SAMPLER_LETTERS.index(letter)] for letter in value)


def seed(value: str) -> int:
    """A seed; -1: a new one for each request."""
    return int(integer(-1, (1 << 32) - 1)(value)) & 0xFFFFFFFF


def temperature(value: str) -> float:
    """A temperature; negative values count as 0."""
    return max(0.0, float(number()(value)))


def repeat_penalty(value: str) -> float:
    """A factor that tokens are divided by."""
    found: float = number()(value)
    if found <= 0 or not math.isfinite(1.0 / found):
        raise ValueError("must be above 0")
    return found


def logit_bias(value: str) -> tuple[tuple[int, float], ...]:
    """TOKEN_ID(+/-)BIAS."""
    match = re.fullmatch(r"\s*(\d+)\s*([+-])\s*(\d+(?:\.\d*)?|\.\d+|inf)\s*", value)
    if not match:
        raise ValueError(f"expected TOKEN_ID(+/-)BIAS such as 15043+1, got '{value}'")
    bias = float(match[3]) if match[3] != "inf" else 1e30
    return ((int(match[1]), bias if match[2] == "+" else -bias),)


def json_schema_file(value: str) -> dict[str, Any]:
    """A JSON schema in a file."""
    return json_object(file_text(value))


def breakers(value: str) -> tuple[str, ...]:
    """One sequence breaker; "none" is kept as a marker for an empty list."""
    return (value,)


def _number(names: str, text: str, default: float, env: str = "") -> Flag:
    return flag(names, text, number(), metavar="N", default=default, env=env)


SAMPLING: tuple[Flag, ...] = (
    flag(
        "-s --seed",
        "seed",
        seed,
        metavar="SEED",
        default=0xFFFFFFFF,
        shown="-1, a new one for each request",
    ),
    flag(
        "--temp --temperature",
        "temperature",
        temperature,
        metavar="N",
        default=0.8,
        env="LLAMA_ARG_TEMPERATURE",
    ),
    flag(
        "--top-k",
        "keep the k likeliest tokens; 0: all",
        integer(*INT32),
        metavar="N",
        default=40,
        env="LLAMA_ARG_TOP_K",
    ),
    _number(
        "--top-p", "keep the likeliest tokens that sum up to p; 1: all", 0.95, "LLAMA_ARG_TOP_P"
    ),
    _number("--min-p", "drop tokens below p times the likeliest; 0: off", 0.05, "LLAMA_ARG_MIN_P"),
    _number(
        "--top-nsigma --top-n-sigma", "keep n standard deviations of the logits; -1: off", -1.0
    ),
    _number("--xtc-probability", "XTC: how often to drop the likeliest tokens; 0: never", 0.0),
    _number("--xtc-threshold", "XTC: which tokens count as likely; 1: off", 0.1),
    _number("--typical --typical-p", "locally typical sampling, p; 1: off", 1.0),
    flag(
        "--repeat-last-n",
        "tokens that the penalties look at; 0: off",
        integer(0, INT32[1]),
        metavar="N",
        default=64,
    ),
    flag(
        "--repeat-penalty",
        "divide the logits of repeated tokens; 1: off",
        repeat_penalty,
        metavar="N",
        default=1.0,
        env="LLAMA_ARG_REPEAT_PENALTY",
    ),
    _number("--presence-penalty", "presence penalty; 0: off", 0.0, "LLAMA_ARG_PRESENCE_PENALTY"),
    _number("--frequency-penalty", "frequency penalty; 0: off", 0.0, "LLAMA_ARG_FREQUENCY_PENALTY"),
    _number("--dry-multiplier", "DRY: strength; 0: off", 0.0),
    _number("--dry-base", "DRY: base of the growth (values below 1 are ignored)", 1.75),
    flag(
        "--dry-allowed-length",
        "DRY: repetitions up to this length are free",
        integer(*INT32),
        metavar="N",
        default=2,
    ),
    flag(
        "--dry-penalty-last-n",
        "DRY: tokens to look at; 0: off",
        integer(0, INT32[1]),
        metavar="N",
        default=64,
    ),
    flag(
        "--dry-sequence-breaker",
        "DRY: text that ends a repetition; replaces the built-in ones; none: no breakers",
        breakers,
        metavar="STRING",
        many=True,
        default=(),
        shown=r"'\n', ':', '\"', '*'",
    ),
    _number("--adaptive-target", "adaptive-p: probability to aim at, 0 to 1; below 0: off", -1.0),
    _number("--adaptive-decay", "adaptive-p: how slowly the aim adapts, 0 to 0.99", 0.9),
    _number("--dynatemp-range", "range of the dynamic temperature; 0: off", 0.0),
    _number("--dynatemp-exp", "exponent of the dynamic temperature", 1.0),
    flag(
        "--mirostat",
        "Mirostat: 0 off, 1 or 2 its version",
        integer(0, 2),
        metavar="N",
        default=0,
    ),
    _number("--mirostat-lr", "Mirostat: learning rate (eta)", 0.1),
    _number("--mirostat-ent", "Mirostat: target entropy (tau)", 5.0),
    flag(
        "--samplers",
        "samplers in their order, separated by ';'",
        samplers,
        metavar="SAMPLERS",
        default=(),
        shown=";".join(SAMPLERS[:9]),
    ),
    flag(
        "--sampler-seq --sampling-seq",
        "the same as letters",
        sampler_letters,
        metavar="SEQUENCE",
        default=(),
        shown=SAMPLER_LETTERS[:9],
    ),
    switch("--ignore-eos", "go on after the end of the answer"),
    flag(
        "-l --logit-bias",
        "make a token likelier or less likely, such as 15043+1",
        logit_bias,
        metavar="TOKEN_ID(+/-)BIAS",
        many=True,
        default=(),
    ),
    flag("--grammar", "GBNF grammar that answers must follow", metavar="GRAMMAR"),
    flag("--grammar-file", "file with such a grammar", file_text, metavar="FNAME"),
    flag("-j --json-schema", "JSON schema that answers must follow", json_object, metavar="SCHEMA"),
    flag("-jf --json-schema-file", "file with such a schema", json_schema_file, metavar="FILE"),
    flag(
        "-n --predict --n-predict",
        "most tokens of an answer; -1: no limit but the context",
        integer(-1, INT32[1]),
        metavar="N",
        default=-1,
        env="LLAMA_ARG_N_PREDICT",
    ),
    flag(
        "--keep",
        "n_keep shown by the API; without effect as there is no context shift",
        integer(-1, INT32[1]),
        metavar="N",
        default=0,
    ),
)

FIELDS = {
    "seed": "seed",
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "top_nsigma": "top_n_sigma",
    "xtc_probability": "xtc_probability",
    "xtc_threshold": "xtc_threshold",
    "typical": "typical_p",
    "repeat_last_n": "repeat_last_n",
    "repeat_penalty": "repeat_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "dry_multiplier": "dry_multiplier",
    "dry_base": "dry_base",
    "dry_allowed_length": "dry_allowed_length",
    "dry_penalty_last_n": "dry_penalty_last_n",
    "adaptive_target": "adaptive_target",
    "adaptive_decay": "adaptive_decay",
    "dynatemp_range": "dynatemp_range",
    "dynatemp_exp": "dynatemp_exponent",
    "mirostat": "mirostat",
    "mirostat_lr": "mirostat_eta",
    "mirostat_ent": "mirostat_tau",
    "ignore_eos": "ignore_eos",
}
