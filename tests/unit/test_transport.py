"""Frames survive however the bytes are cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_plugin.engine.messages import Cancel, Token, decode_to_server, encode
from strata_plugin.engine.transport import FrameParser, TransportError, frame


@given(st.lists(st.binary(max_size=50), max_size=8), st.lists(st.integers(0, 500), max_size=12))
def test_payloads_come_out_as_they_went_in(payloads, cuts):
    stream = b"".join(map(frame, payloads))
    borders = sorted({0, len(stream), *(c % (len(stream) + 1) for c in cuts)})
    parser = FrameParser()
    out = []
    for begin, end in pairwise(borders):
        out += parser.feed(stream[begin:end])
    assert out == payloads


def test_a_long_payload_may_come_in_many_pieces():
    payload = bytes(1 << 20)
    stream = frame(payload)
    parser = FrameParser()
    pieces = [stream[i : i + (1 << 16)] for i in range(0, len(stream), 1 << 16)]
    out = [payload for piece in pieces for payload in parser.feed(piece)]
    assert out == [payload]


def test_a_stream_out_of_step_is_noticed():
    with pytest.raises(TransportError):
        list(FrameParser().feed(b"\xff" * 8))


def test_messages_of_the_other_direction_are_refused():
    import msgspec

    with pytest.raises(msgspec.ValidationError):
        decode_to_server(encode([Cancel(1)]))
    token = Token(request_id=1, token=2, text=b"x", n_decoded=1)
    assert decode_to_server(encode([token])) == (token,)
