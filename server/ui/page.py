"""The page at `/`: one static file, nothing loaded from elsewhere."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from importlib.resources import files

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response


def policy(page: str) -> str:
    """A Content-Security-Policy that lets the page's own script and style run and nothing else."""

    def hashes(element: str) -> str:
        found = re.findall(rf"<{element}>(.*?)</{element}>", page, re.DOTALL)
        digests = (b64encode(sha256(text.encode()).digest()).decode() for text in found)
        return " ".join(f"'sha256-{digest}'" for digest in digests)

    return (
        f"default-src 'none'; script-src {hashes('script')}; style-src {hashes('style')}; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def add_routes(router: APIRouter) -> None:
    """Serve the page at `/` and `/index.html`."""
    content = files(__package__).joinpath("index.html").read_text(encoding="utf-8")
    headers = {
        "content-type": "text/html; charset=utf-8",
        "content-security-policy": policy(content),
        "cache-control": "no-cache",
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
    }

    async def index(_: Request) -> Response:
        return Response(content, headers=headers)

    for path in ("/", "/index.html"):
        router.add_api_route(path, index, methods=["GET"], include_in_schema=False)
