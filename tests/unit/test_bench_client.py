"""The benchmark's client takes stored blocks apart, however the network cut them."""

from __future__ import annotations

import json
import socket
import threading

import pytest

from bench import client

_EVENTS = [{"tokens_predicted": 1, "content": "é"}, {"tokens_predicted": 2, "content": "\n\n"}]


def _chunked(events: list[object]) -> bytes:
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    body = b""
    for text in [
        *(f"data: {json.dumps(event)}\n\n" for event in events),
        ":\n\n",
        "data: [DONE]\n\n",
    ]:
        raw = text.encode()
        body += f"{len(raw):x}\r\n".encode() + raw + b"\r\n"
    return head + body + b"0\r\n\r\n"


def _raw(blocks: list[bytes], error: str = "") -> client._Raw:
    return client._Raw(100.0, [101.0 + i for i in range(len(blocks))], blocks, error)


def test_any_cut_gives_the_same_events_at_the_time_their_last_byte_came() -> None:
    stream = _chunked([*_EVENTS])
    ends = [stream.index(b"\r\n", stream.index(json.dumps(e).encode()) + 1) for e in _EVENTS]
    for cut in range(1, len(stream)):
        reply = client.parse_reply(_raw([stream[:cut], stream[cut:]]))
        assert reply.error == ""
        assert [event.data for event in reply.events] == _EVENTS
        assert [event.at for event in reply.events] == [1.0 if e <= cut else 2.0 for e in ends]


def test_bytes_one_by_one_give_the_same_events() -> None:
    stream = _chunked([*_EVENTS])
    reply = client.parse_reply(_raw([bytes([byte]) for byte in stream]))
    assert [event.data for event in reply.events] == _EVENTS
    assert reply.events[0].at < reply.events[1].at < reply.end_at == float(len(stream))


@pytest.mark.parametrize("missing", [1, 5, 30, 120])
def test_a_stream_that_breaks_off_is_an_error(missing: int) -> None:
    reply = client.parse_reply(_raw([_chunked([*_EVENTS])[:-missing]]))
    assert reply.error != ""


def test_refusals_and_error_events_are_errors() -> None:
    busy = b'HTTP/1.1 503 X\r\nContent-Length: 16\r\n\r\n{"error":"busy"}'
    reply = client.parse_reply(_raw([busy]))
    assert (reply.status, reply.error) == (503, 'status 503: {"error":"busy"}')
    reply = client.parse_reply(_raw([_chunked([_EVENTS[0], {"error": {"code": 500}}])]))
    assert reply.error.startswith("error event")
    assert client.parse_reply(_raw([], "cannot connect: x")).error == "cannot connect: x"
    assert client.parse_reply(_raw([])).error == "closed without an answer"


def test_many_requests_run_at_once_and_a_closed_port_is_reported_not_raised() -> None:
    arrived = threading.Barrier(3, timeout=10)

    def answer(connection: socket.socket) -> None:
        with connection:
            connection.recv(65536)
            arrived.wait()  # nobody is answered before all have come
            connection.sendall(_chunked([*_EVENTS]))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def accept() -> None:
            for _ in range(3):
                threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        replies = client.send_all(port, [client.Request("/x", {})] * 3, timeout_s=20)
    assert [(reply.error, len(reply.events)) for reply in replies] == [("", 2)] * 3
    assert client.send(port, client.Request("/x", {})).error.startswith("cannot connect")
