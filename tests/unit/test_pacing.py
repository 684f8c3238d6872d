"""When tokens share a chunk: what a long answer costs in all, and how long a token waits.

Time is counted, not taken: a chunk costs what the parser needs for the text before it, and tokens
come as quickly as the test says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from strata_server import pacing
from strata_server.pacing import MAX_HOLD_S, Pacer

TOKENS = 8000
BASE_S, PER_TOKEN_S = 0.00006, 0.0000001  # a chunk's CPU by the tokens before it: `bench parsing`


@dataclass
class Clock:
    """The thread's CPU time, spent by chunks only."""

    spent: float = 0.0

    def __call__(self) -> float:
        return self.spent


class LongChoice:
    """A choice whose chunks cost more the longer its text is; `slower` times this machine."""

    def __init__(self, clock: Clock, slower: float):
        self.clock = clock
        self.slower = slower
        self.calls = 0
        self.n = 0

    def pieces(self, events: Sequence[Any], merge: bool) -> bytes:
        chunks = [list(events)] if merge else [[event] for event in events]
        for chunk in chunks:
            self.n += len(chunk)
            self.clock.spent += self.slower * (BASE_S + PER_TOKEN_S * self.n)
            self.calls += 1
        return b"x"


@dataclass
class Outcome:
    cpu_s: float
    longest_hold_s: float
    sizes: list[int]


def stream(
    monkeypatch: pytest.MonkeyPatch, per_second: float, slower: float = 1.0, mergeable: bool = True
) -> Outcome:
    """Send `TOKENS` tokens that come evenly; a chunk goes out as `EventStream` sends it."""
    clock = Clock()
    monkeypatch.setattr(pacing.time, "thread_time", clock)
    pacer, choice = Pacer(mergeable), LongChoice(clock, slower)
    result = Outcome(0.0, 0.0, [])
    first = 0
    while first < TOKENS:
        within = 1 + int(MAX_HOLD_S * per_second)  # those that come while the first one waits
        size = min(pacer.company, within, TOKENS - first)
        waits = (size - 1) / per_second if size == pacer.company else MAX_HOLD_S
        result.longest_hold_s = max(result.longest_hold_s, waits)
        pacer.pieces(choice, range(size), pacer.company > 1)  # type: ignore[arg-type]
        result.sizes.append(size)
        first += size
    result.cpu_s = clock.spent
    return result


@pytest.mark.parametrize("per_second", [40, 100, 400])
def test_a_tool_argument_of_8000_tokens_costs_at_most_a_second(
    monkeypatch: pytest.MonkeyPatch, per_second: float
) -> None:
    result = stream(monkeypatch, per_second)
    assert result.cpu_s <= 1.0
    assert result.longest_hold_s <= MAX_HOLD_S


def test_each_token_by_itself_would_cost_several(monkeypatch: pytest.MonkeyPatch) -> None:
    assert stream(monkeypatch, 100, mergeable=False).cpu_s > 3


def test_a_slower_machine_merges_more(monkeypatch: pytest.MonkeyPatch) -> None:
    result = stream(monkeypatch, 400, slower=4)
    assert result.cpu_s <= 1.0
    assert result.longest_hold_s <= MAX_HOLD_S


def test_what_comes_slowly_costs_a_hundredth_of_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    result = stream(monkeypatch, 5)
    assert result.cpu_s <= TOKENS / 5 / 100
    assert set(result.sizes) == {1}


def test_the_first_tokens_have_a_chunk_each(monkeypatch: pytest.MonkeyPatch) -> None:
    assert stream(monkeypatch, 100).sizes[:500] == [1] * 500


@pytest.mark.parametrize(
    ("cost", "company"),
    [(0.0, 1), (0.00015, 1), (0.0002, 4), (0.0009, 15), (0.003, 50)],
)
def test_company_grows_with_cost(cost: float, company: int) -> None:
    pacer = Pacer(mergeable=True)
    pacer.cost = cost
    assert pacer.company == 1  # an answer that has not cost much yet is not made to wait
    pacer.spent = 0.3
    assert pacer.company == company
    assert pacer.long == (cost > 0.001)


@pytest.mark.parametrize("read", [lambda p: p.company == 1, lambda p: not p.long])
def test_what_may_not_be_merged_is_not(read: Callable[[Pacer], bool]) -> None:
    pacer = Pacer(mergeable=False)
    pacer.cost = pacer.spent = 1.0
    assert read(pacer)
