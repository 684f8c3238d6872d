"""What every request passes before it reaches a route: CORS, readiness, API key; and headers that
every reply carries.

The order is llama-server's: OPTIONS is answered before anything is checked, pages are open to all,
"Loading model" comes before the key.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .auth import KeyRing
from .caller import CALLER, Caller, client_name, request_id
from .cors import Cors
from .errors import INVALID_KEY, JSON_TYPE, ApiError, form_of
from .service import Service
from .ui.pages import Pages

HEALTH = {"/health", "/v1/health"}
BODY_SEND = "strata.send"  # key in the scope: the server's own `send`, for pieces of a body


class Gate:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, service: Service, pages: Pages):
        settings = service.settings
        self._app = app
        self._pages = pages
        self._service = service
        self._cors = Cors(settings)
        self._keys = KeyRing(settings.api_keys)
        self._open = {settings.api_prefix + path for path in HEALTH}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry point."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        origin = dict(scope["headers"]).get(b"origin", b"")
        options = scope["method"] == "OPTIONS"
        extra = self._cors.preflight(origin) if options else self._cors.headers(origin)
        name = request_id(scope["headers"])
        extra += [(b"server", b"llama.cpp"), (b"x-request-id", name.encode())]

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *extra]
            await send(message)

        path = scope["path"]
        if options:
            await _reply(send_with_headers, 200, b"text/html", b"")
        elif page := self._pages.find(scope):
            await page(scope, receive, send_with_headers)
        elif not self._service.is_ready:
            await _refuse(send_with_headers, self._service.unavailable, path)
        elif (tenant := self._tenant(scope)) is None:
            await _refuse(send_with_headers, INVALID_KEY, path)
        else:
            salt = "" if self._service.settings.cache_shared else self._keys.salt(tenant)
            caller = Caller(name, tenant, client_name(scope), salt)
            scope = {**scope, BODY_SEND: send, CALLER: caller}
            if scope["method"] == "HEAD":  # as GET; the server drops the body
                scope["method"] = "GET"
            await self._app(scope, receive, send_with_headers)

    def _tenant(self, scope: Scope) -> str | None:
        """See `KeyRing.name`; what is open to all asks for no key."""
        return "" if scope["path"] in self._open else self._keys.name(scope["headers"])


async def _refuse(send: Send, error: ApiError, path: str) -> None:
    await _reply(send, error.code, JSON_TYPE.encode(), error.body(form_of(path)))


async def _reply(send: Send, status: int, content_type: bytes, body: bytes) -> None:
    headers = [(b"content-type", content_type), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
