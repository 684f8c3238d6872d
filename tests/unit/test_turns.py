"""Answers that come back as history are read as they were sampled, and nothing else is changed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_server import turns as module
from strata_server.turns import MARK, Turns

END = 0  # a control token
WORDS = ["a", "b", "c", "ab", "bc", "abc", "ca", "aa"]  # tokens 1, 2, ...: text has several forms


def piece(token: int) -> bytes:
    return b"%s%d%s" % (MARK, token, MARK) if token == END else WORDS[token - 1].encode()


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int32)


def text(tokens: np.ndarray) -> bytes:
    return b"".join(map(piece, tokens.tolist()))


def test_an_answer_in_other_tokens_becomes_the_one_that_was_sampled() -> None:
    turns = Turns(piece)
    turns.add("s", ids(7, 7, END), ids(1, 2, 3, END))  # "a", "b", "c" for what is usually "abc"
    replayed = turns.replayed("s", ids(7, 7, END, 6, END, 8, 1))
    assert replayed.tolist() == [7, 7, END, 1, 2, 3, END, 8, 1]


def test_several_answers_of_one_conversation_are_replayed() -> None:
    turns = Turns(piece)
    turns.add("s", ids(7, END), ids(1, 2, END))
    turns.add("s", ids(7, END, 1, 2, END, 8, END), ids(2, 3, END))
    replayed = turns.replayed("s", ids(7, END, 4, END, 8, END, 5, END, 1))
    assert replayed.tolist() == [7, END, 1, 2, END, 8, END, 2, 3, END, 1]


def test_as_much_is_replayed_as_has_the_same_text() -> None:
    turns = Turns(piece)
    turns.add("s", ids(7, END), ids(1, 2, 3, 1))  # "abca"
    assert turns.replayed("s", ids(7, END, 6, 2, END)).tolist() == [7, END, 1, 2, 3, 2, END]


@pytest.mark.parametrize(
    "prompt",
    [
        ids(7, END, 5, END),  # "bc": another text
        ids(8, END, 6, END),  # another prompt
        ids(7, END),
        ids(7),
        ids(7, END, 1, 2, 3, END),  # the very tokens
        ids(7, END, END, 6),
    ],
)
def test_what_is_not_the_same_stays_as_it_is(prompt: np.ndarray) -> None:
    turns = Turns(piece)
    turns.add("s", ids(7, END), ids(1, 2, 3, END))
    assert turns.replayed("s", prompt).tolist() == prompt.tolist()


def test_nobody_gets_the_tokens_of_another_key() -> None:
    turns = Turns(piece)
    turns.add("one", ids(7, END), ids(1, 2, 3, END))
    assert turns.replayed("two", ids(7, END, 6, END)).tolist() == [7, END, 6, END]


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_TOKENS", 20)
    turns = Turns(piece)
    for first in range(1, 9):
        turns.add("s", ids(first, END), ids(1, 2, 3))
    assert turns.replayed("s", ids(8, END, 6)).tolist() == [8, END, 1, 2, 3]
    assert turns.replayed("s", ids(1, END, 6)).tolist() == [1, END, 6]


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 8), max_size=6), st.lists(st.integers(0, 8), max_size=6)
        ),
        max_size=5,
    ),
    st.lists(st.integers(0, 8), max_size=16),
)
def test_the_text_of_a_prompt_never_changes(
    answers: list[tuple[list[int], list[int]]], prompt: list[int]
) -> None:
    turns = Turns(piece)
    for before, said in answers:
        turns.add("s", ids(*before), ids(*said))
    assert text(turns.replayed("s", ids(*prompt))) == text(ids(*prompt))
