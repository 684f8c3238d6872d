"""The Responses and Messages APIs over HTTP: streams, errors in each API's form, what reaches the
native library.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from strata_plugin.engine.messages import Failed, Started, StopReason, Submit
from tests.unit.chat_writer import read_events
from tests.unit.fake_backend import FakeEngine, Step, done, fake_service, says, token
from tests.unit.http_server import run, serving

TOO_LONG = "x" * 70  # the fake context has 64 tokens, one for each byte
REQUESTS: dict[str, Any] = {
    "/v1/messages": {"messages": [{"role": "user", "content": "hello"}]},
    "/v1/responses": {"input": "hello"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}]},
}
PATHS = tuple(REQUESTS)
DIALECTS = PATHS[:2]


def post(path: str, request: Any, engine: FakeEngine | None = None, **settings: Any) -> Any:
    replies: list[Any] = []

    async def body() -> None:
        headers = settings.pop("headers", None)
        loaded = settings.pop("loaded", True)
        service = fake_service(engine or FakeEngine(), loaded, **settings)
        async with serving(service) as client:
            replies.append(await client.post(path, json=request, headers=headers))

    run(body())
    return replies[0]


def too_long(path: str, **more: Any) -> Any:
    text = {"input": TOO_LONG} if path == "/v1/responses" else {}
    messages = {} if text else {"messages": [{"role": "user", "content": TOO_LONG}]}
    return {**text, **messages, **more}


# ---- answers -------------------------------------------------------------------------------------


def test_a_message() -> None:
    reply = post("/v1/messages?beta=true", REQUESTS["/v1/messages"])
    assert reply.headers["content-type"] == "application/json; charset=utf-8"
    assert reply.json()["content"] == [{"type": "text", "text": "Hello world"}]
    assert reply.json()["model"] == "fake"


def test_a_response() -> None:
    for path in ("/v1/responses", "/responses"):
        reply = post(path, REQUESTS["/v1/responses"])
        assert reply.json()["output"][0]["content"][0]["text"] == "Hello world"


@pytest.mark.parametrize("path", DIALECTS)
def test_a_stream_ends_with_its_last_event(path: str) -> None:
    reply = post(path, {**REQUESTS[path], "stream": True})
    assert reply.headers["content-type"] == "text/event-stream"
    assert "[DONE]" not in reply.text
    events = read_events(reply.content)
    text = "".join(
        e["delta"] if isinstance(e["delta"], str) else e["delta"].get("text", "")
        for e in events
        if "delta" in e
    )
    assert text == "Hello world"
    assert events[-1]["type"] in ("message_stop", "response.completed")


def test_what_was_cached_is_told_from_the_first_event_on() -> None:
    def script(request: Submit) -> list[Step]:
        rid = request.request_id
        return [Started(rid, 0, 3), token(rid, "a", 1), done(rid, 1)]

    request = {**REQUESTS["/v1/messages"], "stream": True}
    events = read_events(post("/v1/messages", request, FakeEngine(script)).content)
    usage = events[0]["message"]["usage"]
    assert (usage["cache_read_input_tokens"], usage["input_tokens"]) == (3, 2)


def test_the_limit_of_tokens_ends_each_in_its_way() -> None:
    engine = FakeEngine(says("a", stop=StopReason.LIMIT))
    assert post("/v1/messages", REQUESTS["/v1/messages"], engine).json()["stop_reason"] == (
        "max_tokens"
    )
    engine = FakeEngine(says("a", stop=StopReason.LIMIT))
    response = post("/v1/responses", REQUESTS["/v1/responses"], engine).json()
    assert response["status"] == "incomplete"


@pytest.mark.parametrize(
    ("path", "ping"),
    [("/v1/messages", 'event: ping\ndata: {"type":"ping"}\n\n'), ("/v1/responses", ":\n\n")],
)
def test_a_silent_stream_gets_pings(path: str, ping: str) -> None:
    def script(request: Submit) -> list[Step]:
        started, *rest = says("a")(request)
        return [started, 0.35, *rest]

    engine = FakeEngine(script)
    request = {**REQUESTS[path], "stream": True, "sse_ping_interval": 0.1}
    text = post(path, request, engine).text
    assert text.count(ping) >= 2
    assert text.index("event: ") < text.index(ping) < text.rindex("event: ")


def test_requests_reach_the_native_library_as_chat() -> None:
    async def body() -> None:
        engine = FakeEngine()
        service = fake_service(engine)
        async with serving(service) as client:
            request = {"messages": [{"role": "user", "content": "a"}], "stop_sequences": ["x"]}
            await client.post("/v1/messages", json={**request, "priority": -2, "max_tokens": 9})
            await client.post("/v1/responses", json={"input": "b", "max_output_tokens": 8})
        first, second = service.frontend.bodies  # type: ignore[attr-defined]
        assert first == {
            "messages": [{"role": "user", "content": "a"}],
            "max_tokens": 9,
            "stop": ["x"],
        }
        assert second == {"messages": [{"role": "user", "content": "b"}], "max_tokens": 8}
        assert [r.dialect for r in engine.requests] == ["anthropic", "openai-responses"]
        assert [r.priority for r in engine.requests] == [-2, 0]

    run(body())


def test_the_stamp_of_a_client_stays_with_no_cache_normalise() -> None:
    stamped = "x-anthropic-billing-header: cch=a5145;"
    request = {"system": stamped, "messages": [{"role": "user", "content": "a"}]}

    async def body(normalise: bool, shown: str) -> None:
        service = fake_service(FakeEngine(), normalise=normalise)
        async with serving(service) as client:
            assert (await client.post("/v1/messages", json=request)).is_success
        system = service.frontend.bodies[-1]["messages"][0]  # type: ignore[attr-defined]
        assert system["content"] == shown

    run(body(True, "x-anthropic-billing-header: cch=fffff;"))
    run(body(False, stamped))


@pytest.mark.parametrize(
    ("path", "request_", "wanted"),
    [
        ("/v1/messages/count_tokens", REQUESTS["/v1/messages"], {"input_tokens": 5}),
        (
            "/v1/responses/input_tokens",
            {"input": "hello", "instructions": "abc"},
            {"input_tokens": 8, "object": "response.input_tokens"},
        ),
        (
            "/v1/chat/completions/input_tokens",
            REQUESTS["/v1/messages"],
            {"input_tokens": 5, "object": "response.input_tokens"},
        ),
    ],
)
def test_tokens_are_counted_without_an_answer(path: str, request_: Any, wanted: Any) -> None:
    engine = FakeEngine()
    assert post(path, request_, engine).json() == wanted
    assert engine.requests == []
    assert post(path, too_long(path.removesuffix("/input_tokens"))).json()["input_tokens"] == 70


# ---- errors --------------------------------------------------------------------------------------


def anthropic_error(reply: Any, kind: str) -> Any:
    assert reply.headers["content-type"] == "application/json; charset=utf-8"
    value = reply.json()
    assert value.keys() == {"type", "error"} and value["type"] == "error"
    assert (value["error"]["type"], value["error"]["code"]) == (kind, reply.status_code)
    return value["error"]


def test_errors_before_a_message_are_in_anthropic_s_form() -> None:
    good = REQUESTS["/v1/messages"]
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        reply = post(path, good, api_keys=("k",))
        assert reply.status_code == 401
        assert anthropic_error(reply, "authentication_error")["message"] == "Invalid API Key"
        assert post(path, good, api_keys=("k",), headers={"X-Api-Key": "k"}).is_success
        reply = post(path, good, loaded=False)
        assert reply.status_code == 503
        assert anthropic_error(reply, "overloaded_error")["message"] == "Loading model"
        reply = post(path, {"messages": [{}]})
        assert reply.status_code == 400
        error = anthropic_error(reply, "invalid_request_error")
        assert error["message"] == "messages[0].role: is required"
    reply = post("/v1/messages", good, embeddings=True)
    assert (reply.status_code, anthropic_error(reply, "api_error")["code"]) == (501, 501)

    async def body() -> None:
        async with serving(fake_service(FakeEngine())) as client:
            reply = await client.get("/v1/messages")
            assert reply.status_code == 404
            anthropic_error(reply, "not_found_error")
            reply = await client.post("/v1/messages", content=b"{")
            assert "not JSON" in anthropic_error(reply, "invalid_request_error")["message"]
            reply = await client.post("/v1/messages", content=b"[]")
            anthropic_error(reply, "invalid_request_error")

    run(body())


def test_a_body_beyond_the_limit_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata_server.bodies.MAX_BYTES", 30)
    reply = post("/v1/messages", REQUESTS["/v1/messages"])
    assert reply.status_code == 413
    anthropic_error(reply, "request_too_large")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_a_prompt_that_is_too_long_is_told_in_words_that_each_client_knows(
    path: str, stream: bool
) -> None:
    reply = post(path, too_long(path, stream=stream))
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert "exceeds the available context size" in error["message"]
    assert "maximum context length is 64 tokens" in error["message"]
    assert (error["n_prompt_tokens"], error["n_ctx"]) == (70, 64)
    if path == "/v1/messages":
        anthropic_error(reply, "invalid_request_error")
        assert error["message"].startswith("prompt is too long: 70 tokens > 64 maximum")
    else:
        assert error["type"] == "exceed_context_size_error"
        assert (error["code"], error["param"]) == ("context_length_exceeded", None)


def test_the_prompt_limit_is_told_alike() -> None:
    reply = post("/v1/messages", REQUESTS["/v1/messages"], max_prompt_tokens=3)
    message = anthropic_error(reply, "invalid_request_error")["message"]
    assert message.startswith("prompt is too long: 5 tokens > 3 maximum")
    reply = post("/v1/responses", REQUESTS["/v1/responses"], max_prompt_tokens=3)
    assert reply.json()["error"]["code"] == "context_length_exceeded"


def failing(request: Submit) -> list[Step]:
    rid = request.request_id
    failure = Failed(rid, 503, "unavailable_error", "gone")
    return [Started(rid, 0, 0), token(rid, "a", 1), 0.05, failure]


def test_a_stream_that_fails_ends_with_an_error_event_of_its_dialect() -> None:
    def stream(path: str) -> str:
        text: str = post(path, {**REQUESTS[path], "stream": True}, FakeEngine(failing)).text
        return text

    events = read_events(stream("/v1/messages").encode())
    error = {"code": 503, "message": "gone", "type": "overloaded_error"}
    assert events[-1] == {"type": "error", "error": error}
    assert [e["type"] for e in events[:2]] == ["message_start", "content_block_start"]
    events = read_events(stream("/v1/responses").encode())
    assert [event["type"] for event in events[-2:]] == ["response.failed", "error"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-2]["response"]["output"][0]["content"][0]["text"] == "a"
    last = stream("/v1/chat/completions").strip().split("\n\n")[-1]
    assert json.loads(last.removeprefix("data: ")) == {
        "error": {"code": 503, "message": "gone", "type": "unavailable_error"}
    }


def test_a_whole_reply_that_fails_is_an_error_of_its_dialect() -> None:
    reply = post("/v1/messages", REQUESTS["/v1/messages"], FakeEngine(failing))
    assert reply.status_code == 503
    assert anthropic_error(reply, "overloaded_error")["message"] == "gone"
    reply = post("/v1/responses", REQUESTS["/v1/responses"], FakeEngine(failing))
    assert (reply.status_code, reply.json()["error"]["type"]) == (503, "unavailable_error")


def test_a_request_for_several_choices_is_refused() -> None:
    reply = post("/v1/responses", {"input": "a", "n": 2})
    assert reply.status_code == 400
    assert "'n' is not supported" in reply.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/responses", "/responses"])
def test_a_web_socket_is_refused_in_the_way_that_makes_clients_use_post(path: str) -> None:
    async def body() -> None:
        async with serving(fake_service(FakeEngine())) as client:
            port = client.base_url.port
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(
                f"GET {path} HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGVzdA==\r\n\r\n".encode()
            )
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
            assert head.startswith(b"HTTP/1.1 426 ")
            writer.close()
            reply = await client.get(path)
            assert (reply.status_code, reply.json()["error"]["type"]) == (404, "not_found_error")
            assert (await client.post(path, json={"input": "a"})).is_success

    run(body())
