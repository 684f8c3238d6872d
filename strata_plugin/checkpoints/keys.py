"""Names of stored states: everything that changes the bytes of a block is in its key.

A block's key is a hash over the namespace, its parent's key and its own token ids, so that equal
keys mean equal prefixes in the same namespace. Who finds a block compares the ids all the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TypeAlias

from .tokens import Tokens

Key: TypeAlias = bytes  # KEY_BYTES of them

KEY_BYTES = 32


def namespace(parts: Mapping[str, str | int | float | bool | None]) -> Key:
    """The root of all keys under these circumstances (model, KV types, tenant, ...).

    Any difference in a name, a value or a value's type gives another root.
    """
    text = json.dumps(dict(parts), sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=KEY_BYTES, person=b"strata-root").digest()


def block_key(parent: Key, tokens: Tokens, *, checkpoint: bool = False) -> Key:
    """The key of the block of `tokens` after `parent` (a namespace or another block)."""
    person = b"strata-check" if checkpoint else b"strata-block"
    state = hashlib.blake2b(parent, digest_size=KEY_BYTES, person=person)
    state.update(tokens.astype("<i4", copy=False).tobytes())
    return state.digest()
