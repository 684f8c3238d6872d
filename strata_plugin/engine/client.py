"""The HTTP process's end: starts the engine process, sends requests, hands out their events.

All methods but `spawn` belong to the event loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Coroutine, Iterable
from enum import Enum
from itertools import count
from typing import Any, cast

import msgspec

from .config import EngineConfig, encode
from .heartbeat import Heartbeat
from .messages import (
    ActOnSlot,
    Cache,
    Cancel,
    Done,
    Embed,
    Embedded,
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
from .quarantine import MOST_FAILURES, WITHIN_S, Quarantine, Restarts
from .request_stream import ENDS, RequestStream
from .transport import FrameParser, frame

Query = GetSlots | GetQueue | GetCache | GetExplanation | GetMetrics | ActOnSlot
WORKER = "strata_plugin.engine.worker"
HANG_S = 120.0
WAIT_DISK_S = 5.0  # at most, until a new engine's disk tier is open

log = logging.getLogger(__name__)


class EngineState(Enum):
    """Whether the engine takes work."""

    LOADING = "loading"
    READY = "ready"
    RESTARTING = "restarting"  # it has died, and another is on its way: requests wait
    FAILED = "failed"
    STOPPED = "stopped"


_LOST = (EngineState.FAILED, EngineState.STOPPED)


class EngineGone(Exception):
    """The engine process has ended."""


class EngineClient(asyncio.Protocol):
    """One engine process. `spawn()` may be called before there is an event loop."""

    def __init__(
        self, config: EngineConfig, *, worker: str = WORKER, hang_s: float = HANG_S
    ) -> None:
        """`worker` is the module that the process runs; `hang_s` see `Heartbeat.overdue`."""
        self.config = config
        self._worker = worker
        self._hang_s = hang_s
        self._heartbeat: Heartbeat | None = None
        self._restarts = Restarts()
        self._quarantine = Quarantine()
        self._waiting: set[int] = set()  # requests that no engine knows of
        self._tasks: set[asyncio.Task[None]] = set()
        self.state = EngineState.LOADING
        self.ready: Ready | None = None
        self.error = ""
        self.load_fraction = 0.0
        self._ids = count(1)
        self._query_ids = count(1)
        self._streams: dict[int, RequestStream] = {}
        self._queries: dict[int, asyncio.Future[Any]] = {}
        self._requests: dict[int, Submit | Embed] = {}  # all that have not ended, in order
        self._embedding: dict[int, asyncio.Future[Embedded | Failed]] = {}  # by request id
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
        config = self.config
        if self.ready is not None:  # those that wait have something to find there
            config = msgspec.structs.replace(config, wait_disk_s=WAIT_DISK_S)
        ours, theirs = socket.socketpair()
        self._heartbeat, fd = Heartbeat.create()
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", self._worker, str(theirs.fileno()), str(fd)],
                    pass_fds=(theirs.fileno(), fd),
                    stdin=subprocess.DEVNULL,
                )
        finally:
            os.close(fd)
        ours.sendall(frame(encode(config)))
        ours.setblocking(False)
        self._socket = ours

    async def start(self) -> None:
        """Connect to the process, starting it if `spawn` was not called; does not wait for it."""
        self.spawn()
        assert self._socket is not None
        self._settled = asyncio.Event()
        self._ended = asyncio.Event()
        await self._connect()
        self._keep(self._watch())

    async def _connect(self) -> None:
        assert self._socket is not None
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: self, sock=self._socket)

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` beside everything else until `stop`."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

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
        for task in self._tasks:
            task.cancel()
        process = self._process
        if process is None:
            return
        if self.state not in _LOST:
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
        self._check_there()
        stream = RequestStream(request.request_id, self.cancel)
        self._streams[request.request_id] = stream
        self._take(request)
        return stream

    def _check_there(self) -> None:
        if self.state in _LOST:
            raise EngineGone(self.error or "the engine has stopped")

    def _take(self, request: Submit | Embed) -> None:
        """Send a request now, or as soon as there is an engine for it."""
        self._requests[request.request_id] = request
        if self.state is EngineState.RESTARTING or self._quarantine.active:
            self._waiting.add(request.request_id)
        else:
            self._send(request)

    def _forget(self, request_id: int) -> bool:
        """A request has ended, or nobody wants it any more; whether an engine knows of it."""
        known = self._requests.pop(request_id, None) is not None
        sent = known and request_id not in self._waiting
        self._waiting.discard(request_id)
        self._pass(request_id)
        return sent

    def cancel(self, stream: RequestStream) -> None:
        """See `RequestStream.cancel`."""
        known = self._streams.pop(stream.request_id, None) is not None
        if known and self._forget(stream.request_id):
            self._send(Cancel(stream.request_id))

    async def embed(self, request: Embed) -> Embedded | Failed:
        """Have texts embedded or ranked; when the caller is cancelled, so is the work. Raises
        `EngineGone` when there is no engine.
        """
        self._check_there()
        future = asyncio.get_running_loop().create_future()
        self._embedding[request.request_id] = future
        self._take(request)
        try:
            answer: Embedded | Failed = await future
            return answer
        finally:
            self._embedding.pop(request.request_id, None)
            if self._forget(request.request_id) and future.cancelled():
                self._send(Cancel(request.request_id))

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
        return answer.values | {"engine_restarts_total": float(self._restarts.total)}

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
        """The engine has ended: another one takes over, or everybody who waits is told."""
        self._transport = None
        if self.state in (EngineState.READY, EngineState.RESTARTING) and self._restart():
            return
        if self.state is not EngineState.STOPPED:
            self.state = EngineState.FAILED
            self.error = self.error or "the engine process has ended unexpectedly"
        reason = self.error or "the server is shutting down"
        for stream in list(self._streams.values()):
            stream.push(Failed(stream.request_id, 503, "unavailable_error", reason))
        self._streams.clear()
        self._requests.clear()
        self._tell_gone([*self._queries.values(), *self._embedding.values()], reason)
        self.ready = self.ready if self.state is not EngineState.FAILED else None
        self._settle()
        if self._ended is not None:
            self._ended.set()

    # -- when the engine dies --------------------------------------------------------------------

    @staticmethod
    def _tell_gone(futures: Iterable[asyncio.Future[Any]], reason: str) -> None:
        for future in futures:
            if not future.done():
                future.set_exception(EngineGone(reason))

    def _restart(self) -> bool:
        """Have another engine started; False after too many failures."""
        how = _how_it_ended(self._process)
        one_by_one = " one by one" if self._quarantine.active else ""
        worked_on = [
            number
            for number in self._requests
            if number not in self._waiting
            and (number not in self._streams or self._streams[number].started)
        ]
        guilty = self._quarantine.crashed(worked_on)
        delay = self._restarts.failed(time.monotonic(), in_quarantine=guilty is not None)
        self.error = self.error or f"the engine process {how}"
        log.error(
            "%s; %d requests go on%s",
            self.error, len(self._requests), one_by_one,
        )  # fmt: skip
        if guilty is not None:
            self._condemn(guilty)
        if delay is None:
            self.error = f"{self.error}; {MOST_FAILURES} failures within {WITHIN_S / 60:g} minutes"
            return False
        self.state = EngineState.RESTARTING
        self._waiting |= set(self._requests)
        self._tell_gone(self._queries.values(), self.error)
        self._keep(self._start_again(delay))
        return True

    def _condemn(self, request_id: int) -> None:
        """Answer a request that has brought an engine down while it was alone on it."""
        text = "the engine has crashed twice while it worked on this request"
        failed = Failed(request_id, 500, "server_error", text)
        stream = self._streams.pop(request_id, None)
        self._forget(request_id)
        if stream is not None:
            stream.push(failed)
        elif request_id in self._embedding and not self._embedding[request_id].done():
            self._embedding[request_id].set_result(failed)

    async def _start_again(self, delay: float) -> None:
        await asyncio.sleep(delay)
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            await asyncio.get_running_loop().run_in_executor(None, process.wait)
        self._parser = FrameParser()
        self.error = ""
        try:
            self.spawn()
            await self._connect()
        except OSError as error:
            self.error = f"no engine process can be started: {error}"
            self.connection_lost(error)

    def _resume(self) -> None:
        """A new engine is ready: send it what waits, suspects alone."""
        if (suspect := self._quarantine.next()) is not None:
            self._send_again(suspect)
        if not self._quarantine.active:
            for number in sorted(self._waiting):
                self._send_again(number)

    def _send_again(self, request_id: int) -> None:
        self._waiting.discard(request_id)
        request = self._requests[request_id]
        if isinstance(request, Submit):
            stream = self._streams[request_id]
            parent = request.fork_of if request.fork_of in self._requests else None
            request = msgspec.structs.replace(request, resumed=stream.resumed, fork_of=parent)
        self._send(request)

    def _pass(self, request_id: int) -> None:
        """A request has got further: if it was under suspicion, the next one has its turn."""
        if self._quarantine.passed(request_id) and self.state is EngineState.READY:
            self._resume()

    async def _watch(self) -> None:
        """End an engine that hangs; what follows is the same as when it dies."""
        while True:
            await asyncio.sleep(1.0)
            beat, process = self._heartbeat, self._process
            if self.state is not EngineState.READY or beat is None or process is None:
                continue
            if beat.overdue(time.monotonic(), self._hang_s):
                self.error = f"the engine process hung: a step took more than {self._hang_s:g} s"
                process.kill()
                beat.end()

    def _dispatch(self, message: Any) -> None:
        match message:
            case Token() | Queued() | Moved() | Started() | Progress() | Done() | Failed():
                waiting = self._embedding.get(message.request_id)
                if waiting is not None and isinstance(message, Failed) and not waiting.done():
                    waiting.set_result(message)
                stream = self._streams.get(message.request_id)
                if stream is not None:  # else: cancelled in the meantime
                    if isinstance(message, ENDS):
                        del self._streams[message.request_id]
                        self._forget(message.request_id)
                    stream.push(message)
                    if self._quarantine.active and isinstance(message, Token):
                        self._pass(message.request_id)
            case Embedded(request_id):
                waiting = self._embedding.get(request_id)
                if waiting is not None and not waiting.done():
                    waiting.set_result(message)
            case Slots() | Queue() | Cache() | Explained() | SlotActed() | Metrics():
                future = self._queries.get(message.query_id)
                if future is not None and not future.done():
                    future.set_result(message)
            case Loading(fraction):
                self.load_fraction = fraction
            case Ready():
                again = self.state is EngineState.RESTARTING
                self.ready = message
                self.state = EngineState.READY
                self._settle()
                if again:
                    log.warning("a new engine has taken over")
                    self._resume()
            case LoadFailed(text):
                self.error = text
                if self.state is not EngineState.RESTARTING:
                    self.state = EngineState.FAILED
                    self._settle()

    def _settle(self) -> None:
        if self._settled is not None:
            self._settled.set()


def _how_it_ended(process: subprocess.Popen[bytes] | None) -> str:
    """In words; waits a moment for what the system knows."""
    if process is None:
        return "could not be started"
    try:
        code = process.wait(1.0)
    except subprocess.TimeoutExpired:
        return "has closed its connection"
    if code >= 0:
        return f"has ended with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
