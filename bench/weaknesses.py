"""Situations in which llama-server was measured to do badly, W1 to W4 and W8 to W10, as scenarios.

Each has one figure that shows the fault where it is there. The numbers are those of the analysis
that found them; sizes are small enough for one run of about a minute on two cores.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools

from bench import client
from bench.scenario import Measurement, Metric, Scenario, ScenarioError
from bench.scene import Scene, scenario
from bench.scheduling import STALL, Run, stall
from bench.streams import random_text, text, ttft_s

LONGEST_WAIT_S = 15.0  # for what llama-server never notices


def behind(words: int, short_words: int = 50, after_s: float = 0.5) -> Run:
    """W2: a short prompt behind a long one, in a higher and in a lower slot than that."""

    async def wait(scene: Scene, seed: str, long_slot: int, short_slot: int) -> float:
        long = await scene.send(random_text(f"long {seed}", words), 2, id_slot=long_slot)
        await asyncio.sleep(after_s)
        if long.event_count:
            raise ScenarioError(f"{words} words are read in less than {after_s:g} s: too few")
        prompt = random_text(f"behind {seed}", short_words)
        reply = await scene.whole(await scene.send(prompt, 8, id_slot=short_slot))
        long.cut()
        await scene.settle()
        return ttft_s(reply)

    async def play(scene: Scene, seed: int) -> Measurement:
        last = await scene.slots() - 1
        higher = await wait(scene, f"{seed} higher", 0, last)
        lower = await wait(scene, f"{seed} lower", last, 0)
        return {"worse_s": max(higher, lower), "higher_s": higher, "lower_s": lower}

    return scenario(play)


def silence(n_predict: int) -> Run:
    """W3: all slots are busy; when does one who waits for a stream hear anything."""

    async def play(scene: Scene, seed: int) -> Measurement:
        running = [
            await scene.send(random_text(f"busy {seed} {number}", 24), n_predict)
            for number in range(await scene.slots())
        ]
        await asyncio.gather(*(scene.tokens(stream, 4) for stream in running))
        waiting = await scene.send(random_text(f"waiting {seed}", 24), 8)
        reply = await scene.whole(waiting)
        await asyncio.gather(*(scene.whole(stream) for stream in running))
        return {"headers_s": reply.first_byte_at, "ttft_s": ttft_s(reply)}

    return scenario(play)


def idle_slot(n_short: int, n_long: int) -> Run:
    """W4: the head of the queue insists on a busy slot while another one gets free."""

    async def play(scene: Scene, seed: int) -> Measurement:
        count = await scene.slots()
        if count < 3:
            raise ScenarioError(f"{scene.server.name} has {count} slots; 3 are needed")
        running = [
            await scene.send(
                random_text(f"slot {seed} {slot}", 24),
                n_short if slot == 1 else n_long,
                id_slot=slot,
            )
            for slot in range(count)
        ]
        await asyncio.gather(*(scene.tokens(stream) for stream in running))
        pinned = await scene.send(random_text(f"pinned {seed}", 24), 4, id_slot=0)
        await asyncio.sleep(0.1)  # so that it is the queue's head
        anybody = await scene.send(random_text(f"anybody {seed}", 24), 4)
        if running[1].over:
            raise ScenarioError("the slot was free before anybody waited: more tokens are needed")
        short = await scene.whole(running[1])
        reply = await scene.whole(anybody)
        await scene.whole(pinned)
        free = short.started + short.end_at
        return {"idle_s": max(0.0, reply.started + ttft_s(reply) - free), "ttft_s": ttft_s(reply)}

    return scenario(play)


def overflow(count: int, words: int, n_predict: int = 32) -> Run:
    """W8: more prompts at once than the KV cache can hold: how many are answered."""

    async def play(scene: Scene, seed: int) -> Measurement:
        sent = [
            await scene.send(random_text(f"full {seed} {number}", words), n_predict, stream=False)
            for number in range(count)
        ]
        replies = await asyncio.gather(*(exchange.end() for exchange in sent))
        scene.server.check()
        return {
            "answered": sum(reply.status == 200 and not reply.error for reply in replies),
            "over_s": max(reply.end_at for reply in replies),
        }

    return scenario(play)


def abandoned(n_predict: int) -> Run:
    """W9: a client without a stream leaves while another's runs: until when its slot works on."""

    async def play(scene: Scene, seed: int) -> Measurement:
        stream = await scene.send(random_text(f"watched {seed}", 24), n_predict)
        await scene.tokens(stream)
        left = await scene.send(random_text(f"left {seed}", 24), n_predict, stream=False)
        if await scene.until_busy(2, LONGEST_WAIT_S) >= LONGEST_WAIT_S:
            raise ScenarioError(f"{scene.server.name}: the second request never got a slot")
        await asyncio.sleep(0.3)  # it is being written now
        left.cut()
        freed = await scene.until_busy(1, LONGEST_WAIT_S)
        if stream.over or await scene.busy_slots() == 0:
            raise ScenarioError("the stream beside it ended: more tokens are needed")
        return {"freed_s": freed}

    return scenario(play)


def intruder(words: int, n_predict: int) -> Run:
    """W10: a request insists on a busy slot and its beginning is cached: does the stream notice."""

    async def play(scene: Scene, seed: int) -> Measurement:
        async def write() -> client.Exchange:
            # read anew each time, so that all runs compute the same batches
            prompt = random_text(f"undisturbed {seed}", 24)
            return await scene.send(prompt, n_predict, id_slot=0, cache_prompt=False)

        known = random_text(f"intruder {seed}", words)
        await scene.whole(await scene.send(known, 1, id_slot=0))
        for _ in range(2):  # the first one pushes the known prompt out of the slot, to the cache
            undisturbed = text(await scene.whole(await write()))
        if text(await scene.whole(await write())) != undisturbed:
            raise ScenarioError(f"{scene.server.name}: two undisturbed runs differ already")
        running = await write()
        await scene.tokens(running, 16)
        pinned = await scene.send(f"{known} {random_text('more', 8)}", 2, id_slot=0)
        disturbed = text(await running.end())  # an error in it is a disturbance too
        await pinned.end()
        scene.server.check()
        pairs = zip(disturbed, undisturbed, strict=False)
        common = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        return {
            "equal": float(disturbed == undisturbed),
            "equal_percent": 100.0 * common / max(1, len(undisturbed)),
        }

    return scenario(play)


def _of_both(metrics: tuple[Metric, ...]) -> tuple[Metric, ...]:
    """The same figures, compared side by side without a bound on ours."""
    return tuple(
        dataclasses.replace(metric, compare="ratio", target=None)
        if metric.compare == "value"
        else metric
        for metric in metrics
    )


_BEHIND = (
    Metric("worse_s", "its TTFT, the worse of both", "s", "lower"),
    Metric("higher_s", "its TTFT, in a higher slot", "s", "lower"),
    Metric("lower_s", "its TTFT, in a lower slot", "s", "lower"),
)
_SILENCE = (
    Metric("headers_s", "headers after", "s", "lower"),
    Metric("ttft_s", "TTFT", "s", "lower"),
)
_IDLE_SLOT = (
    Metric("idle_s", "from the free slot to the first token", "s", "lower", "difference"),
    Metric("ttft_s", "TTFT", "s", "lower"),
)
_OVERFLOW = (
    Metric("answered", "answered with 200, of 3", "", "higher", "value", target=3.0),
    Metric("over_s", "last reply after", "s", "lower", "value"),
)
_ABANDONED = (Metric("freed_s", f"slot free after, at most {LONGEST_WAIT_S:g}", "s", "lower"),)
_INTRUDER = (
    Metric("equal", "output as undisturbed", "", "higher", "value", target=1.0),
    Metric("equal_percent", "of it the same", "%", "higher", "value", target=100.0),
)

SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        "w1",
        "W1: a stream while 2000 tokens are read",
        stall(2000),
        _of_both(STALL),
        pairs=3,
        quick_pairs=1,
        rounds=1,
        warm_up=stall(500),
    ),
    Scenario(
        "w2",
        "W2: 50 tokens behind 4000",
        behind(4000),
        _BEHIND,
        pairs=3,
        quick_pairs=1,
        rounds=1,
        warm_up=behind(1000, after_s=0.1),
    ),
    Scenario(
        "w3",
        "W3: waiting for a slot",
        silence(200),
        _SILENCE,
        pairs=3,
        quick_pairs=1,
        rounds=1,
        warm_up=silence(24),
    ),
    Scenario(
        "w4",
        "W4: a queue's head that insists on a busy slot",
        idle_slot(64, 400),
        _IDLE_SLOT,
        pairs=3,
        quick_pairs=1,
        rounds=1,
    ),
    Scenario(
        "w8",
        "W8: three times 700 tokens, room for 2048",
        overflow(3, 700),
        _OVERFLOW,
        pairs=3,
        quick_pairs=1,
        flags=("-c", "2048"),
        rounds=1,
        warm_up=overflow(1, 100),
    ),
    Scenario(
        "w9",
        "W9: one who left while another's stream runs",
        abandoned(3500),
        _ABANDONED,
        pairs=3,
        quick_pairs=1,
        rounds=1,
    ),
    Scenario(
        "w10",
        "W10: a running slot that another request insists on",
        intruder(300, 120),
        _INTRUDER,
        pairs=3,
        quick_pairs=1,
        rounds=1,
    ),
)
