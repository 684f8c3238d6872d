"""Tokens written where they arrive: in the engine socket's callback, without a task switch.

While a stream runs, each token costs the HTTP process CPU that the engine's threads want at the
same moment (on a CPU backend they share the cores). So the usual token takes the shortest way:
decoded, formatted, written, all in one callback. What is not usual goes back to the task that
owns the stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from starlette.types import Send

from strata_plugin.engine.messages import Token

from .choice import Choice
from .pacing import Pacer
from .ports import Event, StreamPort


async def direct(
    stream: StreamPort, choice: Choice, pacer: Pacer, send: Send, sent: Callable[[], None]
) -> None:
    """Write tokens as they come; return when the next event, or the client, needs more than that.

    `sent` is called after each write. Events that were not written wait in `stream`. Raises what
    formatting raises.
    """
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    paused: list[tuple[Coroutine[Any, Any, None], Any]] = []

    def sink(event: Event) -> None:
        # with timings may be the last one, and its chunk depends on the end that follows
        if not isinstance(event, Token) or event.timings is not None:
            stream.sink = None
            stream.put(event)
            _settle(waiter)
            return
        try:
            data = pacer.pieces(choice, (event,), False)
            if data:
                message = {"type": "http.response.body", "body": data, "more_body": True}
                writing: Coroutine[Any, Any, None] = send(message)  # type: ignore[assignment]
                try:
                    paused.append((writing, writing.send(None)))
                except StopIteration:
                    sent()
        except Exception as error:
            stream.sink = None
            _settle(waiter, error)
            return
        if paused or pacer.company > 1:
            stream.sink = None
            _settle(waiter)

    stream.sink = sink
    try:
        await waiter
    finally:
        stream.sink = None
    for writing, future in paused:  # the client reads slowly: its buffer is full
        await _finish(writing, future)
        sent()


async def _finish(started: Coroutine[Any, Any, None], future: Any) -> None:
    """Run to its end a coroutine that was started by hand and waits for `future`."""
    try:
        while True:
            if future is None:  # a bare yield
                await asyncio.sleep(0)
            else:
                await asyncio.wait((future,))
            future = started.send(None)
    except StopIteration:
        return
    finally:
        started.close()


def _settle(waiter: asyncio.Future[None], error: Exception | None = None) -> None:
    if waiter.done():
        return
    if error is None:
        waiter.set_result(None)
    else:
        waiter.set_exception(error)
