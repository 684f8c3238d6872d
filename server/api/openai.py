"""OpenAI's dialect: legacy completions and chat completions."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ..ports import Kind
from ..service import Service
from .routes import generate, json_body, post


def add_routes(router: APIRouter, service: Service) -> None:
    """Add the OpenAI routes to `router`."""

    async def completions(request: Request) -> Response:
        return await generate(service, Kind.OAI_COMPLETION, request)

    async def chat_completions(request: Request) -> Response:
        return await generate(service, Kind.OAI_CHAT, request)

    post(router, ("/v1/completions",), completions, "Continue a prompt", json_body("prompt"))
    post(
        router,
        ("/v1/chat/completions", "/chat/completions"),
        chat_completions,
        "Answer a chat",
        json_body("messages"),
    )
