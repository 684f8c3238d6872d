"""A small server that speaks llama-server's protocol, for the benchmark's tests, and its own tests.

It schedules as llama-server does: rows first, then prompts by slot number, `batch` tokens a step,
and a step takes as long as its tokens say. So what a scenario is to show can be shown without a
model, and on a server that does better the figure has to change.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from bench import client
from bench.servers import Memory


@dataclass(eq=False)
class _Request:
    prompt: list[Any]
    n_predict: int
    stream: bool
    id_slot: int
    writer: asyncio.StreamWriter
    computed: int = 0
    cached: int = 0
    written: int = 0
    gone: bool = False
    headers_sent: bool = False


@dataclass
class FakeServer:
    """Behaviour is set by its fields. It takes the place of `bench.servers.Server`."""

    name: str = "fake"
    slots: int = 4
    batch: int = 2048  # prompt tokens a step
    token_s: float = 20e-6  # a prompt token in a step
    step_s: float = 2e-3  # a step without any
    order: str = "slot"  # of reading; or "arrival", or "short" for short prompts first
    early_headers: bool = False
    sticky_head: bool = False  # a queue's head that insists on a busy slot blocks the queue
    deaf: bool = False  # a client without a stream is worked for after it left
    corrupt: bool = False  # a pinned request changes what its slot writes
    pool: int | None = None  # together the prompts must be below, or all are refused
    predicts_ms: float | None = None
    port: int = 0
    started_with: list[tuple[str, ...]] = field(default_factory=list)
    seen: list[dict[str, Any]] = field(default_factory=list)  # bodies of completions
    keys: list[str] = field(default_factory=list)  # Authorization, of all requests that have one
    leftovers: int = 0
    command: tuple[str, ...] = ("fake",)
    _rows: dict[int, _Request] = field(default_factory=dict)
    _queue: list[_Request] = field(default_factory=list)
    _known: list[list[Any]] = field(default_factory=list)
    _open: list[asyncio.StreamWriter] = field(default_factory=list)

    # what scenarios ask of a Server

    def start(self, flags: tuple[str, ...] = ()) -> float:
        self.started_with.append(flags)
        return 0.0

    def stop(self) -> None:
        self.started_with.append(("stopped",))
        self._known.clear()

    def check(self) -> None:
        pass

    def cpu_s(self) -> float:
        return 0.0

    def memory(self) -> Memory:
        return Memory(200_000_000, 100_000_000, 1)

    def version(self) -> str:
        return "0"

    # the server

    async def serve(self, ready: threading.Event, stop: asyncio.Event) -> None:
        listener = await asyncio.start_server(self._connection, "127.0.0.1", 0, limit=1 << 24)
        self.port = listener.sockets[0].getsockname()[1]
        engine = asyncio.create_task(self._engine())
        ready.set()
        await stop.wait()
        engine.cancel()
        listener.close()
        for writer in self._open:
            writer.transport.abort()
        while len(asyncio.all_tasks()) > 1:  # connections end by themselves now
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.001)  # their sockets are closed in the next round

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.append(writer)
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        lines = head.split("\r\n")
        fields = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines[1:])}
        body = json.loads(await reader.readexactly(int(fields.get("content-length", 0))) or b"{}")
        if "authorization" in fields:
            self.keys.append(fields["authorization"])
        path = lines[0].split(" ")[1]
        if path == "/completion":
            request = self._request(body, writer)
            with suppress(ConnectionError):
                await reader.read()  # until the client has left
            request.gone = True
            return
        self._reply(writer, 200, self._told(path, body))

    def _told(self, path: str, body: dict[str, Any]) -> object:
        if path == "/slots":
            return [{"id": n, "is_processing": n in self._rows} for n in range(self.slots)]
        if path == "/tokenize":
            return {"tokens": list(range(len(body["content"].split())))}
        assert path == "/props"
        return {"default_generation_settings": {"n_ctx": 8192}}

    def _request(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> _Request:
        self.seen.append(body)
        prompt = body["prompt"]
        tokens = prompt.split() if isinstance(prompt, str) else prompt
        request = _Request(
            tokens, body["n_predict"], body["stream"], body.get("id_slot", -1), writer
        )
        if self.early_headers and request.stream:
            self._headers(request)
        self._queue.append(request)
        return request

    async def _engine(self) -> None:
        while True:
            self._admit()
            if not self._rows:
                await asyncio.sleep(self.step_s / 4)
                continue
            if (
                self.pool is not None
                and sum(len(r.prompt) for r in self._rows.values()) > self.pool
            ):
                for request in self._rows.values():
                    self._reply(request.writer, 500, {"error": {"message": "no room"}})
                self._rows.clear()
                continue
            await asyncio.sleep(self.step_s + self.token_s * self._read())
            for slot, request in list(self._rows.items()):
                self._advance(slot, request)

    def _admit(self) -> None:
        for request in list(self._queue):
            free = [n for n in reversed(range(self.slots)) if n not in self._rows]
            if request.gone and not (self.deaf and not request.stream):
                self._queue.remove(request)
            elif request.id_slot in free or (request.id_slot < 0 and free):
                self._queue.remove(request)
                self._rows[request.id_slot if request.id_slot >= 0 else free[0]] = request
                request.cached = request.computed = self._reusable(request.prompt)
            elif self.sticky_head:
                return

    def _reusable(self, prompt: list[Any]) -> int:
        best = 0
        for known in self._known:
            common = 0
            for a, b in zip(known, prompt[:-1], strict=False):
                if a != b:
                    break
                common += 1
            best = max(best, common)
        return best

    def _read(self) -> int:
        """Give this step's prompt tokens away; how many they are."""
        left = self.batch
        readers = sorted(self._rows.items())
        if self.order == "arrival":
            readers = list(self._rows.items())
        elif self.order == "short":
            readers.sort(key=lambda one: len(one[1].prompt) - one[1].computed)
        for _, request in readers:
            piece = min(left, len(request.prompt) - request.computed)
            request.computed += piece
            left -= piece
        return self.batch - left

    def _advance(self, slot: int, request: _Request) -> None:
        done = request.written == request.n_predict
        if request.gone and not (self.deaf and not request.stream):
            self._release(slot)
        elif request.computed == len(request.prompt) and not done:
            request.written += 1
            spoilt = self.corrupt and any(one.id_slot == slot for one in self._queue)
            self._tell(request, {
                "content": "x" if spoilt else f" {request.written}", "stop": False,
                "tokens_predicted": request.written,
            })  # fmt: skip
        if request.written == request.n_predict and self._rows.get(slot) is request:
            self._release(slot)
            n_prompt = len(request.prompt)
            self._tell(request, {
                "content": "", "stop": True, "tokens_predicted": request.written,
                "timings": {"cache_n": request.cached, "prompt_n": n_prompt - request.cached,
                            "prompt_per_second": 1.0 / self.token_s,
                            "predicted_per_second": 1.0 / self.step_s},
            }, last=True)  # fmt: skip

    def _release(self, slot: int) -> None:
        request = self._rows.pop(slot)
        self._known.append(request.prompt[: request.computed])

    def _headers(self, request: _Request) -> None:
        request.headers_sent = True
        told = "" if self.predicts_ms is None else f"X-Predicted-TTFT-Ms: {self.predicts_ms}\r\n"
        request.writer.write(
            f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n{told}"
            "Transfer-Encoding: chunked\r\n\r\n".encode()
        )

    def _tell(self, request: _Request, event: dict[str, Any], last: bool = False) -> None:
        if request.gone:
            return
        if not request.stream:
            if last:
                self._reply(request.writer, 200, event)
            return
        if not request.headers_sent:
            self._headers(request)
        raw = f"data: {json.dumps(event)}\n\n".encode()
        request.writer.write(f"{len(raw):x}\r\n".encode() + raw + b"\r\n")
        if last:
            request.writer.write(b"0\r\n\r\n")
            request.writer.close()

    def _reply(self, writer: asyncio.StreamWriter, status: int, body: object) -> None:
        raw = json.dumps(body).encode()
        writer.write(
            f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(raw)}\r\n\r\n".encode()
            + raw
        )
        writer.close()


@contextmanager
def running(**behaviour: Any) -> Iterator[FakeServer]:
    """A fake server that listens, in a thread of its own."""
    server = FakeServer(**behaviour)
    ready = threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(server.serve(ready, stop),))
    thread.start()
    assert ready.wait(10)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        assert not thread.is_alive()
        loop.close()


def _body(**changes: Any) -> dict[str, Any]:
    return {"prompt": "a b c", "n_predict": 5, "stream": True} | changes


def test_an_exchange_waits_for_headers_events_and_the_end() -> None:
    async def play(port: int) -> tuple[bool, bool, int, client.Reply]:
        exchange = await client.Exchange(port, client.Request("/completion", _body())).begin()
        heard, three = await exchange.headers(), await exchange.events(3)
        seen = exchange.event_count
        reply = await exchange.end()
        assert not await exchange.events(99)  # it is over: no use to wait
        return heard, three, seen, reply

    with running() as server:
        heard, three, seen, reply = asyncio.run(play(server.port))
    assert (heard, three) == (True, True)
    assert 3 <= seen <= 6
    assert (reply.error, reply.cut, len(reply.events)) == ("", False, 6)
    assert reply.headers["content-type"] == "text/event-stream"


def test_a_wait_ends_with_its_time() -> None:
    async def play(port: int) -> tuple[bool, bool]:
        body = _body(n_predict=10_000)
        exchange = await client.Exchange(port, client.Request("/completion", body)).begin()
        late = await exchange.events(5_000, timeout_s=0.05), await exchange.over_within(0.01)
        exchange.cut()
        return late

    with running() as server:
        assert asyncio.run(play(server.port)) == (False, False)


def test_a_cut_reply_is_marked_and_no_error() -> None:
    async def play(port: int) -> client.Reply:
        body = _body(n_predict=10_000)
        exchange = await client.Exchange(port, client.Request("/completion", body)).begin()
        await exchange.events(3)
        exchange.cut()
        return await exchange.end()

    with running() as server:
        reply = asyncio.run(play(server.port))
    assert (reply.error, reply.cut) == ("", True)
    assert len(reply.events) >= 3


def test_what_cannot_be_reached_is_an_error_of_the_reply() -> None:
    async def play(port: int) -> tuple[bool, client.Reply]:
        exchange = await client.Exchange(port, client.Request("/x")).begin()
        return await exchange.headers(), await exchange.end()

    with running() as server:
        port = server.port
    heard, reply = asyncio.run(play(port))
    assert not heard
    assert reply.error.startswith("cannot connect")


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_events_are_counted_however_the_network_cut_them(size: int) -> None:
    stream = b'HTTP/1.1 200 OK\r\n\r\n9\r\ndata: {"a": "\\ndata: "}\n\n\r\n:\n\ndata: {}\n\n'

    async def count() -> int:
        collector = client._Collector(b"", asyncio.get_running_loop().create_future())
        for start in range(0, len(stream), size):
            collector.data_received(stream[start : start + size])
        return collector.events

    assert asyncio.run(count()) == 2
