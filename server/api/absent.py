"""llama-server's routes that we do not have yet: a clear answer instead of "File Not Found"."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ..errors import JSON_TYPE, ApiError
from ..service import Service

ROUTES = """
POST /v1/chat/completions/control
POST /v1/audio/transcriptions
POST /audio/transcriptions
"""
DISABLED = ("/tools", "/cors-proxy")


def add_routes(router: APIRouter, service: Service) -> None:
    """Answer what is missing with 501, and what llama-server disables by default as it does."""
    for line in ROUTES.split("\n"):
        if line:
            method, path = line.split()
            router.add_api_route(path, _missing, methods=[method], include_in_schema=False)
    for path in DISABLED:
        router.add_api_route(path, _disabled, methods=["GET", "POST"], include_in_schema=False)


async def _missing(request: Request) -> Response:
    raise ApiError(
        f"{request.method} {request.url.path}: known llama-server route, "
        "not available in strata yet",
        "not_supported_error",
    )


async def _disabled(_: Request) -> Response:
    body = b'{"error":{"message":"this feature is disabled","type":"feature_disabled"}}'
    return Response(body, 403, media_type=JSON_TYPE)
