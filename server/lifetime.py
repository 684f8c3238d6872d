"""How long a reply lives: until its work is done, its client has gone, or the server stops."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.types import Receive

from .generation import Generation


async def wait(
    worker: asyncio.Future[Any], receive: Receive, *others: asyncio.Future[Any]
) -> bool:
    """Wait until `worker` is done, one of `others` is, or the client has gone (the request's body
    has been read before); False when `worker` is not done.
    """
    watcher = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait({worker, watcher, *others}, return_when=asyncio.FIRST_COMPLETED)
        return worker.done()
    finally:
        watcher.cancel()


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def outlive(worker: asyncio.Future[Any], receive: Receive, generation: Generation) -> bool:
    """Wait for `worker`; False when the client left first; raises the stop of the server as
    `ApiError` when that came first.
    """
    done = await wait(worker, receive, generation.aborted)
    if not done and generation.aborted.done():
        raise generation.aborted.result()
    return done


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
