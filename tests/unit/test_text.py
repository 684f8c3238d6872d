"""Stop strings never leak, UTF-8 is never split, and nothing is held back longer than needed."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from strata_plugin.engine.messages import StopReason
from strata_plugin.engine.text import Limits, TextAssembler, incomplete_tail, partial_stop


def feed(pieces, stop=(), **limits):
    """(chunks, assembler) after all pieces or the end of the generation."""
    limits.setdefault("n_ctx", 1 << 20)
    text = TextAssembler(tuple(stop), Limits(**limits))
    chunks = []
    for n, piece in enumerate(pieces, 1):
        is_eog = piece is None
        step = text.push(piece or b"", is_eog=is_eog, n_generated=n, n_computed=n, gen_ms=n * 10.0)
        chunks.append(step)
        if text.stop is not StopReason.NONE:
            break
    return chunks, text


def sent(chunks, text):
    return b"".join(c.text for c in chunks) + text.flush()


@given(st.text(max_size=30), st.lists(st.integers(0, 100), max_size=20))
def test_utf8_is_never_split(string, cuts):
    data = string.encode()
    borders = sorted({0, len(data), *(c % (len(data) + 1) for c in cuts)})
    pieces = [data[a:b] for a, b in pairwise(borders)]
    chunks, text = feed(pieces)
    for chunk in chunks:
        chunk.text.decode()  # raises when split
    assert sent(chunks, text) == data


@given(
    st.text("ab<", max_size=24),
    st.lists(st.text("ab<", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(0, 100), max_size=12),
)
def test_stop_strings_never_leak_and_nothing_else_is_lost(string, stops, cuts):
    data = string.encode()
    borders = sorted({0, len(data), *(c % (len(data) + 1) for c in cuts)})
    pieces = [data[a:b] for a, b in pairwise(borders)]
    chunks, text = feed(pieces, stops)
    out = sent(chunks, text).decode()
    if text.stop is StopReason.WORD:
        assert text.stopping_word in stops
        assert string.startswith(out + text.stopping_word)
    else:
        assert out == string
    assert not any(s in out for s in stops)


def test_text_before_a_possible_stop_string_is_sent_at_once():
    chunks, text = feed([b"hello <", b"en", b"x"], ["<end>"])
    assert [c.text for c in chunks] == [b"hello ", b"", b"<enx"]
    assert text.stop is StopReason.NONE


def test_a_held_back_prefix_is_flushed_when_a_limit_ends_the_generation():
    chunks, text = feed([b"a", b"<e"], ["<end>"], n_predict=2)
    assert text.stop is StopReason.LIMIT
    assert [c.text for c in chunks] == [b"a", b""]
    assert text.flush() == b"<e"


def test_end_of_generation_sends_what_was_held_back():
    chunks, text = feed([b"a<e", None], ["<end>"])
    assert [c.text for c in chunks] == [b"a", b"<e"]
    assert text.stop is StopReason.EOS


def test_the_first_of_several_stop_strings_wins():
    _, text = feed([b"one two"], ["two", "one"])
    assert text.stopping_word == "one" and text.text == b""


def test_a_stop_string_may_span_tokens():
    chunks, text = feed([b"x S", b"TO", b"P y"], ["STOP"])
    assert b"".join(c.text for c in chunks) == b"x "
    assert text.stop is StopReason.WORD


def test_an_incomplete_character_is_not_visible_and_dropped_at_a_limit():
    chunks, text = feed([b"a", b"\xe2\x82"], n_predict=2)
    assert [c.visible for c in chunks] == [True, False]
    assert text.flush() == b""


def test_limits():
    assert feed([b"a"] * 9, n_predict=3)[1].stop is StopReason.LIMIT
    assert len(feed([b"a"] * 9, n_predict=0)[0]) == 1  # as llama-server: one token
    _, text = feed([b"a"] * 9, n_ctx=5)
    assert text.truncated and text.stop is StopReason.LIMIT


def test_the_time_limit_acts_at_a_line_end_only():
    chunks, text = feed([b"a", b"b", b"c\n", b"d"], t_max_predict_ms=15)
    assert len(chunks) == 3 and text.stop is StopReason.LIMIT


def test_a_line_indented_too_little_ends_the_generation():
    chunks, text = feed([b"def f():\n", b"    x\n", b"y = 1", b"!"], n_indent=2)
    assert text.stop is StopReason.LIMIT
    total = b"".join(c.text for c in chunks)
    assert total[: len(total) - text.cut] == text.text == b"def f():\n    x\n"


def test_helpers():
    assert incomplete_tail("é".encode()[:1]) == 1
    assert incomplete_tail("é".encode()) == 0
    assert incomplete_tail("😀".encode()[:3]) == 3
    assert incomplete_tail(b"") == 0
    assert partial_stop(b"xab", b"abc") == 2
    assert partial_stop(b"xa", b"b") == 0
