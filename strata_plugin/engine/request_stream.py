"""What an engine says about one submitted choice, for whoever waits for it."""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from collections.abc import Callable

from .messages import Done, Failed, Moved, Progress, Queued, Resumed, Started, Token

Event = Queued | Moved | Started | Progress | Token | Done | Failed
ENDS = (Done, Failed)


class RequestStream:
    """Events of one submitted choice, ended by `Done` or `Failed`. An engine that takes over from
    one that has died may tell things again; nothing is handed out twice.
    """

    def __init__(self, request_id: int, cancel: Callable[[RequestStream], None]) -> None:
        self.request_id = request_id
        self.finished = False  # the last event has arrived (not: has been read)
        self.started = False  # an engine has worked on it
        self.sampled = array("i")  # all tokens so far
        self._sampler_state = b""
        self._progress = -1  # prompt tokens that were told to be read
        self.sink: Callable[[Event], None] | None = None  # gets events at once instead of `next`
        self._cancel = cancel
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
        self._cancel(self)

    @property
    def resumed(self) -> Resumed | None:
        """How far it has come; None where no token was sampled yet."""
        if not self.sampled:
            return None
        return Resumed(self.sampled.tobytes(), self._sampler_state)

    def push(self, event: Event) -> None:
        """Called by the client for each event."""
        if isinstance(event, Token):
            self.sampled.append(event.token)
            self._sampler_state = event.sampler_state
        elif isinstance(event, Started):
            if self.started:
                return
            self.started = True
        elif isinstance(event, Progress):
            if event.processed <= self._progress:
                return
            self._progress = event.processed
        elif isinstance(event, ENDS):
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
