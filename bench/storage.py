"""What is kept of prompts: more conversations than memory holds, and a server that is killed.

Conversations are taken in turn, each with new words in every turn, so that a server that keeps
everything reads only those. Both servers have the same RAM for what leaves the KV cache.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from bench import client
from bench.scenario import Measurement, Metric, Scenario, ScenarioError, untargeted
from bench.servers import Server
from bench.stats import median, quantile
from bench.streams import check, completion, random_text, text, timings, ttft_s

RAM_MIB = 40  # for about three of the conversations, with the default model
BLOCK = 256  # tokens: so many may be read again in a turn
FLAGS = ("--cache-ram", str(RAM_MIB))


class Conversation:
    """One client's history; `turn` sends it with new words and notes what the server read."""

    def __init__(self, seed: str, words: int) -> None:
        self.seed = seed
        self.history = random_text(f"conversation {seed}", words)
        self.turns = 0
        self.told = 0  # tokens that the server has had from us, or given us

    def turn(self, server: Server, words: int, n_predict: int) -> tuple[float, float, float]:
        """(TTFT in seconds, tokens that were read, those of them that were not new)."""
        if self.turns:
            self.history += " " + random_text(f"{self.seed} turn {self.turns}", words)
        reply = client.send(server.port, completion(self.history, n_predict))
        check(server, [reply])
        counted = timings(reply)
        n_prompt = counted["prompt_n"] + counted["cache_n"]
        # the last token that was written has never been computed
        new = n_prompt - max(0, self.told - 1)
        self.told = int(n_prompt + counted["predicted_n"])
        self.history += text(reply)
        self.turns += 1
        return ttft_s(reply), counted["prompt_n"], max(0.0, counted["prompt_n"] - new)


def in_turn(
    count: int, turns: int, words: int, more: int, n_predict: int = 16
) -> Callable[[Server, int], Measurement]:
    """`count` conversations that begin with `words` and go on with `more` in each further turn."""

    def run(server: Server, seed: int) -> Measurement:
        talks = [Conversation(f"{seed} {number}", words) for number in range(count)]
        seen = [[talk.turn(server, more, n_predict) for talk in talks] for _ in range(turns)]
        server.check()
        later = [one for turn in seen[1:] for one in turn]
        return {
            "ttft_p95_s": quantile([ttft for ttft, _, _ in later], 0.95),
            "ttft_p50_s": median([ttft for ttft, _, _ in later]),
            "read_tokens": sum(read for _, read, _ in later) / len(later),
            "reread_tokens": max(reread for _, _, reread in later),
        }

    return run


def killed(
    count: int, words: int, more: int, idle_s: float, n_predict: int = 16
) -> Callable[[Server, int], Measurement]:
    """As many conversations, then `idle_s` without any, then kill -9, a new start and a turn."""

    def run(server: Server, seed: int) -> Measurement:
        server.start(FLAGS)
        talks = [Conversation(f"{seed} {number}", words) for number in range(count)]
        cold = [talk.turn(server, more, n_predict)[0] for talk in talks]
        time.sleep(idle_s)
        server.kill()
        server.start(FLAGS, again=True)
        sent = [talk.told for talk in talks]
        seen = [talk.turn(server, more, n_predict) for talk in talks]
        server.check()
        again = sum(reread for _, _, reread in seen)
        return {
            "restored_percent": 100.0 * (1.0 - again / sum(sent)),
            "first_ttft_s": seen[0][0],
            "ttft_p50_s": median([ttft for ttft, _, _ in seen]),
            "first_to_cold": seen[0][0] / median(cold),
        }

    return run


def appended(words: int, more: int) -> Callable[[Server, int], Measurement]:
    """`more` words after a history of `words` that is resident, in RAM, and on disk."""

    def run(server: Server, seed: int) -> Measurement:
        flags = ("-c", str(4 * (words + more)), "--cache-ram", "2048")
        server.start(flags)

        def ttft(where: str, between: Callable[[], object]) -> float:
            talk = Conversation(f"{seed} {where}", words)
            talk.turn(server, 0, 2)
            between()
            seconds, read, _ = talk.turn(server, more, 2)
            if server.name == "strata-server" and read > more + max(BLOCK, words // 4):
                raise ScenarioError(f"the history was not {where}: {read:.0f} tokens were read")
            return seconds

        def restart() -> None:
            time.sleep(2.0)
            server.stop()
            server.start(flags, again=True)
            time.sleep(1.0)

        resident = ttft("resident", lambda: None)
        other = completion(random_text(f"{seed} other", 30), 2)
        in_ram = ttft("in RAM", lambda: check(server, [client.send(server.port, other)]))
        on_disk = ttft("on disk", restart)
        server.check()
        return {
            "ttft_resident_s": resident,
            "ttft_ram_s": in_ram,
            "ttft_disk_s": on_disk,
            "ram_to_resident": in_ram / resident,
            "disk_to_resident": on_disk / resident,
        }

    return run


_APPENDED = (
    Metric("ram_to_resident", "TTFT, history in RAM / resident", "", "lower", "value", 1.1),
    Metric("disk_to_resident", "TTFT, history on disk / resident", "", "lower", "value", 1.3),
    Metric("ttft_resident_s", "TTFT, history resident", "s", "lower"),
    Metric("ttft_ram_s", "TTFT, history in RAM", "s", "lower"),
    Metric("ttft_disk_s", "TTFT, history on disk", "s", "lower"),
)
_IN_TURN = (
    Metric("ttft_p95_s", "TTFT p95 of later turns", "s", "lower", target=0.25),
    Metric("ttft_p50_s", "TTFT p50 of later turns", "s", "lower"),
    Metric("read_tokens", "tokens read in a turn", "tok", "lower", "difference"),
    Metric("reread_tokens", "read again in a turn, at most", "tok", "lower", "value", BLOCK),
)
_KILLED = (
    Metric("restored_percent", "of what was told before, not read again", "%", "higher", "value",
           99.0),
    Metric("first_to_cold", "first TTFT / cold", "", "lower", "value", 0.2),
    Metric("first_ttft_s", "first TTFT after the start", "s", "lower"),
    Metric("ttft_p50_s", "TTFT p50 after the start", "s", "lower"),
)  # fmt: skip
SCENARIOS = (
    Scenario(
        "appended",
        "800 tokens after 6,000 that are resident, in RAM, on disk",
        appended(6000, 800),
        _APPENDED,
        pairs=3,
        quick_pairs=1,
        rounds=1,
        fresh=True,
        warm_up=appended(300, 100),
    ),
    Scenario(
        "in-turn",
        "8 conversations in turn, RAM for three",
        in_turn(8, 5, 400, 60),
        _IN_TURN,
        pairs=3,
        quick_pairs=1,
        flags=FLAGS,
        rounds=1,
        warm_up=in_turn(1, 2, 100, 10),
    ),
    Scenario(
        "in-turn-tiny",
        "8 conversations in turn, RAM for three of a tiny model",
        in_turn(8, 5, 400, 60),
        _IN_TURN,
        pairs=3,
        quick_pairs=1,
        flags=("--cache-ram", "4"),
        rounds=1,
        warm_up=in_turn(1, 2, 100, 10),
    ),
    Scenario(
        "killed",
        "kill -9 after 2 s of idling, and a new start",
        killed(3, 1500, 60, 2.0),
        _KILLED,
        pairs=3,
        quick_pairs=1,
        rounds=1,
        fresh=True,
    ),
    Scenario(
        "killed-at-once",
        "kill -9 right after an answer, and a new start",
        killed(3, 1500, 60, 0.0),
        untargeted(_KILLED),
        pairs=3,
        quick_pairs=1,
        rounds=1,
        fresh=True,
    ),
)
