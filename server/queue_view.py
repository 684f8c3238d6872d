"""What the fields of GET /queue mean; a request's are those of `engine/queue_rows.py`."""

from __future__ import annotations

REQUEST_FIELDS = {
    "id": "the reply's `X-Request-Id`; further choices of a request have their index after it, as "
    "in `abc[1]`",
    "dialect": "native, openai-completion, openai-chat, openai-responses, anthropic or embeddings",
    "client": "address, and the first 40 characters of User-Agent",
    "key": "which API key: key-1, key-2, ... in the order in which they were given; empty without "
    "keys",
    "prompt_tokens": "length of the prompt",
    "cached_tokens": "prompt tokens found in a cache",
    "computed_tokens": "tokens in the KV cache by now, those found in a cache included",
    "generated_tokens": "tokens of the answer by now",
    "stage": "queued, restoring (read from disk), reading, writing or parked",
    "position": "requests that wait before this one; -1: it is being read or written",
    "waited_ms": "milliseconds since it arrived",
    "predicted_ttft_ms": "predicted milliseconds from its arrival to its first token; null: not "
    "known yet, or it has come",
    "predicted_ttft_low_ms": "four in five predictions end up between this",
    "predicted_ttft_high_ms": "and this",
    "tokens_per_s": "tokens per second by now: of the prompt while it is read, then of the answer",
}
FIELDS = {
    "requests": "one object per request, see below",
    "itl_slo_ms": "the server's target for the time between two tokens",
    "itl_feasible": "false: generating alone takes longer than that",
    "rows": "requests that generate just now",
    "row_step_ms": "how long a step of them alone takes, as the cost model says; 0: there are none",
    "queued": "requests for which nothing has been computed yet",
    "scheduler": "strata or upstream; embedding: the server embeds or ranks",
}
