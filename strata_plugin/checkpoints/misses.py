"""Why a prompt, or a part of it, was not found in the prefix cache.

The prompt is compared with what is stored and shares most with it: where they part, what was taken
out and put in there, and whether the rest comes again. From that, and the texts, follows what the
client most likely did. Nothing here decides anything; it is for people.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from .tokens import Tokens

COMPARED = 4096  # tokens after the common prefix, at most
RUN = 8  # so many equal tokens in a row are the same text
SAME = 0.25  # share of the stored text that must come again in a prompt of the same conversation
SHORT = 32  # tokens: what has fewer in common is not the same conversation
LONG = 256  # tokens: who leaves out so many has shortened the history

_HEADER = "x-anthropic-billing-header"
_NUMBER = re.compile(r"[0-9a-f]*[0-9][0-9a-f]*")
_TOOLS = re.compile(r'"(function|parameters|input_schema|tools)"|<tools?>')


class Cause(Enum):
    """What happened to a prompt in the cache, for people."""

    FOUND = "all that is stored of it was used"
    NEW = "nothing that is stored begins like it"
    BRANCH = "another conversation that begins like a stored one"
    NOT_ASKED = "cache_prompt is false"
    NAMESPACE = "it is stored under another cache_salt or another set of LoRA adapters"
    EVICTED = "what follows was dropped to make room (--cache-ram, --cache-disk)"
    NO_CHECKPOINT = "the state can't be cut, and the last checkpoint before the change is earlier"
    QUICKER = "computing it is quicker than restoring it"
    BILLING_HEADER = "a header of the client changes from request to request"
    TIMESTAMP = "a time or a counter changes from request to request"
    TOOLS = "the list of tools has changed or is in another order"
    REORDERED = "the same text comes in another order"
    TRUNCATED = "the history was shortened"
    TEMPLATE = "the very beginning differs: another template or system prompt"
    EDITED = "a message was changed"


# those a client could do something about, or whoever runs the server
HINTS = frozenset(Cause) - {Cause.FOUND, Cause.NEW, Cause.BRANCH, Cause.QUICKER}


@dataclass(frozen=True)
class Near:
    """What is stored and shares the longest prefix with a prompt: its first `common` tokens, and
    up to `COMPARED` that follow there. `evicted`: tokens of the prompt after those that were stored
    once.
    """

    common: int = 0
    rest: Tokens = field(default_factory=lambda: np.zeros(0, np.int32))
    tier: str = ""
    evicted: int = 0


@dataclass(frozen=True)
class Found:
    """What was stored for a prompt when it arrived. `elsewhere`: the longest prefix of it under
    another namespace of the same tenant.
    """

    near: Near
    elsewhere: int = 0


@dataclass(frozen=True)
class Change:
    """`removed` stored tokens became `added` tokens of the prompt; after that they agree again.

    `similar`: share of the stored text that comes again in the prompt, anywhere. `moved`: so does
    most of what was removed.
    """

    removed: int
    added: int
    similar: float
    moved: bool


def compare(stored: Tokens, prompt: Tokens) -> Change:
    """What happened to the `stored` tokens that follow a common prefix, in the rest of a prompt."""
    stored, prompt = stored[:COMPARED], prompt[:COMPARED]
    ours, theirs = _runs(stored), _runs(prompt)
    if not len(ours) or not len(theirs):
        return Change(len(stored), len(prompt), 0.0, False)
    values, first = np.unique(theirs, return_index=True)
    at = np.minimum(np.searchsorted(values, ours), len(values) - 1)
    again = values[at] == ours
    if not again.any():
        return Change(len(stored), len(prompt), 0.0, False)
    found = np.flatnonzero(again)
    places = first[at[found]]
    nearest = int(np.argmin(found + places))
    removed, added = int(found[nearest]), int(places[nearest])
    moved = removed >= RUN and float(again[:removed].mean()) > 0.5
    if not removed and added >= RUN:  # or what was put in is what came later
        moved = float(np.isin(theirs[:added], ours[RUN:]).mean()) > 0.5
    return Change(removed, added, float(again.mean()), moved)


def _runs(tokens: Tokens) -> NDArray[np.uint64]:
    """A hash of each `RUN` tokens in a row."""
    n = len(tokens) - RUN + 1
    if n < 1:
        return np.zeros(0, np.uint64)
    wide = tokens.astype(np.uint64)
    total = np.zeros(n, np.uint64)
    for i in range(RUN):
        total = total * np.uint64(0x9E3779B97F4A7C15) + wide[i : i + n]
    return total


def likely_cause(change: Change, common: int, before: str, stored: str, prompt: str) -> Cause:
    """What most likely turned one text into the other, `before` being what precedes both."""
    if change.similar < SAME:
        return Cause.BRANCH if common >= SHORT else Cause.TEMPLATE
    both = f"{before}{stored}\n{before}{prompt}"
    if _HEADER in both:
        return Cause.BILLING_HEADER
    if change.moved:
        return Cause.TOOLS if _TOOLS.search(both) else Cause.REORDERED
    small = change.removed <= 2 * RUN and change.added <= 2 * RUN
    if small and _only_numbers(before[-24:] + stored, before[-24:] + prompt):
        return Cause.TIMESTAMP
    if _TOOLS.search(both):
        return Cause.TOOLS
    if change.removed >= LONG and change.added <= change.removed // 4:
        return Cause.TRUNCATED
    return Cause.TEMPLATE if common < SHORT else Cause.EDITED


def _only_numbers(stored: str, prompt: str) -> bool:
    """Whether two texts begin alike but for times, numbers and ids."""
    a, b = (_NUMBER.sub("0", text)[:48] for text in (stored, prompt))
    n = min(len(a), len(b), 32)
    return a[:n] == b[:n] and stored[:n] != prompt[:n] and any(c.isdigit() for c in stored[:n])
