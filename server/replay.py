"""Event streams that outlive their connection: what a request with X-Conversation-Id generates is
kept for a while, so that its client may come back and read on where it was.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .caller import header
from .lifetime import wait

MOST_BYTES = 4 << 20  # of a stream; its beginning is dropped beyond that. llama-server's limit
ALL_BYTES = 256 << 20  # of all streams; those that ended first are dropped first
KEPT_S = 300.0  # after its end
HEADERS = {
    "X-Conversation-Id": "of a request with `stream`: what it generates is kept, goes on without "
    "its client, and can be read again. One stream for each conversation; a new one ends the old",
}
HEADER = b"x-conversation-id"
LONGEST_ID = 1024

Owner = tuple[str, str]  # key name, conversation id


class Recording:
    """One stream, as far as it has come. An ASGI application writes it; any number may follow."""

    def __init__(self, conversation: str):
        self.conversation = conversation
        self.started_at = int(time.time())
        self.completed_at = 0  # Unix time; 0: it goes on
        self.dropped = 0  # bytes from the beginning that are no longer kept
        self.total = 0  # bytes in all
        self.head: Message | None = None  # status and headers
        self._parts: deque[bytes] = deque()
        self._news = asyncio.Event()
        self._cancelled = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None

    @property
    def is_done(self) -> bool:
        """Nothing more will come."""
        return self.completed_at > 0

    @property
    def n_bytes(self) -> int:
        """Bytes that are kept."""
        return self.total - self.dropped

    def start(self, app: ASGIApp, scope: Scope) -> None:
        """Have `app` write its reply here, whoever listens."""
        self._writer = asyncio.ensure_future(self._write(app, scope))

    def cancel(self) -> None:
        """End the generation as if its client had gone."""
        self._cancelled.set()

    async def _write(self, app: ASGIApp, scope: Scope) -> None:
        async def receive() -> Message:
            await self._cancelled.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.head = message
            else:
                self._append(message.get("body", b""))
            self._tell()

        try:
            await app({"type": "http", "headers": [], "path": scope["path"]}, receive, send)
        finally:
            self.completed_at = int(time.time())
            self._tell()

    def _append(self, data: bytes) -> None:
        if data:
            self._parts.append(data)
            self.total += len(data)
        while self.n_bytes > MOST_BYTES and len(self._parts) > 1:
            self.dropped += len(self._parts.popleft())

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def wait_head(self) -> Message | None:
        """Status and headers once they are known; None when it ended without."""
        while self.head is None and not self.is_done:
            await self._news.wait()
        return self.head

    async def read(self, offset: int) -> bytes | None:
        """What comes after the first `offset` bytes, at least one byte; None at the end, and where
        that part is no longer kept.
        """
        while offset >= self.total:
            if self.is_done:
                return None
            await self._news.wait()
        if offset < self.dropped:
            return None
        skip = offset - self.dropped
        return b"".join(self._parts)[skip:]


class Recordings:
    """All streams that are kept, by who asked for them."""

    def __init__(self) -> None:
        self._all: dict[Owner, Recording] = {}

    def open(self, owner: Owner) -> Recording:
        """A new recording; an older one of the same conversation ends."""
        self.drop(owner)
        self._make_room()
        recording = self._all[owner] = Recording(owner[1])
        return recording

    def find(self, owner: Owner) -> Recording | None:
        """The recording of a conversation."""
        self._make_room()
        return self._all.get(owner)

    def like(self, owner: Owner) -> list[Recording]:
        """The recording of a conversation and of its parts, named `id::part`."""
        self._make_room()
        tenant, name = owner
        return [
            recording
            for (whose, conversation), recording in self._all.items()
            if whose == tenant and (conversation == name or conversation.startswith(name + "::"))
        ]

    def drop(self, owner: Owner) -> None:
        """End and forget a recording, if there is one."""
        recording = self._all.pop(owner, None)
        if recording is not None:
            recording.cancel()

    @property
    def n_bytes(self) -> int:
        """Bytes that are kept of all streams."""
        return sum(recording.n_bytes for recording in self._all.values())

    def _make_room(self) -> None:
        """Forget what ended long ago, and what ended first where there is too much."""
        too_old = time.time() - KEPT_S
        ended = sorted(
            (item for item in self._all.items() if item[1].is_done),
            key=lambda item: item[1].completed_at,
        )
        n_bytes = self.n_bytes
        for owner, recording in ended:
            if recording.completed_at < too_old or n_bytes > ALL_BYTES:
                n_bytes -= recording.n_bytes
                del self._all[owner]


class Follow(Response):
    """Reads a recording from `offset` on; a client that leaves stops nothing."""

    media_type = "text/event-stream"

    def __init__(self, recording: Recording, offset: int = 0):
        super().__init__()
        self._recording = recording
        self._offset = offset

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry point."""
        reader = asyncio.ensure_future(self._read(send))
        try:
            if await wait(reader, receive):
                reader.result()
        finally:
            reader.cancel()

    async def _read(self, send: Send) -> None:
        head = await self._recording.wait_head()
        if head is None:
            head = {"type": "http.response.start", "status": 499, "headers": []}
        await send({**head, "headers": list(head.get("headers", ()))})
        offset = self._offset
        while (data := await self._recording.read(offset)) is not None:
            offset += len(data)
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def conversation_of(scope: Scope) -> str:
    """The conversation that a request names; "" where it names none."""
    value = header(scope["headers"], HEADER)
    return value.decode("latin-1") if len(value) <= LONGEST_ID else ""
