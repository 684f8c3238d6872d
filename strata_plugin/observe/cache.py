"""The prefix cache's state as metrics, one sample for each tier."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# name of the metric (without prefix) -> field of a tier in GET /cache
SAMPLES = {
    "cache_bytes": "bytes",
    "cache_limit_bytes": "limit_bytes",
    "cache_blocks": "blocks",
    "cache_tokens": "tokens",
    "cache_sequences": "sequences",
    "cache_restore_bytes_per_second": "restore_bytes_per_s",
    "cache_hit_tokens_total": "hit_tokens",
    "cache_evicted_blocks_total": "evicted_blocks",
}


def cache_samples(view: Mapping[str, Any]) -> dict[str, float]:
    """Samples of what GET /cache shows; a tier has those that it has fields for."""
    found = {}
    for tier in ("resident", "ram", "disk"):
        fields = view.get(tier) or {}
        for name, field in SAMPLES.items():
            if field in fields:
                found[f'{name}{{tier="{tier}"}}'] = float(fields[field])
    return found
