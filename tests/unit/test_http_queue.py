"""What clients see of the queue: headers, comments, GET /queue, refusals; and the log's lines."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any

import pytest

from strata_plugin.engine.messages import Failed, Moved, Started, Submit
from strata_server.outlook import queue_comment, queue_headers
from tests.unit.fake_backend import FakeEngine, Step, done, fake_service, queued, says, token
from tests.unit.http_server import events, run, serving, until

CHAT = {"messages": [{"role": "user", "content": "abc"}]}
PROMPT = {"prompt": "abc"}
FULL = "the queue is full (8 requests wait, --max-queue)"


def after(*steps: Step, words: Sequence[str] = ("a",)) -> Any:
    """A script that answers after `steps` for request 1 and directly for others."""

    def script(request: Submit) -> list[Step]:
        own = list(steps) if request.request_id == 1 else []
        return [*own, *says(*words)(request)]

    return script


def post(script: Any, request: Any, path: str = "/completion", headers: Any = None) -> Any:
    replies: list[Any] = []

    async def body() -> None:
        async with serving(fake_service(FakeEngine(script))) as client:
            replies.append(await client.post(path, json=request, headers=headers))

    run(body())
    return replies[0]


# ---- headers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("path", "request_"), [("/completion", PROMPT), ("/v1/chat/completions", CHAT)]
)
def test_a_reply_tells_where_its_request_stood_when_it_came(
    path: str, request_: Any, stream: bool
) -> None:
    script = after(queued(1, 3, 2300.4, 1900, 3100), queued(1, 0, 2000.0), 0.02)
    reply = post(script, {**request_, "stream": stream}, path)
    assert reply.headers["x-queue-position"] == "3"
    assert reply.headers["x-predicted-ttft-ms"] == "2300"


@pytest.mark.parametrize(
    ("position", "predicted", "headers"),
    [
        (-1, 12.0, [(b"x-queue-position", b"0"), (b"x-predicted-ttft-ms", b"12")]),
        (0, 0.0, [(b"x-queue-position", b"0"), (b"x-predicted-ttft-ms", b"0")]),
        (2, -1.0, [(b"x-queue-position", b"2")]),
        (2, float("inf"), [(b"x-queue-position", b"2")]),
        (2, float("nan"), [(b"x-queue-position", b"2")]),
    ],
)
def test_what_is_not_known_is_left_out(position: int, predicted: float, headers: Any) -> None:
    assert queue_headers(queued(1, position, predicted)) == headers
    assert queue_headers(None) == []


@pytest.mark.parametrize("stream", [True, False])
def test_an_engine_that_says_nothing_about_the_queue_is_no_fault(stream: bool) -> None:
    reply = post(says("a"), {**PROMPT, "stream": stream})
    assert reply.status_code == 200
    assert "x-queue-position" not in reply.headers
    assert "x-predicted-ttft-ms" not in reply.headers


def test_with_several_choices_the_first_one_s_place_is_told() -> None:
    def script(request: Submit) -> list[Step]:
        return [queued(request.request_id, 4 + request.request_id), *says("a")(request)]

    for stream in (True, False):
        reply = post(script, {**PROMPT, "n": 2, "stream": stream})
        assert reply.headers["x-queue-position"] == "5"


@pytest.mark.parametrize(
    ("position", "comment"),
    [
        # it could not be told in the headers, so the stream tells it
        (2, ": queue position 2, predicted first token in 500 ms (400..600)\n\n"),
        (-1, ""),  # it never waited
    ],
)
def test_headers_of_a_stream_wait_a_second_for_the_engine_and_no_longer(
    position: int, comment: str
) -> None:
    late = asyncio.Event()

    def script(request: Submit) -> list[Step]:
        return [late, queued(1, position, 500.0, 400, 600), 0.02, *says("a")(request)]

    async def body() -> None:
        async with serving(fake_service(FakeEngine(script))) as client:
            began = time.monotonic()
            async with client.stream("POST", "/completion", json={**PROMPT, "stream": True}) as r:
                assert 0.8 < time.monotonic() - began < 1.8
                assert r.status_code == 200 and "x-queue-position" not in r.headers
                late.set()
                text = "".join([part async for part in r.aiter_text()])
            assert text.startswith(comment + "data: ")
            assert [e["content"] for e in events(text)] == ["a", ""]

    run(body())


def test_a_queued_stream_has_headers_as_soon_as_its_place_is_known() -> None:
    async def body() -> None:
        engine = FakeEngine(after(queued(1, 2), asyncio.Event()))
        async with serving(fake_service(engine)) as client:
            began = time.monotonic()
            async with client.stream("POST", "/completion", json={**PROMPT, "stream": True}) as r:
                assert r.headers["x-queue-position"] == "2"
                assert time.monotonic() - began < 0.8

    run(body())


# ---- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("seconds", "header"),
    [(0.0, "1"), (0.2, "1"), (7.1, "8"), (float("inf"), "1"), (float("nan"), "1"), (-3.0, "1")],
)
def test_a_full_queue_is_429_with_the_time_to_wait(
    seconds: float, header: str, stream: bool
) -> None:
    refused = Failed(1, 429, "unavailable_error", FULL, retry_after_s=seconds)
    reply = post(lambda request: [refused], {**PROMPT, "stream": stream})
    assert reply.status_code == 429
    assert reply.headers["retry-after"] == header
    assert reply.headers["content-type"] == "application/json; charset=utf-8"
    assert reply.json() == {"error": {"code": 429, "message": FULL, "type": "rate_limit_error"}}


def test_a_stream_whose_first_event_is_a_failure_is_a_plain_error() -> None:
    for n, failing in ((1, 1), (2, 2)):

        def script(request: Submit, failing: int = failing) -> list[Step]:
            rid = request.request_id
            if rid == failing:
                return [Failed(rid, 500, "server_error", "broken")]
            return [queued(rid, 0), asyncio.Event()]

        reply = post(script, {**CHAT, "n": n, "stream": True}, "/v1/chat/completions")
        assert (reply.status_code, reply.json()["error"]["message"]) == (500, "broken")
        assert "retry-after" not in reply.headers


def test_a_failure_after_the_headers_is_an_event() -> None:
    refused = Failed(1, 429, "rate_limit_error", FULL, 5.0)
    reply = post(lambda request: [queued(1, 2), 0.05, refused], {**PROMPT, "stream": True})
    assert reply.status_code == 200
    assert events(reply.text)[-1]["error"]["code"] == 429


def test_a_client_that_leaves_before_the_headers_cancels_its_request() -> None:
    async def body() -> None:
        engine = FakeEngine(lambda request: [asyncio.Event()])
        async with serving(fake_service(engine)) as client:
            posting = asyncio.ensure_future(
                client.post("/completion", json={**PROMPT, "stream": True})
            )
            await until(lambda: len(engine.streams) == 1)
            posting.cancel()
            await until(engine.streams[0].cancelled.is_set, 0.7)

    run(body())


# ---- comments ------------------------------------------------------------------------------------


def test_a_stream_hears_about_each_change_of_its_outlook_until_its_first_token() -> None:
    script = after(
        queued(1, 3, 2300, 1900, 3100),
        0.02,
        queued(1, 1, 900.4, 700, 1200),
        queued(1, 0),
        queued(1, -1, 100, 90, 110),
        Started(1, 0, 0),
        token(1, "first", 1),
        queued(1, 5, 1, 1, 1),  # too late to matter
    )
    text = post(script, {**PROMPT, "stream": True}).text
    assert text.startswith(
        ": queue position 1, predicted first token in 900 ms (700..1200)\n\n"
        ": queue position 0\n\n"
        ": queue position 0, predicted first token in 100 ms (90..110)\n\n"
        "data: "
    )
    assert text.count(": queue") == 3
    assert [e["content"] for e in events(text)] == ["first", "a", ""]


def test_a_stream_that_never_waited_is_llama_server_s_byte_for_byte() -> None:
    request = {**PROMPT, "stream": True}
    plain = post(says("a", "b"), request).text
    assert post(after(queued(1, -1, 5, 4, 6), words=("a", "b")), request).text == plain
    moved = after(queued(1, -1), Moved(1, "parked"), Moved(1, "reading"), words=("a", "b"))
    assert post(moved, request).text == plain


def test_only_the_first_choice_comments_and_whole_replies_have_no_comments() -> None:
    def script(request: Submit) -> list[Step]:
        rid = request.request_id
        return [queued(rid, 2), 0.02, queued(rid, rid), 0.02, *says("a")(request)]

    text = post(script, {**PROMPT, "n": 2, "stream": True}).text
    assert text.count(": queue position 1\n\n") == 1 and text.count(": queue") == 1
    assert [c["content"] for c in post(script, {**PROMPT, "n": 2}).json()] == ["a", "a"]


def test_pings_go_on_between_comments() -> None:
    script = after(queued(1, 2), 0.3, queued(1, 1), 0.3)
    text = post(script, {**PROMPT, "stream": True, "sse_ping_interval": 0.1}).text
    before, after_ = text.split(": queue position 1\n\n")
    assert before.count(":\n\n") >= 1 and after_.count(":\n\n") >= 1


def test_a_comment_without_a_range_has_none() -> None:
    assert queue_comment(queued(1, 1, 5.0)) == (
        b": queue position 1, predicted first token in 5 ms\n\n"
    )


# ---- GET /queue and the log ----------------------------------------------------------------------


def test_the_queue_names_requests_as_their_clients_know_them() -> None:
    async def body() -> None:
        engine = FakeEngine(lambda request: [asyncio.Event()])
        async with serving(fake_service(engine, api_keys=("k", "l"))) as client:
            key = {"Authorization": "Bearer l"}
            assert (await client.get("/queue")).status_code == 401
            posting = asyncio.ensure_future(
                client.post(
                    "/v1/chat/completions",
                    json={**CHAT, "n": 2},
                    headers={**key, "X-Request-Id": "mine"},
                )
            )
            await until(lambda: len(engine.streams) == 2)
            queue = (await client.get("/queue", headers=key)).json()
            assert [r["id"] for r in queue["requests"]] == ["mine", "mine[1]"]
            first = queue["requests"][0]
            assert (first["dialect"], first["key"], first["prompt_tokens"]) == (
                "openai-chat",
                "key-2",
                3,
            )
            assert first["client"].startswith("127.0.0.1:")
            assert (queue["rows"], queue["scheduler"], queue["itl_feasible"]) == (4, "strata", True)
            assert (queue["queued"], queue["itl_slo_ms"]) == (2, 150.0)
            posting.cancel()

    run(body())


@pytest.mark.parametrize("stream", [True, False])
def test_the_log_has_one_line_for_each_change_of_stage(
    stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    steps: list[Step] = [
        queued(1, 3, 2300, 1900, 3100),
        queued(1, 2, 2000, 1900, 2100),
        queued(1, -1, 2000, 1900, 2100),
        Started(1, 0, 2),
        Moved(1, "parked"),
        Moved(1, "restoring"),
        Moved(1, "reading"),
        token(1, "very", 1),
        token(1, "secret", 2),
        Moved(1, "parked"),
        Moved(1, "writing"),
        token(1, "answer", 3),
        done(1, 3),
    ]
    with caplog.at_level(logging.INFO):
        post(lambda request: steps, {**PROMPT, "stream": stream}, headers={"X-Request-Id": "r"})
    lines = [r.getMessage() for r in caplog.records if r.name == "strata.requests"]
    assert lines[0] == (
        "request r: queued, position 3, predicted first token in 2300 ms (1900..3100)"
    )
    assert lines[1:5] == [
        "request r: reading, 2 prompt tokens cached",
        "request r: parked",
        "request r: restoring",
        "request r: reading",
    ]
    assert lines[5].startswith("request r: writing, first token after ")
    assert lines[6:8] == ["request r: parked", "request r: writing"]
    assert lines[8].startswith("request r: done, native, prompt 3 tokens (2 cached), generated 3")
    assert len(lines) == 9
    assert "secret" not in caplog.text and "abc" not in caplog.text


def test_timings_tell_what_the_wait_cost() -> None:
    value = post(says("a", "b"), PROMPT).json()
    # of the fake's 3 prompt tokens, 0.5 ms in the queue and 1 ms of reading
    assert (value["queue_ms"], value["compute_ms"]) == (0.5, 0.75)
    assert value["effective_tokens_per_s"] == 2000.0
    assert post(says("a"), {"prompt": ""}).json()["effective_tokens_per_s"] == 0.0
