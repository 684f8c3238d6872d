"""The page at `/`: one static file, nothing loaded from elsewhere."""

from __future__ import annotations

from importlib.resources import files

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
    "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)


def add_routes(router: APIRouter) -> None:
    """Serve the page at `/` and `/index.html`."""
    content = files(__package__).joinpath("index.html").read_bytes()
    headers = {
        "content-type": "text/html; charset=utf-8",
        "content-security-policy": POLICY,
        "cache-control": "no-cache",
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
    }

    async def index(_: Request) -> Response:
        return Response(content, headers=headers)

    for path in ("/", "/index.html"):
        router.add_api_route(path, index, methods=["GET"], include_in_schema=False)
