"""What bad requests get: llama-server's error form, and nothing reaches the engine."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from strata_plugin.engine.client import EngineGone
from strata_plugin.engine.messages import Submit
from tests.unit.fake_backend import FakeEngine, Step, fake_service, says
from tests.unit.http_server import run, serving, until


def error_of(reply: Any) -> dict[str, Any]:
    assert reply.headers["content-type"] == "application/json; charset=utf-8"
    error: dict[str, Any] = reply.json()["error"]
    assert error["code"] == reply.status_code
    return error


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_fills_the_context_is_refused_before_it_is_queued(stream: bool) -> None:
    async def body() -> None:
        engine = FakeEngine()
        async with serving(fake_service(engine)) as client:
            request = {"prompt": "x" * 64, "stream": stream}
            error = error_of(await client.post("/completion", json=request))
            assert error["code"] == 400
            assert error["type"] == "exceed_context_size_error"
            assert (error["n_prompt_tokens"], error["n_ctx"]) == (64, 64)
            assert error["message"].startswith(
                "request (64 tokens) exceeds the available context size (64 tokens), "
                "try increasing it"
            )
            assert "maximum context length is 64 tokens" in error["message"]
            assert engine.requests == []
            fits = await client.post("/completion", json={"prompt": "x" * 63})
            assert fits.status_code == 200

    run(body())


def test_max_prompt_tokens_bounds_prompts() -> None:
    async def body() -> None:
        engine = FakeEngine()
        async with serving(fake_service(engine, max_prompt_tokens=10)) as client:
            error = error_of(await client.post("/completion", json={"prompt": "x" * 11}))
            assert error["type"] == "exceed_context_size_error"
            assert "--max-prompt-tokens" in error["message"]
            assert engine.requests == []
            assert (await client.post("/completion", json={"prompt": "x" * 10})).is_success

    run(body())


def test_one_long_prompt_of_several_refuses_them_all() -> None:
    async def body() -> None:
        engine = FakeEngine()
        async with serving(fake_service(engine)) as client:
            reply = await client.post("/completion", json={"prompt": ["ok", "x" * 100]})
            assert error_of(reply)["type"] == "exceed_context_size_error"
            assert engine.requests == []

    run(body())


def test_token_ids_outside_the_vocabulary_are_refused() -> None:
    async def body() -> None:
        engine = FakeEngine()
        async with serving(fake_service(engine)) as client:
            for ids in ([1, 256], [-1]):
                error = error_of(await client.post("/completion", json={"prompt": ids}))
                assert error["message"] == "Prompt contains invalid tokens"
                assert error["type"] == "invalid_request_error"
            assert engine.requests == []

    run(body())


def test_malformed_json_is_the_client_s_fault() -> None:
    """llama-server answers 500, on which clients try again."""

    async def body() -> None:
        async with serving(fake_service(FakeEngine())) as client:
            for path in ("/completion", "/v1/chat/completions", "/tokenize"):
                error = error_of(await client.post(path, content=b'{"prompt'))
                assert error["code"] == 400
                assert error["type"] == "invalid_request_error"
                assert "json.exception.parse_error" in error["message"]

    run(body())


def test_what_the_native_parser_refuses_is_told_as_it_says() -> None:
    async def body() -> None:
        async with serving(fake_service(FakeEngine())) as client:
            error = error_of(await client.post("/v1/chat/completions", json={}))
            assert error == {
                "code": 400,
                "message": "'messages' is required",
                "type": "invalid_request_error",
            }

    run(body())


def test_unknown_paths_and_wrong_methods_are_not_found() -> None:
    async def body() -> None:
        async with serving(fake_service(FakeEngine())) as client:
            for method, path in (
                ("GET", "/nope"),
                ("GET", "/completion"),
                ("POST", "/health"),
                ("DELETE", "/v1/models"),
                ("GET", "/health/"),
                ("GET", "/docs"),
            ):
                error = error_of(await client.request(method, path))
                assert error == {
                    "code": 404,
                    "message": "File Not Found",
                    "type": "not_found_error",
                }

    run(body())


def test_routes_that_we_do_not_have_yet_say_so() -> None:
    async def body() -> None:
        async with serving(fake_service(FakeEngine())) as client:
            error = error_of(await client.post("/v1/audio/transcriptions", json={}))
            assert error == {
                "code": 501,
                "message": "POST /v1/audio/transcriptions: known llama-server route, not "
                "available in strata yet",
                "type": "not_supported_error",
            }
            reply = await client.get("/tools")
            assert (reply.status_code, reply.json()) == (
                403,
                {"error": {"message": "this feature is disabled", "type": "feature_disabled"}},
            )

    run(body())


def test_everything_but_the_page_says_that_the_model_is_loading() -> None:
    async def body() -> None:
        engine = FakeEngine()
        engine.ready = None
        async with serving(fake_service(engine, loaded=False)) as client:
            for method, path in (
                ("GET", "/health"),
                ("GET", "/v1/models"),
                ("POST", "/v1/chat/completions"),
                ("GET", "/nope"),
            ):
                error = error_of(await client.request(method, path))
                assert error == {
                    "code": 503,
                    "message": "Loading model",
                    "type": "unavailable_error",
                }
            assert (await client.get("/")).status_code == 200
            assert (await client.options("/health")).status_code == 200

    run(body())


def test_an_engine_that_is_gone_is_unavailable() -> None:
    class Gone(FakeEngine):
        def submit(self, request: Any) -> Any:
            raise EngineGone("the engine process has ended unexpectedly")

        async def slots(self) -> Any:
            raise EngineGone("the engine process has ended unexpectedly")

    async def body() -> None:
        async with serving(fake_service(Gone())) as client:
            for reply in (
                await client.post("/completion", json={"prompt": "a"}),
                await client.get("/slots"),
            ):
                error = error_of(reply)
                assert error["code"] == 503
                assert error["message"] == "the engine process has ended unexpectedly"

    run(body())


def test_a_body_beyond_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata_server.bodies.MAX_BYTES", 1000)

    async def body() -> None:
        async with serving(fake_service(FakeEngine())) as client:
            reply = await client.post("/completion", content=b"x" * 2000)
            assert error_of(reply)["code"] == 413

    run(body())


def test_our_own_faults_are_500_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(FakeEngine):
        async def slots(self) -> Any:
            raise KeyError("oops")

    async def body() -> None:
        async with serving(fake_service(Broken())) as client:
            error = error_of(await client.get("/slots"))
            assert error == {
                "code": 500,
                "message": "Internal server error",
                "type": "server_error",
            }

    with caplog.at_level(logging.ERROR):
        run(body())
    assert "oops" in caplog.text


def test_the_log_has_a_line_per_stage_and_no_prompt(caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        async with serving(fake_service(FakeEngine())) as client:
            headers = {"X-Request-Id": "abc"}
            await client.post("/completion", json={"prompt": "very secret"}, headers=headers)

    with caplog.at_level(logging.DEBUG):
        run(body())
    lines = [r.getMessage() for r in caplog.records if r.name == "strata.requests"]
    assert len(lines) == 3
    assert lines[0] == "request abc: reading, 0 prompt tokens cached"
    assert lines[1].startswith("request abc: writing, first token after ")
    assert lines[2].startswith(
        "request abc: done, native, prompt 11 tokens (0 cached), generated 2"
    )
    assert "secret" not in caplog.text and "world" not in caplog.text


def test_a_server_that_is_stopped_refuses_newcomers_and_lets_the_others_end() -> None:
    more = asyncio.Event()

    def script(request: Submit) -> list[Step]:
        first, *rest = says("a", "b")(request)
        return [first, more, *rest]

    async def body() -> None:
        service = fake_service(FakeEngine(script))
        async with serving(service) as client:
            old = asyncio.ensure_future(client.post("/completion", json={"prompt": "abc"}))
            await until(lambda: bool(service.live))
            draining = asyncio.ensure_future(service.drain(10))
            await asyncio.sleep(0)
            late = await client.post("/completion", json={"prompt": "abc"})
            assert late.status_code == 503 and "shutting down" in late.text
            assert not draining.done()
            more.set()
            assert (await old).json()["content"] == "ab"
            await draining

    run(body())
