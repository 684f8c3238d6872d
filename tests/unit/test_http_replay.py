"""Streams with X-Conversation-Id: they go on without their client, who may come back."""

from __future__ import annotations

import asyncio

import pytest

from strata_plugin.engine.messages import Submit
from strata_server import replay
from tests.unit.fake_backend import FakeEngine, Step, done, fake_service, says, token
from tests.unit.http_server import events, run, serving, until

BODY = {"prompt": "abc", "stream": True}
NAMED = {"X-Conversation-Id": "c1"}


def test_a_stream_goes_on_without_its_client_who_reads_on_where_he_was() -> None:
    more = asyncio.Event()

    def script(request: Submit) -> list[Step]:
        one, *rest = says("a", "b", "c")(request)
        return [one, rest[0], more, *rest[1:]]

    async def body() -> None:
        engine = FakeEngine(script)
        async with serving(fake_service(engine)) as client:
            async with client.stream("POST", "/completion", json=BODY, headers=NAMED) as reply:
                assert reply.headers["content-type"] == "text/event-stream"
                async for part in reply.aiter_bytes():
                    seen = part
                    break
            await asyncio.sleep(0.05)
            assert not engine.streams[0].cancelled.is_set()
            more.set()
            await until(lambda: engine.streams[0].finished)
            rest = await client.get(f"/v1/stream?conv_id=c1&from={len(seen)}")
            whole = await client.get("/v1/stream?conv_id=c1")
            assert whole.content == seen + rest.content
            texts = [value["content"] for value in events(whole.text)]
            assert texts == ["a", "b", "c", ""]
            looked = await client.post("/v1/streams/lookup", json={"conversation_ids": ["c1", 5]})
            (found,) = looked.json()
            assert found["is_done"] and found["total_bytes"] == len(whole.content)

    run(body())


def test_without_the_header_a_client_that_leaves_stops_the_stream() -> None:
    def script(request: Submit) -> list[Step]:
        return [*says("a")(request)[:2], asyncio.Event()]

    async def body() -> None:
        engine = FakeEngine(script)
        async with serving(fake_service(engine)) as client:
            async with client.stream("POST", "/completion", json=BODY) as reply:
                async for _ in reply.aiter_bytes():
                    break
            await until(engine.streams[0].cancelled.is_set)

    run(body())


def test_a_stream_is_stopped_by_delete_which_may_come_twice() -> None:
    def script(request: Submit) -> list[Step]:
        return [*says("a")(request)[:2], asyncio.Event()]

    async def body() -> None:
        engine = FakeEngine(script)
        async with serving(fake_service(engine)) as client:
            async with client.stream("POST", "/completion", json=BODY, headers=NAMED) as reply:
                async for _ in reply.aiter_bytes():
                    break
            for _ in range(2):
                assert (await client.delete("/v1/stream?conv_id=c1")).status_code == 204
            await until(engine.streams[0].cancelled.is_set)
            assert (await client.get("/v1/stream?conv_id=c1")).status_code == 404

    run(body())


def test_a_new_stream_of_a_conversation_ends_the_old_one() -> None:
    def script(request: Submit) -> list[Step]:
        return [*says("a")(request)[:2], asyncio.Event()] if request.request_id == 1 else says("z")(
            request
        )

    async def body() -> None:
        engine = FakeEngine(script)
        async with serving(fake_service(engine)) as client:
            first = asyncio.ensure_future(client.post("/completion", json=BODY, headers=NAMED))
            await until(lambda: len(engine.streams) == 1)
            await client.post("/completion", json=BODY, headers=NAMED)
            await until(engine.streams[0].cancelled.is_set)
            await first
            again = await client.get("/v1/stream?conv_id=c1")
            assert events(again.text)[0]["content"] == "z"

    run(body())


def test_nobody_reads_or_stops_the_stream_of_another_key() -> None:
    async def body() -> None:
        service = fake_service(FakeEngine(), api_keys=("one", "two"))
        async with serving(service) as client:
            one, two = ({"Authorization": f"Bearer {key}"} for key in ("one", "two"))
            await client.post("/completion", json=BODY, headers={**NAMED, **one})
            path = "/v1/stream?conv_id=c1"
            assert (await client.get(path, headers=two)).status_code == 404
            wanted = {"conversation_ids": ["c1"]}
            looked = await client.post("/v1/streams/lookup", json=wanted, headers=two)
            assert looked.json() == []
            await client.delete(path, headers=two)
            assert (await client.get(path, headers=one)).status_code == 200

    run(body())


def test_a_request_that_is_refused_says_so_and_leaves_nothing_to_follow() -> None:
    async def body() -> None:
        async with serving(fake_service(FakeEngine())) as client:
            bad = {"prompt": "a" * 100, "stream": True}
            assert (await client.post("/completion", json=bad, headers=NAMED)).status_code == 400
            assert (await client.get("/v1/stream?conv_id=c1")).status_code == 404

    run(body())


@pytest.mark.parametrize("query", ["", "conv_id=", "conv_id=c1&from=-1", "conv_id=c1&from=x"])
def test_bad_questions_are_refused(query: str) -> None:
    async def body() -> None:
        async with serving(fake_service(FakeEngine())) as client:
            await client.post("/completion", json=BODY, headers=NAMED)
            assert (await client.get(f"/v1/stream?{query}")).status_code == 400

    run(body())


def test_what_is_kept_is_bounded_and_a_lost_beginning_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replay, "MOST_BYTES", 2000)

    def script(request: Submit) -> list[Step]:
        words = [token(request.request_id, "x" * 200, n) for n in range(1, 40)]
        slowly: list[Step] = [step for word in words for step in (word, 0.001)]
        return [*says()(request)[:1], *slowly, done(request.request_id, 40)]

    async def body() -> None:
        service = fake_service(FakeEngine(script))
        async with serving(service) as client:
            await client.post("/completion", json=BODY, headers=NAMED)
            recording = service.recordings.find(("", "c1"))
            assert recording is not None and 0 < recording.n_bytes <= 2000
            lost = await client.get("/v1/stream?conv_id=c1&from=5")
            assert lost.status_code == 400 and "lost" in lost.text
            path = f"/v1/stream?conv_id=c1&from={recording.dropped}"
            assert len((await client.get(path)).content) == recording.n_bytes

    run(body())


def test_streams_that_ended_long_ago_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        async with serving(fake_service(FakeEngine())) as client:
            await client.post("/completion", json=BODY, headers=NAMED)
            assert (await client.get("/v1/stream?conv_id=c1")).status_code == 200
            monkeypatch.setattr(replay, "KEPT_S", -1.0)
            assert (await client.get("/v1/stream?conv_id=c1")).status_code == 404

    run(body())
