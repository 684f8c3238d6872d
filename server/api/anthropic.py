"""Anthropic's Messages API."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ..dialects.anthropic import Anthropic
from ..dialects.fitting import Fitting
from ..service import Service
from . import body_schemas
from .routes import count_tokens, generate, json_body, json_reply, post


def add_routes(router: APIRouter, service: Service) -> None:
    """Add the routes to `router`."""
    settings = service.settings
    fit = Fitting(lambda body: service.frontend.apply_template(body))
    dialect = Anthropic(settings.model_name, settings.normalise, fit)

    async def messages(request: Request) -> Response:
        return await generate(service, dialect, request)

    async def count(request: Request) -> Response:
        n_tokens = await count_tokens(service, dialect, request)
        return json_reply({"input_tokens": n_tokens})

    post(
        router,
        ("/v1/messages",),
        messages,
        "Answer in Anthropic's Messages form",
        json_body("messages", fields=body_schemas.ANTHROPIC),
    )
    post(
        router,
        ("/v1/messages/count_tokens",),
        count,
        "Tokens that a Messages request is rendered to",
        json_body("messages", fields=body_schemas.ANTHROPIC),
    )
