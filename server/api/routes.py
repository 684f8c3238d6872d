"""How routes are registered, and the one way in which requests that generate text are served."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ..bodies import read_body
from ..caller import CALLER
from ..generation import open_generation
from ..ports import Kind
from ..service import Service
from ..sse import EventStream
from ..whole import WholeReply

Handler = Callable[[Request], Awaitable[Response]]


async def generate(service: Service, kind: Kind, request: Request) -> Response:
    """Check and queue the request; the reply is an event stream or one JSON value, as the request
    says.
    """
    body = await read_body(request, service.settings.timeout)
    generation = await open_generation(service, kind, body, request.scope[CALLER])
    if generation.wanted.stream:
        return EventStream(service, generation)
    return WholeReply(generation)


def post(
    router: APIRouter, paths: Sequence[str], handler: Handler, summary: str, body: dict[str, Any]
) -> None:
    """Register POST routes; the first path is the documented one, the others are aliases."""
    _add(router, "POST", paths, handler, summary, body)


def get(router: APIRouter, paths: Sequence[str], handler: Handler, summary: str) -> None:
    """Register GET routes; the first path is the documented one, the others are aliases."""
    _add(router, "GET", paths, handler, summary, {})


def _add(
    router: APIRouter,
    method: str,
    paths: Sequence[str],
    handler: Handler,
    summary: str,
    body: dict[str, Any],
) -> None:
    for number, path in enumerate(paths):
        router.add_api_route(
            path,
            handler,
            methods=[method],
            summary=summary if number == 0 else f"{summary} (alias of {paths[0]})",
            response_class=Response,
            openapi_extra=body or None,
        )


def json_body(*required: str) -> dict[str, Any]:
    """OpenAPI's description of a JSON body; fields beyond `required` are llama-server's."""
    schema = {
        "type": "object",
        "required": list(required),
        "properties": {name: {} for name in required},
        "additionalProperties": True,
    }
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
