"""LoRA adapters: what is loaded, and how strongly it is applied."""

from __future__ import annotations

import math
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ..bodies import read_body
from ..dialects.fields import read_value
from ..errors import ApiError
from ..service import Service
from .routes import get, json_reply, post

LIST_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["id", "scale"],
                        "properties": {"id": {"type": "integer"}, "scale": {"type": "number"}},
                    },
                }
            }
        },
    }
}


def add_routes(router: APIRouter, service: Service) -> None:
    """Add the routes to `router`."""

    async def show(_: Request) -> Response:
        scales = service.adapters.scales
        adapters = [
            {
                "id": number,
                "path": adapter.path,
                "scale": scales[number],
                "task_name": adapter.task_name,
                "prompt_prefix": adapter.prompt_prefix,
            }
            for number, adapter in enumerate(service.ready.adapters)
        ]
        return json_reply(adapters)

    async def change(request: Request) -> Response:
        body = await read_body(request, service.settings.timeout)
        service.adapters.set(_entries(body))
        return json_reply({"success": True})

    get(router, ("/lora-adapters",), show, "LoRA adapters and their scales")
    post(router, ("/lora-adapters",), change, "Set the scales for requests to come", LIST_BODY)


def _entries(body: bytes) -> list[dict[str, Any]]:
    entries = read_value(body)
    if not isinstance(entries, list):
        raise ApiError("Request body must be an array")
    for entry in entries:
        scale = entry.get("scale") if isinstance(entry, dict) else None
        if not isinstance(scale, (int, float)) or not math.isfinite(scale):
            raise ApiError('Request body must be an array of {"id": number, "scale": number}')
    return entries
