"""`python -m bench replay TRACE`: plays a trace of requests against one or two servers.

The trace holds no text, so prompts are made of its hash ids: each id stands for the same tokens
wherever it occurs, and what was shared in the trace is shared in the replay. Requests are sent at
the trace's times, whether or not earlier ones are done, each to one server after the other.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import shlex
import signal
import sys
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import client, machine, outcomes, plots, report, sides
from bench.outcomes import Outcome
from bench.scale import Scale, block_for, prompt
from bench.servers import Memory, Server, ServerError
from bench.streams import WORDS
from strata_plugin.scheduling.sizes import SIZES
from strata_plugin.scheduling.trace import BLOCK_TOKENS, TraceError, TraceRequest, read_trace

MB = 1e6
_SAMPLE_S = 1.0  # between two looks at a server's memory


class ReplayError(Exception):
    """A server can't be replayed against; the message says why."""


@dataclass(frozen=True)
class Target:
    """A server to replay against; `server` is None where it isn't ours to start."""

    name: str
    host: str
    port: int
    keys: Mapping[str, str] = field(default_factory=dict)  # tenant -> API key
    server: Server | None = None

    def headers(self, tenant: str) -> tuple[tuple[str, str], ...]:
        """What tells the server who sends a request."""
        key = self.keys.get(tenant)
        return () if key is None else (("Authorization", f"Bearer {key}"),)


async def replay(target: Target, trace: Sequence[TraceRequest], scale: Scale) -> list[Outcome]:
    """Send the whole trace to a running server; outcomes in the trace's order."""
    vocabulary = await _vocabulary(target)
    # a first request is slower; it shares nothing with the trace, whose ids are 0 or more
    first = TraceRequest(0.0, BLOCK_TOKENS, 2, (-1,), trace[0].tenant)
    await _one(target, first, Scale(), vocabulary, time.perf_counter(), at_s=0.0)
    begin = time.perf_counter() + 0.1 - trace[0].arrival_s / scale.speed
    tasks = [
        _one(target, request, scale, vocabulary, begin, request.arrival_s / scale.speed)
        for request in trace
    ]
    return await asyncio.gather(*tasks)


async def _one(
    target: Target,
    request: TraceRequest,
    scale: Scale,
    vocabulary: tuple[int, ...],
    begin: float,
    at_s: float,
) -> Outcome:
    await asyncio.sleep(begin + at_s - time.perf_counter())
    tokens = prompt(request, scale, vocabulary)
    body = {
        "prompt": tokens,
        "n_predict": scale.n_output(request),
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "cache_prompt": True,
    }
    sent = client.Request("/completion", body, headers=target.headers(request.tenant))
    exchange = await client.Exchange(target.port, sent, target.host).begin()
    if request.cancel_after_s is not None:
        await exchange.over_within(request.cancel_after_s / scale.speed)
        exchange.cut()
    reply = await exchange.end()
    return outcomes.outcome(
        reply,
        arrival_s=reply.started - begin,
        late_s=max(0.0, reply.started - begin - at_s),
        n_prompt=len(tokens),
        tenant=request.tenant,
    )


async def _vocabulary(target: Target) -> tuple[int, ...]:
    """Tokens of common words, as this server's model knows them."""
    headers = target.headers(next(iter(target.keys), ""))
    body = {"content": " " + " ".join(WORDS)}
    asked = client.Request("/tokenize", body, headers=headers)
    reply = await (await client.Exchange(target.port, asked, target.host).begin()).end(60.0)
    if reply.error:
        raise ReplayError(f"{target.name}: {reply.error}")
    try:
        found = tuple(sorted({int(token) for token in json.loads(reply.text)["tokens"]}))
    except (ValueError, KeyError, TypeError) as exc:
        raise ReplayError(f"{target.name}: /tokenize gave no list of tokens: {exc!r}") from exc
    if len(found) < 16:
        raise ReplayError(f"{target.name}: /tokenize knows {len(found)} tokens of our words")
    return found


async def _watched(
    target: Target, trace: Sequence[TraceRequest], scale: Scale
) -> tuple[list[Outcome], dict[str, float] | None]:
    """The replay, and the most memory that the server's processes used meanwhile."""
    server = target.server
    if server is None:
        return await replay(target, trace, scale), None
    seen: list[Memory] = []

    async def watch() -> None:
        while True:
            seen.append(await asyncio.to_thread(server.memory))
            await asyncio.sleep(_SAMPLE_S)

    watcher = asyncio.create_task(watch())
    try:
        found = await replay(target, trace, scale)
    finally:
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)
    seen.append(server.memory())  # raises where it has died meanwhile
    return found, {
        "rss_mb": max(memory.rss for memory in seen) / MB,
        "pss_mb": max(memory.pss for memory in seen) / MB,
    }


def play(
    target: Target, trace: Sequence[TraceRequest], scale: Scale, flags: Sequence[str] = ()
) -> tuple[list[Outcome], dict[str, Any]]:
    """Replay against one target, started with `flags` where it is ours to start, and stopped."""
    if target.server is None:
        found, memory = asyncio.run(_watched(target, trace, scale))
        about: dict[str, Any] = {"name": target.name}
    else:
        keys = ("--api-key", ",".join(target.keys.values())) if target.keys else ()
        target.server.start((*flags, *keys))
        try:
            started = Target(
                target.name, target.host, target.server.port, target.keys, target.server
            )
            found, memory = asyncio.run(_watched(started, trace, scale))
        finally:
            target.server.stop()
        about = sides.describe(target.server) | {"flags": list(flags)}
    return found, about | {
        "summary": outcomes.summary(found) | {"memory": memory},
        "requests": [outcomes.brief(one) for one in found],
    }


def main(arguments: Sequence[str]) -> int:
    """Replay, print the table, write replay.json, .md and plots; 0 where nothing failed."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if not (options.server or options.ours or options.theirs):
        parser.error("name a server: --server URL, --ours or --theirs")
    if options.ours + options.theirs + len(options.server) > 2:
        parser.error("one or two servers can be compared")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server is stopped
    try:
        if not options.no_plot:
            plots.check()
        trace = _read(options.trace)[: options.limit]
        targets = _targets(options, trace)
        scale = Scale(options.speed, block_for(trace, options.max_prompt), options.max_output)
        result, curves = _run(options, targets, trace, scale)
    except (OSError, ReplayError, ServerError, sides.SetupError, plots.PlotError) as exc:
        print(f"bench: {exc}", file=sys.stderr)
        return 1
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "replay.json"
    path.write_text(json.dumps(result, indent=1))
    text = outcomes.table({side["name"]: side["summary"] for side in result["sides"]})
    path.with_suffix(".md").write_text(text)
    if not options.no_plot:
        _draw(curves, options.out)
    print(text)
    print(f"Written to {path}")
    return 1 if any(side["summary"]["failed"] for side in result["sides"]) else 0


def _run(
    options: argparse.Namespace,
    targets: Sequence[Target],
    trace: Sequence[TraceRequest],
    scale: Scale,
) -> tuple[dict[str, Any], dict[str, list[Outcome]]]:
    started = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    results: list[dict[str, Any]] = []
    curves: dict[str, list[Outcome]] = {}
    for target in targets:
        report.say(f"{target.name}: {len(trace)} requests over "
                   f"{(trace[-1].arrival_s - trace[0].arrival_s) / scale.speed:.0f} s")  # fmt: skip
        found, side = play(target, trace, scale, shlex.split(options.flags))
        results.append(side)
        curves[target.name] = found
    return {
        "format": 1,
        "started": started,
        "machine": machine.describe(),
        "trace": options.trace.name,
        "requests": len(trace),
        "speed": scale.speed,
        "block_tokens": scale.block,
        "max_output": scale.max_output,
        "sides": results,
    }, curves


def _draw(curves: Mapping[str, Sequence[Outcome]], folder: Path) -> None:
    for key, label in (("ttft", "TTFT, s"), ("gap", "gap, ms")):
        groups: dict[str, dict[str, list[float]]] = {}
        for bucket in SIZES:
            for name, found in curves.items():
                values = [
                    value
                    for one in found
                    if one.bucket == bucket
                    for value in (one.gaps_ms if key == "gap" else (one.ttft_s,))
                    if value is not None
                ]
                if values:
                    groups.setdefault(bucket, {})[name] = values
        if groups:
            plots.shares(groups, label, folder / f"replay-{key}.png")


def _read(path: Path) -> list[TraceRequest]:
    try:
        with path.open(encoding="utf-8") as lines:
            return read_trace(lines)
    except TraceError as exc:
        raise ReplayError(f"{path}: {exc}") from exc
    except UnicodeDecodeError as exc:
        raise ReplayError(f"{path} is not UTF-8 text: {exc}") from exc


def _targets(options: argparse.Namespace, trace: Sequence[TraceRequest]) -> list[Target]:
    tenants = list(dict.fromkeys(request.tenant for request in trace if request.tenant))
    own = {tenant: f"replay-{number}" for number, tenant in enumerate(tenants, start=1)}
    given: dict[str, str] = {}
    if options.api_key:
        dealt = enumerate([*tenants, ""])
        given = {tenant: options.api_key[n % len(options.api_key)] for n, tenant in dealt}
    if any(not request.tenant for request in trace):
        own = {}  # who has no name would have no key
    found = [_remote(url, given) for url in options.server]
    for wanted, make in ((options.ours, sides.ours), (options.theirs, sides.theirs)):
        if wanted:
            server = make(options)
            found.append(Target(server.name, "127.0.0.1", 0, own, server))
    if len({target.name for target in found}) < len(found):
        raise ReplayError("both servers are the same one")
    return found


def _remote(url: str, keys: Mapping[str, str]) -> Target:
    try:
        parts = urllib.parse.urlsplit(url)
        host, port = parts.hostname, parts.port or 80
    except ValueError as exc:
        raise ReplayError(f"not a URL: {url}: {exc}") from exc
    if parts.scheme != "http" or not host or parts.path not in ("", "/"):
        raise ReplayError(f"a server's URL looks like http://127.0.0.1:8080, not {url}")
    return Target(url, host, port, keys)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench replay", description=__doc__)
    parser.add_argument("trace", type=Path, help="JSONL; one is in bench/traces/agents.jsonl")
    parser.add_argument(
        "--server", action="append", default=[], metavar="URL", help="a server that runs already"
    )
    parser.add_argument("--ours", action="store_true", help="start strata-server")
    parser.add_argument("--theirs", action="store_true", help="start llama-server")
    parser.add_argument("--flags", default="", help="for servers started here: --flags='-np 8'")
    parser.add_argument(
        "--api-key", action="append", metavar="KEY",
        help="for --server; several are dealt out to the trace's tenants",
    )  # fmt: skip
    parser.add_argument("--speed", type=_above_zero, default=1.0, help="2: twice as fast")
    parser.add_argument("--limit", type=_count, metavar="N", help="only the first N requests")
    parser.add_argument(
        "--max-prompt", type=_count, metavar="TOKENS",
        help="scale all prompts down, shared parts too, so that the longest has so many",
    )  # fmt: skip
    parser.add_argument("--max-output", type=_count, metavar="TOKENS", help="cut longer outputs")
    parser.add_argument("--no-plot", action="store_true", help="no PNG, no matplotlib needed")
    sides.add_options(parser)
    return parser


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {value}")
    return value


def _above_zero(text: str) -> float:
    value = float(text)
    if not 0.0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be above 0, not {text}")
    return value
