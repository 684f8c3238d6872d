"""A real HTTP server in the test's event loop, in front of a fake engine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from strata_server.app import create_app
from strata_server.service import Service


@contextlib.asynccontextmanager
async def serving(
    service: Service, built_page: Path | None = None
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server for `service` on a random port; `built_page` as for `create_app`."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    config = uvicorn.Config(
        create_app(service, built_page),
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
    task = asyncio.ensure_future(server.serve(sockets=[listener]))
    while not server.started:
        await asyncio.sleep(0.005)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        async with httpx.AsyncClient(base_url=url, timeout=10) as client:
            yield client
    finally:
        service.close()
        server.should_exit = True
        await task


def run(test: Coroutine[Any, Any, None]) -> None:
    """Run a test's coroutine; nothing in these tests takes long."""
    asyncio.run(asyncio.wait_for(test, 20))


def events(text: str) -> list[Any]:
    """The JSON values of an event stream, "[DONE]" as it is, comments left out."""
    found: list[Any] = []
    for block in text.split("\n\n"):
        if block.startswith("data: "):
            data = block[len("data: ") :]
            found.append(data if data == "[DONE]" else json.loads(data))
    return found


async def until(condition: Any, seconds: float = 2.0) -> None:
    """Wait until `condition()` is true; AssertionError after `seconds`."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "did not happen in time"
        await asyncio.sleep(0.005)
