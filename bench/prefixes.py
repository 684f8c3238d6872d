"""Where llama-server was measured to read again what it had read, W5 to W7, W12 to W16 and W18; and
answers that come back as history.

Prompts are token ids, so that they fit any model: `--model` with a hybrid or sliding-window one
shows W12 to W14. The figure of each is how many tokens were read though they had been read before.
"""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from bench import client
from bench.scenario import Measurement, Metric, Scenario, ScenarioError
from bench.scene import Scene, scenario
from bench.servers import Server
from bench.stats import median
from bench.streams import check, completion, timings, ttft_s

IDS = range(100, 250)  # tokens that every vocabulary has, none of them special
BLOCK = 256
FREELY = {"temperature": 1.2, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
Run = Callable[[Server, int], Measurement]


def ids(seed: str, n: int) -> list[int]:
    """`n` tokens drawn with `seed`."""
    return random.Random(seed).choices(IDS, k=n)


class Talk:
    """One client's history in tokens."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.ttft_s: list[float] = []

    def ask(self, prompt: Sequence[int], n_predict: int = 8) -> tuple[list[int], int]:
        """(prompt and answer, prompt tokens that were read)."""
        request = completion(list(prompt), n_predict, return_tokens=True)
        reply = client.send(self.server.port, request)
        check(self.server, [reply])
        self.ttft_s.append(ttft_s(reply))
        said = [
            int(token)
            for event in reply.events
            if not event.data.get("stop")
            for token in event.data.get("tokens", ())
        ]
        return [*prompt, *said], int(timings(reply)["prompt_n"])


def subagent(n: int, shared: int) -> Run:
    """W5: a main agent, a subagent that shares its beginning, and the main agent again."""

    def run(server: Server, seed: int) -> Measurement:
        talk = Talk(server)
        main, _ = talk.ask(ids(f"main {seed}", n))
        talk.ask([*main[:shared], *ids(f"subagent {seed}", shared // 2)])
        _, read = talk.ask([*main, *ids(f"more {seed}", 50)])
        return {"reread_tokens": max(0, read - 51), "ttft_s": talk.ttft_s[-1]}

    return run


def live(n: int) -> Run:
    """W6: a second and a third agent whose prompts begin like that of one that is writing."""

    async def play(scene: Scene, seed: int) -> Measurement:
        prompt, read = ids(f"live {seed}", n), []
        first = await scene.send(prompt, 400)
        await scene.tokens(first, 2)
        for number in range(2):
            other = [*prompt, *ids(f"live {seed} {number}", 20)]
            reply = await scene.whole(await scene.send(other, 8))
            read.append(timings(reply)["prompt_n"] - 20)
        first.cut()
        return {"reread_tokens": max(0.0, *read), "ttft_s": ttft_s(reply)}

    return scenario(play)


def small_ram(n: int) -> Run:
    """W7: a conversation larger than --cache-ram, and one unrelated request between its turns."""

    def run(server: Server, seed: int) -> Measurement:
        talk = Talk(server)
        main, _ = talk.ask(ids(f"main {seed}", n))
        talk.ask(ids(f"other {seed}", 50))
        _, read = talk.ask([*main, *ids(f"more {seed}", 10)])
        return {"reread_tokens": max(0, read - 11), "ttft_s": talk.ttft_s[-1]}

    return run


def cut_off(n: int, after: float) -> Run:
    """W13: a prompt that is cut off half-way, another request, and the prompt again, changed behind
    that point.
    """

    async def play(scene: Scene, seed: int) -> Measurement:
        prompt = ids(f"cut {seed}", n)
        whole = await scene.whole(await scene.send(ids(f"pace {seed}", n), 1))
        cut = await scene.send(prompt, 8)
        await asyncio.sleep(after * ttft_s(whole))
        if cut.event_count:
            raise ScenarioError(f"{n} tokens are read too quickly to be cut")
        cut.cut()
        await scene.settle()
        await scene.whole(await scene.send(ids(f"other {seed}", 200), 8))
        half = int(0.9 * after * n) // BLOCK * BLOCK
        changed = [*prompt[:half], *ids(f"changed {seed}", n - half)]
        reply = await scene.whole(await scene.send(changed, 8))
        return {
            "reread_tokens": max(0.0, timings(reply)["prompt_n"] - (n - half)),
            "ttft_s": ttft_s(reply),
        }

    return scenario(play)


def edit(n: int, share: float) -> Run:
    """W14: a long message is changed at `share` of its length."""

    def run(server: Server, seed: int) -> Measurement:
        talk = Talk(server)
        prompt = ids(f"edit {seed}", n)
        talk.ask(prompt)
        at = int(share * n)
        _, read = talk.ask([*prompt[:at], *ids(f"edited {seed}", n - at)])
        return {"reread_tokens": max(0, read - (n - at)), "ttft_s": talk.ttft_s[-1]}

    return run


def alternating(n: int, turns: int) -> Run:
    """W15: two conversations take turns, both of which fit."""

    def run(server: Server, seed: int) -> Measurement:
        talks = [Talk(server), Talk(server)]
        history = [ids(f"{seed} {number}", n) for number in range(2)]
        reread = 0
        for turn in range(turns):
            for number, talk in enumerate(talks):
                more = ids(f"{seed} {number} {turn}", 50)
                history[number], read = talk.ask([*history[number], *more])
                reread = max(reread, read - 51 if turn else 0)
        later = [ttft for talk in talks for ttft in talk.ttft_s[1:]]
        return {"reread_tokens": reread, "ttft_s": median(later)}

    return run


def filled_in(n: int) -> Run:
    """W16: a gap in an editor is filled in between two turns of a chat, on one row."""

    def run(server: Server, seed: int) -> Measurement:
        talk = Talk(server)
        main, _ = talk.ask(ids(f"main {seed}", n))
        gap = {"input_prefix": "def f(x):\n", "input_suffix": "\n    return y\n", "n_predict": 8}
        _post(server, "/infill", gap)
        _, read = talk.ask([*main, *ids(f"more {seed}", 20)])
        return {"reread_tokens": max(0, read - 21), "ttft_s": talk.ttft_s[-1]}

    return run


def said_again(turns: int, n_tokens: int) -> Run:
    """A chat, drawn freely: how much of an answer is read again when it is history.

    At the usual temperature a small model says hardly a word in other tokens than the tokeniser.
    """

    def run(server: Server, seed: int) -> Measurement:
        messages = [{"role": "user", "content": f"Tell me story number {seed}, with odd names."}]
        known, reread, last = 0, [], 0.0
        for turn in range(turns):
            body = {"messages": messages, "max_tokens": n_tokens, "seed": turn, **FREELY}
            reply = client.send(server.port, client.Request("/v1/chat/completions", body))
            if reply.error:
                raise ScenarioError(f"{server.name}: {reply.error}")
            value = json.loads(reply.text)
            found = value["timings"]
            reread += [max(0, known - 1 - found["cache_n"])] if turn else []
            known = found["cache_n"] + found["prompt_n"] + found["predicted_n"]
            last = found["prompt_ms"] / 1e3
            messages.append(value["choices"][0]["message"])
            messages.append({"role": "user", "content": "Go on."})
        return {"reread_tokens": sum(reread) / len(reread), "ttft_s": last}

    return run


def common(count: int, shared: int, own: int) -> Run:
    """W18: conversations that begin alike, with RAM for three of them if each is kept whole."""

    def run(server: Server, seed: int) -> Measurement:
        talk, start = Talk(server), ids(f"common {seed}", shared)
        history = [[*start, *ids(f"{seed} {number}", own)] for number in range(count)]
        reread = []
        for turn in range(3):
            for number in range(count):
                more = ids(f"{seed} {number} {turn}", 30)
                history[number], read = talk.ask([*history[number], *more])
                reread += [max(0, read - 31)] if turn else []
        return {"reread_tokens": sum(reread) / len(reread), "ttft_s": median(talk.ttft_s[count:])}

    return run


def slot_file(n: int) -> Run:
    """W12: a slot is saved, the server starts anew, and the prompt goes on a little before its end.
    """

    def run(server: Server, seed: int) -> Measurement:
        with tempfile.TemporaryDirectory() as folder:
            flags = ("--slot-save-path", folder, "--cache-ram", "512")
            server.start(flags)
            talk = Talk(server)
            told, _ = talk.ask(ids(f"slot {seed}", n))
            slot = next(
                one["id"] for one in _get(server, "/slots") if one.get("n_prompt_tokens", 0) >= n
            )
            _post(server, f"/slots/{slot}?action=save", {"filename": "slot"})
            server.stop()
            server.start(flags)
            _post(server, f"/slots/{slot}?action=restore", {"filename": "slot"})
            shorter = [*told[: n - 4], *ids(f"more {seed}", 20)]
            request = completion(shorter, 8, id_slot=slot)
            reply = client.send(server.port, request)
            check(server, [reply])
            return {
                "reread_tokens": max(0.0, timings(reply)["prompt_n"] - 20),
                "ttft_s": ttft_s(reply),
            }

    return run


def _get(server: Server, path: str) -> Any:
    reply = client.send(server.port, client.Request(path))
    if reply.error:
        raise ScenarioError(f"{server.name}: GET {path}: {reply.error}")
    return json.loads(reply.text)


def _post(server: Server, path: str, body: dict[str, Any]) -> None:
    reply = client.send(server.port, client.Request(path, body))
    if reply.error:
        raise ScenarioError(f"{server.name}: POST {path}: {reply.error}")


_METRICS = (
    Metric("reread_tokens", "read again", "tok", "lower", "value", BLOCK),
    Metric("ttft_s", "TTFT", "s", "lower"),
)


def _one(name: str, title: str, run: Run, *flags: str, pairs: int = 3) -> Scenario:
    return Scenario(
        name, title, run, _METRICS, pairs=pairs, quick_pairs=1, flags=flags, rounds=1
    )


def _fresh(name: str, title: str, run: Run) -> Scenario:
    return Scenario(name, title, run, _METRICS, pairs=3, quick_pairs=1, rounds=1, fresh=True)


SCENARIOS = (
    _one("subagent", "W5: a subagent between two turns", subagent(2000, 300)),
    _one("live", "W6: agents that begin like one that writes", live(1000)),
    _one("small-ram", "W7: a conversation larger than --cache-ram", small_ram(1500),
         "--cache-ram", "1"),
    _fresh("slot-file", "W12: a saved slot, restored after a new start", slot_file(1500)),
    _one("cut-off", "W13: cut off, another request, again with a change", cut_off(2000, 0.6)),
    _one("edit", "W14: a change within a long message", edit(3000, 0.8), "-c", "8192"),
    _one("alternating", "W15: two conversations in turn", alternating(1500, 4)),
    _one("filled-in", "W16: /infill between two turns (a model with tokens for it)",
         filled_in(1200), "-np", "1"),
    _one("said-again", "Answers of 150 tokens that come back as history", said_again(4, 150),
         "-c", "8192"),
    _one("common", "W18: conversations that begin alike, RAM for three", common(8, 1000, 300),
         "--cache-ram", "100"),
)  # fmt: skip
