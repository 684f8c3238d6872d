"""The engine dies or hangs, and its clients do not notice: the text goes on as it would have."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from strata_plugin.engine import quarantine
from strata_plugin.engine.client import EngineClient, EngineState
from strata_plugin.engine.config import ContextConfig, EngineConfig, ModelConfig, SchedulingConfig
from strata_plugin.engine.messages import Done, Failed, Progress, Started, Submit, Token
from strata_plugin.engine.request_stream import RequestStream
from tests.engine.running import GREEDY
from tests.models import tiny_model

from .poisoned_worker import DEADLY, SLEEPY

SEEDED = b'{"temperature": 1.5, "seed": 42, "mirostat": 2}'
PROMPTS = [[200 + i, *(100 + (i + j * 7) % 60 for j in range(60))] for i in range(4)]
N = 60


def client_for(worker: str = "strata_plugin.engine.worker", hang_s: float = 120) -> EngineClient:
    config = EngineConfig(
        model=ModelConfig(path=str(tiny_model("dense"))),
        context=ContextConfig(threads=1, n_ctx=2048, n_parallel=4, flash_attn="on"),
        scheduling=SchedulingConfig(prefill_budget=16),
        verbosity=0,
    )
    return EngineClient(config, worker=worker, hang_s=hang_s)


def submit(client: EngineClient, prompt: list[int], n: int = N, **more: Any) -> RequestStream:
    data = np.asarray(prompt, "<i4").tobytes()
    more.setdefault("sampling", GREEDY)
    request = Submit(request_id=client.next_id(), prompt=data, n_predict=n, **more)
    return client.submit(request)


async def drain(stream: RequestStream) -> list[Any]:
    events: list[Any] = []
    while not (events and isinstance(events[-1], Done | Failed)):
        event = await stream.next(30)
        assert event is not None, "nothing came for 30 s"
        events.append(event)
    return events


def tokens(events: list[Any]) -> list[int]:
    return [e.token for e in events if isinstance(e, Token)]


def text(events: list[Any]) -> bytes:
    return b"".join(e.text for e in events if isinstance(e, Token | Done))


def run(scenario: Callable[[EngineClient], Awaitable[Any]], **kind: Any) -> Any:
    async def main() -> Any:
        client = client_for(**kind)
        await client.start()
        await client.wait_ready()
        try:
            return await asyncio.wait_for(scenario(client), 60)
        finally:
            await client.stop()

    return asyncio.run(main())


def begin(client: EngineClient) -> list[RequestStream]:
    """Four requests, greedy and random ones, all at once."""
    kinds = [GREEDY, SEEDED, GREEDY, SEEDED]
    pairs = zip(PROMPTS, kinds, strict=True)
    return [submit(client, prompt, sampling=kind, n_probs=5) for prompt, kind in pairs]


async def finish(streams: list[RequestStream]) -> list[list[Any]]:
    return list(await asyncio.gather(*map(drain, streams)))


async def several(client: EngineClient) -> list[list[Any]]:
    return await finish(begin(client))


async def kill_after(client: EngineClient, stream: RequestStream, n: int, how: int) -> None:
    """Send the engine a signal once it has said `n` tokens of a stream; -1: at once."""
    while n >= 0 and not (stream.started and len(stream.sampled) >= n):
        await asyncio.sleep(0.0005)
    assert not stream.finished, "it was quicker"
    os.kill(client.pid or 0, how)


@pytest.fixture(scope="module")
def undisturbed() -> list[list[Any]]:
    found: list[list[Any]] = run(several)
    return found


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
@pytest.mark.parametrize("after", [-1, 0, 1, 25])
def test_streams_go_on_with_the_text_that_they_would_have_had(
    undisturbed: list[list[Any]], how: int, after: int
) -> None:
    async def scenario(client: EngineClient) -> list[list[Any]]:
        first = client.pid
        streams = begin(client)
        await kill_after(client, streams[0], after, how)
        found = await finish(streams)
        assert client.pid != first and client.state is EngineState.READY
        values = await client.metrics()
        assert values["engine_restarts_total"] == 1
        return found

    found = run(scenario)
    for number, (events, right) in enumerate(zip(found, undisturbed, strict=True)):
        assert isinstance(events[-1], Done)
        goes_on(events, right, number, after)
        assert sum(isinstance(e, Started) for e in events) == 1
        assert [e.n_decoded for e in events if isinstance(e, Token)] == list(range(1, N + 1))


def goes_on(events: list[Any], right: list[Any], number: int, after: int) -> None:
    """The same text, up to a token that was a toss-up: batches of another shape round otherwise."""
    said, wanted = tokens(events), tokens(right)
    differs = [i for i, (a, b) in enumerate(zip(said, wanted, strict=True)) if a != b]
    if not differs:
        assert text(events) == text(right)
        return
    first = differs[0]
    assert first > after
    if number % 2 == 0:  # greedy
        told = [e for e in right if isinstance(e, Token)][first]
        likely = {p["id"]: p["prob"] for p in json.loads(told.probs or b"{}")["probs"]}
        assert likely[said[first]] > 0.8 * likely[wanted[first]]


def test_progress_is_not_told_twice() -> None:
    async def scenario(client: EngineClient) -> None:
        stream = submit(client, [100 + i % 60 for i in range(1500)], 3, return_progress=True)
        while not isinstance(await stream.next(10), Progress):
            pass
        os.kill(client.pid or 0, signal.SIGKILL)
        told = [e.processed for e in await drain(stream) if isinstance(e, Progress)]
        assert told == sorted(set(told)) and told[-1] == 1500

    run(scenario)


def test_one_poisonous_request_is_answered_with_an_error_and_the_others_go_on(
    undisturbed: list[list[Any]],
) -> None:
    async def scenario(client: EngineClient) -> None:
        streams = begin(client)
        good = asyncio.ensure_future(finish(streams))
        bad = await drain(submit(client, [*PROMPTS[0][:20], DEADLY]))
        assert isinstance(bad[-1], Failed) and bad[-1].code == 500
        assert "crashed" in bad[-1].message
        for number, events in enumerate(await good):
            goes_on(events, undisturbed[number], number, -1)
        later = await drain(submit(client, PROMPTS[0]))
        goes_on(later, undisturbed[0], 0, -1)

    run(scenario, worker="tests.faults.poisoned_worker")


def test_several_poisonous_requests_do_not_make_it_give_up() -> None:
    async def scenario(client: EngineClient) -> None:
        for _ in range(2):
            ends = await asyncio.gather(
                *(drain(submit(client, [109 + i, DEADLY])) for i in range(2)),
                drain(submit(client, PROMPTS[1], 5)),
            )
            assert [type(e[-1]) for e in ends] == [Failed, Failed, Done]
            assert client.state is EngineState.READY
            client._restarts._failures.clear()  # as if ten minutes had passed

    run(scenario, worker="tests.faults.poisoned_worker")


def test_an_engine_that_hangs_is_replaced() -> None:
    async def scenario(client: EngineClient) -> None:
        began = time.monotonic()
        bad = asyncio.ensure_future(drain(submit(client, [105, SLEEPY])))
        await asyncio.sleep(0.5)
        good = await drain(submit(client, PROMPTS[0], 5))
        assert isinstance(good[-1], Done)
        assert isinstance((await bad)[-1], Failed)
        assert time.monotonic() - began < 30

    run(scenario, worker="tests.faults.poisoned_worker", hang_s=1.5)


def test_an_engine_that_is_stopped_by_a_signal_counts_as_hung(
    undisturbed: list[list[Any]],
) -> None:
    async def scenario(client: EngineClient) -> list[list[Any]]:
        streams = begin(client)
        await kill_after(client, streams[0], 10, signal.SIGSTOP)
        return await finish(streams)

    found = run(scenario, hang_s=1.0)
    for number, events in enumerate(found):
        goes_on(events, undisturbed[number], number, 9)


def test_after_too_many_deaths_everybody_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine, "FIRST_DELAY_S", 0.01)

    async def scenario(client: EngineClient) -> None:
        stream = submit(client, PROMPTS[0], 2000)
        for _ in range(5):
            while client.state is not EngineState.READY:
                await asyncio.sleep(0.01)
            os.kill(client.pid or 0, signal.SIGKILL)
            while client.state is EngineState.READY:
                await asyncio.sleep(0.01)
            client._quarantine.passed(1)  # the request is not to blame
        end = (await drain(stream))[-1]
        assert isinstance(end, Failed) and end.code == 503
        assert client.state is EngineState.FAILED and "5 failures" in client.error

    run(scenario)


def test_a_cancelled_request_is_not_sent_to_the_next_engine() -> None:
    async def scenario(client: EngineClient) -> None:
        streams = [submit(client, p, 500) for p in PROMPTS]
        await kill_after(client, streams[0], 3, signal.SIGKILL)
        for stream in streams:
            stream.cancel()
        fresh = await drain(submit(client, PROMPTS[0], 5))
        assert isinstance(fresh[-1], Done)
        values = await client.metrics()
        assert values["tokens_predicted_total"] == 5

    run(scenario)
