"""How routes are registered, and the one way in which requests that generate text are served."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ..bodies import read_body
from ..caller import CALLER
from ..dialects.dialect import Dialect
from ..dialects.fields import Object, read_object
from ..errors import JSON_TYPE
from ..generation import open_generation, prepare
from ..replay import Follow, conversation_of
from ..service import Service
from ..sse import EventStream
from ..whole import WholeReply
from . import body_schemas
from .body_schemas import TEXT, Schema

Handler = Callable[[Request], Awaitable[Response]]
NO_QUERY: Mapping[str, Schema] = {}
ERROR: dict[str, Any] = {
    "description": "An error; 501: this server was started without what the route needs, "
    "503: the model is loading or the engine is gone",
    "content": {"application/json": {"schema": body_schemas.ERROR}},
}


async def generate(service: Service, dialect: Dialect, request: Request) -> Response:
    """Check and queue the request; the reply is an event stream or one JSON value, as the request
    says.
    """
    body = await read_body(request, service.settings.timeout)
    generation = await open_generation(service, dialect, body, request.scope[CALLER])
    if generation.wanted.stream:
        stream = EventStream(service, generation)
        conversation = conversation_of(request.scope)
        if not conversation:
            return stream
        recording = service.recordings.open((request.scope[CALLER].tenant, conversation))
        recording.start(stream, request.scope)
        return Follow(recording)
    return WholeReply(generation)


def json_reply(value: Any) -> Response:
    """`value` as JSON, which may hold numpy numbers."""
    data = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(data, media_type=JSON_TYPE)


async def read_json(service: Service, request: Request) -> Object:
    """The JSON object that a small body holds, without its null fields."""
    return read_object(await read_body(request, service.settings.timeout))


async def count_tokens(service: Service, dialect: Dialect, request: Request) -> int:
    """Tokens of the prompt that the request would be rendered to."""
    body = await read_body(request, service.settings.timeout)
    prepared, _ = await prepare(service, dialect, body)
    return sum(len(prepared.tokens(i)) for i in range(int(prepared.info["n_prompts"])))


def post(
    router: APIRouter,
    paths: Sequence[str],
    handler: Handler,
    summary: str,
    body: dict[str, Any],
    query: Mapping[str, Schema] = NO_QUERY,
) -> None:
    """Register POST routes; the first path is the documented one, the others are aliases. `query`
    describes parameters after `?`.
    """
    _add(router, "POST", paths, handler, summary, body, query)


def get(
    router: APIRouter,
    paths: Sequence[str],
    handler: Handler,
    summary: str,
    query: Mapping[str, Schema] = NO_QUERY,
) -> None:
    """Register GET routes, as `post`."""
    _add(router, "GET", paths, handler, summary, {}, query)


def delete(
    router: APIRouter,
    paths: Sequence[str],
    handler: Handler,
    summary: str,
    query: Mapping[str, Schema] = NO_QUERY,
) -> None:
    """Register DELETE routes, as `post`."""
    _add(router, "DELETE", paths, handler, summary, {}, query)


def _add(
    router: APIRouter,
    method: str,
    paths: Sequence[str],
    handler: Handler,
    summary: str,
    body: dict[str, Any],
    query: Mapping[str, Schema],
) -> None:
    for number, path in enumerate(paths):
        parameters = [
            *({"name": n, "in": "path", "required": True, "schema": TEXT} for n in _names(path)),
            *({"name": n, "in": "query", "schema": schema} for n, schema in query.items()),
        ]
        router.add_api_route(
            path,
            handler,
            methods=[method],
            summary=summary if number == 0 else f"{summary} (alias of {paths[0]})",
            response_class=Response,
            responses={"default": ERROR},
            openapi_extra={**body, **({"parameters": parameters} if parameters else {})} or None,
        )


def _names(path: str) -> list[str]:
    """Names of the parameters in a path."""
    return re.findall(r"\{(\w+)[:}]", path)


def json_body(*required: str, fields: Mapping[str, Schema] | None = None) -> dict[str, Any]:
    """OpenAPI's description of a JSON body; fields beyond `fields` are llama-server's."""
    schema = {
        "type": "object",
        "required": list(required),
        "properties": {**{name: {} for name in required}, **(fields or {})},
        "additionalProperties": True,
    }
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
