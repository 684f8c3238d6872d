"""Coming back to a stream that was begun with the header X-Conversation-Id."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ..caller import CALLER
from ..errors import ApiError
from ..replay import Follow, Owner
from ..service import Service
from .body_schemas import COUNT, TEXT, array
from .routes import delete, get, json_body, json_reply, post, read_json


def add_routes(router: APIRouter, service: Service) -> None:
    """Add the routes to `router`."""

    async def follow(request: Request) -> Response:
        recording = service.recordings.find(_owner(request))
        if recording is None:
            raise ApiError("Stream not found or expired", "not_found_error")
        text = request.query_params.get("from") or "0"
        if not (text.isascii() and text.isdigit()):
            raise ApiError("Invalid 'from' offset")
        offset = int(text)
        if offset < recording.dropped:
            raise ApiError("Stream offset lost, please restart")
        return Follow(recording, offset)

    async def stop(request: Request) -> Response:
        service.recordings.drop(_owner(request))
        return Response(status_code=204)

    async def lookup(request: Request) -> Response:
        names = (await read_json(service, request)).get("conversation_ids")
        tenant = request.scope[CALLER].tenant
        given = names if isinstance(names, list) else []
        known = [name for name in given if isinstance(name, str) and name]
        found = [
            {
                "conversation_id": recording.conversation,
                "is_done": recording.is_done,
                "total_bytes": recording.total,
                "started_at": recording.started_at,
                "completed_at": recording.completed_at,
            }
            for name in known
            for recording in service.recordings.like((tenant, name))
        ]
        return json_reply(found)

    name = {"conv_id": TEXT}
    get(
        router,
        ("/v1/stream",),
        follow,
        "Read a stream from a byte on (conv_id, from)",
        {**name, "from": COUNT},
    )
    delete(router, ("/v1/stream",), stop, "Stop a stream and forget it (conv_id)", name)
    post(
        router,
        ("/v1/streams/lookup",),
        lookup,
        "Which of some conversations have a stream",
        json_body("conversation_ids", fields={"conversation_ids": array(TEXT)}),
    )


def _owner(request: Request) -> Owner:
    conversation = request.query_params.get("conv_id")
    if not conversation:
        raise ApiError("Missing conversation id in path")
    return request.scope[CALLER].tenant, conversation
