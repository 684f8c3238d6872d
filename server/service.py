"""What the routes share: the engine's client, the model's frontend and the settings, and when they
are usable.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import orjson

from strata_plugin.engine.messages import Ready

from .adapters import Adapters
from .errors import LOADING, SHUTTING_DOWN, ApiError
from .own_fields import OwnFields, mentions_own_fields, read_own_fields
from .ports import EnginePort, FrontendPort
from .replay import Recordings
from .settings import ServerSettings
from .turns import Turns

if TYPE_CHECKING:
    from .generation import Generation

DRAIN_POLL_S = 0.02
INLINE_BYTES = 16 << 10  # larger bodies are parsed and tokenised beside the event loop
T = TypeVar("T")


class Service:
    """Handed to every route. Not usable before `open_doors`, which the readiness gate reads as
    `is_ready`.
    """

    def __init__(self, settings: ServerSettings, engine: EnginePort):
        self.settings = settings
        self.engine = engine
        self.build_info: dict[str, Any] = {}
        self.frontend_info: dict[str, Any] = {}
        self.draining = False  # no request is accepted any more
        self.live: set[Generation] = set()
        self.turns: Turns | None = None  # None: answers are not read as they were sampled
        self.recordings = Recordings()
        self.adapters = Adapters(settings.lora_scales)
        self._frontend: FrontendPort | None = None
        self._pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="native")

    @property
    def is_ready(self) -> bool:
        """Whether API routes may be served."""
        there = self._frontend is not None and self.engine.ready is not None
        return there and not self.draining

    @property
    def unavailable(self) -> ApiError:
        """Why routes can't be served."""
        if self.draining:
            return SHUTTING_DOWN
        return ApiError(self.engine.error, "unavailable_error") if self.engine.error else LOADING

    def open_doors(self, frontend: FrontendPort, turns: Turns | None = None) -> None:
        """Everything is loaded: serve."""
        self.turns = turns if self.settings.normalise else None
        self.frontend_info = frontend.info()
        self._frontend = frontend

    async def drain(self, seconds: float) -> None:
        """Refuse new requests, and wait until those in flight have ended, or the time has."""
        self.draining = True
        deadline = time.monotonic() + seconds
        while self.live and time.monotonic() < deadline:
            await asyncio.sleep(DRAIN_POLL_S)

    def close(self) -> None:
        """End all replies in flight and let the worker threads go."""
        for generation in list(self.live):
            generation.abort(SHUTTING_DOWN)
        self._pool.shutdown(wait=False, cancel_futures=True)

    @property
    def frontend(self) -> FrontendPort:
        """The model's frontend; `ApiError` while loading."""
        if self._frontend is None:
            raise self.unavailable
        return self._frontend

    @property
    def ready(self) -> Ready:
        """What the engine told when it was ready; `ApiError` while loading."""
        if self.engine.ready is None:
            raise self.unavailable
        return self.engine.ready

    async def native_call(self, function: Callable[..., T], *args: Any, size: int) -> T:
        """Call into the native library, beside the event loop when `size` bytes of input take a
        while.

        What it refuses comes out as `ApiError`, and as the client's fault: llama.cpp calls much of
        what a client did wrong a fault of its own, and clients try again.
        """
        try:
            if size <= INLINE_BYTES:
                return function(*args)
            return await self.beside(function, *args)
        except Exception as error:
            refusal = as_api_error(error)
            if refusal.error_type == "server_error":
                refusal = ApiError(refusal.message)
            raise refusal from error

    async def beside(self, function: Callable[..., T], *args: Any) -> T:
        """Run a native call (it releases the interpreter lock) in a worker thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: function(*args))

    async def own_fields(self, body: bytes, tenant: str) -> OwnFields:
        """Our own fields of a request of `tenant`; `ApiError` where one of them is wrong."""
        if not mentions_own_fields(body):
            return OwnFields()
        highest = self.settings.max_priority.highest(tenant)
        return await self.native_call(read_own_fields, body, highest, size=len(body))

    def count_tokens(self, text: str) -> int:
        """Tokens of `text` as plain text (no special tokens are added)."""
        reply = self.frontend.tokenize(orjson.dumps({"content": text, "parse_special": False}))
        return len(orjson.loads(reply)["tokens"])


def as_api_error(error: Exception) -> ApiError:
    """The error a client is told for something that the native library refused; others are raised
    again.
    """
    message = getattr(error, "message", None)
    error_type = getattr(error, "type", None)
    if isinstance(error, ApiError):
        return error
    if not isinstance(message, str) or not isinstance(error_type, str):
        raise error
    if message.startswith("[json.exception."):
        # llama-server answers 500, on which clients try again; the fault is in what they sent
        error_type = "invalid_request_error"
    return ApiError(message, error_type)
