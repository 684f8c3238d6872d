"""What the names of GGUF files tell: the quant, parts of a split model, what is no model."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

PREFERRED = ("Q4_K_M", "Q8_0")  # where no quant is asked for
NOT_MODELS = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")

_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE | re.DOTALL)


def split_parts(name: str) -> list[str]:
    """The names of all parts of the split model that `name` belongs to; else `name` alone."""
    match = _PART.fullmatch(name)
    if not match:
        return [name]
    stem, count = match[1], int(match[3])
    return [f"{stem}-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1)]


def models(names: Collection[str]) -> list[str]:
    """Those of `names` that are models, in their order; of split ones that are complete, part 1."""
    return [name for name in names if _is_model(name) and set(split_parts(name)) <= set(names)]


def _is_model(name: str) -> bool:
    part = _PART.fullmatch(name)
    base = name.rpartition("/")[2]
    return (
        name.endswith(".gguf")
        and not any(mark in base for mark in NOT_MODELS)
        and (part is None or int(part[2]) == 1)
    )


def choose(names: Collection[str], quant: str) -> str | None:
    """The model to serve: the first of that quant, without one of a preferred quant, or any."""
    found = models(names)
    for wanted in [quant] if quant else PREFERRED:
        for name in found:
            if has_quant(name, wanted):
                return name
    return found[0] if found and not quant else None


def has_quant(name: str, quant: str) -> bool:
    """Whether `quant`, in any case, is in `name` before a dot or a dash."""
    return re.search(re.escape(quant) + "[.-]", name, re.IGNORECASE) is not None


def quant_of(name: str) -> str:
    """The quant in upper case, "" where the name has none."""
    stem = re.sub(r"(-\d{5}-of-\d{5})?\.gguf$", "", name)
    match = re.search(r"[-.]([A-Za-z0-9_]+)$", stem)
    return match[1].upper() if match else ""


def quants(names: Iterable[str]) -> str:
    """What there is to choose from, for a person."""
    found = dict.fromkeys(quant_of(name) or name for name in models(list(names)))
    return ", ".join(found) or "no GGUF file of a model"
