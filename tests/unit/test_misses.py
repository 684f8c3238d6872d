"""What changed between a stored prompt and one that was not found, and what that most likely was.

Tokens are characters here.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from strata_plugin.checkpoints.misses import COMPARED, Cause, Change, compare, likely_cause
from strata_plugin.checkpoints.tokens import common_prefix


def text(seed: int, n: int = 200) -> str:
    rng = random.Random(seed)
    return "".join("".join(rng.choices("ghijklmnopqrstuvwxyz", k=5)) + " " for _ in range(n))


def tokens(words: str) -> np.ndarray:
    return np.frombuffer(words.encode(), np.uint8).astype(np.int32)


def changed(stored: str, prompt: str) -> tuple[Change, int]:
    a, b = tokens(stored), tokens(prompt)
    common = common_prefix(a, b)
    return compare(a[common:], b[common:]), common


def cause(stored: str, prompt: str) -> Cause:
    change, at = changed(stored, prompt)
    before = stored[max(0, at - 60) : at]
    return likely_cause(change, at, before, stored[at : at + 60], prompt[at : at + 60])


TOOL = '{"type": "function", "function": {"name": "%s", "parameters": {}}}, '
START, END = text(1), text(2)


@pytest.mark.parametrize(
    ("stored", "prompt", "expected"),
    [
        (START + "It is 2026-12-03. " + END, START + "It is 2026-12-04. " + END, Cause.TIMESTAMP),
        (START + "Now: 10:59:07 UTC " + END, START + "Now: 11:00:12 UTC " + END, Cause.TIMESTAMP),
        (START + "session 5f3a91 " + END, START + "session 77b0ce " + END, Cause.TIMESTAMP),
        (
            START + "x-anthropic-billing-header: cc_version=2.1; cch=1a2b3; " + END,
            START + "x-anthropic-billing-header: cc_version=2.1; cch=99f0d; " + END,
            Cause.BILLING_HEADER,
        ),
        (
            START + TOOL % "read" + TOOL % "write" + TOOL % "grep" + END,
            START + TOOL % "write" + TOOL % "grep" + TOOL % "read" + END,
            Cause.TOOLS,
        ),
        (START + TOOL % "read" + END, START + TOOL % "read" + TOOL % "bash" + END, Cause.TOOLS),
        (START + text(3) + text(4) + END, START + text(4) + text(3) + END, Cause.REORDERED),
        (START + text(5, 400) + END, START + END, Cause.TRUNCATED),
        ("You are helpful. " + END, "Today you are not. " + END, Cause.TEMPLATE),
        (START + "say yes to all of it " + END, START + "say no, never " + END, Cause.EDITED),
        (START + text(6), START + text(7), Cause.BRANCH),
    ],
)
def test_what_a_client_did_is_recognised(stored: str, prompt: str, expected: Cause) -> None:
    assert cause(stored, prompt) is expected


def test_a_change_is_measured_to_where_both_agree_again() -> None:
    change, common = changed(START + "1111 " + END, START + "2222222 " + END)
    assert common == len(START) and (change.removed, change.added) == (4, 7)
    assert change.similar > 0.9 and not change.moved
    change, _ = changed(START + END, START + "in between " + END)
    assert (change.removed, change.added) == (0, 11)
    change, _ = changed(START + "much that went away " + END, START + END)
    assert change.added == 0 and change.removed == 20


def test_nothing_in_common_is_no_change_but_something_else() -> None:
    for stored, prompt in ((START, "z" * 500), (START, ""), ("", START), ("abc", "abd")):
        change = compare(tokens(stored), tokens(prompt))
        assert change == Change(len(stored), len(prompt), 0.0, False)


def test_however_long_the_texts_are_only_a_part_is_compared() -> None:
    long = np.random.default_rng(1).integers(0, 1000, 10 * COMPARED).astype(np.int32)
    change = compare(long, long[100:])
    assert (change.removed, change.added) == (100, 0)
