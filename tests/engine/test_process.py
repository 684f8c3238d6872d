"""The engine as a process of its own: requests, cancels, damage, death, and its parent's death."""

from __future__ import annotations

import asyncio
import time

import numpy as np
import psutil
import pytest

from strata_plugin.engine.client import EngineClient, EngineGone, EngineState
from strata_plugin.engine.config import ContextConfig, EngineConfig, ModelConfig
from strata_plugin.engine.messages import Done, Failed, Queued, Started, Submit, Token
from tests.models import tiny_model

from .running import GREEDY


def client_for(path: object, **context: object) -> EngineClient:
    context.setdefault("n_ctx", 1024)
    context.setdefault("n_parallel", 2)
    return EngineClient(
        EngineConfig(
            model=ModelConfig(path=str(path)),
            context=ContextConfig(threads=1, **context),  # type: ignore[arg-type]
            verbosity=0,
        )
    )


def request(client: EngineClient, prompt: list[int], n: int = 5, **kw: object) -> Submit:
    kw.setdefault("sampling", GREEDY)
    data = np.asarray(prompt, "<i4").tobytes()
    return Submit(request_id=client.next_id(), prompt=data, n_predict=n, **kw)  # type: ignore


async def drain(stream) -> list[object]:
    events = []
    while not (events and isinstance(events[-1], Done | Failed)):
        event = await stream.next(10)
        assert event is not None, "nothing came for 10 s"
        events.append(event)
    return events


def run(path, scenario, **context):
    async def main():
        client = client_for(path, **context)
        await client.start()
        try:
            return await scenario(client)
        finally:
            await client.stop()

    return asyncio.run(main())


def test_requests_run_at_once_and_get_their_events_in_order():
    async def scenario(client):
        ready = await client.wait_ready()
        assert ready.n_slots == 2 and ready.n_ctx_slot == 1024
        assert ready.model.memory_class == "llama_kv_cache"
        streams = [client.submit(request(client, [5 + i, 9, 11], 8)) for i in range(5)]
        for events in await asyncio.gather(*map(drain, streams)):
            kinds = [type(e) for e in events if not isinstance(e, Queued)]
            assert isinstance(events[0], Queued) and kinds[0] is Started
            assert isinstance(events[-1], Done)
            assert sum(isinstance(e, Token) for e in events) == 8
        slots = await client.slots()
        assert len(slots) == 2 and not any(s["is_processing"] for s in slots)
        values = await client.metrics()
        assert values["tokens_predicted_total"] == 40

    run(tiny_model("dense"), scenario)


def test_a_sampler_that_can_not_be_built_fails_its_request_alone():
    async def scenario(client):
        await client.wait_ready()
        bad = client.submit(request(client, [5], sampling=b'{"grammar": "root ::= ("}'))
        good = client.submit(request(client, [6]))
        failed = (await drain(bad))[-1]
        assert isinstance(failed, Failed) and failed.code == 400
        assert isinstance((await drain(good))[-1], Done)

    run(tiny_model("dense"), scenario)


def test_a_cancelled_request_frees_its_row():
    async def scenario(client):
        await client.wait_ready()
        long = [client.submit(request(client, [7, i], 900)) for i in range(2)]
        for stream in long:
            await stream.next(10)
        waiting = client.submit(request(client, [8], 3))
        for stream in long:
            stream.cancel()
            stream.cancel()  # twice is harmless
        assert isinstance((await drain(waiting))[-1], Done)
        slots = await client.slots()
        assert not any(s["is_processing"] for s in slots)

    run(tiny_model("dense"), scenario)


def test_a_missing_and_a_damaged_model_are_told_in_one_line(tmp_path):
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(tiny_model("dense").read_bytes()[:5000])
    foreign = tmp_path / "foreign.gguf"
    foreign.write_bytes(b"not a model" * 100)

    async def scenario(client):
        with pytest.raises(EngineGone) as caught:
            await client.wait_ready()
        assert client.state is EngineState.FAILED
        return str(caught.value)

    for path in (tmp_path / "missing.gguf", damaged, foreign, tmp_path):
        message = run(path, scenario)
        assert str(path) in message and "\n" not in message


def test_the_engine_ends_when_nobody_is_left_to_serve():
    client = client_for(tiny_model("dense"))
    client.spawn()
    process = psutil.Process(client.pid)
    client._socket.close()  # as the kernel does when the HTTP process dies
    deadline = time.monotonic() + 10
    while process.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the engine outlived its server"
        time.sleep(0.05)
    assert client._process.wait() == 0


def test_stop_ends_a_running_engine_with_exit_code_0():
    async def scenario(client):
        await client.wait_ready()
        stream = client.submit(request(client, [7], 900))
        await stream.next(10)
        began = time.monotonic()
        await client.stop()
        assert time.monotonic() - began < 3
        assert client._process.returncode == 0

    run(tiny_model("dense"), scenario)


def test_an_explicit_limit_per_request_is_kept():
    async def scenario(client):
        ready = await client.wait_ready()
        assert ready.n_ctx_slot == 64
        stream = client.submit(request(client, [5] * 64))
        failed = (await drain(stream))[-1]
        assert isinstance(failed, Failed) and failed.error_type == "exceed_context_size_error"

    run(tiny_model("dense"), scenario, n_ctx_slot=64)
