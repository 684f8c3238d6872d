"""Everything that crosses the border between the HTTP process and the engine process.

One module, frozen values only, encoded as MessagePack by msgspec (typed decoding: a frame that
does not fit is refused, nothing is ever unpickled). A frame carries a batch of messages: towards
the HTTP process one frame per step.

Who owns what
  HTTP process    requests, client streams, and (from the checkpoint store on) the RAM tier's shared
                  memory and the disk tier's index: all that must outlive an engine.
  engine process  the llama context, samplers, sequences, parked states: nothing that can't be
                  rebuilt from the requests and from the tokens already sent.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import msgspec


class StopReason(IntEnum):
    """Why a choice ended; the numbers are those of `strata_final.stop`."""

    NONE = 0
    EOS = 1
    WORD = 2
    LIMIT = 3


class Frozen(msgspec.Struct, frozen=True, tag=True):
    """Base of all messages: immutable and tagged with its type's name."""


# ---- towards the engine --------------------------------------------------------------------------


class Resumed(Frozen, frozen=True):
    """How far another engine had come with a request."""

    tokens: bytes  # sampled and told, little-endian int32
    sampler_state: bytes  # after the last of them


class Submit(Frozen, frozen=True, kw_only=True):
    """One choice of one prompt to generate. `prompt` is little-endian int32 token ids."""

    request_id: int
    prompt: bytes
    sampling: bytes  # JSON for strata_sampler_new
    stop: tuple[str, ...] = ()
    n_predict: int = -1  # tokens; -1: until EOS or the context is full
    n_indent: int = 0
    t_max_predict_ms: int = -1
    n_probs: int = 0
    post_sampling_probs: bool = False
    cache_prompt: bool = True
    return_progress: bool = False
    timings_per_token: bool = False
    id_slot: int = -1
    fork_of: int | None = None  # wait for that request's prompt, then share it
    lora: tuple[tuple[int, float], ...] = ()  # (adapter id, scale): part of the batch class
    stop_positions: tuple[int, ...] = ()  # token positions that no step may cross
    tenant: str = ""  # whose request it is: computing time is shared fairly between tenants
    salt: str = ""  # who finds what it computes: requests with the same salt
    priority: int = 0  # higher goes first, before all fairness
    itl_slo_ms: float = 0.0  # longest wait between two of its tokens; 0: the server's target
    dialect: str = ""  # shown by /queue, as is `client`
    client: str = ""
    settings: bytes = b"{}"  # JSON shown by /slots
    name: str = ""  # its id for people: GET /cache/explain
    resumed: Resumed | None = None


class Embed(Frozen, frozen=True, kw_only=True):
    """Texts to embed or to rank; each of `inputs` is little-endian int32 token ids."""

    request_id: int
    inputs: tuple[bytes, ...]
    tenant: str = ""
    priority: int = 0
    dialect: str = ""  # shown by /queue, as is `client`
    client: str = ""
    name: str = ""  # its id for people


class Cancel(Frozen, frozen=True):
    """Client gone or stream stopped: acts at the next step border; what was computed stays in the
    KV cache.
    """

    request_id: int


class GetSlots(Frozen, frozen=True):
    """Ask for a `Slots` answer carrying the same `query_id`."""

    query_id: int


class GetQueue(Frozen, frozen=True):
    """Ask for a `Queue` answer carrying the same `query_id`."""

    query_id: int


class GetMetrics(Frozen, frozen=True):
    """Ask for a `Metrics` answer; `reset_bucket` starts a new averaging window, as scraping llama-
    server does.
    """

    query_id: int
    reset_bucket: bool = True


class Shutdown(Frozen, frozen=True):
    """Stop the step loop after the current step and exit 0."""


class GetCache(Frozen, frozen=True):
    """Ask for a `Cache` answer carrying the same `query_id`, with what concerns a tenant alone."""

    query_id: int
    tenant: str = ""


class GetExplanation(Frozen, frozen=True):
    """Ask for an `Explained` answer about a request of a tenant."""

    query_id: int
    tenant: str
    name: str


class ActOnSlot(Frozen, frozen=True):
    """Save, restore or erase what the last request of a slot has left; answered with `SlotActed`,
    where the slot is busy once it is not.
    """

    query_id: int
    action: str  # save, restore, erase
    slot: int
    path: str  # of the file to save to or restore from
    tenant: str = ""
    salt: str = ""


ToEngine = (
    Submit
    | Embed
    | Cancel
    | GetSlots
    | GetQueue
    | GetCache
    | GetExplanation
    | GetMetrics
    | ActOnSlot
    | Shutdown
)

# ---- towards the HTTP process --------------------------------------------------------------------


class Loading(Frozen, frozen=True):
    """Progress of loading the model, 0..1."""

    fraction: float


class ModelInfo(Frozen, frozen=True, kw_only=True):
    """What only the loaded model knows (a vocabulary-only model has no hyper-parameters)."""

    vocab_type: int
    n_vocab: int
    n_ctx_train: int
    n_embd: int
    n_params: int
    size: int  # bytes
    ftype: str
    desc: str
    memory_class: str


class AdapterInfo(Frozen, frozen=True):
    """A LoRA adapter that is loaded; its number is its place."""

    path: str
    task_name: str = ""
    prompt_prefix: str = ""


class Ready(Frozen, frozen=True, kw_only=True):
    """The engine accepts work."""

    model: ModelInfo
    n_ctx: int  # KV cells in all
    n_ctx_slot: int  # tokens one request may use
    n_slots: int
    n_batch: int
    n_ubatch: int
    adapters: tuple[AdapterInfo, ...] = ()
    pooling: str = ""  # of a server that embeds or ranks; "": it generates


class LoadFailed(Frozen, frozen=True):
    """The engine cannot start; `message` is one line for a person."""

    message: str


class Timings(Frozen, frozen=True, kw_only=True):
    """llama-server's `timings` plus what it does not know. Milliseconds are wall time."""

    prompt_n: int  # prompt tokens computed for this request
    cache_n: int  # prompt tokens found in a cache
    prompt_ms: float
    predicted_n: int
    predicted_ms: float  # from the end of the prompt to the last token
    queue_ms: float
    compute_ms: float = 0.0  # this request's share of the steps that read its prompt


class Queued(Frozen, frozen=True, kw_only=True):
    """Where a request stands before its first token: the answer to `Submit`, and again whenever
    the outlook changes. `position` counts the requests that wait before it; -1: it has a row.
    """

    request_id: int
    position: int
    predicted_ttft_ms: float  # from its arrival to its first token; negative: not known yet
    low_ms: float  # four in five predictions end up within low..high
    high_ms: float


class Moved(Frozen, frozen=True):
    """A request's stage changed without another event to tell it by: parked, or back from there.
    `stage` is a `scheduling.request.Stage` value.
    """

    request_id: int
    stage: str


class Started(Frozen, frozen=True):
    """The request got a row: its prompt is being read from token `n_cached` on."""

    request_id: int
    id_slot: int
    n_cached: int


class Progress(Frozen, frozen=True):
    """Prompt tokens read so far, `processed` including `n_cached`; sent on `-b` borders if the
    request asked.
    """

    request_id: int
    processed: int
    n_cached: int
    time_ms: int


class Token(Frozen, frozen=True, kw_only=True):
    """One sampled token. `text` is what may be sent now: whole UTF-8, no part of a stop string,
    maybe empty.
    """

    request_id: int
    token: int
    text: bytes
    n_decoded: int  # tokens sampled so far, this one included
    visible: bool = True  # False while a UTF-8 character is incomplete: no chunk is due
    timings: Timings | None = None  # with timings_per_token, and when a stop string was completed
    probs: bytes | None = None  # JSON from strata_sampler_probs
    sampler_state: bytes = b""  # strata_sampler_save: to continue this stream elsewhere


class Done(Frozen, frozen=True, kw_only=True):
    """The choice has ended. `text` is what was still held back; the whole text is the sum of all
    `text`.
    """

    request_id: int
    id_slot: int
    stop: StopReason
    stopping_word: str
    truncated: bool
    has_new_line: bool
    n_tokens_cached: int  # tokens of this sequence left in the KV cache
    text: bytes
    cut: int = 0  # bytes to drop from the end of the text sent before (n_indent)
    timings: Timings


class Embedded(Frozen, frozen=True):
    """The answer to `Embed`: for each input little-endian float32, one vector, or with pooling
    "none" one for each token; a rank's vector has the score alone, or one score for each class.
    """

    request_id: int
    vectors: tuple[bytes, ...]


class Failed(Frozen, frozen=True):
    """The request failed alone. `error_type` is llama-server's (`server_error`,
    `exceed_context_size_error`, ...).
    """

    request_id: int
    code: int
    error_type: str
    message: str
    retry_after_s: float = 0.0  # with 429: when a place in the queue is expected to be free


class Slots(Frozen, frozen=True):
    """Answer to `GetSlots`: one object per slot in llama-server's form."""

    query_id: int
    slots: tuple[dict[str, Any], ...]


class Queue(Frozen, frozen=True):
    """Answer to `GetQueue`: the object that GET /queue returns."""

    query_id: int
    queue: dict[str, Any]


class Cache(Frozen, frozen=True):
    """Answer to `GetCache`: the object that GET /cache returns."""

    query_id: int
    cache: dict[str, Any]


class Explained(Frozen, frozen=True):
    """Answer to `GetExplanation`: the object that GET /cache/explain returns, None: unknown."""

    query_id: int
    explanation: dict[str, Any] | None


class SlotActed(Frozen, frozen=True):
    """Answer to `ActOnSlot`: the object that POST /slots returns, or why it can't be done."""

    query_id: int
    values: dict[str, Any]
    error: str = ""


class Metrics(Frozen, frozen=True):
    """Answer to `GetMetrics`: name (without prefix) to value, see `observe.metrics`."""

    query_id: int
    values: dict[str, float]


ToServer = (
    Loading
    | Ready
    | LoadFailed
    | Queued
    | Moved
    | Started
    | Progress
    | Token
    | Done
    | Embedded
    | Failed
    | Slots
    | Queue
    | Cache
    | Explained
    | SlotActed
    | Metrics
)

_encoder = msgspec.msgpack.Encoder()
_to_engine = msgspec.msgpack.Decoder(tuple[ToEngine, ...])
_to_server = msgspec.msgpack.Decoder(tuple[ToServer, ...])


def encode(messages: tuple[Frozen, ...] | list[Frozen]) -> bytes:
    """One frame's payload."""
    return _encoder.encode(messages)


def decode_to_engine(frame: bytes) -> tuple[ToEngine, ...]:
    """Messages of a frame; `msgspec.DecodeError` when it is not one."""
    return _to_engine.decode(frame)


def decode_to_server(frame: bytes) -> tuple[ToServer, ...]:
    """Messages of a frame; `msgspec.DecodeError` when it is not one."""
    return _to_server.decode(frame)
