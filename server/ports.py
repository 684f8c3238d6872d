"""What the HTTP layer needs from the native library and from the engine client, as protocols.

The implementations are `strata_plugin.runtime.native` and `strata_plugin.engine.client`; tests
bring fakes. Everything here is small on purpose: a route that needs more than this is doing the
engine's work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, Protocol

from strata_plugin.engine.messages import Embed, Embedded, Failed, Ready, SlotActed, Submit
from strata_plugin.engine.request_stream import Event

__all__ = [
    "BEGIN", "PROGRESS", "TOKENS", "EnginePort", "Event", "FrontendPort", "Kind", "PreparedPort",
    "ReplyPort", "StreamPort",
]  # fmt: skip


class Kind(IntEnum):
    """Which route a body belongs to; the numbers are those of `enum strata_kind`."""

    COMPLETION = 0
    OAI_COMPLETION = 1
    OAI_CHAT = 2
    INFILL = 3


TOKENS, PROGRESS, BEGIN = 0, 1, 2  # strata_chunk.kind


class ReplyPort(Protocol):
    """Writes one choice's results in the dialect of its request (`strata_reply`)."""

    def chunk(
        self,
        *,
        sse: bool,
        kind: int = 0,
        text: bytes = b"",
        tokens: Sequence[int] = (),
        n_decoded: int = 0,
        n_prompt: int = 0,
        n_cached: int = 0,
        progress_processed: int = 0,
        progress_ms: int = 0,
        stats: Any = None,
        probs: bytes | None = None,
        extra_timings: bytes | None = None,
    ) -> bytes:
        """One streamed piece: the bytes to send (`sse`) or the JSON value."""

    def final(
        self,
        *,
        sse: bool,
        text: bytes = b"",
        tokens: Sequence[int] = (),
        id_slot: int = -1,
        stop: int = 0,
        stopping_word: str = "",
        truncated: bool = False,
        has_new_line: bool = False,
        n_decoded: int = 0,
        n_prompt: int = 0,
        n_cached: int = 0,
        n_tokens_cached: int = 0,
        stats: Any = None,
        probs: bytes | None = None,
        extra_timings: bytes | None = None,
    ) -> bytes:
        """The end of the choice: the bytes to send (`sse`) or the JSON value."""


class PreparedPort(Protocol):
    """One API request, parsed, rendered, tokenised and checked (`strata_prepared`)."""

    @property
    def info(self) -> dict[str, Any]:
        """The fields listed at `strata_prepared_info`."""

    def tokens(self, prompt: int) -> Any:
        """Token ids of prompt number `prompt`: int32 array of shape (n,)."""

    def sampling(self) -> bytes:
        """JSON for the engine's sampler."""

    def settings(self, only_metrics: bool) -> bytes:
        """JSON of the request's settings as `/slots` shows them."""

    def reply(self, prompt: int, index: int) -> ReplyPort:
        """The writer of choice number `index`, which answers prompt number `prompt`."""


class FrontendPort(Protocol):
    """Vocabulary, chat templates and request defaults of one model (`strata_frontend`)."""

    def info(self) -> dict[str, Any]:
        """The fields listed at `strata_frontend_info`."""

    def tokenize(self, body: bytes) -> bytes:
        """Reply body of POST /tokenize."""

    def detokenize(self, body: bytes) -> bytes:
        """Reply body of POST /detokenize."""

    def apply_template(self, body: bytes) -> bytes:
        """Reply body of POST /apply-template."""

    def embedding_inputs(self, body: bytes) -> bytes:
        """JSON lists of token ids for what is to be embedded."""

    def rerank_inputs(self, body: bytes) -> bytes:
        """JSON lists of token ids, one for each document."""

    def prepare(self, kind: int, body: bytes) -> PreparedPort:
        """Parse and check a request; raises an `ApiError`-like error when llama-server would refuse
        it.
        """


class StreamPort(Protocol):
    """Events of one submitted request."""

    sink: Callable[[Event], None] | None  # gets events as they come, instead of `next`

    @property
    def sampled(self) -> Sequence[int]:
        """All tokens that were sampled so far."""

    @property
    def waiting(self) -> bool:
        """Whether `next_nowait` has something."""

    def put(self, event: Event) -> None:
        """Keep an event for `next`."""

    async def next(self, timeout: float | None) -> Event | None:
        """Next event; None after `timeout` seconds without one."""

    def next_nowait(self) -> Event | None:
        """An event that is already there, or None."""

    def cancel(self) -> None:
        """Stop generating; no further events matter."""


class EnginePort(Protocol):
    """The engine process as the HTTP process sees it."""

    @property
    def state(self) -> Any:
        """An `EngineState`."""

    @property
    def ready(self) -> Ready | None:
        """What the engine told when it was ready."""

    @property
    def error(self) -> str:
        """One line about why the engine is not there."""

    def next_id(self) -> int:
        """A fresh request id."""

    def submit(self, request: Submit) -> StreamPort:
        """Queue a request."""

    async def embed(self, request: Embed) -> Embedded | Failed:
        """Have texts embedded or ranked; stops when the caller is cancelled."""

    async def slots(self) -> list[dict[str, Any]]:
        """One object per slot, as GET /slots shows them."""

    async def queue(self) -> dict[str, Any]:
        """All requests and their outlook, as GET /queue shows them."""

    async def cache(self, tenant: str) -> dict[str, Any]:
        """What is kept of prompts, as GET /cache shows it to a tenant."""

    async def act_on_slot(
        self, action: str, slot: int, path: str, tenant: str, salt: str
    ) -> SlotActed:
        """Save, restore or erase what a slot holds; waits while the slot is busy."""

    async def explanation(self, tenant: str, name: str) -> dict[str, Any] | None:
        """What of a prompt was found in the cache, as GET /cache/explain shows it."""

    async def metrics(self, reset_bucket: bool) -> dict[str, float]:
        """Metric values by name, without prefix."""
