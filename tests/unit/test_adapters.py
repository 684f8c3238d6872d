"""Which LoRA adapters a request is computed with, and the routes and flags about them."""

from __future__ import annotations

import msgspec
import pytest

from strata_plugin.engine.messages import AdapterInfo
from strata_server.adapters import Adapters
from strata_server.errors import ApiError
from strata_server.flags import UsageError, parse
from strata_server.options import lora_scales
from tests.unit.fake_backend import READY, FakeEngine, fake_service
from tests.unit.http_server import run, serving


def test_without_a_wish_the_servers_scales_are_used_and_those_of_zero_are_left_out() -> None:
    adapters = Adapters((1.0, 0.0, 0.5))
    assert adapters.mixture(()) == ((0, 1.0), (2, 0.5))


def test_a_request_that_names_some_gets_no_others() -> None:
    adapters = Adapters((1.0, 0.0, 0.5))
    assert adapters.mixture([{"id": 1, "scale": 2.0}]) == ((1, 2.0),)
    assert adapters.mixture([{"id": 0, "scale": 0.0}]) == ()
    assert adapters.scales == [1.0, 0.0, 0.5]


@pytest.mark.parametrize("number", [-1, 3, "0", None, 1.5])
def test_an_adapter_that_is_not_there_is_refused(number: object) -> None:
    with pytest.raises(ApiError, match="there is no adapter"):
        Adapters((1.0, 0.0, 0.5)).mixture([{"id": number, "scale": 1.0}])


def test_the_route_shows_and_sets_scales_for_requests_to_come() -> None:
    async def body() -> None:
        engine = FakeEngine()
        info = (AdapterInfo("/a.gguf", "sql", "Q: "), AdapterInfo("/b.gguf"))
        engine.ready = msgspec.structs.replace(READY, adapters=info)
        async with serving(fake_service(engine, lora_scales=(1.0, 0.0))) as client:
            shown = (await client.get("/lora-adapters")).json()
            assert shown[0] == {
                "id": 0,
                "path": "/a.gguf",
                "scale": 1.0,
                "task_name": "sql",
                "prompt_prefix": "Q: ",
            }
            await client.post("/completion", json={"prompt": "abc"})
            changed = await client.post("/lora-adapters", json=[{"id": 1, "scale": 0.5}])
            assert changed.json() == {"success": True}
            await client.post("/completion", json={"prompt": "abc"})
            assert [r.lora for r in engine.requests] == [((0, 1.0),), ((1, 0.5),)]
            scales = [a["scale"] for a in (await client.get("/lora-adapters")).json()]
            assert scales == [0.0, 0.5]

    run(body())


@pytest.mark.parametrize(
    "bad", ["{}", "[1]", '[{"id": 0}]', '[{"id": 7, "scale": 1}]', '[{"id": 0, "scale": "x"}]', "["]
)
def test_bad_bodies_change_nothing(bad: str) -> None:
    async def body() -> None:
        service = fake_service(FakeEngine(), lora_scales=(1.0, 0.0))
        async with serving(service) as client:
            reply = await client.post("/lora-adapters", content=bad)
            assert reply.status_code == 400, reply.text
            assert service.adapters.scales == [1.0, 0.0]

    run(body())


def test_flags_give_files_and_scales_in_order() -> None:
    argv = ["--lora", "a.gguf,b.gguf", "--lora-scaled", "c.gguf:0.5,d.gguf:-1"]
    parsed = parse(argv, {})
    assert lora_scales(parsed) == (1.0, 1.0, 0.5, -1.0)
    assert lora_scales(parse([*argv, "--lora-init-without-apply"], {})) == (0.0,) * 4


@pytest.mark.parametrize("bad", ["c.gguf", "c.gguf:", ":1", "c.gguf:x", "c.gguf:inf"])
def test_a_scale_that_is_none_is_refused_at_the_start(bad: str) -> None:
    with pytest.raises(UsageError, match="FNAME:SCALE"):
        parse(["--lora-scaled", bad], {})

