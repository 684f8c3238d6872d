"""--timeout: how long a client may be silent while it sends its request."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.unit.fake_backend import FakeEngine, fake_service
from tests.unit.http_server import run, serving

BODY = b'{"prompt": "abc"}'
HEAD = b"POST /completion HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"


async def send(client: Any, pieces: list[bytes], pause: float) -> bytes:
    """What a client gets that sends a body in pieces, and then waits."""
    reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
    writer.write(HEAD % len(BODY))
    for piece in pieces:
        await asyncio.sleep(pause)
        writer.write(piece)
    answer = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    return answer


def test_a_client_that_falls_silent_is_let_go_and_one_that_is_slow_is_not() -> None:
    async def body() -> None:
        engine = FakeEngine()
        async with serving(fake_service(engine, timeout=0.3)) as client:
            assert (await send(client, [BODY[:5]], 0)).startswith(b"HTTP/1.1 499")
            assert engine.requests == []
            steadily = [bytes([byte]) for byte in BODY[:6]] + [BODY[6:]]
            assert (await send(client, steadily, 0.1)).startswith(b"HTTP/1.1 200")
            assert len(engine.requests) == 1

    run(body())
