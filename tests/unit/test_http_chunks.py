"""What each event of a stream carries, and when tokens share one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from strata_plugin.engine.messages import Progress, Started, StopReason, Submit
from tests.unit.fake_backend import (
    FakeEngine,
    FakeReply,
    Step,
    done,
    fake_service,
    says,
    token,
)
from tests.unit.http_server import events, run, serving

CHAT = {"messages": [{"role": "user", "content": "abc"}], "stream": True}
PROMPT = {"prompt": "abc", "stream": True}


def contents(values: Sequence[Any]) -> list[str]:
    return [v["content"] for v in values if isinstance(v, dict) and "content" in v]


def test_progress_comes_in_its_place() -> None:
    def script(request: Submit) -> list[Step]:
        rid = request.request_id
        assert request.return_progress
        return [
            Started(rid, 0, 1),
            Progress(rid, 1, 1, 0),
            Progress(rid, 3, 1, 5),
            token(rid, "a", 1),
            done(rid, 1),
        ]

    async def body() -> None:
        async with serving(fake_service(FakeEngine(script))) as client:
            reply = await client.post("/completion", json={**PROMPT, "return_progress": True})
            kinds = ["prompt_progress" in e for e in events(reply.text)]
            assert kinds == [True, True, False, False]

    run(body())


def test_cheap_chunks_are_never_merged() -> None:
    async def body() -> None:
        words = [f"w{n}" for n in range(50)]
        async with serving(fake_service(FakeEngine(says(*words)))) as client:
            reply = await client.post("/v1/chat/completions", json=CHAT)
            assert contents(events(reply.text))[:50] == words

    run(body())


def busy(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_costly_chunks_are_merged_and_nothing_is_lost_or_held_long(monkeypatch: Any) -> None:
    chunk = FakeReply.chunk

    def slow_chunk(self: FakeReply, *, sse: bool, kind: int = 0, **fields: Any) -> bytes:
        busy(0.005 if kind == 0 else 0)
        return chunk(self, sse=sse, kind=kind, **fields)

    monkeypatch.setattr(FakeReply, "chunk", slow_chunk)
    words = [f"w{n} " for n in range(200)]

    def script(request: Submit) -> list[Step]:
        rid = request.request_id
        steps: list[Step] = [Started(rid, 0, 0)]
        for n, word in enumerate(words, 1):
            steps += [0.003, token(rid, word, n)]
        return [*steps, done(rid, 200)]

    async def body() -> None:
        async with serving(fake_service(FakeEngine(script))) as client:
            parts: list[tuple[float, str]] = []
            async with client.stream("POST", "/v1/chat/completions", json=CHAT) as reply:
                async for part in reply.aiter_text():
                    parts.append((time.monotonic(), part))
            pieces = contents(events("".join(p for _, p in parts)))
            assert "".join(pieces) == "".join(words)
            assert len(pieces) < 150
            gaps = [b[0] - a[0] for a, b in pairwise(parts)]
            assert max(gaps) < 0.4  # 0.1 s at most is ours
            for extra in ({"timings_per_token": True}, {"n_probs": 1}):
                reply2 = await client.post("/v1/chat/completions", json={**CHAT, **extra})
                assert len(contents(events(reply2.text))) == 200

    run(body())


def test_the_first_chunk_of_a_chat_counts_as_the_first_token() -> None:
    """llama-server opens the message at n_decoded 1, which a split UTF-8 character would skip."""

    def script(request: Submit) -> list[Step]:
        rid = request.request_id
        return [
            Started(rid, 0, 0),
            token(rid, "", 1, visible=False),
            token(rid, "é", 2),
            token(rid, "!", 3),
            done(rid, 3),
        ]

    async def body() -> None:
        async with serving(fake_service(FakeEngine(script))) as client:
            reply = await client.post("/v1/chat/completions", json=CHAT)
            chunks = [e for e in events(reply.text) if isinstance(e, dict) and "n_decoded" in e]
            assert [c["n_decoded"] for c in chunks] == [1, 3]
            assert [c["tokens"] for c in chunks] == [[1, 2], [3]]
            native = await client.post("/completion", json=PROMPT)
            assert [e.get("n_decoded") for e in events(native.text)[:2]] == [2, 3]

    run(body())


def test_a_stop_word_puts_timings_on_the_last_token_as_llama_server_does() -> None:
    def script(request: Submit) -> list[Step]:
        rid = request.request_id
        end = done(rid, 2, StopReason.WORD, stopping_word="x")
        return [token(rid, "a", 1), 0.05, token(rid, "", 2), end]

    async def body() -> None:
        async with serving(fake_service(FakeEngine(script))) as client:
            reply = await client.post("/completion", json=PROMPT)
            assert ["timings" in e for e in events(reply.text)[:2]] == [False, True]

    run(body())
