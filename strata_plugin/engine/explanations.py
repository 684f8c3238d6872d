"""Tells, for each of the last requests, what of its prompt was found in the prefix cache, and why
the rest was not.

Only what a request may use is searched, so nothing tells that others have sent something like it.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from strata_plugin.checkpoints.keys import Key
from strata_plugin.checkpoints.misses import (
    HINTS,
    RUN,
    SAME,
    SHORT,
    Cause,
    Change,
    Found,
    compare,
    likely_cause,
)

from .block_states import Restore
from .generation import Generation
from .ports import Tokens
from .sequences import Sequences

KEPT = 256  # explanations
HINTS_SHOWN = 16
ROOTS_KEPT = 4  # namespaces of a tenant, the latest ones
CONVERSATIONS_SHOWN = 10
AROUND = 24  # tokens shown before and after a change
SLACK = 256  # tokens that are not worth a word: about a block

Text = Callable[[Tokens], str]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Explanation:
    """Of one request, as GET /cache/explain shows it."""

    tenant: str
    cause: Cause
    view: dict[str, Any]


class Explanations:
    """The last `KEPT` requests of one engine. `text` makes words of tokens."""

    def __init__(self, sequences: Sequences, text: Text) -> None:
        self._sequences = sequences
        self._text = text
        self._by_name: OrderedDict[tuple[str, str], Explanation] = OrderedDict()
        self._hints: deque[Explanation] = deque(maxlen=KEPT)
        self._roots: dict[str, OrderedDict[Key, None]] = {}  # by tenant

    def look(self, generation: Generation) -> Found:
        """What is stored for a request that arrives."""
        tenant, root = generation.submit.tenant, generation.root
        roots = self._roots.setdefault(tenant, OrderedDict())
        near = self._sequences.nearest(generation.tokens, root)
        elsewhere = 0
        if near.common + SLACK < generation.n_prompt:
            others = (self._sequences.nearest(generation.tokens, r) for r in roots if r != root)
            elsewhere = max((other.common for other in others), default=0)
        roots[root] = None
        roots.move_to_end(root)
        if len(roots) > ROOTS_KEPT:
            roots.popitem(last=False)
        return Found(near, elsewhere)

    def started(
        self, generation: Generation, found: Found, restore: Restore | None = None
    ) -> None:
        """A request begins to be read; what it was given is known now."""
        submit, near, n_cached = generation.submit, found.near, generation.n_cached
        prompt = generation.tokens[: generation.n_prompt]
        change = compare(near.rest, prompt[near.common :]) if len(near.rest) else None
        parts = len(near.rest) >= RUN and near.common < len(prompt)
        cause = self._cause(generation, found, change if parts else None)
        view: dict[str, Any] = {
            "id": submit.name,
            "prompt_tokens": len(prompt),
            "cached_tokens": n_cached,
            "longest_prefix": near.common,
            "found_in": near.tier if near.common else "",
            "cause": cause.name.lower(),
            "explanation": cause.value,
            "differs_at": None,
            "stored_text": "",
            "prompt_text": "",
            "restore_ms": restore.took_ms if restore is not None else None,
            "recompute_ms": restore.recompute_ms if restore is not None else None,
        }
        if parts and near.common >= SHORT // 4:
            view |= {
                "differs_at": near.common,
                "stored_text": self._around(prompt, near.common, near.rest),
                "prompt_text": self._around(prompt, near.common, prompt[near.common :]),
            }
        explanation = Explanation(submit.tenant, cause, view)
        key = submit.tenant, submit.name
        self._by_name.pop(key, None)
        self._by_name[key] = explanation
        if len(self._by_name) > KEPT:
            self._by_name.popitem(last=False)
        if cause in HINTS:
            self._hints.append(explanation)
            log.info(
                "request %s: %d of %d prompt tokens found, %d are stored: %s",
                submit.name, n_cached, len(prompt), near.common, cause.value,
            )  # fmt: skip

    def _cause(self, generation: Generation, found: Found, change: Change | None) -> Cause:
        near, n_prompt, n_cached = found.near, generation.n_prompt, generation.n_cached
        useful = min(near.common, generation.reuse_limit)
        if not generation.submit.cache_prompt:
            return Cause.NOT_ASKED if near.common > SLACK else Cause.NEW
        if found.elsewhere > near.common + SLACK:
            return Cause.NAMESPACE
        if near.evicted > SLACK // 2:
            return Cause.EVICTED
        goes_on = change is not None and change.similar >= SAME
        if useful > n_cached + SLACK:
            return Cause.NO_CHECKPOINT if self._sequences.needs_checkpoints else Cause.QUICKER
        if change is None or len(near.rest) < RUN:  # the end of an answer was never computed
            return Cause.FOUND if near.common >= min(SHORT, n_prompt - 1) else Cause.NEW
        if near.common < SHORT and not goes_on:
            return Cause.NEW
        before = self._text(generation.tokens[max(0, near.common - AROUND) : near.common])
        stored = self._text(near.rest[:AROUND])
        told = self._text(generation.tokens[near.common : min(near.common + AROUND, n_prompt)])
        return likely_cause(change, near.common, before, stored, told)

    def _around(self, prompt: Tokens, at: int, after: Tokens) -> str:
        """Text around a position, cut and escaped; what follows there begins after `<>`."""
        before, later = self._text(prompt[max(0, at - AROUND) : at]), self._text(after[:AROUND])
        return _escaped(f"{before}<>{later}")

    # ---- for people ------------------------------------------------------------------------------

    def of(self, tenant: str, name: str) -> dict[str, Any] | None:
        """The explanation of a tenant's request, None where there is none (any more)."""
        found = self._by_name.get((tenant, name))
        return found.view if found is not None else None

    def view(self, tenant: str) -> dict[str, Any]:
        """What GET /cache shows a tenant of its own requests."""
        own = [hint for hint in self._hints if hint.tenant == tenant]
        causes = Counter(hint.cause for hint in own)
        talks = [
            talk
            for root in self._roots.get(tenant, ())
            for talk in self._sequences.conversations(root)
        ]
        talks.sort(key=lambda talk: -len(talk[0]))
        return {
            "hints": [
                {"cause": cause.name.lower(), "explanation": cause.value, "requests": count}
                for cause, count in causes.most_common()
            ],
            "misses": [hint.view for hint in own[: -HINTS_SHOWN - 1 : -1]],
            "conversations": [
                {
                    "tokens": len(tokens),
                    "bytes": n_bytes,
                    "begins": _escaped(self._text(tokens[:AROUND])),
                }
                for tokens, n_bytes in talks[:CONVERSATIONS_SHOWN]
            ],
        }


def _escaped(text: str) -> str:
    return text.encode("unicode_escape").decode("ascii")
