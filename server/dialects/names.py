"""Names of what a reply is made of."""

from __future__ import annotations

import secrets


def fresh_id(prefix: str) -> str:
    """A name that nothing else has: `prefix_` and 24 hexadecimal digits."""
    return f"{prefix}_{secrets.token_hex(12)}"
