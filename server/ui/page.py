"""Our own pages: a few static files that load nothing from elsewhere and hold no data."""

from __future__ import annotations

from hashlib import sha256
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

CHAT = {"/": "chat.html", "/index.html": "chat.html"}
LIVE = {
    "/strata": "live.html",
    "/strata/chat.js": "chat.js",
    "/strata/live.js": "live.js",
    "/strata/api.js": "api.js",
    "/strata/chart.js": "chart.js",
    "/strata/events.js": "events.js",
    "/strata/histogram.js": "histogram.js",
    "/strata/page.css": "page.css",
    "/strata/icon.svg": "icon.svg",
}
# A browser that showed llama-server's page at this address keeps the page's worker, which would go
# on showing it; this one takes its place and retires.
WORKER = {"/sw.js": "retire.js"}

_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


class OwnFile:
    """One of the files of this package as an ASGI application for GET and HEAD."""

    def __init__(self, name: str):
        self._content = files(__package__).joinpath(name).read_bytes()
        self._etag = f'"{sha256(self._content).hexdigest()[:32]}"'
        self._type = _TYPES[name.rpartition(".")[2]]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry point."""
        headers = {**HEADERS, "etag": self._etag}
        known = Request(scope).headers.get("if-none-match", "")
        if self._etag in [tag.strip().removeprefix("W/") for tag in known.split(",")]:
            reply = Response(status_code=304, headers=headers)
        else:
            reply = Response(self._content, headers={**headers, "content-type": self._type})
        await reply(scope, receive, send)
