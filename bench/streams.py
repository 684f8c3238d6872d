"""What the scenarios send, and how the streams that come back are read."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any

from bench import client
from bench.scenario import ScenarioError
from bench.servers import Server

# Common words that are one token each in most vocabularies, so that a word count is a token count.
_WORDS = (
    "time year people way day man thing woman life child world school state family student group "
    "country problem hand part place case week company system program question work government "
    "number night point home water room mother area money story fact month lot right study book "
    "eye job word business issue side kind head house service friend father power hour game line "
    "end member law car city community name president team minute idea body information back "
    "parent face others level office door health person art war history party result change "
    "morning reason research girl guy moment air teacher force education"
)
WORDS = tuple(_WORDS.split())


def random_text(seed: int | str, words: int) -> str:
    """`words` common words drawn with `seed`; another seed differs from the first words on."""
    draw = random.Random(seed)
    return " ".join(draw.choice(WORDS) for _ in range(words))


def completion(prompt: str | list[int], n_predict: int, **fields: Any) -> client.Request:
    """A greedy stream of `n_predict` tokens; `fields` are added to its body, or replace some.

    The prompt is a text or token ids.
    """
    body: dict[str, Any] = {
        "prompt": prompt,
        "n_predict": n_predict,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "cache_prompt": True,
    }
    return client.Request("/completion", body | fields)


def check(server: Server, replies: Sequence[client.Reply]) -> None:
    """Raise `ScenarioError` where a reply failed or brought no event."""
    for reply in replies:
        if reply.error or not reply.events:
            raise ScenarioError(f"{server.name}: {reply.error or 'no events'}")


def tokens(reply: client.Reply) -> list[tuple[float, int]]:
    """(seconds since the request, tokens so far) of each event that carries new text."""
    found: list[tuple[float, int]] = []
    for event in reply.events:
        if not event.data.get("stop") and "tokens_predicted" in event.data:
            found.append((event.at, int(event.data["tokens_predicted"])))
    if len(found) < 2:
        raise ScenarioError(f"only {len(found)} token events in a stream")
    return found


def timings(reply: client.Reply) -> Mapping[str, float]:
    """What the server says about a complete stream: token counts, tokens/s, milliseconds."""
    found = reply.events[-1].data.get("timings")
    if not found:
        raise ScenarioError("the last event carries no timings")
    return dict(found)


def ttft_s(reply: client.Reply) -> float:
    """Seconds from before the connect to the first event of a stream, whole or cut."""
    if not reply.events:
        raise ScenarioError(reply.error or "a stream without any event")
    return reply.events[0].at


def text(reply: client.Reply) -> str:
    """All that a stream of /completion has said."""
    return "".join(str(event.data.get("content", "")) for event in reply.events)


def gaps_ms(seen: Sequence[tuple[float, int]]) -> list[float]:
    """Milliseconds between one event of a stream and the next."""
    return [(later[0] - earlier[0]) * 1e3 for earlier, later in itertools.pairwise(seen)]


def gaps_within_ms(reply: client.Reply, begin: float, end: float) -> list[float]:
    """The gaps of a stream that lie at least in part between two times on time.perf_counter()."""
    at = [reply.started + time for time, _ in tokens(reply)]
    return [
        (later - earlier) * 1e3
        for earlier, later in itertools.pairwise(at)
        if later > begin and earlier < end
    ]


def tokens_within(reply: client.Reply, begin: float, end: float) -> int:
    """How many tokens of a stream came between two times on time.perf_counter()."""
    counts = [count for time, count in tokens(reply) if begin <= reply.started + time <= end]
    before = [count for time, count in tokens(reply) if reply.started + time < begin]
    return (counts[-1] - (before[-1] if before else 0)) if counts else 0
