"""A scripted engine and a small native library, for testing wire formats without a model.

`FakeEngine.submit` plays `script(request)`: a list of events, numbers (seconds to wait) and
`asyncio.Event`s (wait
until set). The fake frontend takes one token per byte.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from strata_plugin.engine.messages import (
    Done,
    ModelInfo,
    Queued,
    Ready,
    SlotActed,
    Started,
    StopReason,
    Submit,
    Timings,
    Token,
)
from strata_plugin.engine.queue_rows import QueueRow, asked_by
from strata_plugin.engine.request_stream import RequestStream
from strata_server.ports import Event, Kind
from strata_server.service import Service
from strata_server.settings import ServerSettings

N_VOCAB = 256
Step = Event | float | asyncio.Event
Script = Callable[[Submit], Sequence[Step]]

MODEL = ModelInfo(
    vocab_type=2,
    n_vocab=N_VOCAB,
    n_ctx_train=64,
    n_embd=8,
    n_params=1000,
    size=4000,
    ftype="Q4_1",
    desc="fake",
    memory_class="llama_kv_cache",
)
READY = Ready(model=MODEL, n_ctx=64, n_ctx_slot=64, n_slots=4, n_batch=32, n_ubatch=32)


def timings(prompt_n: int = 3, predicted_n: int = 2) -> Timings:
    return Timings(
        prompt_n=prompt_n,
        cache_n=0,
        prompt_ms=1.0,
        predicted_n=predicted_n,
        predicted_ms=2.0,
        queue_ms=0.5,
        compute_ms=0.75,
    )


def says(*words: str, stop: StopReason = StopReason.EOS) -> Script:
    """A script that answers with `words`, one token each."""

    def script(request: Submit) -> list[Step]:
        rid = request.request_id
        steps: list[Step] = [Started(rid, 0, 0)]
        for number, word in enumerate(words, 1):
            steps.append(token(rid, word, number))
        steps.append(done(rid, len(words), stop))
        return steps

    return script


def token(request_id: int, text: str, n_decoded: int, visible: bool = True) -> Token:
    return Token(
        request_id=request_id,
        token=n_decoded,
        text=text.encode(),
        n_decoded=n_decoded,
        visible=visible,
        timings=timings(predicted_n=n_decoded),
    )


def queued(
    request_id: int,
    position: int,
    predicted_ms: float = -1.0,
    low_ms: float = -1.0,
    high_ms: float = -1.0,
) -> Queued:
    return Queued(
        request_id=request_id,
        position=position,
        predicted_ttft_ms=predicted_ms,
        low_ms=low_ms,
        high_ms=high_ms,
    )


def done(
    request_id: int,
    predicted_n: int = 2,
    stop: StopReason = StopReason.EOS,
    text: bytes = b"",
    cut: int = 0,
    stopping_word: str = "",
) -> Done:
    return Done(
        request_id=request_id,
        id_slot=0,
        stop=stop,
        stopping_word=stopping_word,
        truncated=False,
        has_new_line=False,
        n_tokens_cached=5,
        text=text,
        cut=cut,
        timings=timings(predicted_n=predicted_n),
    )


class FakeStream(RequestStream):
    """The real stream, filled from a script."""

    def __init__(self, request_id: int, steps: Sequence[Step]):
        super().__init__(request_id, lambda stream: None)
        self.cancelled = asyncio.Event()
        self._player = asyncio.ensure_future(self._play(steps))

    async def _play(self, steps: Sequence[Step]) -> None:
        for step in steps:
            if isinstance(step, asyncio.Event):
                await step.wait()
            elif isinstance(step, (int, float)):
                await asyncio.sleep(step)
            else:
                self.push(step)

    def cancel(self) -> None:
        self._player.cancel()
        self.cancelled.set()


class FakeEngine:
    """Plays `script` for each request and keeps what was submitted."""

    def __init__(self, script: Script | None = None):
        self.script: Script = script or says("Hello", " world")
        self.ready: Ready | None = READY
        self.state = "ready"
        self.error = ""
        self.requests: list[Submit] = []
        self.streams: list[FakeStream] = []
        self.busy_slots = 0
        self._ids = 0

    def next_id(self) -> int:
        self._ids += 1
        return self._ids

    def submit(self, request: Submit) -> FakeStream:
        stream = FakeStream(request.request_id, self.script(request))
        self.requests.append(request)
        self.streams.append(stream)
        return stream

    async def slots(self) -> list[dict[str, Any]]:
        return [{"id": i, "n_ctx": 64, "is_processing": i < self.busy_slots} for i in range(4)]

    async def cache(self, tenant: str) -> dict[str, Any]:
        return {"resident": {"sequences": 1}, "ram": {"bytes": 2}, "disk": None, "hints": [tenant]}

    async def act_on_slot(
        self, action: str, slot: int, path: str, tenant: str, salt: str
    ) -> SlotActed:
        self.acted = (action, slot, path, tenant, salt)
        if "bad" in path:
            return SlotActed(1, {}, "it is damaged")
        return SlotActed(1, {"id_slot": slot})

    async def explanation(self, tenant: str, name: str) -> dict[str, Any] | None:
        names = {(r.tenant, r.name) for r in self.requests}
        return {"id": name, "cause": "found"} if (tenant, name) in names else None

    async def queue(self) -> dict[str, Any]:
        """Everything that was submitted and has not ended waits, in order of arrival."""
        waiting = [r for r, s in zip(self.requests, self.streams, strict=True) if not s.finished]
        requests = [
            QueueRow(
                **asked_by(request),
                prompt_tokens=len(request.prompt) // 4,
                cached_tokens=0,
                computed_tokens=0,
                generated_tokens=0,
                stage="queued",
                position=position,
                waited_ms=1.0,
                predicted_ttft_ms=None,
                predicted_ttft_low_ms=None,
                predicted_ttft_high_ms=None,
                tokens_per_s=0.0,
            ).shown()
            for position, request in enumerate(waiting)
        ]
        return {
            "requests": requests,
            "itl_slo_ms": 150.0,
            "itl_feasible": True,
            "rows": 4,
            "queued": len(requests),
            "scheduler": "strata",
            "row_step_ms": 0.0,
        }

    async def metrics(self, reset_bucket: bool) -> dict[str, float]:
        return {"prompt_tokens_total": 7.0, "predicted_tokens_seconds": 1.5, "parked_bytes": 3.0}


class Refused(Exception):
    """Like the native library's error."""

    def __init__(self, message: str, error_type: str = "invalid_request_error"):
        super().__init__(message)
        self.code, self.type, self.message = 400, error_type, message


class FakePrepared:
    def __init__(self, kind: int, body: dict[str, Any]):
        prompt = body.get("prompt", "")
        if kind == Kind.OAI_CHAT:
            if "messages" not in body:
                raise Refused("'messages' is required")
            prompt = "".join(_text(m.get("content")) for m in body["messages"])
        several = isinstance(prompt, list) and any(isinstance(p, (str, list)) for p in prompt)
        self.prompts = [_ids(p) for p in (prompt if several else [prompt])]
        self.kind = kind
        self.info: dict[str, Any] = {
            "n_prompts": len(self.prompts),
            "n_cmpl": body.get("n", 1),
            "stream": body.get("stream", False),
            "n_predict": body.get("max_tokens", -1),
            "n_probs": body.get("n_probs", 0),
            "return_tokens": body.get("return_tokens", False),
            "timings_per_token": body.get("timings_per_token", False),
            "return_progress": body.get("return_progress", False),
            "sse_ping_interval": body.get("sse_ping_interval", 30),
            "seed": body.get("seed", 0xFFFFFFFF),
            "stop": body.get("stop", []),
            "id_slot": body.get("id_slot", -1),
            "id": "cmpl-1",
        }

    def tokens(self, prompt: int) -> Any:
        return self.prompts[prompt]

    def text(self) -> str:
        return bytes(self.prompts[0].astype(np.uint8)).decode()

    def sampling(self) -> bytes:
        return json.dumps({"seed": self.info["seed"], "top_k": 40}).encode()

    def settings(self, only_metrics: bool) -> bytes:
        return b"{}"

    def reply(self, prompt: int, index: int) -> FakeReply:
        return FakeReply(self.kind, index, self.info["stream"])


def _text(content: Any) -> str:
    """A message's content: a text, or parts."""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content or ())


def _ids(prompt: Any) -> Any:
    ids = list(prompt.encode()) if isinstance(prompt, str) else prompt
    return np.array(ids, dtype=np.int32)


class FakeReply:
    """Writes recognisable JSON, and chat's form where a dialect asks for it (`sse` is false);
    `slow` seconds per chunk imitate a costly chat parser.
    """

    slow = 0.0

    def __init__(self, kind: int, index: int, stream: bool = True):
        self.index = index
        self.chat = kind == Kind.OAI_CHAT
        self.stream = stream

    def chunk(self, *, sse: bool, kind: int = 0, **fields: Any) -> bytes:
        if kind == 2:
            return b""
        if kind == 1:
            value: dict[str, Any] = {
                "index": self.index,
                "prompt_progress": {"processed": fields["progress_processed"]},
            }
        else:
            if self.slow:
                import time

                time.sleep(self.slow)
            text = fields["text"].decode()
            if self.chat and not sse:
                return json.dumps([_chat_chunk({"content": text})]).encode()
            value = {
                "index": self.index,
                "content": text,
                "tokens": list(fields["tokens"]),
                "n_decoded": fields["n_decoded"],
            }
            if fields.get("stats") is not None:
                value["timings"] = {"predicted_n": fields["stats"].predicted_n}
        return _frame(value) if sse else json.dumps(value).encode()

    def final(self, *, sse: bool, **fields: Any) -> bytes:
        text = fields["text"].decode()
        reason = "length" if fields["stop"] == StopReason.LIMIT else "stop"
        if self.chat and self.stream and not sse:
            chunks = [_chat_chunk({"content": text}), _chat_chunk({}, reason)]
            return json.dumps(chunks).encode()
        value: dict[str, Any] = {
            "index": self.index,
            "content": text,
            "tokens": list(fields["tokens"]),
            "stop": True,
            "probs": json.loads(fields["probs"]) if fields["probs"] else None,
            **json.loads(fields["extra_timings"]),
        }
        if self.chat:
            message = {"role": "assistant", "content": text}
            choice = {"index": self.index, "text": text, "message": message}
            value = {"choices": [{**choice, "finish_reason": reason}], "id": "cmpl-1"}
        return _frame(value) if sse else json.dumps(value).encode()


def _chat_chunk(delta: dict[str, Any], reason: str | None = None) -> Any:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


def _frame(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


class FakeFrontend:
    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []  # what was prepared, after a dialect's translation

    def info(self) -> dict[str, Any]:
        return {"chat_template": "{{x}}", "default_params": {"top_k": 40}, "bos_token": "<s>"}

    def tokenize(self, body: bytes) -> bytes:
        return json.dumps({"tokens": list(_parse(body)["content"].encode())}).encode()

    def detokenize(self, body: bytes) -> bytes:
        return json.dumps({"content": bytes(_parse(body)["tokens"]).decode()}).encode()

    def apply_template(self, body: bytes) -> bytes:
        return json.dumps({"prompt": FakePrepared(Kind.OAI_CHAT, _parse(body)).text()}).encode()

    def prepare(self, kind: int, body: bytes) -> FakePrepared:
        self.bodies.append(_parse(body))
        return FakePrepared(kind, self.bodies[-1])


def _parse(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except ValueError as error:
        raise Refused(f"[json.exception.parse_error.101] {error}", "server_error") from error
    assert isinstance(value, dict)
    return value


def fake_service(engine: FakeEngine, loaded: bool = True, **settings: Any) -> Service:
    service = Service(ServerSettings(model_name="fake", **settings), engine)
    if loaded:
        service.open_doors(FakeFrontend())
    return service
