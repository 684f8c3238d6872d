"""The HTTP process's end: starts the engine process, sends requests, hands out their events.

All methods but `spawn` belong to the event loop's thread.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from enum import Enum
from itertools import count
from typing import Any, cast

from .config import EngineConfig, encode
from .messages import (
    ActOnSlot,
    Cache,
    Cancel,
    Done,
    Explained,
    Failed,
    Frozen,
    GetCache,
    GetExplanation,
    GetMetrics,
    GetQueue,
    GetSlots,
    LoadFailed,
    Loading,
    Metrics,
    Moved,
    Progress,
    Queue,
    Queued,
    Ready,
    Shutdown,
    SlotActed,
    Slots,
    Started,
    Submit,
    Token,
    decode_to_server,
)
from .messages import encode as encode_messages
from .transport import FrameParser, frame

Event = Queued | Moved | Started | Progress | Token | Done | Failed
Query = GetSlots | GetQueue | GetCache | GetExplanation | GetMetrics | ActOnSlot
_ENDS = (Done, Failed)


class EngineState(Enum):
    """Whether the engine takes work."""

    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"
    STOPPED = "stopped"


class EngineGone(Exception):
    """The engine process has ended."""


class RequestStream:
    """Events of one submitted choice, ended by `Done` or `Failed`."""

    def __init__(self, client: EngineClient, request_id: int) -> None:
        self.request_id = request_id
        self.finished = False  # the last event has arrived (not: has been read)
        self.sink: Callable[[Event], None] | None = None  # gets events at once instead of `next`
        self._client = client
        self._events: deque[Event] = deque()
        self._waiter: asyncio.Future[None] | None = None

    async def next(self, timeout: float | None = None) -> Event | None:
        """The next event; None after `timeout` seconds without one."""
        if not self._events:
            loop = asyncio.get_running_loop()
            self._waiter = waiter = loop.create_future()
            timer = loop.call_later(timeout, self._wake) if timeout is not None else None
            try:
                await waiter
            finally:
                self._waiter = None
                if timer is not None:
                    timer.cancel()
        return self.next_nowait()

    def next_nowait(self) -> Event | None:
        """The next event if there is one."""
        return self._events.popleft() if self._events else None

    @property
    def waiting(self) -> bool:
        """Whether an event is there that nobody has taken yet."""
        return bool(self._events)

    def cancel(self) -> None:
        """Give up: the engine frees the row at its next step border. Harmless after the end."""
        self._client.cancel(self)

    def push(self, event: Event) -> None:
        """Called by the client for each event."""
        if isinstance(event, _ENDS):
            self.finished = True
        if self.sink is not None:
            self.sink(event)
        else:
            self.put(event)

    def put(self, event: Event) -> None:
        """Keep an event for `next`; a sink that can't take one more gives it back with this."""
        self._events.append(event)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class EngineClient(asyncio.Protocol):
    """One engine process. `spawn()` may be called before there is an event loop."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.state = EngineState.LOADING
        self.ready: Ready | None = None
        self.error = ""
        self.load_fraction = 0.0
        self._ids = count(1)
        self._query_ids = count(1)
        self._streams: dict[int, RequestStream] = {}
        self._queries: dict[int, asyncio.Future[Any]] = {}
        self._parser = FrameParser()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._transport: asyncio.Transport | None = None
        self._settled: asyncio.Event | None = None
        self._ended: asyncio.Event | None = None

    # -- life ------------------------------------------------------------------------------------

    def spawn(self) -> None:
        """Start the process; it loads the model while the caller goes on."""
        if self._process is not None:
            return
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "strata_plugin.engine.worker", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
            )
        ours.sendall(frame(encode(self.config)))
        ours.setblocking(False)
        self._socket = ours

    async def start(self) -> None:
        """Connect to the process, starting it if `spawn` was not called; does not wait for it."""
        self.spawn()
        assert self._socket is not None
        self._settled = asyncio.Event()
        self._ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: self, sock=self._socket)

    async def wait_ready(self) -> Ready:
        """Wait until the model is loaded. Raises `EngineGone` with the reason when it fails."""
        assert self._settled is not None
        await self._settled.wait()
        if self.ready is None:
            raise EngineGone(self.error)
        return self.ready

    async def wait_ended(self) -> None:
        """Wait until the process has closed its end, stopped or dead; `state` tells which."""
        assert self._ended is not None
        await self._ended.wait()

    async def stop(self, timeout: float = 5.0) -> None:
        """End the process after its current step; kill it after `timeout` seconds."""
        process = self._process
        if process is None:
            return
        if self._transport is not None and self.state in (EngineState.READY, EngineState.LOADING):
            self.state = EngineState.STOPPED
            self._send(Shutdown())
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(None, process.wait, timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            await loop.run_in_executor(None, process.wait)
        if self._transport is not None:
            self._transport.close()
        elif self._socket is not None:
            self._socket.close()

    @property
    def pid(self) -> int | None:
        """Process id of the engine."""
        return self._process.pid if self._process is not None else None

    # -- requests --------------------------------------------------------------------------------

    def next_id(self) -> int:
        """A fresh request id."""
        return next(self._ids)

    def submit(self, request: Submit) -> RequestStream:
        """Send a request. Raises `EngineGone` when there is no engine."""
        if self.state in (EngineState.FAILED, EngineState.STOPPED):
            raise EngineGone(self.error or "the engine has stopped")
        stream = RequestStream(self, request.request_id)
        self._streams[request.request_id] = stream
        self._send(request)
        return stream

    def cancel(self, stream: RequestStream) -> None:
        """See `RequestStream.cancel`."""
        if self._streams.pop(stream.request_id, None) is not None:
            self._send(Cancel(stream.request_id))

    async def slots(self) -> list[dict[str, Any]]:
        """Slots in llama-server's form."""
        answer: Slots = await self._ask(GetSlots(next(self._query_ids)))
        return list(answer.slots)

    async def queue(self) -> dict[str, Any]:
        """All requests and their outlook, as GET /queue shows them."""
        answer: Queue = await self._ask(GetQueue(next(self._query_ids)))
        return answer.queue

    async def cache(self, tenant: str) -> dict[str, Any]:
        """What is kept of prompts, as GET /cache shows it to a tenant."""
        answer: Cache = await self._ask(GetCache(next(self._query_ids), tenant))
        return answer.cache

    async def explanation(self, tenant: str, name: str) -> dict[str, Any] | None:
        """What of a prompt was found in the cache, as GET /cache/explain shows it; None where the
        tenant has had no such request lately.
        """
        answer: Explained = await self._ask(GetExplanation(next(self._query_ids), tenant, name))
        return answer.explanation

    async def act_on_slot(
        self, action: str, slot: int, path: str, tenant: str, salt: str
    ) -> SlotActed:
        """Save, restore or erase what a slot holds; waits while the slot is busy."""
        query = ActOnSlot(next(self._query_ids), action, slot, path, tenant, salt)
        answer: SlotActed = await self._ask(query)
        return answer

    async def metrics(self, reset_bucket: bool = True) -> dict[str, float]:
        """Values by name, without prefix."""
        answer: Metrics = await self._ask(GetMetrics(next(self._query_ids), reset_bucket))
        return answer.values

    async def _ask(self, query: Query) -> Any:
        if self.state is not EngineState.READY:
            raise EngineGone(self.error or "the engine is not ready")
        future = asyncio.get_running_loop().create_future()
        self._queries[query.query_id] = future
        self._send(query)
        try:
            return await future
        finally:
            self._queries.pop(query.query_id, None)

    def _send(self, message: Frozen) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame(encode_messages([message])))

    # -- asyncio.Protocol ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is ours."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it

    def data_received(self, data: bytes) -> None:
        """Bytes from the engine: dispatch the messages in them."""
        for payload in self._parser.feed(data):
            for message in decode_to_server(payload):
                self._dispatch(message)

    def connection_lost(self, exc: Exception | None) -> None:
        """The engine has ended: everybody who waits for it is told."""
        if self.state is not EngineState.STOPPED:
            self.state = EngineState.FAILED
            self.error = self.error or "the engine process has ended unexpectedly"
        reason = self.error or "the server is shutting down"
        for stream in list(self._streams.values()):
            stream.push(Failed(stream.request_id, 503, "unavailable_error", reason))
        self._streams.clear()
        for future in self._queries.values():
            if not future.done():
                future.set_exception(EngineGone(reason))
        self.ready = self.ready if self.state is not EngineState.FAILED else None
        self._settle()
        if self._ended is not None:
            self._ended.set()

    def _dispatch(self, message: Any) -> None:
        match message:
            case Token() | Queued() | Moved() | Started() | Progress() | Done() | Failed():
                stream = self._streams.get(message.request_id)
                if stream is not None:  # else: cancelled in the meantime
                    if isinstance(message, _ENDS):
                        del self._streams[message.request_id]
                    stream.push(message)
            case Slots() | Queue() | Cache() | Explained() | SlotActed() | Metrics():
                future = self._queries.get(message.query_id)
                if future is not None and not future.done():
                    future.set_result(message)
            case Loading(fraction):
                self.load_fraction = fraction
            case Ready():
                self.ready = message
                self.state = EngineState.READY
                self._settle()
            case LoadFailed(text):
                self.error = text
                self.state = EngineState.FAILED
                self._settle()

    def _settle(self) -> None:
        if self._settled is not None:
            self._settled.set()
