"""An event stream as an ASGI application.

Written against ASGI directly: per token there is one `send`, no extra task switch and no generator
in between. Headers go out at once; a comment follows whenever the stream has been silent for the
ping interval, whatever the engine does.
"""

from __future__ import annotations

import asyncio
import time

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from strata_plugin.engine.messages import Done, Failed

from .choice import Choice
from .errors import ApiError
from .generation import Generation
from .lifetime import failed, outlive, run_all
from .pacing import Pacer
from .ports import Event, Kind, StreamPort
from .service import Service, as_api_error

PING = b":\n\n"
DONE = b"data: [DONE]\n\n"
HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"x-accel-buffering", b"no"),  # nginx would hold events back
    (b"cache-control", b"no-cache"),
]


class EventStream(Response):
    """Forwards what the engine brings for a generation, choice by choice as it comes."""

    media_type = "text/event-stream"

    def __init__(self, service: Service, generation: Generation):
        super().__init__()
        self.service = service
        self.generation = generation
        self._send: Send | None = None
        self._last_sent = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry point."""
        generation = self.generation
        outcome = "cancelled"
        self._send = send
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        self._last_sent = time.monotonic()
        worker = asyncio.ensure_future(self._forward_all())
        pinger = asyncio.ensure_future(self._ping(generation.ping_interval))
        try:
            last = b""
            try:
                if not await outlive(worker, receive, generation):
                    outcome = "client gone"
                    return
                worker.result()
                last, outcome = (b"" if generation.kind is Kind.COMPLETION else DONE), "done"
            except ApiError as error:
                last, outcome = error.event(), f"error {error.code}"
            finally:
                pinger.cancel()
            await send({"type": "http.response.body", "body": last, "more_body": False})
        finally:
            worker.cancel()
            generation.close(outcome)

    async def _forward_all(self) -> None:
        pairs = zip(self.generation.choices, self.generation.streams, strict=True)
        try:
            await run_all([self._forward(c, s) for c, s in pairs])
        except Exception as error:  # also text that its dialect's parser refuses
            raise as_api_error(error) from error

    async def _forward(self, choice: Choice, stream: StreamPort) -> None:
        pacer = Pacer(choice.wanted.mergeable)
        while choice.done is None:
            events = await self._gather(stream, pacer.hold)
            failure = events.pop() if isinstance(events[-1], Failed) else None
            if pacer.expensive:
                data = await self.service.beside(pacer.pieces, choice, events, True)
            else:
                data = pacer.pieces(choice, events, False)
            if data:
                await self._emit(data)
            if isinstance(failure, Failed):
                raise failed(failure)

    async def _gather(self, stream: StreamPort, hold: float) -> list[Event]:
        """The next event and what is there already or comes within `hold` seconds; an end ends the
        wait.
        """
        first = await stream.next(None)
        while first is None:
            first = await stream.next(None)
        events = [first]
        deadline = time.monotonic() + hold
        while True:
            event = stream.next_nowait()
            if event is None:
                left = deadline - time.monotonic()
                if hold <= 0 or left <= 0 or choice_ended(events[-1]):
                    return events
                event = await stream.next(left)
                if event is None:
                    return events
            events.append(event)

    async def _emit(self, data: bytes) -> None:
        if self._send is not None:
            await self._send({"type": "http.response.body", "body": data, "more_body": True})
            self._last_sent = time.monotonic()

    async def _ping(self, interval: float) -> None:
        """A comment after every `interval` seconds of silence; an interval of 0 or less: never."""
        while interval > 0:
            silent = time.monotonic() - self._last_sent
            if silent >= interval:
                await self._emit(PING)
                silent = 0.0
            await asyncio.sleep(interval - silent)


def choice_ended(event: Event) -> bool:
    """Whether no event follows `event`."""
    return isinstance(event, (Done, Failed))
