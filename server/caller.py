"""Who sends a request: its id in headers and log, the key it came with, the client program."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from starlette.types import Scope

CALLER = "strata.caller"  # key in the scope: the request's `Caller`, put there by the gate
MAX_ID = 128  # characters of an id that a client brings
AGENT_LENGTH = 40


@dataclass(frozen=True)
class Caller:
    """What is known about a request before its body is read."""

    request_id: str
    tenant: str = ""  # which key it came with: key-1, key-2, ..., never the key; "": none is asked
    client: str = ""
    salt: str = ""  # who finds what is computed for it in the prefix cache


def request_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The client's own X-Request-Id where it is short and printable ASCII, else a fresh one."""
    own = header(headers, b"x-request-id").decode("latin-1")
    if 0 < len(own) <= MAX_ID and own.isascii() and own.isprintable():
        return own
    return secrets.token_hex(8)


def client_name(scope: Scope) -> str:
    """host:port and the beginning of User-Agent, without what can't be printed."""
    host, port = scope.get("client") or ("unix", 0)
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}" if port else host or "unix"
    agent = header(scope["headers"], b"user-agent").decode("latin-1")
    shown = "".join(islice(filter(str.isprintable, agent), AGENT_LENGTH))
    return f"{where} {shown}".rstrip()


def header(headers: Iterable[tuple[bytes, bytes]], wanted: bytes) -> bytes:
    """The last header of the lower-case name `wanted`, b"" when there is none."""
    found = b""
    for name, value in headers:
        if name == wanted:
            found = value
    return found
