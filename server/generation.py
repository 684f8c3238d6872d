"""From a request body to submitted choices: the one place where requests are checked and put into
the engine's queue.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import orjson

from strata_plugin.engine.client import EngineGone
from strata_plugin.engine.messages import Done, StopReason, Submit, Timings

from .choice import Choice, Wanted
from .errors import ApiError, context_exceeded, prompt_limit_exceeded
from .ports import Event, Kind, PreparedPort, StreamPort

if TYPE_CHECKING:
    from .service import Service

log = logging.getLogger("strata.requests")

NO_TIME = Timings(prompt_n=0, cache_n=0, prompt_ms=0, predicted_n=0, predicted_ms=0, queue_ms=0)
RANDOM_SEED = 0xFFFFFFFF  # llama.cpp's LLAMA_DEFAULT_SEED


class Generation:
    """One API request in flight: its choices and their streams, in the order of their indices."""

    def __init__(self, service: Service, kind: Kind, prepared: PreparedPort, wanted: Wanted):
        self.kind = kind
        self.prepared = prepared
        self.wanted = wanted
        self.choices: list[Choice] = []
        self.streams: list[StreamPort] = []
        self.ping_interval = float(prepared.info.get("sse_ping_interval", 30))
        self.aborted: asyncio.Future[ApiError] = asyncio.get_running_loop().create_future()
        self._began = time.monotonic()
        self._closed = False
        self._forget = service.live.discard
        service.live.add(self)

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
        log.info(
            "request %s %s: %s, prompt %d tokens (%d cached), generated %d, %.0f ms",
            self.prepared.info.get("id", "-"),
            self.kind.name.lower(),
            outcome,
            sum(c.n_prompt for c in self.choices),
            sum(c.n_cached for c in self.choices),
            sum(c.n_decoded for c in self.choices),
            (time.monotonic() - self._began) * 1e3,
        )


async def open_generation(service: Service, kind: Kind, body: bytes) -> Generation:
    """Parse and check `body`, then queue its choices. Raises `ApiError`; then nothing has been
    queued.
    """
    prepared = await service.native_call(service.frontend.prepare, int(kind), body, size=len(body))
    info = prepared.info
    wanted = Wanted(
        stream=bool(info["stream"]),
        tokens=bool(info.get("return_tokens")),
        timings=bool(info.get("timings_per_token")),
        probs=int(info.get("n_probs", 0)) > 0,
        chat=kind is Kind.OAI_CHAT,
    )
    prompts = [prepared.tokens(i) for i in range(int(info["n_prompts"]))]
    for prompt in prompts:
        check_prompt(service, prompt)
    generation = Generation(service, kind, prepared, wanted)
    try:
        for number, prompt in enumerate(prompts):
            _submit_prompt(service, generation, number, prompt)
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


def _submit_prompt(service: Service, generation: Generation, number: int, prompt: Any) -> None:
    info = generation.prepared.info
    sampling = generation.prepared.sampling()
    first_id: int | None = None
    n_choices = int(info.get("n_cmpl", 1))
    for child in range(n_choices):
        request_id = service.engine.next_id()
        index = number * n_choices + child
        reply = generation.prepared.reply(number, index)
        generation.choices.append(
            Choice(reply, len(prompt), generation.wanted, service.count_tokens)
        )
        if not len(prompt):  # as llama-server: an empty answer, no row is needed
            generation.streams.append(EndedStream(request_id))
            continue
        generation.streams.append(
            service.engine.submit(
                Submit(
                    request_id=request_id,
                    prompt=prompt.astype("<i4", copy=False).tobytes(),
                    sampling=sampling if child == 0 else _reseeded(sampling, info, child),
                    stop=tuple(info.get("stop", ())),
                    n_predict=int(info.get("n_predict", -1)),
                    n_indent=int(info.get("n_indent", 0)),
                    t_max_predict_ms=int(info.get("t_max_predict_ms", -1)),
                    n_probs=int(info.get("n_probs", 0)),
                    post_sampling_probs=bool(info.get("post_sampling_probs", False)),
                    cache_prompt=bool(info.get("cache_prompt", True)),
                    return_progress=bool(info.get("return_progress", False)),
                    id_slot=int(info.get("id_slot", -1)) if child == 0 else -1,
                    fork_of=first_id,
                    lora=tuple((int(a["id"]), float(a["scale"])) for a in info.get("lora", ())),
                    settings=generation.prepared.settings(True),
                )
            )
        )
        first_id = request_id if child == 0 else first_id


class EndedStream:
    """The events of an answer that is empty from the start."""

    def __init__(self, request_id: int):
        self._events: list[Event] = [
            Done(
                request_id=request_id,
                id_slot=-1,
                stop=StopReason.NONE,
                stopping_word="",
                truncated=False,
                has_new_line=False,
                n_tokens_cached=0,
                text=b"",
                timings=NO_TIME,
            )
        ]

    async def next(self, timeout: float | None) -> Event | None:
        """The only event, then None."""
        return self.next_nowait()

    def next_nowait(self) -> Event | None:
        """The only event, then None."""
        return self._events.pop() if self._events else None

    def cancel(self) -> None:
        """Nothing runs."""


def _reseeded(sampling: bytes, info: dict[str, Any], child: int) -> bytes:
    """Sampling of a further choice: as in llama-server, its number is added to a given seed."""
    seed = int(info.get("seed", RANDOM_SEED)) & RANDOM_SEED
    if seed == RANDOM_SEED:
        return sampling
    fields = orjson.loads(sampling)
    fields["seed"] = (seed + child) & RANDOM_SEED
    return orjson.dumps(fields)


def merge_values(kind: Kind, values: Sequence[bytes]) -> bytes:
    """One reply from the choices' JSON values: choices side by side (OpenAI), an array (native)."""
    if len(values) == 1:
        return values[0]
    if kind is Kind.COMPLETION:
        return b"[" + b",".join(values) + b"]"
    whole = orjson.loads(values[0])
    for value in values[1:]:
        whole["choices"].extend(orjson.loads(value)["choices"])
    return orjson.dumps(whole)
