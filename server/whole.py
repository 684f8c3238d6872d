"""A whole JSON reply as an ASGI application that notices when its client has gone."""

from __future__ import annotations

import asyncio

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from strata_plugin.engine.messages import Failed

from .choice import Choice
from .errors import JSON_TYPE, ApiError
from .failure import error_response, failed
from .generation import Generation, merge_values
from .lifetime import outlive, run_all
from .ports import StreamPort
from .service import as_api_error


class WholeReply(Response):
    """Waits for all choices, then sends one JSON value. A client that leaves cancels its choices at
    once.
    """

    media_type = JSON_TYPE

    def __init__(self, generation: Generation):
        super().__init__()
        self.generation = generation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry point."""
        generation = self.generation
        outcome = "cancelled"
        worker = asyncio.ensure_future(self._collect())
        try:
            if await outlive(worker, receive, generation):
                try:
                    reply = Response(worker.result(), media_type=JSON_TYPE)
                    outcome = "done"
                except ApiError as error:
                    reply = error_response(error, generation.dialect.errors)
                    outcome = f"error {error.code}"
                reply.raw_headers += generation.queue_headers()
                await reply(scope, receive, send)
            else:
                outcome = "client gone"
        finally:
            worker.cancel()
            generation.close(outcome)

    async def _collect(self) -> bytes:
        generation = self.generation
        pairs = zip(generation.choices, generation.streams, strict=True)
        await run_all([_collect_choice(c, s) for c, s in pairs])
        try:
            values = [choice.value() for choice in generation.choices]
        except Exception as error:  # text that its dialect's parser refuses
            raise as_api_error(error) from error
        return merge_values(generation.dialect.kind, values)


async def _collect_choice(choice: Choice, stream: StreamPort) -> None:
    while True:
        event = await stream.next(None)
        if isinstance(event, Failed):
            raise failed(event)
        if event is not None and choice.collect(event):
            return
