"""OpenAI's Responses API. Stateless, as llama-server's: no response is kept."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ..dialects.fitting import Fitting
from ..dialects.responses import Responses
from ..errors import NOT_FOUND, ApiError
from ..service import Service
from . import body_schemas
from .openai import token_count
from .routes import count_tokens, generate, json_body, post

SOCKETS = ApiError("There is no WebSocket here: use POST")
SOCKETS.code = 426  # by which Codex CLI knows that it is to go on with POST at once


def add_routes(router: APIRouter, service: Service) -> None:
    """Add the routes to `router`."""
    settings = service.settings
    fit = Fitting(lambda body: service.frontend.apply_template(body))
    dialect = Responses(settings.model_name, fit)

    async def respond(request: Request) -> Response:
        return await generate(service, dialect, request)

    async def get_one(request: Request) -> Response:
        raise SOCKETS if "upgrade" in request.headers else NOT_FOUND

    async def input_tokens(request: Request) -> Response:
        return token_count(await count_tokens(service, dialect, request))

    paths = ("/v1/responses", "/responses")
    for path in paths:
        router.add_api_route(path, get_one, methods=["GET"], include_in_schema=False)
    post(
        router,
        paths,
        respond,
        "Answer in OpenAI's Responses form",
        json_body("input", fields=body_schemas.RESPONSES),
    )
    post(
        router,
        ("/v1/responses/input_tokens", "/responses/input_tokens"),
        input_tokens,
        "Tokens that a Responses request is rendered to",
        json_body("input", fields=body_schemas.RESPONSES),
    )
