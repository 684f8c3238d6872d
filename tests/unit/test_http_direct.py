"""Tokens that are written in the engine's callback: order and completeness whatever the client
does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from strata_plugin.engine.messages import Done, Token
from strata_server.caller import Caller
from strata_server.choice import Choice, Wanted
from strata_server.dialects.dialect import NATIVE
from strata_server.direct import direct
from strata_server.generation import Generation
from strata_server.own_fields import OwnFields
from strata_server.pacing import Pacer
from strata_server.ports import Kind
from strata_server.sse import EventStream
from strata_server.stages import Stages
from strata_server.submission import Origin
from tests.unit.fake_backend import (
    FakeEngine,
    FakePrepared,
    FakeReply,
    FakeStream,
    done,
    fake_service,
    token,
)
from tests.unit.http_server import events, run, until

WANTED = Wanted(stream=True, tokens=False, timings=False, probs=False, chat=False)


class Client:
    """The far end of a connection: `send` returns at once until `full`, then when `read` says."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.suspended = 0
        self.status = 0
        self._room = asyncio.Event()
        self._room.set()

    @property
    def text(self) -> str:
        return b"".join(self.parts).decode()

    def fill(self) -> None:
        self._room.clear()

    def read(self) -> None:
        self._room.set()

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        self.parts.append(message["body"])  # as a socket's buffer: taken first, then "full"
        if not self._room.is_set():
            self.suspended += 1
            await self._room.wait()


def plain(request_id: int, text: str, n: int) -> Token:
    """A token that `direct` writes itself: one without timings."""
    return Token(request_id=request_id, token=n, text=text.encode(), n_decoded=n)


def new_choice() -> Choice:
    return Choice(FakeReply(Kind.COMPLETION, 0), 3, WANTED, len, Stages("r"))


def new_pair() -> tuple[FakeStream, Choice]:
    return FakeStream(1, []), new_choice()


def begin(stream: FakeStream, choice: Choice, send: Any, sent: Callable[[], None]) -> Any:
    return asyncio.ensure_future(direct(stream, choice, Pacer(False), send, sent))


def texts(text: str) -> list[str]:
    return [e["content"] for e in events(text)]


def test_tokens_are_written_before_the_callback_returns() -> None:
    async def body() -> None:
        (stream, choice), client, sent = new_pair(), Client(), []
        task = begin(stream, choice, client.send, lambda: sent.append(1))
        await until(lambda: stream.sink is not None)
        for n, word in enumerate("abc", 1):
            stream.push(plain(1, word, n))
            assert texts(client.text)[-1] == word  # no task has run in between
        assert len(sent) == 3 and not stream.waiting
        stream.push(done(1, 3))
        await task
        assert isinstance(stream.next_nowait(), Done)
        assert stream.sink is None

    run(body())


def test_a_client_that_reads_slowly_gets_everything_in_order() -> None:
    async def body() -> None:
        (stream, choice), client, sent = new_pair(), Client(), []
        task = begin(stream, choice, client.send, lambda: sent.append(1))
        await until(lambda: stream.sink is not None)
        stream.push(plain(1, "a", 1))
        client.fill()
        stream.push(plain(1, "b", 2))  # suspends
        stream.push(plain(1, "c", 3))  # must wait in the stream
        await asyncio.sleep(0.02)
        stream.push(plain(1, "d", 4))
        assert (texts(client.text), client.suspended, len(sent)) == (["a", "b"], 1, 1)
        assert not task.done()
        client.read()
        await task
        assert len(sent) == 2  # b counts as sent when the client has room again
        left = [stream.next_nowait(), stream.next_nowait()]
        assert [e.text for e in left if isinstance(e, Token)] == [b"c", b"d"]
        assert not stream.waiting

    run(body())


def test_a_send_that_fails_while_it_is_suspended_is_raised() -> None:
    async def body() -> None:
        stream, choice = new_pair()
        broken = asyncio.Event()

        async def send(_: Any) -> None:
            await broken.wait()
            raise OSError("connection reset")

        task = begin(stream, choice, send, lambda: None)
        await until(lambda: stream.sink is not None)
        stream.push(plain(1, "a", 1))
        broken.set()
        with pytest.raises(OSError, match="connection reset"):
            await task

    run(body())


def test_what_formatting_raises_is_raised_and_later_events_are_kept() -> None:
    class Broken(FakeReply):
        def chunk(self, **fields: Any) -> bytes:
            raise ValueError("no such text")

    async def body() -> None:
        stream = FakeStream(1, [])
        choice = Choice(Broken(Kind.COMPLETION, 0), 3, WANTED, len, Stages("r"))
        task = begin(stream, choice, Client().send, lambda: None)
        await until(lambda: stream.sink is not None)
        stream.push(plain(1, "a", 1))
        stream.push(plain(1, "b", 2))
        with pytest.raises(ValueError, match="no such text"):
            await task
        assert stream.waiting and stream.sink is None

    run(body())


def test_a_reply_that_is_given_up_leaves_no_sink_behind() -> None:
    async def body() -> None:
        (stream, choice), client = new_pair(), Client()
        task = begin(stream, choice, client.send, lambda: None)
        await until(lambda: stream.sink is not None)
        task.cancel()
        await asyncio.wait([task])
        assert stream.sink is None
        stream.push(plain(1, "a", 1))
        assert stream.waiting and client.parts == []

    run(body())


def test_a_token_with_timings_waits_for_what_follows_it() -> None:
    async def body() -> None:
        (stream, choice), client = new_pair(), Client()
        task = begin(stream, choice, client.send, lambda: None)
        await until(lambda: stream.sink is not None)
        stream.push(token(1, "a", 1))
        await task
        assert client.parts == [] and isinstance(stream.next_nowait(), Token)

    run(body())


# ---- a whole reply over one connection -----------------------------------------------------------


def two_choices(engine: FakeEngine) -> EventStream:
    service = fake_service(engine)
    origin = Origin("native", Caller("r"), OwnFields())
    prepared = FakePrepared(Kind.COMPLETION, {"prompt": "abc", "stream": True})
    generation = Generation(service, NATIVE, origin, prepared, WANTED)
    for index in range(2):
        stream = FakeStream(index + 1, [])
        engine.streams.append(stream)
        reply = FakeReply(Kind.COMPLETION, index)
        generation.add(Choice(reply, 3, WANTED, len, Stages(f"r[{index}]")), stream, [])
    return EventStream(service, generation)


def test_a_choice_that_is_paused_holds_up_no_other_and_loses_nothing() -> None:
    async def body() -> None:
        engine, client, gone = FakeEngine(), Client(), asyncio.Event()

        async def receive() -> Any:
            await gone.wait()
            return {"type": "http.disconnect"}

        reply = two_choices(engine)
        one, two = engine.streams
        one.push(plain(1, "a1", 1))
        two.push(plain(2, "b1", 1))
        task = asyncio.ensure_future(reply({"type": "http"}, receive, client.send))
        await until(lambda: one.sink is not None and two.sink is not None)
        assert client.status == 200
        client.fill()
        one.push(plain(1, "a2", 2))  # suspends: choice one is paused
        assert (client.suspended, one.sink) == (1, None)
        client.read()
        client.fill()  # room for one moment only
        two.push(plain(2, "b2", 2))  # the other goes on, and is paused in its turn
        one.push(plain(1, "a3", 3))
        one.push(done(1, 3))
        two.push(plain(2, "b3", 3))
        assert [e["content"] for e in events(client.text)] == ["a1", "b1", "a2", "b2"]
        await asyncio.sleep(0.05)
        assert not task.done()
        client.read()
        two.push(done(2, 3))
        await task
        for index, words in ((0, ["a1", "a2", "a3", ""]), (1, ["b1", "b2", "b3", ""])):
            got = [e["content"] for e in events(client.text) if e["index"] == index]
            assert got == words
        assert client.parts[-1] == b""  # the end of the body

    run(body())
