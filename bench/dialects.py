"""What HTTP costs: rendering a long chat, many streams, many requests that wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from bench import client
from bench.scenario import Measurement, Metric, Scenario, ScenarioError
from bench.servers import Server
from bench.stats import quantile
from bench.streams import random_text

Run = Callable[[Server, int], Measurement]

PROBE_S = 0.02  # between two questions whether the server lives


def chat(content: str, max_tokens: int, **fields: Any) -> client.Request:
    """A greedy chat of one message."""
    messages = [{"role": "user", "content": content}]
    body = {"messages": messages, "max_tokens": max_tokens, "temperature": 0.0, **fields}
    return client.Request("/v1/chat/completions", body)


def render(turns: int, words: int) -> Run:
    """How long it takes to render and tokenise a history of `turns` messages, an odd number."""

    def run(server: Server, seed: int) -> Measurement:
        roles = ("user", "assistant")
        messages = [
            {"role": roles[turn % 2], "content": random_text(f"{seed} {turn}", words)}
            for turn in range(turns)
        ]
        request = client.Request("/v1/chat/completions/input_tokens", {"messages": messages})
        reply = client.send(server.port, request)
        if reply.error:
            raise ScenarioError(f"{server.name}: {reply.error}")
        return {"render_s": reply.end_at}

    return run


def streams(count: int, n_tokens: int) -> Run:
    """CPU time that the process which speaks HTTP takes for a streamed token of a chat."""

    def run(server: Server, seed: int) -> Measurement:
        requests = [
            chat(random_text(f"{seed} {number}", 20), n_tokens, stream=True, ignore_eos=True)
            for number in range(count)
        ]
        before = server.first_process_cpu_s()
        replies = client.send_all(server.port, requests)
        spent = server.first_process_cpu_s() - before
        for reply in replies:
            if reply.error:
                raise ScenarioError(f"{server.name}: {reply.error}")
        return {"cpu_ms": spent * 1e3 / (count * n_tokens)}

    return run


def waiting(count: int, shared: int, own: int) -> Run:
    """Many chats at once that begin alike, and how quickly the server answers anybody else."""

    def run(server: Server, seed: int) -> Measurement:
        return asyncio.run(_wait(server, seed, count, shared, own))

    return run


async def _wait(server: Server, seed: int, count: int, shared: int, own: int) -> Measurement:
    start = random_text(f"start {seed}", shared)
    began = time.perf_counter()
    exchanges = [
        client.Exchange(server.port, chat(f"{start} {random_text(f'{seed} {i}', own)}", 4))
        for i in range(count)
    ]
    for exchange in exchanges:
        await exchange.begin()
    answers = asyncio.gather(*(exchange.end() for exchange in exchanges))
    probes: list[float] = []
    while not answers.done():
        probe = await (await client.Exchange(server.port, client.Request("/health")).begin()).end()
        probes.append((probe.end_at or client.TIMEOUT_S) * 1e3)
        await asyncio.sleep(PROBE_S)
    replies = await answers
    return {
        "refused": float(sum(bool(reply.error) for reply in replies)),
        "probe_p99_ms": quantile(probes, 0.99),
        "makespan_s": time.perf_counter() - began,
    }


SCENARIOS = (
    Scenario(
        "render",
        "Rendering and tokenising a chat of 100,000 tokens",
        render(201, 500),
        (Metric("render_s", "time", "s", "lower", "ratio", 1.2),),
        pairs=6,
        quick_pairs=2,
    ),
    Scenario(
        "http-streams",
        "16 streams of a chat: CPU of the process that speaks HTTP (llama-server: of all)",
        streams(16, 150),
        (Metric("cpu_ms", "CPU a token", "ms", "lower", "value", 0.3),),
        pairs=3,
        quick_pairs=1,
        flags=("-np", "16", "-c", "16384"),
        rounds=1,
    ),
    Scenario(
        "waiting-200",
        "200 chats of 2,000 tokens at once, 1,900 of them shared",
        waiting(200, 1900, 100),
        (
            Metric("refused", "refused", "", "lower", "value", 0.0),
            Metric("probe_p99_ms", "GET /health p99", "ms", "lower", "value", 50.0),
            Metric("makespan_s", "all answered", "s", "lower"),
        ),
        pairs=1,
        quick_pairs=1,
        flags=("-c", "16384"),
        rounds=1,
        warm_up=waiting(2, 100, 10),
    ),
)
