"""Reading request bodies: raw bytes for the native parser, with form fields turned into a JSON
object before.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import orjson
from starlette.datastructures import Headers
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from .errors import ApiError

MAX_BYTES = 100 << 20  # the limit of llama-server's HTTP library


class PayloadTooLarge(ApiError):
    """A body above `MAX_BYTES`."""

    def __init__(self) -> None:
        super().__init__(f"The request body is larger than {MAX_BYTES >> 20} MiB")
        self.code = 413


async def read_body(request: Request, timeout: float) -> bytes:
    """The request's body as JSON text.

    `timeout` is the longest silence in seconds. Raises `ApiError`, or `ClientDisconnect` when the
    client is gone.
    """
    body = await _read_raw(request, timeout)
    content_type = request.headers.get("content-type", "")
    if content_type.lower().startswith("multipart/form-data"):
        return await _form_as_json(request.headers, body)
    return body


async def _read_raw(request: Request, timeout: float) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        try:
            message = await asyncio.wait_for(request.receive(), timeout)
        except asyncio.TimeoutError as error:
            raise ClientDisconnect from error
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part = message.get("body", b"")
        size += len(part)
        if size > MAX_BYTES:
            raise PayloadTooLarge
        if part:
            parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


async def _form_as_json(headers: Headers, body: bytes) -> bytes:
    """Text fields as a JSON object of strings; a repeated field becomes an array. Files are left
    out.
    """

    async def chunks() -> AsyncGenerator[bytes, None]:
        yield body
        yield b""

    try:
        form = await MultiPartParser(headers, chunks(), max_part_size=MAX_BYTES).parse()
    except (MultiPartException, KeyError) as error:
        raise ApiError(f"Malformed multipart/form-data body: {error}") from error
    fields: dict[str, str | list[str]] = {}
    for name, value in form.multi_items():
        if not isinstance(value, str):
            continue
        known = fields.get(name)
        if known is None:
            fields[name] = value
        elif isinstance(known, list):
            known.append(value)
        else:
            fields[name] = [known, value]
    return orjson.dumps(fields)
