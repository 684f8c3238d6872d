"""Health, models, properties, slots, metrics; keys and cross-origin headers."""

from __future__ import annotations

import re
from typing import Any

import pytest

from strata_server.app import create_api
from strata_server.flags import parse
from strata_server.settings import ServerSettings
from tests.unit.fake_backend import FakeEngine, fake_service
from tests.unit.http_server import run, serving


def get(path: str, headers: Any = None, engine: FakeEngine | None = None, **settings: Any) -> Any:
    replies: list[Any] = []

    async def body() -> None:
        async with serving(fake_service(engine or FakeEngine(), **settings)) as client:
            replies.append(await client.get(path, headers=headers))

    run(body())
    return replies[0]


def test_health_is_open_and_names_the_server_as_llama_server_does() -> None:
    for path in ("/health", "/v1/health"):
        reply = get(path, api_keys=("k",))
        assert (reply.status_code, reply.json()) == (200, {"status": "ok"})
        assert reply.headers["server"] == "llama.cpp"


def test_head_is_get_without_a_body() -> None:
    async def body() -> None:
        async with serving(fake_service(FakeEngine())) as client:
            reply = await client.head("/health")
            assert (reply.status_code, reply.content) == (200, b"")
            assert (await client.get("/health")).json() == {"status": "ok"}

    run(body())


def test_models_are_listed_for_both_kinds_of_clients() -> None:
    reply = get("/v1/models", aliases=("fake", "other"), tags=("t",)).json()
    model = reply["data"][0]
    assert reply["object"] == "list"
    assert reply["models"][0]["name"] == model["id"] == "fake"
    assert (model["aliases"], model["tags"]) == (["fake", "other"], ["t"])
    assert model["meta"] == {
        "vocab_type": 2,
        "n_vocab": 256,
        "n_ctx": 64,
        "n_ctx_train": 64,
        "n_embd": 8,
        "n_params": 1000,
        "size": 4000,
        "ftype": "Q4_1",
    }


def test_properties() -> None:
    reply = get("/props", endpoint_metrics=True).json()
    assert reply["default_generation_settings"] == {"params": {"top_k": 40}, "n_ctx": 64}
    assert reply["total_slots"] == 4
    assert reply["endpoint_metrics"] is True
    assert reply["chat_template"] == "{{x}}"
    assert reply["modalities"] == {"vision": False, "video": False, "audio": False}
    assert "strata" in reply
    assert reply["ui_settings"] == {}
    assert get("/props", ui_settings={"theme": "dark"}).json()["ui_settings"] == {"theme": "dark"}
    assert "chat_template_tool_use" not in reply


def test_properties_are_changed_only_where_allowed() -> None:
    async def body() -> None:
        async with serving(fake_service(FakeEngine())) as client:
            reply = await client.post("/props", json={})
            assert reply.status_code == 501
            assert "Start it with `--props`" in reply.json()["error"]["message"]
        async with serving(fake_service(FakeEngine(), endpoint_props=True)) as client:
            assert (await client.post("/props", json={})).json() == {"success": True}

    run(body())


def test_slots() -> None:
    engine = FakeEngine()
    assert [s["id"] for s in get("/slots", engine=engine).json()] == [0, 1, 2, 3]
    engine.busy_slots = 3
    assert get("/slots?fail_on_no_slot=1", engine=engine).status_code == 200
    engine.busy_slots = 4
    reply = get("/slots?fail_on_no_slot=1", engine=engine)
    assert reply.status_code == 503
    assert reply.json()["error"]["message"] == "no slot available"
    assert get("/slots", engine=engine).status_code == 200
    assert get("/slots", endpoint_slots=False).status_code == 501


def test_metrics_are_prometheus_text() -> None:
    assert get("/metrics").status_code == 501
    reply = get("/metrics", endpoint_metrics=True)
    assert reply.headers["content-type"] == "text/plain; version=0.0.4"
    assert int(reply.headers["process-start-time-unix"]) > 1_500_000_000
    samples = dict(re.findall(r"^([a-z]+:\w+) (\S+)$", reply.text, re.MULTILINE))
    assert samples["llamacpp:prompt_tokens_total"] == "7"
    assert samples["llamacpp:predicted_tokens_seconds"] == "1.5"
    assert samples["llamacpp:requests_deferred"] == "0"
    assert samples["strata:parked_bytes"] == "3"
    for name in samples:
        assert f"# TYPE {name} " in reply.text
        assert f"# HELP {name} " in reply.text


def test_who_only_peeks_at_the_metrics_leaves_the_averages_to_who_scrapes() -> None:
    resets: list[bool] = []

    class Scraped(FakeEngine):
        async def metrics(self, reset_bucket: bool) -> dict[str, float]:
            resets.append(reset_bucket)
            return await super().metrics(reset_bucket)

    for path in ("/metrics", "/metrics?peek=1", "/metrics?peek=0"):
        assert get(path, engine=Scraped(), endpoint_metrics=True).status_code == 200
    assert resets == [True, False, True]


def test_tokens_and_templates() -> None:
    async def body() -> None:
        async with serving(fake_service(FakeEngine())) as client:
            tokens = (await client.post("/tokenize", json={"content": "ab"})).json()
            assert tokens == {"tokens": [97, 98]}
            assert (await client.post("/detokenize", json=tokens)).json() == {"content": "ab"}
            chat = {"messages": [{"role": "user", "content": "hi"}]}
            assert (await client.post("/apply-template", json=chat)).json() == {"prompt": "hi"}

    run(body())


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer one"}, 200),
        ({"Authorization": "Bearer two"}, 200),
        ({"Authorization": "one"}, 200),
        ({"X-Api-Key": "one"}, 200),
        ({"X-Api-Key": "Bearer one"}, 200),
        ({"Authorization": "Bearer three"}, 401),
        ({"Authorization": "Bearer three", "X-Api-Key": "one"}, 401),
        ({"Authorization": "Bearer on"}, 401),
        ({"Authorization": "Basic one"}, 401),
    ],
)
def test_keys(headers: dict[str, str], status: int) -> None:
    reply = get("/v1/models", headers, api_keys=("one", "two"))
    assert reply.status_code == status
    if status == 401:
        assert reply.json() == {
            "error": {"code": 401, "message": "Invalid API Key", "type": "authentication_error"}
        }


def test_keys_guard_all_but_health_and_the_page() -> None:
    for path in ("/props", "/slots", "/queue", "/metrics", "/openapi.json", "/nope"):
        assert get(path, api_keys=("k",)).status_code == 401, path
    for path in ("/", "/index.html", "/health"):
        assert get(path, api_keys=("k",)).status_code == 200, path


@pytest.mark.parametrize(
    ("settings", "origin", "allowed"),
    [
        ({}, "http://localhost:3000", "http://localhost:3000"),
        ({}, "https://127.0.0.1", "https://127.0.0.1"),
        ({}, "http://a.b", None),
        ({}, "null", None),
        ({}, "", None),
        ({"cors_origins": "*"}, "http://a.b", "http://a.b"),
        ({"cors_origins": "*"}, "", None),
        ({"cors_origins": "*", "cors_credentials": False}, "http://a.b", "*"),
        ({"cors_origins": "localhost"}, "http://localhost:3000", "http://localhost:3000"),
        ({"cors_origins": "localhost"}, "http://127.0.0.1", "http://127.0.0.1"),
        ({"cors_origins": "localhost"}, "http://[::1]:80", "http://[::1]:80"),
        ({"cors_origins": "localhost"}, "http://localhost.evil.com", None),
        ({"cors_origins": "localhost"}, "http://evil.com", None),
        ({"cors_origins": "http://a.b, http://c.d"}, "http://c.d", "http://c.d"),
        ({"cors_origins": "http://a.b"}, "http://e.f", None),
    ],
)
def test_origins(settings: dict[str, Any], origin: str, allowed: str | None) -> None:
    reply = get("/health", {"Origin": origin} if origin else None, **settings)
    assert reply.headers.get("access-control-allow-origin") == allowed
    exposed = "X-Request-Id, X-Queue-Position, X-Predicted-TTFT-Ms, Retry-After"
    assert reply.headers.get("access-control-expose-headers") == (exposed if allowed else None)


def test_pages_of_other_machines_are_kept_out_unless_the_server_is_told_otherwise() -> None:
    assert parse([], {})["cors_origins"] == ServerSettings().cors_origins == "localhost"

    async def body() -> None:
        async with serving(fake_service(FakeEngine())) as client:
            reply = await client.options("/v1/models", headers={"Origin": "http://evil.com"})
            assert "access-control-allow-origin" not in reply.headers

    run(body())


def test_options_is_answered_before_keys_and_readiness() -> None:
    async def body() -> None:
        service = fake_service(FakeEngine(), loaded=False, api_keys=("k",))
        async with serving(service) as client:
            reply = await client.options("/v1/chat/completions", headers={"Origin": "http://a.b"})
            assert (reply.status_code, reply.content) == (200, b"")
            assert reply.headers["access-control-allow-methods"] == "GET, POST, DELETE, OPTIONS"
            assert reply.headers["access-control-allow-headers"] == "*"
            assert reply.headers["access-control-allow-credentials"] == "true"

    run(body())


def test_a_prefix_moves_every_route() -> None:
    async def body() -> None:
        service = fake_service(FakeEngine(), api_prefix="/llm", api_keys=("k",))
        async with serving(service) as client:
            assert (await client.get("/llm/health")).status_code == 200
            assert (await client.get("/llm/")).status_code == 200
            assert (await client.get("/llm/v1/models")).status_code == 401
            key = {"Authorization": "Bearer k"}
            assert (await client.get("/llm/v1/models", headers=key)).status_code == 200
            assert (await client.get("/v1/models", headers=key)).status_code == 404

    run(body())


ROUTES = """
/health /v1/health /v1/models /models /props /slots /slots/{id_slot} /queue /cache
/cache/explain/{request_id} /metrics /lora-adapters
/completion /completions /infill /tokenize /detokenize /apply-template
/v1/completions /v1/chat/completions /chat/completions
/v1/chat/completions/input_tokens /chat/completions/input_tokens
/v1/responses /responses /v1/responses/input_tokens /responses/input_tokens
/v1/messages /v1/messages/count_tokens
/v1/embeddings /embeddings /embedding /v1/rerank /v1/reranking /rerank /reranking
/v1/stream /v1/streams/lookup
"""


def test_the_openapi_document_names_every_route_and_its_body() -> None:
    document = create_api(fake_service(FakeEngine())).openapi()
    assert set(document["paths"]) == set(ROUTES.split())
    body = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]
    assert body["content"]["application/json"]["schema"]["required"] == ["messages"]


def test_a_request_is_explained_to_who_sent_it_only() -> None:
    async def body() -> None:
        service = fake_service(FakeEngine(), api_keys=("one", "two"))
        async with serving(service) as client:
            one, two = ({"Authorization": f"Bearer {key}"} for key in ("one", "two"))
            named = {**one, "X-Request-Id": "mine/a b"}
            await client.post("/completion", json={"prompt": "abc"}, headers=named)
            path = "/cache/explain/mine%2Fa%20b"
            assert (await client.get(path, headers=one)).json()["id"] == "mine/a b"
            other = await client.get(path, headers=two)
            assert other.status_code == 404
            assert other.json()["error"]["type"] == "not_found_error"
            assert (await client.get("/cache", headers=two)).json()["hints"] == ["key-2"]

    run(body())
