"""Whole replies: one value, several choices, several prompts; and what reaches the engine."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
import pytest

from strata_plugin.engine.messages import Failed, Started, StopReason, Submit, Token
from tests.unit.fake_backend import FakeEngine, Step, done, fake_service, says, token
from tests.unit.http_server import run, serving

CHAT = {"messages": [{"role": "user", "content": "abc"}]}


def post(engine: FakeEngine, path: str, **request: Any) -> Any:
    replies: list[Any] = []

    async def body() -> None:
        async with serving(fake_service(engine)) as client:
            replies.append(await client.post(path, **request))

    run(body())
    return replies[0]


def test_one_prompt_gives_one_object() -> None:
    reply = post(FakeEngine(says("a", "b")), "/completion", json={"prompt": "abc"})
    assert reply.headers["content-type"] == "application/json; charset=utf-8"
    assert reply.json()["content"] == "ab"
    assert reply.json()["queue_ms"] == 0.5


def test_several_prompts_and_choices_are_an_array_by_index() -> None:
    def script(request: Submit) -> list[Step]:
        rid = request.request_id
        return [0.02 * (4 - rid), token(rid, f"r{rid}", 1), done(rid, 1)]

    engine = FakeEngine(script)
    reply = post(engine, "/completion", json={"prompt": ["ab", "c"], "n": 2})
    assert [(c["index"], c["content"]) for c in reply.json()] == [
        (0, "r1"),
        (1, "r2"),
        (2, "r3"),
        (3, "r4"),
    ]
    prompts = [bytes(np.frombuffer(r.prompt, "<i4").astype(np.uint8)) for r in engine.requests]
    assert prompts == [b"ab", b"ab", b"c", b"c"]
    assert [r.fork_of for r in engine.requests] == [None, 1, None, 3]


def test_openai_choices_are_put_into_one_object() -> None:
    reply = post(FakeEngine(says("a")), "/v1/chat/completions", json={**CHAT, "n": 2})
    assert [c["index"] for c in reply.json()["choices"]] == [0, 1]
    assert reply.json()["id"] == "cmpl-1"


def test_a_given_seed_differs_between_choices_and_a_random_one_is_left_alone() -> None:
    engine = FakeEngine(says("a"))
    post(engine, "/completion", json={"prompt": "abc", "n": 3, "seed": 7})
    assert [json.loads(r.sampling)["seed"] for r in engine.requests] == [7, 8, 9]
    engine = FakeEngine(says("a"))
    post(engine, "/completion", json={"prompt": "abc", "n": 2})
    assert {json.loads(r.sampling)["seed"] for r in engine.requests} == {0xFFFFFFFF}


def test_only_the_first_choice_may_ask_for_a_slot() -> None:
    engine = FakeEngine(says("a"))
    post(engine, "/completion", json={"prompt": "abc", "n": 2, "id_slot": 3})
    assert [r.id_slot for r in engine.requests] == [3, -1]


def test_a_failing_request_gets_the_engine_s_status() -> None:
    engine = FakeEngine(lambda r: [Failed(r.request_id, 503, "unavailable_error", "gone")])
    reply = post(engine, "/completion", json={"prompt": "abc"})
    assert reply.status_code == 503
    assert reply.json()["error"] == {"code": 503, "message": "gone", "type": "unavailable_error"}


def test_text_that_an_indent_rule_takes_back_is_cut() -> None:
    def script(request: Submit) -> list[Step]:
        rid = request.request_id
        return [Started(rid, 0, 0), token(rid, "abcdef", 1), done(rid, 1, cut=2, text=b"!")]

    reply = post(FakeEngine(script), "/completion", json={"prompt": "abc"})
    assert reply.json()["content"] == "abcd!"


def test_tokens_are_returned_when_asked_for() -> None:
    engine = FakeEngine(says("a", "b"))
    assert post(engine, "/completion", json={"prompt": "abc"}).json()["tokens"] == []
    request = {"prompt": "abc", "return_tokens": True}
    assert post(engine, "/completion", json=request).json()["tokens"] == [1, 2]


def test_probabilities_of_a_stop_word_are_dropped() -> None:
    """As many as the word has tokens; the fake tokenizer makes one of each byte."""

    def script(request: Submit) -> list[Step]:
        rid = request.request_id
        steps: list[Step] = []
        for n in range(1, 5):
            probs = b'{"id":%d}' % n
            plain = token(rid, "a", n)
            steps.append(
                Token(
                    request_id=rid,
                    token=n,
                    text=plain.text,
                    n_decoded=n,
                    timings=plain.timings,
                    probs=probs,
                )
            )
        return [*steps, done(rid, 4, StopReason.WORD, stopping_word="xy")]

    reply = post(FakeEngine(script), "/completion", json={"prompt": "abc", "n_probs": 1})
    assert reply.json()["probs"] == [{"sent": [97], "id": 1}, {"sent": [97], "id": 2}]


def test_an_empty_prompt_is_answered_without_the_engine() -> None:
    engine = FakeEngine()
    reply = post(engine, "/completion", json={"prompt": ""})
    assert (reply.status_code, reply.json()["content"]) == (200, "")
    assert engine.requests == []
    reply = post(engine, "/completion", json={"prompt": ["", "a"]})
    assert [c["content"] for c in reply.json()] == ["", "Hello world"]


def test_form_fields_become_a_json_object() -> None:
    engine = FakeEngine(says("a"))
    files = [("prompt", (None, "abc")), ("stop", (None, "x")), ("stop", (None, "y"))]
    reply = post(engine, "/completion", files=[*files, ("file", ("f.bin", b"\x00", "x/y"))])
    assert reply.status_code == 200
    assert engine.requests[0].stop == ("x", "y")
    assert np.frombuffer(engine.requests[0].prompt, "<i4").tolist() == list(b"abc")


@pytest.mark.parametrize(
    ("content", "content_type"),
    [(b"--x\r\n", "multipart/form-data; boundary=y"), (b"", "multipart/form-data")],
)
def test_a_broken_form_is_refused(content: bytes, content_type: str) -> None:
    headers = {"content-type": content_type}
    reply = post(FakeEngine(), "/completion", content=content, headers=headers)
    assert reply.status_code in (400, 200) and reply.json()["error"]["code"] == 400


def test_a_large_body_is_parsed_beside_the_event_loop() -> None:
    async def body() -> None:
        service = fake_service(FakeEngine(says("a")))
        beside: list[Any] = []
        original = service.beside

        async def spy(function: Any, *args: Any) -> Any:
            beside.append(function)
            return await original(function, *args)

        service.beside = spy  # type: ignore[method-assign]
        async with serving(service) as client:
            await client.post("/tokenize", json={"content": "a" * 100})
            assert beside == []
            reply = await client.post("/tokenize", json={"content": "a" * 100_000})
            assert len(reply.json()["tokens"]) == 100_000
            assert len(beside) == 1

    run(body())


def test_many_requests_at_once_all_get_their_own_answer() -> None:
    def script(request: Submit) -> list[Step]:
        rid = request.request_id
        text = bytes(np.frombuffer(request.prompt, "<i4").astype(np.uint8)).decode()
        return [0.05, token(rid, text, 1), done(rid, 1)]

    async def body() -> None:
        async with serving(fake_service(FakeEngine(script))) as client:
            prompts = [f"p{n}" for n in range(64)]
            replies = await asyncio.gather(
                *(client.post("/completion", json={"prompt": p}) for p in prompts)
            )
            assert [r.json()["content"] for r in replies] == prompts

    run(body())
