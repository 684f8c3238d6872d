"""Runs requests on a real engine in this process, without sockets."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

import numpy as np

from strata_plugin.engine.assembly import LoadedEngine
from strata_plugin.engine.config import (
    ContextConfig,
    DiskConfig,
    EngineConfig,
    ModelConfig,
    SchedulingConfig,
)
from strata_plugin.engine.messages import Done, Failed, Frozen, Submit, Token

GREEDY = json.dumps({"temperature": 0.0}).encode()


def load(
    path: object,
    *,
    park_bytes: int = 64 << 20,
    quantum_ms: float = 500.0,
    budget: int = 64,
    block_tokens: int = 256,
    disk: object = "",
    checkpoint_every: int = 4096,
    checkpoint_root: int = 2048,
    adapters: Sequence[object] = (),
    **context: object,
):
    """A `LoadedEngine` on `path`; keyword arguments are `ContextConfig` fields."""
    context.setdefault("n_ctx", 2048)
    context.setdefault("threads", 1)  # several engines share few cores: spinning threads starve
    context.setdefault("flash_attn", "on")  # auto is measured, and rounds as it comes out
    config = EngineConfig(
        model=ModelConfig(path=str(path), adapters=tuple(map(str, adapters))),
        context=ContextConfig(**context),  # type: ignore[arg-type]
        park_bytes=park_bytes,
        block_tokens=block_tokens,
        checkpoint_every=checkpoint_every,
        checkpoint_root=checkpoint_root,
        disk=DiskConfig(folder=str(disk), limit_bytes=64 << 20),
        # chunks of a fixed size: what a stream says must not depend on how quick the machine is
        scheduling=SchedulingConfig(prefill_quantum_ms=quantum_ms, prefill_budget=budget),
        verbosity=1,
        debug=True,
    )
    engine = LoadedEngine(config, None, time.perf_counter)
    engine.path = str(path)
    return engine


class Session:
    """Requests and their events on one engine."""

    def __init__(self, engine: LoadedEngine) -> None:
        self.engine = engine
        self.events: list[Frozen] = []

    def submit(
        self, request_id: int, prompt: Sequence[int], n: int, *, sampling: bytes = GREEDY, **kw
    ) -> None:
        data = np.asarray(prompt, "<i4").tobytes()
        submit = Submit(request_id=request_id, prompt=data, sampling=sampling, n_predict=n, **kw)
        self.engine.core.submit(submit, self.engine.make_sampler(submit))

    def step(self) -> None:
        self.engine.core.step()
        self.events += self.engine.core.events
        self.engine.core.events.clear()

    def run(self) -> None:
        while not self.engine.core.idle:
            self.step()

    def of(self, request_id: int) -> list[Frozen]:
        return [e for e in self.events if getattr(e, "request_id", None) == request_id]

    def tokens(self, request_id: int) -> list[int]:
        return [e.token for e in self.of(request_id) if isinstance(e, Token)]

    def text(self, request_id: int) -> bytes:
        return b"".join(e.text for e in self.of(request_id) if isinstance(e, Token | Done))

    def end(self, request_id: int) -> Done | Failed:
        last = self.of(request_id)[-1]
        assert isinstance(last, Done | Failed)
        return last

    def generate(self, prompt: Sequence[int], n: int, request_id: int = 1000, **kw) -> list[int]:
        """Submit, run to the end, return the tokens."""
        self.submit(request_id, prompt, n, **kw)
        self.run()
        assert isinstance(self.end(request_id), Done)
        return self.tokens(request_id)
