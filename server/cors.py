"""Which cross-origin headers a reply carries."""

from __future__ import annotations

from urllib.parse import urlsplit

from .outlook import HEADERS
from .settings import ServerSettings

Headers = list[tuple[bytes, bytes]]
EXPOSED = ", ".join(HEADERS).encode()
LOCAL_HOSTS = {"localhost", "127.0.0.1", "::1"}


class Cors:
    """The `--cors-*` flags as header lists."""

    def __init__(self, settings: ServerSettings):
        self._origins = tuple(o.strip() for o in settings.cors_origins.split(",") if o.strip())
        self._credentials = settings.cors_credentials
        self._preflight: Headers = [
            (
                b"access-control-allow-credentials",
                b"true" if settings.cors_credentials else b"false",
            ),
            (b"access-control-allow-methods", settings.cors_methods.encode("latin-1")),
            (b"access-control-allow-headers", settings.cors_headers.encode("latin-1")),
        ]

    def headers(self, origin: bytes) -> Headers:
        """Headers of any reply to a request from `origin` (b"": no Origin header)."""
        allowed = self._allowed(origin.decode("latin-1"))
        if not allowed:
            return []
        reply = [
            (b"access-control-allow-origin", allowed.encode("latin-1")),
            (b"access-control-expose-headers", EXPOSED),
        ]
        if allowed != "*":
            reply.append((b"vary", b"Origin"))
        return reply

    def preflight(self, origin: bytes) -> Headers:
        """Headers of the reply to OPTIONS."""
        return self.headers(origin) + self._preflight

    def _allowed(self, origin: str) -> str:
        if self._origins == ("*",):
            # a browser accepts no `*` together with credentials, so the origin is named
            return origin if self._credentials else "*"
        if self._origins == ("localhost",):
            return origin if is_local(origin) else ""
        return origin if origin in self._origins else ""


def is_local(origin: str) -> bool:
    """Whether an Origin value names this machine, on any port."""
    try:
        return urlsplit(origin).hostname in LOCAL_HOSTS
    except ValueError:
        return False
