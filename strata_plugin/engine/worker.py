"""The engine process: `python -m strata_plugin.engine.worker SOCKET_FD HEARTBEAT_FD`.

The main thread owns the llama context and runs the step loop. A reader takes frames from the
socket, and a builder makes samplers, so that no step waits for a large grammar. When the socket
closes, the HTTP process is gone and so is the reason to live.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec

from .config import decode as decode_config
from .core import EngineCore
from .embedder import Embedder
from .heartbeat import Heartbeat
from .messages import (
    ActOnSlot,
    Cancel,
    Embed,
    Failed,
    Frozen,
    GetCache,
    GetExplanation,
    GetMetrics,
    GetQueue,
    GetSlots,
    LoadFailed,
    Loading,
    Shutdown,
    Submit,
    ToEngine,
    encode,
)
from .messages import decode_to_engine as decode
from .ports import SamplerPort
from .transport import FrameParser, TransportError, frame, receive

if TYPE_CHECKING:
    from .assembly import LoadedEngine
    from .embedding_assembly import LoadedEmbedder

    Engine = LoadedEngine | LoadedEmbedder

log = logging.getLogger(__name__)


class Link:
    """The socket to the HTTP process; `send` may be called from any thread."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.parser = FrameParser()
        self._lock = threading.Lock()

    def send(self, messages: list[Frozen]) -> None:
        """Send one frame. A peer that is gone is noticed by the reader."""
        data = frame(encode(messages))
        with self._lock, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.sock.sendall(data)

    def frames(self) -> list[bytes] | None:
        """Block for the next frames; None when the peer is gone."""
        payloads = receive(self.sock, self.parser)
        return None if payloads is None else list(payloads)


Inbox = queue.SimpleQueue[tuple[ToEngine | None, SamplerPort | None]]  # None: just look


class Reader:
    """Frames in, prepared work out.

    Samplers are built one after another in a thread of their own, since a large grammar takes long;
    what else comes meanwhile overtakes them, and a cancelled request is not submitted at all.
    """

    def __init__(self, link: Link, engine: Engine, inbox: Inbox) -> None:
        self._link = link
        self._engine = engine
        self._inbox = inbox
        self._builder = ThreadPoolExecutor(1, "sampler")
        self._lock = threading.Lock()
        self._building: set[int] = set()  # ids of requests whose sampler is not ready yet

    def run(self, frames: list[bytes] | None) -> None:
        """Handle `frames` and all that follow; ends the process when the peer is gone."""
        while True:
            try:
                messages = None if frames is None else [m for f in frames for m in decode(f)]
                if messages is None:
                    os._exit(0)  # nobody is left to serve; a step in progress has no reader
                for message in messages:
                    self._take(message)
                frames = self._link.frames()
            except (TransportError, msgspec.DecodeError) as e:
                log.error("bad frame from the HTTP process: %s", e)
                os._exit(1)

    def _take(self, message: ToEngine) -> None:
        if isinstance(message, Submit):
            with self._lock:
                self._building.add(message.request_id)
            self._builder.submit(self._build, message)
            return
        if isinstance(message, Cancel):
            with self._lock:
                if message.request_id in self._building:
                    self._building.remove(message.request_id)
                    return
        self._inbox.put((message, None))

    def _build(self, message: Submit) -> None:
        try:
            sampler = self._engine.make_sampler(message)
        except Exception as e:
            with self._lock:
                self._building.discard(message.request_id)
            text = f"failed to initialise samplers: {e}"
            self._link.send([Failed(message.request_id, 400, "invalid_request_error", text)])
            return
        with self._lock:
            if message.request_id in self._building:  # else it was cancelled meanwhile
                self._building.remove(message.request_id)
                self._inbox.put((message, sampler))


def _handle(
    engine: Engine, message: ToEngine | None, sampler: SamplerPort | None
) -> bool:
    """Apply one message between steps; False to stop."""
    core = engine.core
    match message:
        case Submit() if isinstance(core, EngineCore) and sampler is not None:
            core.submit(message, sampler)
        case Embed() if isinstance(core, Embedder):
            core.embed(message)
        case Submit(request_id=number) | Embed(request_id=number):
            text = "this engine serves requests of another kind"
            core.events.append(Failed(number, 501, "not_supported_error", text))
        case Cancel(request_id):
            core.cancel(request_id)
        case GetSlots(query_id):
            core.slots(query_id)
        case GetCache(query_id, tenant):
            core.cache(query_id, tenant)
        case GetExplanation(query_id, tenant, name):
            core.explain(query_id, tenant, name)
        case GetQueue(query_id):
            core.queue(query_id)
        case ActOnSlot():
            core.act_on_slot(message)
        case GetMetrics(query_id, reset_bucket):
            core.get_metrics(query_id, reset_bucket)
        case Shutdown():
            return False
    return True


def _loop(link: Link, engine: Engine, inbox: Inbox, heartbeat: Heartbeat) -> None:
    """Step loop: drain messages, compute a step, send what it produced."""
    core = engine.core

    def flush() -> None:
        if core.events:
            events, core.events = core.events, []
            link.send(events)

    if isinstance(core, EngineCore):
        core.flush, core.beat = flush, heartbeat.begin
        core.wake = lambda: inbox.put((None, None))
    while True:
        try:
            message, sampler = inbox.get(block=core.at_rest)
            while True:
                if not _handle(engine, message, sampler):
                    return
                message, sampler = inbox.get_nowait()
        except queue.Empty:
            pass  # nothing more has come: on with the step
        heartbeat.begin()
        core.step()
        heartbeat.end()
        flush()


def run(sock: socket.socket, heartbeat: Heartbeat) -> int:
    """Serve one HTTP process; returns the exit code."""
    link = Link(sock)
    frames: list[bytes] = []
    while not frames:
        got = link.frames()
        if got is None:
            return 0
        frames += got
    config = decode_config(frames[0])
    from .assembly import LoadedEngine, LoadError

    try:
        last = [0.0]

        def on_progress(fraction: float) -> None:
            if fraction - last[0] >= 0.02 or fraction >= 1.0:
                last[0] = fraction
                link.send([Loading(fraction)])

        engine: Engine
        if config.embedding is None:
            engine = LoadedEngine(config, on_progress, time.perf_counter)
        else:
            from .embedding_assembly import LoadedEmbedder

            engine = LoadedEmbedder(config, on_progress, time.perf_counter)
    except LoadError as e:
        link.send([LoadFailed(str(e))])
        return 1
    inbox: Inbox = queue.SimpleQueue()
    reader = Reader(link, engine, inbox)
    threading.Thread(target=reader.run, args=(frames[1:],), daemon=True, name="reader").start()
    gc.collect()
    gc.freeze()  # what was loaded stays: keep the collector's pauses short
    link.send([engine.ready])
    _loop(link, engine, inbox, heartbeat)
    engine.close()
    return 0


def main() -> None:
    """Entry point; the socket's file descriptor is the only argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the HTTP process, it tells us
    logging.basicConfig(
        level=os.environ.get("STRATA_LOG_LEVEL", "INFO"),
        format="%(levelname).1s engine: %(message)s",
    )
    sock = socket.socket(fileno=int(sys.argv[1]))
    sys.exit(run(sock, Heartbeat(int(sys.argv[2]))))


if __name__ == "__main__":
    main()
