"""Requests that get in each other's way: who waits for whom, and how long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bench.scenario import Measurement, Metric, Scenario, ScenarioError
from bench.scene import Scene, scenario
from bench.servers import Server
from bench.stats import median, quantile
from bench.streams import (
    check,
    gaps_within_ms,
    random_text,
    timings,
    tokens_within,
    ttft_s,
)

Run = Callable[[Server, int], Measurement]

ITL_TARGET_MS = 150.0  # the default of --itl-slo-ms
LONGEST_STREAM = 16384  # tokens; far more than a read takes


def stall(words: int) -> Run:
    """A stream runs while another client's prompt of `words` words is read: what it notices."""

    async def play(scene: Scene, seed: int) -> Measurement:
        n_predict = min(LONGEST_STREAM, await scene.room() - int(1.1 * words) - 64)
        if n_predict < 64:
            raise ScenarioError(f"no room for a prompt of {words} words beside a stream")
        running = await scene.send(random_text(f"stall stream {seed}", 24), n_predict)
        await scene.tokens(running, 16)
        newcomer = await scene.send(random_text(f"stall newcomer {seed}", words), 2)
        await scene.tokens(newcomer)
        await scene.tokens(running, 2)  # so that the gap that holds the first token is closed
        running.cut()
        stream, read = await running.end(), await scene.whole(newcomer)
        begin, end = read.started, read.started + ttft_s(read)
        gaps = gaps_within_ms(stream, begin, end)
        return {
            "gap_p99_ms": quantile(gaps, 0.99),
            "gap_max_ms": max(gaps),
            "ttft_s": ttft_s(read),
            "stream_tokens": tokens_within(stream, begin, end),
            "gap_alone_ms": median(gaps_within_ms(stream, stream.started, begin)),
        }

    return scenario(play)


def overtake(words: int, short_words: int = 40, count: int = 4, after_s: float = 1.0) -> Run:
    """Short prompts come while a long one is read and nobody decodes: who waits for whom."""

    async def play(scene: Scene, seed: int) -> Measurement:
        # a cache full of the last prompt is what the measured read meets too
        alone = await scene.whole(await scene.send(random_text(f"alone {seed}", words), 2))
        long = await scene.send(random_text(f"overtaken {seed}", words), 2)
        await asyncio.sleep(after_s)
        if long.event_count:
            raise ScenarioError(f"{words} words are read in less than {after_s:g} s: too few")
        prompts = [random_text(f"short {seed} {number}", short_words) for number in range(count)]
        shorts = await asyncio.gather(*(scene.send(prompt, 8) for prompt in prompts))
        replies = await asyncio.gather(*(scene.whole(short) for short in shorts))
        overtaken = await scene.whole(long)
        check(scene.server, [alone, overtaken, *replies])
        return {
            "short_max_s": max(map(ttft_s, replies)),
            "short_p50_s": median([ttft_s(reply) for reply in replies]),
            "long_relative": ttft_s(overtaken) / ttft_s(alone),
            "long_ttft_s": ttft_s(overtaken),
            "alone_ttft_s": ttft_s(alone),
        }

    return scenario(play)


def append(history: int, added: int = 64, streams: int = 4) -> Run:
    """A few words more on a warm conversation while `streams` others are being written."""

    async def play(scene: Scene, seed: int) -> Measurement:
        conversation = random_text(f"history {seed}", history)
        await scene.whole(await scene.send(conversation, 1))
        n_predict = min(LONGEST_STREAM, await scene.room() - 64)
        running = [
            await scene.send(random_text(f"append stream {seed} {number}", 24), n_predict)
            for number in range(streams)
        ]
        await asyncio.gather(*(scene.tokens(stream) for stream in running))
        calm_from = max(stream.last_block_at for stream in running)
        await asyncio.gather(*(scene.tokens(stream, 32) for stream in running))
        longer = f"{conversation} {random_text(f'added {seed}', added)}"
        appended = await scene.send(longer, 4)
        await scene.tokens(appended)
        await asyncio.gather(*(scene.tokens(stream, 2) for stream in running))
        for stream in running:
            stream.cut()
        reply = await scene.whole(appended)
        replies = [await stream.end() for stream in running]
        begin, end = reply.started, reply.started + ttft_s(reply)
        calm = [gap for one in replies for gap in gaps_within_ms(one, calm_from, begin)]
        during = [gap for one in replies for gap in gaps_within_ms(one, begin, end)]
        return {
            "growth_percent": 100.0 * (median(during) / median(calm) - 1.0),
            "gap_during_ms": median(during),
            "gap_before_ms": median(calm),
            "ttft_s": ttft_s(reply),
            "reused_tokens": timings(reply)["cache_n"],
        }

    return scenario(play)


def cut(words: int, share: float = 0.6, pause_s: float = 0.25) -> Run:
    """A client leaves at `share` of its prompt's read and sends it again: is it read twice?"""

    async def play(scene: Scene, seed: int) -> Measurement:
        cold = ttft_s(await scene.whole(await scene.send(random_text(f"cold {seed}", words), 2)))
        prompt = random_text(f"cut {seed}", words)
        first = await scene.send(prompt, 2)
        if await first.events(1, timeout_s=share * cold):
            raise ScenarioError(f"read in less than {share:.0%} of the time that another took")
        first.cut()
        await asyncio.sleep(pause_s)
        again = await scene.whole(await scene.send(prompt, 2))
        return {
            "again_relative": ttft_s(again) / cold,
            "again_ttft_s": ttft_s(again),
            "cold_ttft_s": cold,
            "reused_tokens": timings(again)["cache_n"],
        }

    return scenario(play)


STALL = (
    Metric("gap_p99_ms", "gap of the stream p99", "ms", "lower", "value", target=2 * ITL_TARGET_MS),
    Metric("gap_max_ms", "longest gap", "ms", "lower", "value", target=4 * ITL_TARGET_MS),
    Metric("ttft_s", "newcomer's TTFT", "s", "lower"),
    Metric("stream_tokens", "tokens of the stream meanwhile", "", "higher", "difference"),
    Metric("gap_alone_ms", "its gap before", "ms", "lower"),
)
_OVERTAKE = (
    Metric("short_max_s", "TTFT of the last short one", "s", "lower", "value", target=2.5),
    Metric("short_p50_s", "TTFT of the short ones p50", "s", "lower"),
    Metric("long_relative", "TTFT of the long one / alone", "", "lower", "value", target=1.15),
    Metric("long_ttft_s", "TTFT of the long one", "s", "lower"),
    Metric("alone_ttft_s", "TTFT of the long one alone", "s", "lower"),
)
_APPEND = (
    Metric("growth_percent", "growth of the streams' gap", "%", "lower", "value", target=25.0),
    Metric("gap_during_ms", "gap of the streams meanwhile p50", "ms", "lower"),
    Metric("gap_before_ms", "gap before p50", "ms", "lower"),
    Metric("ttft_s", "TTFT of the append", "s", "lower"),
    Metric("reused_tokens", "prompt tokens not read again", "", "higher", "difference"),
)
_CUT = (
    Metric("again_relative", "sent again / cold", "", "lower", "value", target=0.45),
    Metric("again_ttft_s", "TTFT, sent again", "s", "lower"),
    Metric("cold_ttft_s", "TTFT, cold", "s", "lower"),
    Metric("reused_tokens", "prompt tokens not read again", "", "higher", "difference"),
)

SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        "stall",
        "A stream while 4500 tokens are read",
        stall(4500),
        STALL,
        pairs=3,
        quick_pairs=1,
        rounds=1,
        warm_up=stall(1000),
    ),
    Scenario(
        "overtake",
        "Four short prompts during a read of 4500 tokens",
        overtake(4500),
        _OVERTAKE,
        pairs=3,
        quick_pairs=1,
        rounds=1,
        warm_up=overtake(1500, after_s=0.2),
    ),
    Scenario(
        "append",
        "64 tokens more on 4000, four streams",
        append(4000),
        _APPEND,
        pairs=4,
        quick_pairs=1,
        flags=("-np", "5", "-c", "25600"),
        rounds=1,
        warm_up=append(500),
    ),
    Scenario(
        "cut",
        "A prompt of 3000 tokens cut at 60 % and sent again",
        cut(3000),
        _CUT,
        pairs=4,
        quick_pairs=1,
        rounds=1,
        warm_up=cut(1000),
    ),
)
