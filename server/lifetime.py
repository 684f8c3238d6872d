"""How long a reply lives: until its work is done, its client has gone, or the server stops."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.types import Receive

from .generation import Generation


async def wait_disconnect(receive: Receive) -> None:
    """Return when the client has gone (the request's body has been read before)."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def outlive(worker: asyncio.Future[Any], receive: Receive, generation: Generation) -> bool:
    """Wait for `worker`; False when the client left first.

    When the server stops meanwhile, `worker` is cancelled and the stop is raised as `ApiError`.
    """
    watcher = asyncio.ensure_future(wait_disconnect(receive))
    try:
        await asyncio.wait(
            {worker, watcher, generation.aborted}, return_when=asyncio.FIRST_COMPLETED
        )
        if not worker.done() and generation.aborted.done():
            raise generation.aborted.result()
        return worker.done()
    finally:
        watcher.cancel()


async def run_all(jobs: list[Coroutine[Any, Any, None]]) -> None:
    """Run `jobs` side by side; the first failure stops the others and is raised."""
    if len(jobs) == 1:
        await jobs[0]
        return
    tasks = [asyncio.ensure_future(job) for job in jobs]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
