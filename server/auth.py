"""API keys: `Authorization: Bearer KEY` or `X-Api-Key: KEY`, compared in constant time."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from hashlib import sha256


class KeyRing:
    """The accepted keys. Only hashes are kept, so that all comparisons have one length."""

    def __init__(self, keys: Iterable[str]):
        self._digests = [sha256(key.encode()).digest() for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def accepts(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Whether a request with these headers (lower-case names) may use the API."""
        if not self._digests:
            return True
        digest = sha256(presented_key(headers)).digest()
        known = False
        for own in self._digests:  # no early exit: the time does not tell which key came close
            known |= hmac.compare_digest(own, digest)
        return known


def presented_key(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The key that a request presents, b"" when there is none; `Authorization` wins over
    `X-Api-Key`.
    """
    authorization = api_key = b""
    for name, value in headers:
        if name == b"authorization":
            authorization = value
        elif name == b"x-api-key":
            api_key = value
    key = authorization or api_key
    return key[len(b"Bearer ") :] if key.startswith(b"Bearer ") else key
