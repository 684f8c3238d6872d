"""The engine process: `python -m strata_plugin.engine.worker FD`.

Two threads. The reader takes frames from the socket and prepares what no step should wait for (a
sampler with a large grammar takes long to build). The main thread owns the llama context and runs
the step loop. When the socket closes, the HTTP process is gone and so is the reason to live.
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
from typing import TYPE_CHECKING

import msgspec

from .config import EngineConfig, decode
from .messages import (
    Cancel,
    Failed,
    Frozen,
    GetMetrics,
    GetSlots,
    LoadFailed,
    Loading,
    Shutdown,
    Submit,
    ToEngine,
    decode_to_engine,
    encode,
)
from .ports import SamplerPort
from .transport import FrameParser, TransportError, frame, receive

if TYPE_CHECKING:
    from .assembly import LoadedEngine

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


Inbox = queue.SimpleQueue[tuple[ToEngine, SamplerPort | None]]


def _read(link: Link, engine: LoadedEngine, inbox: Inbox) -> None:
    """Reader thread: frames in, prepared work out."""
    while True:
        try:
            frames = link.frames()
            messages = None if frames is None else [m for f in frames for m in decode_to_engine(f)]
        except (TransportError, msgspec.DecodeError) as e:
            log.error("bad frame from the HTTP process: %s", e)
            messages = None
        if messages is None:
            os._exit(0)  # nobody is left to serve; a step in progress has no reader
        for message in messages:
            sampler = None
            if isinstance(message, Submit):
                try:
                    sampler = engine.make_sampler(message)
                except Exception as e:
                    text = f"failed to initialise samplers: {e}"
                    link.send([Failed(message.request_id, 400, "invalid_request_error", text)])
                    continue
            inbox.put((message, sampler))


def _handle(engine: LoadedEngine, message: ToEngine, sampler: SamplerPort | None) -> bool:
    """Apply one message between steps; False to stop."""
    core = engine.core
    match message:
        case Submit():
            assert sampler is not None
            core.submit(message, sampler)
        case Cancel(request_id):
            core.cancel(request_id)
        case GetSlots(query_id):
            core.slots(query_id)
        case GetMetrics(query_id, reset_bucket):
            core.get_metrics(query_id, reset_bucket)
        case Shutdown():
            return False
    return True


def _loop(link: Link, engine: LoadedEngine, inbox: Inbox) -> None:
    """Step loop: drain messages, compute a step, send what it produced."""
    core = engine.core
    while True:
        try:
            message, sampler = inbox.get(block=core.idle)
            while True:
                if not _handle(engine, message, sampler):
                    return
                message, sampler = inbox.get_nowait()
        except queue.Empty:
            pass  # nothing more has come: on with the step
        core.step()
        if core.events:
            link.send(core.events)
            core.events = []


def run(sock: socket.socket) -> int:
    """Serve one HTTP process; returns the exit code."""
    link = Link(sock)
    frames: list[bytes] = []
    while not frames:
        got = link.frames()
        if got is None:
            return 0
        frames += got
    config: EngineConfig = decode(frames[0])
    from .assembly import LoadedEngine, LoadError

    try:
        last = [0.0]

        def on_progress(fraction: float) -> None:
            if fraction - last[0] >= 0.02 or fraction >= 1.0:
                last[0] = fraction
                link.send([Loading(fraction)])

        engine = LoadedEngine(config, on_progress, time.perf_counter)
    except LoadError as e:
        link.send([LoadFailed(str(e))])
        return 1
    inbox: Inbox = queue.SimpleQueue()
    threading.Thread(target=_read, args=(link, engine, inbox), daemon=True, name="reader").start()
    gc.collect()
    gc.freeze()  # what was loaded stays: keep the collector's pauses short
    link.send([engine.ready])
    _loop(link, engine, inbox)
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
    sys.exit(run(sock))


if __name__ == "__main__":
    main()
