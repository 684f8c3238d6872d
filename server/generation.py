"""From a request body to submitted choices: the one place where requests are checked and put into
the engine's queue.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from strata_plugin.engine.client import EngineGone

from .caller import Caller
from .choice import Choice, Wanted
from .dialects.dialect import Dialect
from .errors import ApiError, context_exceeded, prompt_limit_exceeded
from .outlook import queue_headers
from .ports import Kind, PreparedPort, StreamPort
from .stages import Stages, log
from .submission import EmptyAnswer, Origin, make_submit

if TYPE_CHECKING:
    from .service import Service


class Generation:
    """One API request in flight: its choices and their streams, in the order of their indices."""

    def __init__(
        self,
        service: Service,
        dialect: Dialect,
        origin: Origin,
        prepared: PreparedPort,
        wanted: Wanted,
    ):
        self.dialect = dialect
        self.origin = origin
        self.prepared = prepared
        self.wanted = wanted
        self.choices: list[Choice] = []
        self.streams: list[StreamPort] = []
        self.ping_interval = float(prepared.info.get("sse_ping_interval", 30))
        self.aborted: asyncio.Future[ApiError] = asyncio.get_running_loop().create_future()
        self._prompts: list[Any] = []  # token ids, by choice
        self._turns = service.turns
        self._began = time.monotonic()
        self._closed = False
        self._forget = service.live.discard
        service.live.add(self)

    def name(self, index: int) -> str:
        """Name in log and queue of choice `index`."""
        own = self.origin.caller.request_id
        return f"{own}[{index}]" if index else own

    def queue_headers(self) -> list[tuple[bytes, bytes]]:
        """Where the request stood when it arrived, as headers of its reply."""
        return queue_headers(self.choices[0].stages.first if self.choices else None)

    def add(self, choice: Choice, stream: StreamPort, prompt: Any) -> None:
        """One more choice, queued already; `prompt` are its token ids."""
        self.choices.append(choice)
        self.streams.append(stream)
        self._prompts.append(prompt)

    def cancel(self) -> None:
        """Stop all choices that have not ended."""
        for choice, stream in zip(self.choices, self.streams, strict=True):
            if choice.done is None:
                stream.cancel()

    def abort(self, error: ApiError) -> None:
        """End the reply with `error` although the engine has more (the server stops)."""
        if not self.aborted.done():
            self.aborted.set_result(error)

    def close(self, outcome: str) -> None:
        """Cancel what still runs and write the request's log line, once."""
        if self._closed:
            return
        self._closed = True
        self.cancel()
        self._forget(self)
        if self._turns is not None and self.wanted.chat:
            for choice, stream, prompt in zip(
                self.choices, self.streams, self._prompts, strict=True
            ):
                if choice.done is not None:
                    self._turns.add(self.origin.salt, prompt, np.array(stream.sampled, np.int32))
        log.info(
            "request %s: %s, %s, prompt %d tokens (%d cached), generated %d, %.0f ms",
            self.origin.caller.request_id,
            outcome,
            self.origin.dialect,
            sum(c.n_prompt for c in self.choices),
            sum(c.n_cached for c in self.choices),
            sum(c.n_decoded for c in self.choices),
            (time.monotonic() - self._began) * 1e3,
        )


async def prepare(service: Service, dialect: Dialect, body: bytes) -> tuple[PreparedPort, Any]:
    """Parse and check `body`; the second value is what the dialect's writer needs. Raises
    `ApiError`.
    """
    function, size = service.frontend.prepare, len(body)
    native, request = await service.native_call(dialect.read, body, size=size)
    prepared = await service.native_call(function, int(dialect.kind), native, size=size)
    return prepared, request


async def open_generation(
    service: Service, dialect: Dialect, body: bytes, caller: Caller
) -> Generation:
    """Parse and check `body`, then queue its choices. Raises `ApiError`; then nothing has been
    queued.
    """
    if service.settings.embeddings:
        raise ApiError(
            "This server does not support completions. Start it without `--embeddings`",
            "not_supported_error",
        )
    prepared, request = await prepare(service, dialect, body)
    own = await service.own_fields(body, caller.tenant)
    info = prepared.info
    wanted = Wanted(
        stream=bool(info["stream"]),
        tokens=bool(info.get("return_tokens")),
        timings=bool(info.get("timings_per_token")),
        probs=int(info.get("n_probs", 0)) > 0,
        chat=dialect.kind is Kind.OAI_CHAT,
    )
    prompts = [prepared.tokens(i) for i in range(int(info["n_prompts"]))]
    for prompt in prompts:
        check_prompt(service, prompt)
    origin = Origin(dialect.name, caller, own, service.adapters.mixture(info.get("lora", ())))
    if service.turns is not None and wanted.chat:
        prompts = [service.turns.replayed(origin.salt, prompt) for prompt in prompts]
        for prompt in prompts:
            check_prompt(service, prompt)
    generation = Generation(service, dialect, origin, prepared, wanted)
    try:
        for number, prompt in enumerate(prompts):
            _submit_prompt(service, generation, number, prompt, request)
    except BaseException as error:
        generation.close("not queued")
        if isinstance(error, EngineGone):
            raise ApiError(str(error), "unavailable_error") from None
        raise
    return generation


def check_prompt(service: Service, prompt: Any) -> None:
    """Refuse what cannot be answered, before it costs anyone anything."""
    ready = service.ready
    n_tokens = len(prompt)
    limit = service.settings.max_prompt_tokens
    if n_tokens >= ready.n_ctx_slot:
        raise context_exceeded(n_tokens, ready.n_ctx_slot)
    if 0 < limit < n_tokens:
        raise prompt_limit_exceeded(n_tokens, limit)
    if n_tokens and (int(prompt.min()) < 0 or int(prompt.max()) >= ready.model.n_vocab):
        raise ApiError("Prompt contains invalid tokens")


def _submit_prompt(
    service: Service, generation: Generation, number: int, prompt: Any, body: Any
) -> None:
    prepared, dialect = generation.prepared, generation.dialect
    first_id: int | None = None
    n_choices = int(prepared.info.get("n_cmpl", 1))
    for child in range(n_choices):
        request_id = service.engine.next_id()
        index = number * n_choices + child
        name = generation.name(index)
        stages = Stages(name, comments=generation.wanted.stream and index == 0)
        choice = Choice(
            dialect.reply(prepared.reply(number, index), body, service.count_tokens),
            len(prompt),
            generation.wanted,
            service.count_tokens,
            stages,
        )
        if len(prompt):
            request = make_submit(
                prepared, generation.origin, prompt, request_id, child, first_id, name
            )
            stream: StreamPort = service.engine.submit(request)
        else:  # as llama-server: an empty answer, which needs no row
            stream = EmptyAnswer(request_id)
        generation.add(choice, stream, prompt)
        first_id = request_id if child == 0 else first_id


def merge_values(kind: Kind, values: Sequence[bytes]) -> bytes:
    """One reply from the choices' JSON values: choices side by side (OpenAI), an array (native)."""
    if len(values) == 1:
        return values[0]
    if kind not in (Kind.OAI_COMPLETION, Kind.OAI_CHAT):
        return b"[" + b",".join(values) + b"]"
    whole = orjson.loads(values[0])
    for value in values[1:]:
        whole["choices"].extend(orjson.loads(value)["choices"])
    return orjson.dumps(whole)
