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
    "open": "disk: false while it can't be used, as the model is being hashed or the folder fails",
}
