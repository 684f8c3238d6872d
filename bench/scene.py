"""Requests that meet: a scene sends them one by one while others run, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

from bench import client
from bench.scenario import Measurement, ScenarioError
from bench.servers import Server
from bench.streams import completion

SETTLE_POLL_S = 2.5
SETTLE_S = 120.0  # a server still at work that long after all clients left is stuck
_POLL_S = 0.05


class Scene:
    """An async context manager; requests that still run at its end are cut."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._sent: list[client.Exchange] = []

    async def __aenter__(self) -> Scene:
        await self.settle()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for exchange in self._sent:
            exchange.cut()
        if kind is None:  # else the servers are stopped anyway
            await self.settle()

    async def send(self, prompt: str | list[int], n_predict: int, **fields: Any) -> client.Exchange:
        """Send one greedy stream to /completion; `fields` are added to its body."""
        exchange = client.Exchange(self.server.port, completion(prompt, n_predict, **fields))
        self._sent.append(exchange)
        return await exchange.begin()

    async def tokens(self, exchange: client.Exchange, count: int = 1) -> None:
        """Wait until a stream has sent `count` more events; raises where it ends before."""
        if not await exchange.events(exchange.event_count + count):
            self.server.check()
            reply = await exchange.end(timeout_s=1.0)
            raise ScenarioError(
                f"{self.server.name}: {reply.error or 'a stream ended before it should'}"
            )

    async def whole(self, exchange: client.Exchange) -> client.Reply:
        """Wait for the end of a reply; raises where it isn't complete and good."""
        reply = await exchange.end()
        if reply.error or reply.cut:
            self.server.check()
            raise ScenarioError(f"{self.server.name}: {reply.error or 'cut by ourselves'}")
        return reply

    async def ask(self, path: str) -> Any:
        """The JSON that a GET of `path` answers with."""
        exchange = await client.Exchange(self.server.port, client.Request(path)).begin()
        reply = await exchange.end(timeout_s=30.0)
        if reply.error:
            self.server.check()
            raise ScenarioError(f"{self.server.name}: GET {path}: {reply.error}")
        return json.loads(reply.text)

    async def busy_slots(self) -> int:
        """How many slots work, by /slots."""
        return sum(bool(slot["is_processing"]) for slot in await self.ask("/slots"))

    async def slots(self) -> int:
        """How many requests can generate at once, by /slots."""
        return len(await self.ask("/slots"))

    async def room(self) -> int:
        """How many tokens a slot may hold, by /props."""
        properties = await self.ask("/props")
        return int(properties["default_generation_settings"]["n_ctx"])

    async def until_busy(self, count: int, timeout_s: float, poll_s: float = _POLL_S) -> float:
        """Wait until exactly `count` slots work; seconds waited, `timeout_s` if they never do."""
        began = time.perf_counter()
        while (waited := time.perf_counter() - began) < timeout_s:
            if await self.busy_slots() == count:
                return time.perf_counter() - began
            await asyncio.sleep(poll_s)
        return min(waited, timeout_s)

    async def settle(self) -> None:
        """Wait until no slot works any more; raises after `SETTLE_S`.

        After a while with pauses: llama-server looks for clients that left only after a second
        in which nobody, who asks for its slots included, got an answer.
        """
        if await self.until_busy(0, SETTLE_POLL_S) < SETTLE_POLL_S:
            return
        await asyncio.sleep(SETTLE_POLL_S)
        if await self.until_busy(0, SETTLE_S, SETTLE_POLL_S) >= SETTLE_S:
            raise ScenarioError(f"{self.server.name} still works {SETTLE_S:g} s after all left")


def scenario(play: Callable[[Scene, int], Awaitable[Measurement]]) -> Callable[..., Measurement]:
    """A scenario's `run` of a coroutine `play(scene, seed)`."""

    def run(server: Server, seed: int) -> Measurement:
        async def whole() -> Measurement:
            async with Scene(server) as scene:
                return await play(scene, seed)

        return asyncio.run(whole())

    return run
