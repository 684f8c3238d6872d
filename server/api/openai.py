"""OpenAI's dialect: legacy completions and chat completions."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ..dialects.dialect import OPENAI_CHAT, OPENAI_COMPLETION
from ..service import Service
from . import body_schemas
from .routes import count_tokens, generate, json_body, json_reply, post


def add_routes(router: APIRouter, service: Service) -> None:
    """Add the OpenAI routes to `router`."""

    async def completions(request: Request) -> Response:
        return await generate(service, OPENAI_COMPLETION, request)

    async def chat_completions(request: Request) -> Response:
        return await generate(service, OPENAI_CHAT, request)

    async def input_tokens(request: Request) -> Response:
        return token_count(await count_tokens(service, OPENAI_CHAT, request))

    post(
        router,
        ("/v1/completions",),
        completions,
        "Continue a prompt",
        json_body("prompt", fields=body_schemas.OPENAI_COMPLETION),
    )
    post(
        router,
        ("/v1/chat/completions", "/chat/completions"),
        chat_completions,
        "Answer a chat",
        json_body("messages", fields=body_schemas.CHAT),
    )
    post(
        router,
        ("/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"),
        input_tokens,
        "Tokens that a chat is rendered to",
        json_body("messages", fields=body_schemas.CHAT),
    )


def token_count(n_tokens: int) -> Response:
    """OpenAI's answer to how many tokens a prompt has."""
    return json_reply({"input_tokens": n_tokens, "object": "response.input_tokens"})
