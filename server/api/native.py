"""llama-server's own dialect: completion, tokenisation and templates."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ..bodies import read_body
from ..dialects.dialect import INFILL, NATIVE
from ..errors import JSON_TYPE
from ..service import Service
from . import body_schemas
from .routes import generate, json_body, post


def add_routes(router: APIRouter, service: Service) -> None:
    """Add the native routes to `router`."""

    async def completion(request: Request) -> Response:
        return await generate(service, NATIVE, request)

    async def infill(request: Request) -> Response:
        return await generate(service, INFILL, request)

    async def tokenize(request: Request) -> Response:
        return await _stateless(service, service.frontend.tokenize, request)

    async def detokenize(request: Request) -> Response:
        return await _stateless(service, service.frontend.detokenize, request)

    async def apply_template(request: Request) -> Response:
        return await _stateless(service, service.frontend.apply_template, request)

    post(
        router,
        ("/completion", "/completions"),
        completion,
        "Continue a prompt",
        json_body("prompt", fields=body_schemas.COMPLETION),
    )
    post(
        router,
        ("/infill",),
        infill,
        "Fill in between two pieces of code",
        json_body("input_prefix", "input_suffix", fields=body_schemas.INFILL),
    )
    post(
        router,
        ("/tokenize",),
        tokenize,
        "Token ids of a text",
        json_body("content", fields=body_schemas.TOKENIZE),
    )
    post(
        router,
        ("/detokenize",),
        detokenize,
        "Text of token ids",
        json_body("tokens", fields=body_schemas.DETOKENIZE),
    )
    post(
        router,
        ("/apply-template",),
        apply_template,
        "The prompt that a chat is rendered to",
        json_body("messages", fields=body_schemas.TEMPLATE),
    )


async def _stateless(
    service: Service, function: Callable[[bytes], bytes], request: Request
) -> Response:
    body = await read_body(request, service.settings.timeout)
    reply = await service.native_call(function, body, size=len(body))
    return Response(reply, media_type=JSON_TYPE)
