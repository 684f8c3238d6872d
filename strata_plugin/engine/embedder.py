"""The step loop's body of a server that embeds or ranks: takes inputs, computes, answers.

Each step takes inputs, or pieces of them, of the request whose tenant has had the least so far, as
many as fit. Nobody waits for a long request of somebody else to end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from .messages import (
    ActOnSlot,
    Cache,
    Embed,
    Embedded,
    Explained,
    Failed,
    Frozen,
    Metrics,
    Queue,
    SlotActed,
    Slots,
)
from .pooling import Pool, Vectors
from .ports import Tokens
from .queue_rows import QueueRow, asked_by

QUANTUM_MS = 500.0  # about how long a step takes, where inputs may be cut: others wait that long
FIRST_STEP = 512  # tokens, while it is not known how quickly they are computed


class BatchPort(Protocol):
    """See `runtime.context.Batch`."""

    n_tokens: int

    def clear(self) -> None:
        """Forget all rows."""

    def add_all(self, seq_id: int, tokens: Tokens, start: int) -> int:
        """Append tokens with an output for each; returns the index of the last row."""


class VectorContextPort(Protocol):
    """See `runtime.embedding.EmbeddingContext`."""

    splits: bool
    pooling: str
    n_batch: int
    n_ctx: int
    n_seq_max: int

    @property
    def longest_input(self) -> int:
        """Tokens that an input may have."""

    @property
    def longest_trained(self) -> int:
        """Tokens that an input could have with a larger micro-batch or context."""

    def new_batch(self) -> Any:
        """An empty batch."""

    def decode(self, batch: Any) -> int:
        """Compute; 0 when it went well."""

    def token_vectors(self, first: int, n: int) -> Vectors:
        """Vectors of n batch rows."""

    def pooled_vector(self, seq_id: int) -> Vectors:
        """The vector of a whole input."""

    def remove(self, seq_id: int, start: int = 0) -> bool:
        """Forget a sequence."""

    def clear(self) -> None:
        """Forget all sequences."""


@dataclass
class _Input:
    """One text on its way."""

    job: _Job
    number: int  # its place in the request
    tokens: Tokens
    pool: Pool
    done: int = 0  # tokens computed
    seq_id: int = -1


@dataclass
class _Job:
    """One request."""

    request: Embed
    arrived: float
    vectors: list[bytes | None]
    waiting: list[_Input] = field(default_factory=list)  # inputs that have no sequence yet
    running: list[_Input] = field(default_factory=list)
    alone: bool = False  # shares no step with others, since one that it was part of has failed

    @property
    def n_tokens(self) -> int:
        return sum(len(data) // 4 for data in self.request.inputs)

    @property
    def n_left(self) -> int:
        return sum(len(i.tokens) - i.done for i in (*self.running, *self.waiting))


class Embedder:
    """All requests of one context; answers the same questions as `EngineCore`."""

    def __init__(self, context: VectorContextPort, *, clock: Callable[[], float]) -> None:
        self.events: list[Frozen] = []
        self._context = context
        self._clock = clock
        self._batch = context.new_batch()
        self._jobs: dict[int, _Job] = {}
        self._served: Counter[str] = Counter()  # tokens computed, by tenant
        self._free = list(range(context.n_seq_max))
        self._cells = context.n_ctx if context.splits else context.n_batch
        self._rate = 0.0  # tokens per second
        self._counts: Counter[str] = Counter()
        self._seconds = 0.0

    # -- messages in -----------------------------------------------------------------------------

    def embed(self, request: Embed) -> None:
        """Queue a request. An input that is too long is answered with `Failed` at once."""
        inputs = [np.frombuffer(data, "<i4") for data in request.inputs]
        longest = self._context.longest_input
        for tokens in inputs:
            if not 0 < len(tokens) <= longest:
                text = f"input of {len(tokens)} tokens: at most {longest} are possible"
                if longest < len(tokens) <= self._context.longest_trained:
                    text += f" in a micro-batch; start the server with -ub {len(tokens)}"
                self.events.append(
                    Failed(request.request_id, 400, "exceed_context_size_error", text)
                )
                return
        if not self._jobs:
            self._served.clear()
        else:  # a newcomer does not catch up on what others had while it was away
            least = min(self._served[job.request.tenant] for job in self._jobs.values())
            tenant = request.tenant
            self._served[tenant] = max(self._served[tenant], least)
        job = _Job(request, self._clock(), [None] * len(inputs))
        job.waiting = [
            _Input(job, number, tokens, Pool(self._context.pooling))
            for number, tokens in enumerate(inputs)
        ]
        self._jobs[request.request_id] = job

    def cancel(self, request_id: int) -> None:
        """Forget a request."""
        job = self._jobs.pop(request_id, None)
        for item in job.running if job is not None else ():
            self._release(item)

    def slots(self, query_id: int) -> None:
        """Answer `GetSlots`: one for each input that can be computed beside others."""
        busy = {i.seq_id for job in self._jobs.values() for i in job.running}
        self.events.append(
            Slots(
                query_id,
                tuple(
                    {
                        "id": seq_id,
                        "n_ctx": self._context.longest_input,
                        "speculative": False,
                        "is_processing": seq_id in busy,
                    }
                    for seq_id in range(self._context.n_seq_max)
                ),
            )
        )

    def queue(self, query_id: int) -> None:
        """Answer `GetQueue`. Vectors come when the whole request is done: no step is a token's."""
        now = self._clock()
        waiting = [job.request.request_id for job in self._in_order() if not job.running]
        places = {request_id: place for place, request_id in enumerate(waiting)}
        requests = [
            QueueRow(
                **asked_by(job.request),
                prompt_tokens=job.n_tokens,
                cached_tokens=0,
                computed_tokens=job.n_tokens - job.n_left,
                generated_tokens=0,
                stage="reading" if job.running else "queued",
                position=places.get(job.request.request_id, -1),
                waited_ms=(now - job.arrived) * 1e3,
                predicted_ttft_ms=None,
                predicted_ttft_low_ms=None,
                predicted_ttft_high_ms=None,
                tokens_per_s=self._rate if job.running else 0.0,
            ).shown()
            for job in self._in_order()
        ]
        self.events.append(
            Queue(
                query_id,
                {
                    "requests": requests,
                    "itl_slo_ms": 0.0,
                    "itl_feasible": True,
                    "rows": 0,
                    "queued": len(waiting),
                    "scheduler": "embedding",
                    "row_step_ms": 0.0,
                },
            )
        )

    def cache(self, query_id: int, tenant: str) -> None:
        """Answer `GetCache`: nothing is kept of what was embedded."""
        self.events.append(Cache(query_id, {"resident": None, "ram": None, "disk": None}))

    def explain(self, query_id: int, tenant: str, name: str) -> None:
        """Answer `GetExplanation`."""
        self.events.append(Explained(query_id, None))

    def act_on_slot(self, action: ActOnSlot) -> None:
        """Answer `ActOnSlot`."""
        reason = "a server that embeds keeps nothing in its slots"
        self.events.append(SlotActed(action.query_id, {}, reason))

    def get_metrics(self, query_id: int, reset_window: bool) -> None:
        """Answer `GetMetrics`."""
        running = sum(bool(job.running) for job in self._jobs.values())
        values = {
            "prompt_tokens_total": float(self._counts["tokens"]),
            "prompt_seconds_total": self._seconds,
            "n_decode_total": float(self._counts["steps"]),
            "requests_processing": float(running),
            "requests_deferred": float(len(self._jobs) - running),
        }
        self.events.append(Metrics(query_id, values))

    # -- one step --------------------------------------------------------------------------------

    @property
    def at_rest(self) -> bool:
        """Nothing to do until a message comes."""
        return not self._jobs

    def step(self) -> bool:
        """Compute one step; False when there is nothing to compute."""
        pieces = self._plan()
        if not pieces:
            return False
        self._batch.clear()
        rows = []
        for item, n in pieces:
            tokens = item.tokens[item.done : item.done + n]
            last = self._batch.add_all(item.seq_id, tokens, item.done)
            rows.append(last + 1 - n)
        began = self._clock()
        code = self._context.decode(self._batch)
        if code != 0:
            self._after_failure(pieces, code)
            return True
        for (item, n), first in zip(pieces, rows, strict=True):
            self._take(item, first, n)
        self._count(sum(n for _, n in pieces), self._clock() - began)
        return True

    def _in_order(self) -> list[_Job]:
        return sorted(
            self._jobs.values(),
            key=lambda job: (
                -job.request.priority,
                self._served[job.request.tenant],
                job.arrived,
                job.request.request_id,
            ),
        )

    def _plan(self) -> list[tuple[_Input, int]]:
        """What the next step computes of which inputs."""
        budget = self._budget()
        pieces: list[tuple[_Input, int]] = []
        for job in self._in_order():
            if pieces and (job.alone or pieces[0][0].job.alone):
                continue
            for item in [*job.running, *job.waiting]:
                if budget <= 0:
                    return pieces
                left = len(item.tokens) - item.done
                n = min(left, budget) if self._context.splits else left
                if n > budget and pieces:
                    return pieces
                if item.seq_id < 0 and not self._seat(item):
                    break
                pieces.append((item, n))
                self._served[job.request.tenant] += n
                budget -= n
        return pieces

    def _budget(self) -> int:
        if not self._context.splits:
            return self._context.n_batch
        wanted = self._rate * QUANTUM_MS / 1e3 if self._rate else FIRST_STEP
        return int(max(1, min(self._context.n_batch, wanted)))

    def _seat(self, item: _Input) -> bool:
        """Give an input a sequence and the cells that it needs."""
        if not self._free or self._cells < len(item.tokens):
            return False
        self._cells -= len(item.tokens)
        item.seq_id = self._free.pop()
        item.job.waiting.remove(item)
        item.job.running.append(item)
        return True

    def _release(self, item: _Input) -> None:
        self._context.remove(item.seq_id)
        self._free.append(item.seq_id)
        self._cells += len(item.tokens)

    def _take(self, item: _Input, first: int, n: int) -> None:
        """Keep what a step has brought for an input."""
        if self._context.splits:
            item.pool.add(self._context.token_vectors(first, n))
            item.done += n
            if item.done < len(item.tokens):
                return
            vectors = item.pool.result()
        elif self._context.pooling == "none":
            vectors = self._context.token_vectors(first, n)
        else:
            vectors = self._context.pooled_vector(item.seq_id)
        job = item.job
        job.vectors[item.number] = vectors.astype("<f4", copy=False).tobytes()
        job.running.remove(item)
        self._release(item)
        if not (job.running or job.waiting):
            del self._jobs[job.request.request_id]
            found = tuple(v for v in job.vectors if v is not None)
            self.events.append(Embedded(job.request.request_id, found))

    def _after_failure(self, pieces: list[tuple[_Input, int]], code: int) -> None:
        """A step that has failed is not everybody's fault: its requests go on one by one, and one
        that fails by itself is answered with an error.
        """
        guilty = {id(item.job): item.job for item, _ in pieces}
        for job in self._jobs.values():
            for item in reversed(job.running):
                self._release(item)
                item.seq_id, item.done, item.pool = -1, 0, Pool(self._context.pooling)
                job.waiting.insert(0, item)
            job.running.clear()
        self._context.clear()
        for job in guilty.values():
            job.alone = True
        if len(guilty) == 1:
            (job,) = guilty.values()
            del self._jobs[job.request.request_id]
            text = f"llama_decode failed with {code}"
            self.events.append(Failed(job.request.request_id, 500, "server_error", text))

    def _count(self, n_tokens: int, seconds: float) -> None:
        self._counts["tokens"] += n_tokens
        self._counts["steps"] += 1
        self._seconds += seconds
        if seconds > 0:
            rate = n_tokens / seconds
            self._rate = rate if not self._rate else 0.7 * self._rate + 0.3 * rate
