"""Fields of ours in requests, and what the engine hears about where requests come from."""

from __future__ import annotations

from typing import Any

import pytest

from strata_plugin.engine.messages import Submit
from strata_server.auth import KeyRing
from strata_server.caller import client_name
from strata_server.errors import ApiError
from strata_server.own_fields import FIELDS, OwnFields, mentions_own_fields, read_own_fields
from strata_server.settings import PriorityLimits
from tests.unit.fake_backend import FakeEngine, fake_service, says
from tests.unit.http_server import run, serving

CHAT = {"messages": [{"role": "user", "content": "abc"}]}
ROUTES = (
    ("/completion", {"prompt": "abc"}, "native"),
    ("/v1/completions", {"prompt": "abc"}, "openai-completion"),
    ("/v1/chat/completions", CHAT, "openai-chat"),
)


def post(path: str, request: Any, headers: Any = None, **settings: Any) -> tuple[Any, list[Submit]]:
    """The reply, and what reached the engine."""
    engine = FakeEngine(says("a"))
    replies: list[Any] = []

    async def body() -> None:
        async with serving(fake_service(engine, **settings)) as client:
            content = {"content": request} if isinstance(request, bytes) else {"json": request}
            replies.append(await client.post(path, headers=headers, **content))

    run(body())
    return replies[0], engine.requests


@pytest.mark.parametrize(("path", "request_", "dialect"), ROUTES)
def test_all_dialects_have_the_fields(path: str, request_: Any, dialect: str) -> None:
    wanted = {**request_, "priority": 3, "itl_slo_ms": 75.5, "n": 2, "stream": True}
    reply, submitted = post(path, wanted, max_priority=PriorityLimits(3))
    assert reply.status_code == 200
    assert [(r.priority, r.itl_slo_ms, r.dialect) for r in submitted] == [(3, 75.5, dialect)] * 2


def test_without_the_fields_the_server_decides() -> None:
    _, submitted = post("/completion", {"prompt": "abc", "priority": None, "itl_slo_ms": None})
    assert (submitted[0].priority, submitted[0].itl_slo_ms) == (0, 0.0)


def test_low_priorities_are_always_allowed_and_high_ones_as_the_flag_says() -> None:
    _, submitted = post("/completion", {"prompt": "a", "priority": -7})
    assert submitted[0].priority == -7
    reply, submitted = post("/completion", {"prompt": "a", "priority": 1})
    assert submitted == []
    assert reply.json()["error"] == {
        "code": 400,
        "message": "priority: 1 is above the highest that this server allows to this client "
        "(0, --max-priority)",
        "type": "invalid_request_error",
    }


def test_a_key_may_have_a_limit_of_its_own() -> None:
    limits = PriorityLimits(0, {"key-2": 5})
    for key, status in (("a", 400), ("b", 200)):
        reply, submitted = post(
            "/completion",
            {"prompt": "a", "priority": 5},
            {"Authorization": f"Bearer {key}"},
            api_keys=("a", "b"),
            max_priority=limits,
        )
        assert (reply.status_code, [r.priority for r in submitted]) == (status, [5] * (key == "b"))


@pytest.mark.parametrize("stream", ["true", "false"])
@pytest.mark.parametrize(
    "field",
    [
        '"priority": "abc"',
        '"priority": "1"',
        '"priority": 1.5',
        '"priority": true',
        '"priority": [1]',
        '"priority": {}',
        '"priority": -99999999999',
        '"priority": 1e999',
        '"priority": ' + "9" * 400,
        '"cache_salt": 7',
        '"cache_salt": ["a"]',
        '"cache_salt": "' + "x" * 1025 + '"',
        '"itl_slo_ms": 0',
        '"itl_slo_ms": -1',
        '"itl_slo_ms": "fast"',
        '"itl_slo_ms": true',
        '"itl_slo_ms": NaN',
        '"itl_slo_ms": Infinity',
        '"itl_slo_ms": 1e999',
        '"itl_slo_ms": ' + "9" * 400,
    ],
)
def test_values_that_cannot_be_used_are_refused_before_anything_is_queued(
    field: str, stream: str
) -> None:
    content = b'{"prompt": "abc", "stream": %s, %s}' % (stream.encode(), field.encode())
    reply, submitted = post("/completion", content, max_priority=PriorityLimits(9))
    error = reply.json()["error"]
    assert (reply.status_code, error["type"]) == (400, "invalid_request_error")
    assert any(name in error["message"] for name in FIELDS)
    assert submitted == []


def test_only_fields_of_the_request_itself_count() -> None:
    body = b'{"prompt": "\\"priority\\": 5", "json_schema": {"priority": "abc"}}'
    assert mentions_own_fields(body)
    assert read_own_fields(body, 0) == OwnFields()
    assert not mentions_own_fields(b'{"prompt": "\\"priority\\": 5, \\"itl_slo_ms\\": 1"}')


@pytest.mark.parametrize("body", [b'["priority"]', b'{"priority": ', b'{"a": "priority" "b"}'])
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(ApiError):
        read_own_fields(body, 0)


def test_deep_nesting_is_refused_and_breaks_nothing() -> None:
    with pytest.raises(ApiError):
        read_own_fields(b'{"x": ' + b"[" * 200_000 + b', "priority": 1}', 0)


# ---- where it comes from -------------------------------------------------------------------------


def test_the_engine_hears_which_key_it_was_and_never_the_key() -> None:
    keys = ("first-secret", "second-secret", "first-secret")
    for key, name in (("first-secret", "key-1"), ("second-secret", "key-2")):
        headers = {"Authorization": f"Bearer {key}"}
        _, submitted = post("/completion", {"prompt": "a"}, headers, api_keys=keys)
        assert submitted[0].tenant == name
        assert "secret" not in repr(submitted[0])
    _, submitted = post("/completion", {"prompt": "a"}, {"Authorization": "Bearer x"})
    assert submitted[0].tenant == ""


def test_every_key_is_compared_whichever_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []

    def compare(own: bytes, other: bytes) -> bool:
        compared.append(own)
        return own == other

    ring = KeyRing(["a", "b", "c"])
    monkeypatch.setattr("strata_server.auth.hmac.compare_digest", compare)
    for key, name in ((b"a", "key-1"), (b"c", "key-3"), (b"d", None)):
        compared.clear()
        assert ring.name([(b"x-api-key", key)]) == name
        assert len(compared) == 3


def test_the_engine_hears_which_client_it_was() -> None:
    agent = {"User-Agent": "agent/1.0 " + "x" * 100}
    _, submitted = post("/completion", {"prompt": "a"}, agent)
    where, shown = submitted[0].client.split(" ", 1)
    assert where.startswith("127.0.0.1:") and where.split(":")[1].isdigit()
    assert shown == "agent/1.0 " + "x" * 30


@pytest.mark.parametrize(
    ("client", "agent", "name"),
    [
        (("1.2.3.4", 5), b"a\x00b\x1b[31m\r\nc", "1.2.3.4:5 ab[31mc"),
        (("::1", 5), b"", "[::1]:5"),
        (None, b"curl", "unix curl"),
        (("", 0), b"curl", "unix curl"),
        (("1.2.3.4", 5), b"\xff" * 9, "1.2.3.4:5 " + "ÿ" * 9),
    ],
)
def test_names_of_clients(client: Any, agent: bytes, name: str) -> None:
    scope = {"client": client, "headers": [(b"user-agent", agent)]}
    assert client_name(scope) == name


# ---- who finds what it computed ------------------------------------------------------------------


def salt_of(salt: str | None = None, key: str = "", **settings: Any) -> str:
    headers = {"Authorization": f"Bearer {key}"}
    request = {"prompt": "a", "cache_salt": salt}
    _, submitted = post("/completion", request, headers, **settings)
    return submitted[0].salt


def test_keys_and_salts_keep_what_is_computed_apart() -> None:
    salts = [
        salt_of(salt, key, api_keys=("a", "b")) for key in ("a", "b") for salt in (None, "x", "y")
    ]
    assert len(set(salts)) == 6
    assert salt_of("x", "b", api_keys=("b", "a")) == salts[4]  # in any order of keys
    assert salt_of("", "a", api_keys=("a",)) == salts[0]
    assert not any(secret in salt for salt in salts for secret in ("x", "y"))


def test_shared_caches_are_split_by_salts_only() -> None:
    shared = {"api_keys": ("a", "b"), "cache_shared": True}
    assert salt_of(None, "a", **shared) == salt_of(None, "b", **shared) == ""
    assert salt_of("x", "a", **shared) == salt_of("x", "b", **shared) != ""
    assert salt_of("x", "a", **shared) != salt_of("y", "a", **shared)
