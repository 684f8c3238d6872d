"""A streaming HTTP client that costs little: it shares the CPU with the servers it measures.

While a reply arrives it only stores each received block with its time; chunked coding, server-sent
events and JSON are taken apart afterwards. Every request opens its own connection, and times count
from before the connect, as a user would feel them. An `Exchange` is one request under way: others
may wait for its headers or its next event, and cut it.
"""

from __future__ import annotations

import asyncio
import json
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

TIMEOUT_S = 900.0


@dataclass(frozen=True)
class Request:
    """One POST whose JSON body is `body`, or a GET; `delay_s` is waited before connecting."""

    path: str
    body: dict[str, Any] | None = None  # None: a GET
    delay_s: float = 0.0
    headers: tuple[tuple[str, str], ...] = ()  # besides those that every request has


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
    headers: Mapping[str, str] = field(default_factory=dict)  # names in lower case
    cut: bool = False  # we left before its end: that it is incomplete is no error


_MARK = b"\ndata:"  # JSON holds no raw line ends, so in a stream this begins an event


@dataclass
class _Collector(asyncio.Protocol):
    payload: bytes
    closed: asyncio.Future[Exception | None]
    times: list[float] = field(default_factory=list)
    blocks: list[bytes] = field(default_factory=list)
    events: int = 0  # that have begun to arrive
    tail: bytes = b""  # the last bytes, where a mark may have been cut in two
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(self.payload)

    def data_received(self, data: bytes) -> None:
        self.times.append(time.perf_counter())
        self.blocks.append(data)
        seen = self.tail + data
        self.events += seen.count(_MARK)
        self.tail = seen[1 - len(_MARK) :]
        self.changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(exc)
        self.changed.set()


class Exchange:
    """One request under way, inside an event loop; `begin` sends it, `end` gives its reply."""

    def __init__(self, port: int, request: Request, host: str = "127.0.0.1") -> None:
        self._address = (host, port)
        self._request = request
        self._collector = _Collector(b"", asyncio.get_running_loop().create_future())
        self._transport: asyncio.BaseTransport | None = None
        self._error = ""
        self._cut = False
        self.started = 0.0  # seconds on time.perf_counter()

    async def begin(self) -> Exchange:
        """Connect and send; a failure is kept for the reply, not raised."""
        request, collector = self._request, self._collector
        if request.delay_s:
            await asyncio.sleep(request.delay_s)
        collector.payload = _payload(request, *self._address)
        self.started = time.perf_counter()
        try:
            loop = asyncio.get_running_loop()
            self._transport, _ = await loop.create_connection(lambda: collector, *self._address)
        except OSError as exc:
            self._error = f"cannot connect: {exc}"
            collector.connection_lost(exc)
        return self

    @property
    def event_count(self) -> int:
        """Events that have come, or begun to come, so far."""
        return self._collector.events

    @property
    def last_block_at(self) -> float:
        """When bytes last came, on time.perf_counter(); 0 where none have come."""
        return self._collector.times[-1] if self._collector.times else 0.0

    @property
    def over(self) -> bool:
        """Whether the connection has ended, from either side."""
        return self._collector.closed.done()

    async def headers(self, timeout_s: float = TIMEOUT_S) -> bool:
        """Wait for the reply's first byte; False where the connection or the time ended first."""
        return await self._until(lambda: bool(self._collector.blocks), timeout_s)

    async def events(self, count: int, timeout_s: float = TIMEOUT_S) -> bool:
        """Wait until `count` events have come in all; False where the connection or time ended."""
        return await self._until(lambda: self._collector.events >= count, timeout_s)

    async def over_within(self, timeout_s: float) -> bool:
        """Wait for the connection's end; False where the time ended first."""
        return await self._until(lambda: self.over, timeout_s)

    async def _until(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        deadline = time.perf_counter() + timeout_s
        changed = self._collector.changed
        while not holds():
            if self.over:
                return False
            changed.clear()
            try:
                await asyncio.wait_for(changed.wait(), deadline - time.perf_counter())
            except asyncio.TimeoutError:  # not TimeoutError before Python 3.11
                return False
        return True

    def cut(self) -> None:
        """Leave: close the connection at once, as a client does that is no longer interested."""
        if not self.over:
            self._cut = True
        if self._transport is not None:
            assert isinstance(self._transport, asyncio.WriteTransport)
            self._transport.abort()

    async def end(self, timeout_s: float = TIMEOUT_S) -> Reply:
        """Wait for the end and take the reply apart; never raises for what the server does."""
        return parse_reply(await self.raw(timeout_s))

    async def raw(self, timeout_s: float = TIMEOUT_S) -> _Raw:
        """As `end`, but taking the reply apart is left for later."""
        collector, error = self._collector, self._error
        try:
            lost = await asyncio.wait_for(asyncio.shield(collector.closed), timeout_s)
            error = error or (f"connection lost: {lost}" if lost else "")
        except asyncio.TimeoutError:
            error = f"no end within {timeout_s:g} s"
        finally:
            if self._transport is not None:
                self._transport.close()
        return _Raw(self.started, collector.times, collector.blocks, error, self._cut)


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
    cut: bool = False


async def _send(port: int, request: Request, timeout_s: float) -> _Raw:
    exchange = await Exchange(port, request).begin()
    return await exchange.raw(timeout_s)


def _payload(request: Request, host: str, port: int) -> bytes:
    lines = [f"Host: {host}:{port}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in request.headers]
    body = b""
    if request.body is not None:
        body = json.dumps(request.body).encode()
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    method = "GET" if request.body is None else "POST"
    return "\r\n".join([f"{method} {request.path} HTTP/1.1", *lines, "\r\n"]).encode() + body


def parse_reply(raw: _Raw) -> Reply:
    """Take the stored blocks apart: status, then events with the time their last byte came."""
    if not raw.blocks:
        error = "" if raw.cut else raw.error or "closed without an answer"
        return Reply(raw.started, error=error, cut=raw.cut)
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
        error = "" if raw.cut else raw.error or "closed within the headers"
        return Reply(raw.started, error=error, cut=raw.cut)
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
            error = error or ("" if raw.cut else "closed within the body")
    else:
        pieces = [(total, stream[body_start:])]
        if len(pieces[0][1]) < int(headers.get("content-length", 0)):
            error = error or ("" if raw.cut else "closed within the body")
    body = b"".join(piece for _, piece in pieces)
    if "text/event-stream" not in headers.get("content-type", ""):
        text = body.decode("utf-8", "replace")
        if status != 200:
            error = error or f"status {status}: {text[:200]}"
        return Reply(raw.started, status, (), first_byte_at, end_at, error, text, headers, raw.cut)
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
    return Reply(
        raw.started, status, tuple(events), first_byte_at, end_at, error, "", headers, raw.cut
    )


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
