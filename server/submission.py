"""What is sent to the engine for one choice of one prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from strata_plugin.engine.messages import Done, StopReason, Submit, Timings

from .auth import make_salt
from .caller import Caller
from .own_fields import OwnFields
from .ports import Event, PreparedPort

NO_TIME = Timings(prompt_n=0, cache_n=0, prompt_ms=0, predicted_n=0, predicted_ms=0, queue_ms=0)
RANDOM_SEED = 0xFFFFFFFF  # llama.cpp's LLAMA_DEFAULT_SEED


@dataclass(frozen=True)
class Origin:
    """Where a request comes from and how much it hurries."""

    dialect: str  # as GET /queue shows it
    caller: Caller
    own: OwnFields
    lora: tuple[tuple[int, float], ...] = ()  # adapters and scales that it is computed with

    @property
    def salt(self) -> str:
        """What keeps its states apart in the prefix cache: its API key and what it asks for."""
        own = self.own.cache_salt
        if not own:
            return self.caller.salt
        return make_salt(f"{self.caller.salt}\0{own}".encode("utf-8", "surrogatepass"))


def make_submit(
    prepared: PreparedPort,
    origin: Origin,
    prompt: Any,
    request_id: int,
    child: int,
    fork_of: int | None,
    name: str,
) -> Submit:
    """Choice number `child` of a prompt (int32 array); `fork_of` is the id of its choice 0."""
    info, sampling = prepared.info, prepared.sampling()
    return Submit(
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
        fork_of=fork_of,
        lora=origin.lora,
        tenant=origin.caller.tenant,
        salt=origin.salt,
        priority=origin.own.priority,
        itl_slo_ms=origin.own.itl_slo_ms,
        dialect=origin.dialect,
        client=origin.caller.client,
        settings=prepared.settings(True),
        name=name,
    )


def _reseeded(sampling: bytes, info: dict[str, Any], child: int) -> bytes:
    """Sampling of a further choice: as in llama-server, its number is added to a given seed."""
    seed = int(info.get("seed", RANDOM_SEED)) & RANDOM_SEED
    if seed == RANDOM_SEED:
        return sampling
    fields = orjson.loads(sampling)
    fields["seed"] = (seed + child) & RANDOM_SEED
    return orjson.dumps(fields)


class EmptyAnswer:
    """The events of an answer that is empty from the start."""

    sink: Callable[[Event], None] | None = None

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

    sampled: Sequence[int] = ()

    @property
    def waiting(self) -> bool:
        """Whether the only event has not been taken yet."""
        return bool(self._events)

    def put(self, event: Event) -> None:
        """Nobody brings another event."""
        raise RuntimeError("an empty answer gets no events")

    async def next(self, timeout: float | None) -> Event | None:
        """The only event, then None."""
        return self.next_nowait()

    def next_nowait(self) -> Event | None:
        """The only event, then None."""
        return self._events.pop() if self._events else None

    def cancel(self) -> None:
        """Nothing runs."""
