"""Where the reading of a prompt stops for a checkpoint."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_plugin.checkpoints.borders import ROOT_TOKENS, Borders

END = 2
NORMAL = Borders(every=4096, root=2048, block_tokens=256)


def prompt(n: int, *ends: int) -> np.ndarray:
    """`n` tokens; messages end with the tokens at `ends`."""
    tokens = np.full(n, 7, np.int32)
    tokens[list(ends)] = END
    return tokens


def stops(borders: Borders, tokens: np.ndarray) -> tuple[int, ...]:
    return borders.of_prompt(tokens, frozenset({END, 9}))


def test_the_beginning_is_denser_than_the_rest() -> None:
    found = stops(NORMAL, prompt(20_000))
    assert found == (2048, 4096, 6144, 8192, 12_288, 16_384, 19_968)
    assert all(NORMAL.is_border(n) for n in found[:-1]) and not NORMAL.is_border(10_240)


def test_it_stops_where_the_last_message_ends_and_not_in_the_header_after_it() -> None:
    assert stops(NORMAL, prompt(1000, 300, 990)) == (991,)
    assert stops(NORMAL, prompt(1030, 1020)) == (1021,)


def test_a_long_last_message_has_a_stop_near_its_end_too() -> None:
    assert stops(NORMAL, prompt(1000, 99)) == (100, 768)
    assert stops(NORMAL, prompt(1000)) == (768,)


def test_a_short_prompt_has_none() -> None:
    assert stops(NORMAL, prompt(1)) == stops(NORMAL, prompt(200)) == ()
    assert stops(NORMAL, prompt(10, 9)) == ()  # the last token is always computed


def test_intervals_are_whole_blocks() -> None:
    assert stops(Borders(1000, 300, 256), prompt(2000))[:3] == (512, 1024, 1536)
    with pytest.raises(ValueError, match="positive"):
        Borders(0, 1, 1)


@given(
    n=st.integers(1, 30_000),
    ends=st.lists(st.integers(0, 29_999), max_size=4),
    every=st.integers(1, 9000),
    root=st.integers(1, 9000),
    block=st.sampled_from((16, 100, 256)),
)
def test_no_token_is_further_behind_a_stop_than_an_interval(
    n: int, ends: list[int], every: int, root: int, block: int
) -> None:
    borders = Borders(every, root, block)
    found = stops(borders, prompt(n, *(e for e in ends if e < n)))
    assert list(found) == sorted(set(found))
    assert all(0 < stop < n for stop in found)
    whole = -(-every // block) * block
    at = (0, *found, n)
    assert max(b - a for a, b in pairwise(at)) <= max(whole, block)
    near_the_start = [b - a for a, b in pairwise(at) if b <= ROOT_TOKENS]
    assert max(near_the_start, default=0) <= -(-min(every, root) // block) * block
    assert n - at[-2] <= block + 1, "the same prompt again costs a block"
