"""GET /cache: the names of what the engine tells about its prefix cache."""

from __future__ import annotations

TIERS = {
    "resident": "the KV cache",
    "ram": "blocks, whole states and parked requests in RAM (`--cache-ram`)",
    "disk": "blocks on disk (`--cache-disk`); null: there is no disk tier",
}
FIELDS = {
    "sequences": "resident: sequences that hold tokens, of running requests and of ended ones",
    "idle_sequences": "resident: those of ended ones",
    "tokens": "tokens that are kept, where sequences share a prefix in the KV cache counted as "
    "several times",
    "cells": "resident: cells of the KV cache; 0: tokens take none",
    "bytes": "RAM or disk that is taken",
    "limit_bytes": "most that may be taken",
    "blocks": "blocks; on disk those of all models",
    "hit_tokens": "prompt tokens that needed not be computed thanks to this tier, since the start",
    "evicted_blocks": "blocks that were dropped to make room, since the start",
    "restore_bytes_per_s": "how quickly states came out of this tier so far; 0: none did",
    "open": "disk: false while it can't be used, as the model is being hashed or the folder fails",
}
OWN = {
    "hints": "of the last 256 requests that were misses: how many had which cause",
    "misses": "the latest 16 of them, see below",
    "conversations": "the ten longest in RAM: tokens, bytes (what several begin with counts for "
    "each) and how they begin",
}
EXPLANATION = {
    "id": "the reply's `X-Request-Id`",
    "prompt_tokens": "length of the prompt",
    "cached_tokens": "how many of them needed not be computed",
    "longest_prefix": "how many of them were stored in a row when the request came",
    "found_in": "where: resident, ram or disk",
    "cause": "why the rest was not found, see below",
    "explanation": "the same in words",
    "differs_at": "position of the first token that differs from what is stored; null: none does",
    "stored_text": "the stored text around it, cut and escaped, with `<>` at that position",
    "prompt_text": "the prompt's",
    "restore_ms": "how long bringing states back from RAM took; null: none were",
    "recompute_ms": "how long computing them again would have taken, as the cost model says",
}
