"""X-Request-Id: the client's own where it is harmless, on every reply, and in the log."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from strata_server.app import create_app
from tests.unit.fake_backend import FakeEngine, fake_service
from tests.unit.http_server import run, serving


def post(request: Any, headers: Any) -> Any:
    replies: list[Any] = []

    async def body() -> None:
        async with serving(fake_service(FakeEngine())) as client:
            replies.append(await client.post("/completion", json=request, headers=headers))

    run(body())
    return replies[0]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("given", ["abc", "0" * 128, "with spaces; and=signs/{}"])
def test_a_client_s_own_id_comes_back(given: str, stream: bool) -> None:
    reply = post({"prompt": "abc", "stream": stream}, headers={"X-Request-Id": given})
    assert reply.headers.get_list("x-request-id") == [given]


@pytest.mark.parametrize(
    "given", [None, "", "0" * 129, "0" * 60_000, "é".encode(), b"a\xff", b"a\tb"]
)
def test_other_ids_are_replaced_by_a_fresh_one(given: Any) -> None:
    headers = {} if given is None else {"X-Request-Id": given}
    ids = [post({"prompt": "abc"}, headers=headers).headers["x-request-id"] for _ in range(2)]
    assert ids[0] != ids[1]
    assert all(len(i) == 16 and i.isalnum() for i in ids)


@pytest.mark.parametrize("given", [b"a\r\nX-Evil: 1", b"a\nb", b"a\x00b", b"\x1b[31m", b"\x7f"])
def test_control_characters_reach_neither_reply_nor_log(
    given: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Straight into the application: HTTP parsers would stop most of them."""
    sent: list[Any] = []
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/completion",
        "raw_path": b"/completion",
        "query_string": b"",
        "root_path": "",
        "headers": [(b"x-request-id", given)],
        "client": ("1.2.3.4", 5),
    }

    async def body() -> None:
        parts = [{"type": "http.request", "body": b'{"prompt": "abc"}', "more_body": False}]

        async def receive() -> Any:
            if not parts:
                await asyncio.sleep(5)
            return parts.pop()

        async def send(message: Any) -> None:
            sent.append(message)

        await create_app(fake_service(FakeEngine()))(scope, receive, send)

    with caplog.at_level(logging.INFO):
        run(body())
    names = [value for name, value in sent[0]["headers"] if name == b"x-request-id"]
    assert len(names) == 1 and names[0].isalnum()
    assert b"".join(v for _, v in sent[0]["headers"]).isascii()
    for record in caplog.records:
        assert record.getMessage().isprintable()


def test_errors_carry_the_id_too() -> None:
    async def body() -> None:
        async with serving(fake_service(FakeEngine(), api_keys=("k",))) as client:
            key = {"Authorization": "Bearer k", "X-Request-Id": "mine"}
            for path, headers, status in (
                ("/completion", {"X-Request-Id": "mine"}, 401),
                ("/completion", key, 400),
                ("/v1/audio/transcriptions", key, 501),
            ):
                reply = await client.post(path, content=b"{", headers=headers)
                assert (reply.status_code, reply.headers["x-request-id"]) == (status, "mine")

    run(body())
