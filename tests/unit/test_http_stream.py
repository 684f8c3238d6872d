"""Event streams: order, headers, signs of life, errors, disconnects, slow readers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import httpx

from strata_plugin.engine.messages import Failed, Started, Submit
from tests.unit.fake_backend import (
    FakeEngine,
    Step,
    done,
    fake_service,
    queued,
    says,
    token,
)
from tests.unit.http_server import events, run, serving, until

CHAT = {"messages": [{"role": "user", "content": "abc"}], "stream": True}
PROMPT = {"prompt": "abc", "stream": True}


def contents(values: Sequence[Any]) -> list[str]:
    return [v["content"] for v in values if isinstance(v, dict) and "content" in v]


def test_a_stream_forwards_each_token_and_ends_as_its_dialect_does() -> None:
    async def body() -> None:
        async with serving(fake_service(FakeEngine(says("a", "b")))) as client:
            native = await client.post("/completion", json=PROMPT)
            assert native.headers["content-type"] == "text/event-stream"
            assert native.headers["x-accel-buffering"] == "no"
            assert contents(events(native.text)) == ["a", "b", ""]
            assert "[DONE]" not in native.text
            for path, request in (
                ("/v1/completions", PROMPT),
                ("/v1/chat/completions", CHAT),
                ("/chat/completions", CHAT),
            ):
                reply = await client.post(path, json=request)
                assert events(reply.text)[-1] == "[DONE]"
                assert contents(events(reply.text))[:2] == ["a", "b"]

    run(body())


def test_a_queued_stream_has_headers_at_once_and_comments_while_it_waits() -> None:
    start = asyncio.Event()

    def script(request: Submit) -> list[Step]:
        return [start, *says("a")(request)]

    async def body() -> None:
        async with serving(fake_service(FakeEngine(script))) as client:
            request = {**PROMPT, "sse_ping_interval": 0.05}
            async with client.stream("POST", "/completion", json=request) as reply:
                assert reply.status_code == 200
                text, pings = "", 0
                async for part in reply.aiter_text():
                    text += part
                    pings = text.count(":\n\n")
                    if pings == 3:
                        start.set()
                assert pings >= 3
                assert contents(events(text)) == ["a", ""]

    run(body())


def test_an_interval_of_minus_one_means_no_comments() -> None:
    def script(request: Submit) -> list[Step]:
        return [0.2, *says("a")(request)]

    async def body() -> None:
        async with serving(fake_service(FakeEngine(script))) as client:
            reply = await client.post("/completion", json={**PROMPT, "sse_ping_interval": -1})
            assert reply.text.startswith("data: ")

    run(body())


def test_comments_follow_silence_only() -> None:
    def script(request: Submit) -> list[Step]:
        rid = request.request_id
        steps: list[Step] = [Started(rid, 0, 0)]
        for n in range(1, 11):
            steps += [0.02, token(rid, "x", n)]
        return [*steps, done(rid, 10)]

    async def body() -> None:
        async with serving(fake_service(FakeEngine(script))) as client:
            reply = await client.post("/completion", json={**PROMPT, "sse_ping_interval": 0.1})
            assert ":\n\n" not in reply.text.replace("data:", "")

    run(body())


def test_a_failure_in_the_engine_is_an_event_and_ends_the_stream() -> None:
    def script(request: Submit) -> list[Step]:
        rid = request.request_id
        return [token(rid, "a", 1), Failed(rid, 500, "server_error", "no more memory")]

    async def body() -> None:
        async with serving(fake_service(FakeEngine(script))) as client:
            reply = await client.post("/v1/chat/completions", json=CHAT)
            assert reply.status_code == 200
            assert events(reply.text)[-1] == {
                "error": {"code": 500, "message": "no more memory", "type": "server_error"}
            }
            assert "[DONE]" not in reply.text

    run(body())


def test_a_client_that_leaves_cancels_its_request_and_no_other() -> None:
    forever = asyncio.Event()

    def script(request: Submit) -> list[Step]:
        return [token(request.request_id, "a", 1), forever, *says("b")(request)]

    async def body() -> None:
        engine = FakeEngine(script)
        async with serving(fake_service(engine)) as client:
            stays = asyncio.ensure_future(client.post("/completion", json=PROMPT))
            await until(lambda: len(engine.streams) == 1)
            async with client.stream("POST", "/completion", json=PROMPT) as reply:
                async for _ in reply.aiter_text():
                    break
            await until(lambda: engine.streams[1].cancelled.is_set(), 1.0)
            assert not engine.streams[0].cancelled.is_set()
            forever.set()
            assert contents(events((await stays).text)) == ["a", "b", ""]

    run(body())


def test_a_queued_client_that_leaves_is_noticed_at_once() -> None:
    async def body() -> None:
        for stream in (True, False):
            engine = FakeEngine(lambda request: [asyncio.Event()])
            async with serving(fake_service(engine)) as client:
                request = {"prompt": "abc", "stream": stream}
                posting = asyncio.ensure_future(client.post("/completion", json=request))
                await until(lambda e=engine: len(e.streams) == 1)
                posting.cancel()
                began = time.monotonic()
                await until(engine.streams[0].cancelled.is_set, 1.0)
                assert time.monotonic() - began < 0.5

    run(body())


def test_all_choices_of_a_client_that_leaves_are_cancelled() -> None:
    async def body() -> None:
        engine = FakeEngine(lambda request: [token(request.request_id, "a", 1), asyncio.Event()])
        async with serving(fake_service(engine)) as client:
            async with client.stream("POST", "/completion", json={**PROMPT, "n": 3}) as reply:
                async for _ in reply.aiter_text():
                    break
            await until(lambda: all(s.cancelled.is_set() for s in engine.streams), 1.0)
            assert len(engine.streams) == 3

    run(body())


def test_several_choices_are_merged_as_they_come() -> None:
    def script(request: Submit) -> list[Step]:
        rid = request.request_id
        first = rid == 1
        wait = 0.0 if first else 0.05
        word = "x" if first else "y"
        return [Started(rid, 0, 0), wait, token(rid, word, 1), token(rid, word, 2), done(rid)]

    async def body() -> None:
        async with serving(fake_service(FakeEngine(script))) as client:
            reply = await client.post("/v1/completions", json={**PROMPT, "n": 2})
            values = events(reply.text)
            assert [v["index"] for v in values[:-1]] == [0, 0, 0, 1, 1, 1]
            assert values[-1] == "[DONE]"

    run(body())


def test_one_failing_choice_ends_the_others() -> None:
    def script(request: Submit) -> list[Step]:
        if request.request_id == 2:
            return [queued(2, 0), 0.05, Failed(2, 500, "server_error", "broken")]
        return [queued(1, 0), asyncio.Event()]

    async def body() -> None:
        engine = FakeEngine(script)
        async with serving(fake_service(engine)) as client:
            reply = await client.post("/completion", json={**PROMPT, "n": 2})
            assert events(reply.text)[-1]["error"]["message"] == "broken"
            await until(engine.streams[0].cancelled.is_set)

    run(body())


def test_a_slow_reader_holds_up_nobody_else() -> None:
    def script(request: Submit) -> list[Step]:
        rid = request.request_id
        words = [token(rid, "x" * 2000, n) for n in range(1, 2001)]
        return [Started(rid, 0, 0), *words, done(rid, 2000)]

    async def body() -> None:
        engine = FakeEngine(script)
        async with serving(fake_service(engine)) as client:
            reader, writer = await asyncio.open_connection(
                client.base_url.host, client.base_url.port, limit=1 << 26
            )
            payload = b'{"prompt":"abc","stream":true}'
            writer.write(
                b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s"
                % (len(payload), payload)
            )
            await until(lambda: len(engine.streams) == 1)
            engine.script = says("quick")
            quick = await client.post("/completion", json=PROMPT)  # nothing read of the first yet
            assert contents(events(quick.text)) == ["quick", ""]
            text = (await asyncio.wait_for(reader.readuntil(b"\r\n0\r\n\r\n"), 10)).decode()
            assert text.count("x" * 2000) == 2000
            writer.close()

    run(body())


def test_when_the_server_stops_streams_end_with_an_error_event() -> None:
    async def body() -> None:
        engine = FakeEngine(lambda request: [token(request.request_id, "a", 1), asyncio.Event()])
        service = fake_service(engine)
        async with serving(service) as client:
            stream = asyncio.ensure_future(client.post("/completion", json=PROMPT))
            whole = asyncio.ensure_future(client.post("/completion", json={"prompt": "a"}))
            await until(lambda: len(engine.streams) == 2)
            await asyncio.sleep(0.05)
            service.close()
            error = {"code": 503, "message": "The server is shutting down"}
            error["type"] = "unavailable_error"
            assert events((await stream).text)[-1] == {"error": error}
            reply: httpx.Response = await whole
            assert (reply.status_code, reply.json()) == (503, {"error": error})
            await until(lambda: all(s.cancelled.is_set() for s in engine.streams))

    run(body())
