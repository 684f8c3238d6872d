"""An event stream as an ASGI application.

Written against ASGI directly: per token there is one `send`, no task switch and no generator in
between. Headers go out as soon as the engine has told where the request stands, and after a second
at the latest; from then on a comment follows whenever the stream has been silent for the ping
interval, whatever the engine does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from strata_plugin.engine.messages import Done, Failed, Queued

from .choice import Choice
from .direct import direct
from .errors import ApiError
from .failure import error_response, failed
from .gate import BODY_SEND
from .generation import Generation
from .lifetime import outlive, run_all
from .outlook import queue_headers
from .pacing import MAX_HOLD_S, Pacer
from .ports import Event, StreamPort
from .service import Service, as_api_error

FIRST_EVENT_S = 1.0  # how long the headers wait for the engine's first word
HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"x-accel-buffering", b"no"),  # nginx would hold events back
    (b"cache-control", b"no-cache"),
]


class EventStream(Response):
    """Forwards what the engine brings for a generation, choice by choice as it comes."""

    media_type = "text/event-stream"
    _body: Send  # for pieces of the body; set when the reply begins

    def __init__(self, service: Service, generation: Generation):
        super().__init__()
        self.service = service
        self.generation = generation
        self._last_sent = 0.0
        self._pinger: asyncio.Future[None] | None = None  # there once the headers have gone out

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry point."""
        generation = self.generation
        outcome = "cancelled"
        self._body = scope.get(BODY_SEND, send)
        worker = asyncio.ensure_future(self._forward_all(send))
        try:
            try:
                if not await outlive(worker, receive, generation):
                    outcome = "client gone"
                    return
                worker.result()
                last, outcome = generation.dialect.done, "done"
            except ApiError as error:
                outcome = f"error {error.code}"
                if self._pinger is None:  # no header has gone out
                    worker.cancel()
                    form = generation.dialect.errors
                    await error_response(error, form)(scope, receive, send)
                    return
                last = generation.dialect.failure(error, generation.choices[0].reply)
            finally:
                if self._pinger is not None:
                    self._pinger.cancel()
            await send({"type": "http.response.body", "body": last, "more_body": False})
        finally:
            worker.cancel()
            generation.close(outcome)

    async def _begin(self, send: Send) -> list[Event | None]:
        """Send the headers; returns the first event of each choice that has one by now."""
        generation = self.generation
        first = await first_events(generation.streams, FIRST_EVENT_S)
        for choice, event in zip(generation.choices, first, strict=True):
            choice.stages.told = isinstance(event, Queued)
        told = next(iter(first), None)
        headers = [*HEADERS, *queue_headers(told if isinstance(told, Queued) else None)]
        self._pinger = asyncio.ensure_future(self._ping(generation.ping_interval))
        self._note_sent()
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        return first

    async def _forward_all(self, send: Send) -> None:
        first = await self._begin(send)
        pairs = zip(self.generation.choices, self.generation.streams, first, strict=True)
        try:
            await run_all([self._forward(*pair) for pair in pairs])
        except Exception as error:  # also text that its dialect's parser refuses
            raise as_api_error(error) from error

    async def _forward(self, choice: Choice, stream: StreamPort, first: Event | None) -> None:
        pacer = Pacer(choice.wanted.mergeable)
        while choice.done is None:
            merge = pacer.company > 1
            events = await self._gather(stream, pacer.company, first)
            first = None
            failure = events.pop() if isinstance(events[-1], Failed) else None
            if pacer.long:
                data = await self.service.beside(pacer.pieces, choice, events, merge)
            else:
                data = pacer.pieces(choice, events, merge)
            if data:
                await self._emit(data)
            if isinstance(failure, Failed):
                raise failed(failure)
            if choice.done is None and pacer.company == 1 and not stream.waiting:
                await direct(stream, choice, pacer, self._body, self._note_sent)

    async def _gather(self, stream: StreamPort, company: int, first: Event | None) -> list[Event]:
        """The next event (`first`, where it has been taken already), what is there by now, and, up
        to `company` events, what comes within `MAX_HOLD_S`; an end ends the wait.
        """
        while first is None:
            first = await stream.next(None)
        events = [first]
        deadline = time.monotonic() + MAX_HOLD_S
        while True:
            event = stream.next_nowait()
            if event is None:
                left = deadline - time.monotonic()
                if len(events) >= company or left <= 0 or choice_ended(events[-1]):
                    return events
                event = await stream.next(left)
                if event is None:
                    return events
            events.append(event)

    async def _emit(self, data: bytes) -> None:
        await self._body({"type": "http.response.body", "body": data, "more_body": True})
        self._note_sent()

    def _note_sent(self) -> None:
        self._last_sent = time.monotonic()

    async def _ping(self, interval: float) -> None:
        """A comment after every `interval` seconds of silence; an interval of 0 or less: never."""
        while interval > 0:
            silent = time.monotonic() - self._last_sent
            if silent >= interval:
                await self._emit(self.generation.dialect.ping)
                silent = 0.0
            await asyncio.sleep(interval - silent)


async def first_events(streams: Sequence[StreamPort], seconds: float) -> list[Event | None]:
    """The first event of each stream, None where there is none within `seconds`; `ApiError` when
    one is a failure.
    """
    deadline = time.monotonic() + seconds
    found: list[Event | None] = []
    for stream in streams:
        event = stream.next_nowait()
        left = deadline - time.monotonic()
        if event is None and left > 0:
            event = await stream.next(left)
        if isinstance(event, Failed):
            raise failed(event)
        found.append(event)
    return found


def choice_ended(event: Event) -> bool:
    """Whether no event follows `event`."""
    return isinstance(event, (Done, Failed))
