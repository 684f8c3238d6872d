"""`python -m bench trace`: writes a made trace of several coding agents, in Mooncake's JSONL form.

Each agent sends its whole conversation again and again with a little more at its end. What all of
them begin with (system prompt and tools) is the same. A reply leads to the next turn after a tool
ran or after a human has thought; sometimes the client leaves and sends the same again. A block that
the prompt ends in keeps its id when it fills up: as the ids stand for tokens, not for states, its
beginning is still the same.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from strata_plugin.scheduling.trace import BLOCK_TOKENS, TraceRequest

SHARED_TOKENS = 8192  # system prompt and tools
OWN_TOKENS = 2048  # an agent's first task, on average
APPENDED_TOKENS = 800  # a turn adds, on average
OUTPUT_TOKENS = 120  # median
TOOL_S = 2.0  # median pause of a tool
HUMAN_S = 25.0  # median pause of a human
HUMAN_SHARE = 0.2  # of the turns follow a human
CANCEL_SHARE = 0.05  # of the turns are cancelled
CANCEL_S = 3.0  # median patience of those
READ_S, WRITE_S = 1.0, 0.02  # what a reply takes, a guess: until its first token, for each token


@dataclass
class _Agent:
    name: str
    ids: Iterator[int]
    draw: random.Random
    at_s: float
    n_prompt: int
    hash_ids: list[int] = field(default_factory=list)

    def turn(self) -> TraceRequest:
        """The next request; the agent then waits and has more to send."""
        draw = self.draw
        while len(self.hash_ids) * BLOCK_TOKENS < self.n_prompt:
            self.hash_ids.append(next(self.ids))
        n_output = _between(8, round(draw.lognormvariate(0.0, 0.8) * OUTPUT_TOKENS), 1000)
        cancel = draw.random() < CANCEL_SHARE
        patience = max(0.2, draw.lognormvariate(0.0, 0.7) * CANCEL_S)
        request = TraceRequest(
            arrival_s=round(self.at_s, 3),
            n_prompt=self.n_prompt,
            n_output=n_output,
            hash_ids=tuple(self.hash_ids),
            tenant=self.name,
            cancel_after_s=round(patience, 3) if cancel else None,
        )
        human = cancel or draw.random() < HUMAN_SHARE
        pause = draw.lognormvariate(0.0, 1.0) * (HUMAN_S if human else TOOL_S)
        self.at_s += (patience if cancel else READ_S + WRITE_S * n_output) + pause
        if not cancel:  # else the same is sent again
            self.n_prompt += _appended(draw, APPENDED_TOKENS)
        return request


def agent_trace(agents: int, turns: int, seed: int) -> list[TraceRequest]:
    """`turns` requests of each of `agents` agents, in order of arrival; the same for one seed."""
    ids = itertools.count()
    shared = [next(ids) for _ in range(SHARED_TOKENS // BLOCK_TOKENS)]
    requests: list[TraceRequest] = []
    for number in range(agents):
        draw = random.Random(f"{seed} {number}")
        agent = _Agent(
            f"agent-{number + 1}",
            ids,
            draw,
            at_s=draw.uniform(0.0, 30.0),
            n_prompt=SHARED_TOKENS + _appended(draw, OWN_TOKENS),
            hash_ids=list(shared),
        )
        requests += [agent.turn() for _ in range(turns)]
    requests.sort(key=lambda request: request.arrival_s)
    first = requests[0].arrival_s if requests else 0.0
    return [
        TraceRequest(
            round(request.arrival_s - first, 3), request.n_prompt, request.n_output,
            request.hash_ids, request.tenant, request.cancel_after_s,
        )
        for request in requests
    ]  # fmt: skip


def line(request: TraceRequest) -> str:
    """One request as a line of JSONL, without the line's end."""
    fields: dict[str, object] = {
        "timestamp": round(request.arrival_s * 1e3),
        "input_length": request.n_prompt,
        "output_length": request.n_output,
        "hash_ids": list(request.hash_ids),
    }
    if request.tenant:
        fields["tenant"] = request.tenant
    if request.cancel_after_s is not None:
        fields["cancel_after_ms"] = round(request.cancel_after_s * 1e3)
    return json.dumps(fields, separators=(",", ":"))


def resent_share(requests: Sequence[TraceRequest]) -> float:
    """Share of all prompt tokens that an earlier prompt of the trace began with as well."""
    longest: dict[tuple[int, ...], int] = {}  # ids of a prompt's first blocks -> tokens of those
    resent = 0
    for request in requests:
        best = 0
        for blocks in range(1, len(request.hash_ids) + 1):
            known = longest.get(request.hash_ids[:blocks], 0)
            best = max(best, min(known, request.n_prompt))
            tokens = min(request.n_prompt, blocks * BLOCK_TOKENS)
            longest[request.hash_ids[:blocks]] = max(known, tokens)
        resent += best
    return resent / sum(request.n_prompt for request in requests)


def main(arguments: Sequence[str]) -> int:
    """Write a trace to stdout."""
    parser = argparse.ArgumentParser(prog="python -m bench trace", description=__doc__)
    parser.add_argument("--agents", type=int, default=8, help="how many agents (8)")
    parser.add_argument("--turns", type=int, default=20, help="requests of each (20)")
    parser.add_argument("--seed", type=int, default=1, help="another seed, another trace (1)")
    options = parser.parse_args(arguments)
    if options.agents < 1 or options.turns < 1:
        parser.error("--agents and --turns must be 1 or more")
    requests = agent_trace(options.agents, options.turns, options.seed)
    for request in requests:
        print(line(request))
    print(
        f"{len(requests)} requests, {resent_share(requests):.1%} of the input sent before",
        file=sys.stderr,
    )
    return 0


def _appended(draw: random.Random, mean: int) -> int:
    """A log-normal number of tokens around `mean`."""
    sigma = 0.6
    return _between(32, round(draw.lognormvariate(-sigma * sigma / 2, sigma) * mean), 8 * mean)


def _between(low: int, value: int, high: int) -> int:
    return min(max(low, value), high)
