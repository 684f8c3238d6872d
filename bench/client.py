"""A streaming HTTP client that costs little: it shares the CPU with the servers it measures.

While a reply arrives it only stores each received block with its time; chunked coding, server-sent
events and JSON are taken apart afterwards. Every request opens its own connection, and times count
from before the connect, as a user would feel them.
"""

from __future__ import annotations

import asyncio
import json
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

TIMEOUT_S = 900.0


@dataclass(frozen=True)
class Request:
    """One POST whose JSON body is `body`; `delay_s` is waited before connecting."""

    path: str
    body: dict[str, Any]
    delay_s: float = 0.0


@dataclass(frozen=True)
class Event:
    """One server-sent event: `at` is seconds since the request began."""

    at: float
    data: Any


@dataclass(frozen=True)
class Reply:
    """What came back. `error` is empty for a complete reply with status 200 and no error event."""

    started: float  # seconds on time.perf_counter()
    status: int = 0  # 0: no HTTP status arrived
    events: tuple[Event, ...] = ()
    first_byte_at: float = 0.0  # seconds since `started`
    end_at: float = 0.0  # seconds since `started`: last byte
    error: str = ""
    text: str = ""  # the body where it isn't an event stream


@dataclass
class _Collector(asyncio.Protocol):
    payload: bytes
    closed: asyncio.Future[Exception | None]
    times: list[float] = field(default_factory=list)
    blocks: list[bytes] = field(default_factory=list)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(self.payload)

    def data_received(self, data: bytes) -> None:
        self.times.append(time.perf_counter())
        self.blocks.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(exc)


def send_all(port: int, requests: Sequence[Request], timeout_s: float = TIMEOUT_S) -> list[Reply]:
    """Send `requests` at once to 127.0.0.1:`port`; replies in the same order, never raises."""

    async def gather() -> list[_Raw]:
        return await asyncio.gather(*(_send(port, request, timeout_s) for request in requests))

    return [parse_reply(raw) for raw in asyncio.run(gather())]


def send(port: int, request: Request, timeout_s: float = TIMEOUT_S) -> Reply:
    """Send one request and wait for the end of its reply."""
    return send_all(port, [request], timeout_s)[0]


@dataclass(frozen=True)
class _Raw:
    started: float
    times: Sequence[float]
    blocks: Sequence[bytes]
    error: str


async def _send(port: int, request: Request, timeout_s: float) -> _Raw:
    body = json.dumps(request.body).encode()
    head = (
        f"POST {request.path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    if request.delay_s:
        await asyncio.sleep(request.delay_s)
    loop = asyncio.get_running_loop()
    collector = _Collector(head.encode() + body, loop.create_future())
    started = time.perf_counter()
    error = ""
    transport: asyncio.BaseTransport | None = None
    try:
        transport, _ = await loop.create_connection(lambda: collector, "127.0.0.1", port)
        lost = await asyncio.wait_for(collector.closed, timeout_s)
        error = f"connection lost: {lost}" if lost else ""
    except OSError as exc:
        error = f"cannot connect: {exc}"
    except asyncio.TimeoutError:  # not TimeoutError before Python 3.11
        error = f"no end within {timeout_s:g} s"
    finally:
        if transport is not None:
            transport.close()
    return _Raw(started, collector.times, collector.blocks, error)


def parse_reply(raw: _Raw) -> Reply:
    """Take the stored blocks apart: status, then events with the time their last byte came."""
    if not raw.blocks:
        return Reply(raw.started, error=raw.error or "closed without an answer")
    stream = b"".join(raw.blocks)
    ends: list[int] = []
    total = 0
    for block in raw.blocks:
        total += len(block)
        ends.append(total)

    def arrival(offset: int) -> float:
        """When byte `offset - 1` came, in seconds since the request began."""
        return raw.times[bisect_left(ends, offset)] - raw.started

    head, separator, _ = stream.partition(b"\r\n\r\n")
    first_byte_at, end_at = arrival(1), arrival(total)
    if not separator:
        return Reply(raw.started, error=raw.error or "closed within the headers")
    lines = head.decode("latin-1").split("\r\n")
    status = int(lines[0].split(" ", 2)[1])
    headers = {
        name.strip().lower(): value.strip()
        for name, _, value in (line.partition(":") for line in lines[1:])
    }
    body_start = len(head) + 4
    error = raw.error
    if headers.get("transfer-encoding", "").lower() == "chunked":
        pieces, complete = _dechunk(stream, body_start)
        if not complete:
            error = error or "closed within the body"
    else:
        pieces = [(total, stream[body_start:])]
        if len(pieces[0][1]) < int(headers.get("content-length", 0)):
            error = error or "closed within the body"
    body = b"".join(piece for _, piece in pieces)
    if "text/event-stream" not in headers.get("content-type", ""):
        text = body.decode("utf-8", "replace")
        if status != 200:
            error = error or f"status {status}: {text[:200]}"
        return Reply(raw.started, status, (), first_byte_at, end_at, error, text)
    piece_ends: list[int] = []
    length = 0
    for _, piece in pieces:
        length += len(piece)
        piece_ends.append(length)
    events: list[Event] = []
    position = 0
    while (border := body.find(b"\n\n", position)) >= 0:
        text_event = body[position:border]
        position = border + 2
        raw_offset = pieces[bisect_left(piece_ends, position)][0]
        for line in text_event.split(b"\n"):
            if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
                continue
            data = json.loads(line[5:])
            events.append(Event(arrival(raw_offset), data))
            if isinstance(data, dict) and "error" in data:
                error = error or f"error event: {json.dumps(data)[:200]}"
    if status != 200:
        error = error or f"status {status}"
    return Reply(raw.started, status, tuple(events), first_byte_at, end_at, error)


def _dechunk(stream: bytes, position: int) -> tuple[list[tuple[int, bytes]], bool]:
    """Chunks as (offset in `stream` of the chunk's end, bytes), and whether the end mark came."""
    pieces: list[tuple[int, bytes]] = []
    while (line_end := stream.find(b"\r\n", position)) >= 0:
        size = int(stream[position:line_end].split(b";", 1)[0], 16)
        if size == 0:
            return pieces, stream.find(b"\r\n\r\n", line_end) >= 0
        start = line_end + 2
        end = start + size
        if end > len(stream):
            return pieces, False
        pieces.append((end, stream[start:end]))
        position = end + 2
    return pieces, False
