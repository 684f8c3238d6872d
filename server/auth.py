"""API keys: `Authorization: Bearer KEY` or `X-Api-Key: KEY`, compared in constant time."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from hashlib import blake2b, sha256


class KeyRing:
    """The accepted keys. Only hashes are kept, so that all comparisons have one length."""

    def __init__(self, keys: Iterable[str]):
        self._digests = [sha256(key.encode()).digest() for key in keys]
        self._salts = {
            f"key-{number}": make_salt(digest)
            for number, digest in enumerate(self._digests, 1)
        }

    def __bool__(self) -> bool:
        return bool(self._digests)

    def salt(self, name: str) -> str:
        """What keeps the states of the key of this name apart from others', in any order of keys;
        "" where no key is asked for.
        """
        return self._salts.get(name, "")

    def name(self, headers: Iterable[tuple[bytes, bytes]]) -> str | None:
        """Whose request this is by its headers (lower-case names): key-1, key-2, ... in the order
        of the keys, "" where no key is asked for, None when it may not use the API.
        """
        if not self._digests:
            return ""
        digest = sha256(presented_key(headers)).digest()
        found = 0
        for number, own in enumerate(self._digests, 1):
            # no early exit: the time does not tell which key came close
            same = hmac.compare_digest(own, digest)
            found += number * (same and not found)
        return f"key-{found}" if found else None


def make_salt(secret: bytes) -> str:
    """Keeps states of the prefix cache apart; does not tell the secret."""
    return blake2b(secret, digest_size=16, person=b"strata-salt").hexdigest()


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
