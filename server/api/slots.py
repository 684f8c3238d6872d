"""POST /slots/{id_slot}: save, restore or erase what a slot holds, in files of one folder."""

from __future__ import annotations

import os
import re
import unicodedata

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ..caller import CALLER
from ..dialects.fields import Object
from ..errors import ApiError
from ..service import Service
from .body_schemas import TEXT, one_of
from .routes import json_body, json_reply, post, read_json

ACTIONS = ("save", "restore", "erase")
MOST_BYTES = 255  # of a file's name
_FORBIDDEN = re.compile(r'[/\\:*?"<>|\x00-\x1f\x7f-\x9f]')


def add_routes(router: APIRouter, service: Service) -> None:
    """Add the route to `router`."""

    async def act(request: Request) -> Response:
        if not service.settings.slot_save_path:
            raise ApiError(
                "This server does not support slots action. Start it with `--slot-save-path`",
                "not_supported_error",
            )
        slot, action = request.path_params["id_slot"], request.query_params.get("action", "")
        if not (slot.isascii() and slot.isdigit() and int(slot) < service.ready.n_slots):
            raise ApiError("Invalid slot ID")
        if action not in ACTIONS:
            raise ApiError("Invalid action")
        path = ""
        if action != "erase":
            name = file_name(await read_json(service, request))
            path = os.path.join(service.settings.slot_save_path, name)
        caller = request.scope[CALLER]
        answer = await service.engine.act_on_slot(
            action, int(slot), path, caller.tenant, caller.salt
        )
        if answer.error:
            raise ApiError(f"Unable to {action} slot: {answer.error}")
        return json_reply(answer.values)

    post(
        router,
        ("/slots/{id_slot}",),
        act,
        "Save what a slot holds to a file, restore it, or erase it (?action=)",
        json_body("filename", fields={"filename": TEXT}),
        {"action": one_of(*ACTIONS)},
    )


def file_name(body: Object) -> str:
    """The file that a request names; `ApiError` for one that could lie anywhere else."""
    name = body.get("filename")
    if not isinstance(name, str):
        raise ApiError("'filename' must be a string")
    if not is_file_name(name):
        raise ApiError("Invalid filename")
    return name


def is_file_name(name: str) -> bool:
    """Whether a name means a file of the folder on every system, and no hidden one."""
    try:
        raw = name.encode()
    except UnicodeEncodeError:
        return False
    # other characters that some systems read as a separator or a dot
    plain = unicodedata.normalize("NFKC", name)
    return (
        0 < len(raw) <= MOST_BYTES
        and not any(_FORBIDDEN.search(text) for text in (name, plain))
        and not plain.startswith((".", " "))
        and not plain.endswith((".", " "))
        and name != "models.json"  # ours
    )
