"""Flags about the server: address, keys, endpoints, log."""

from __future__ import annotations

import os
from typing import Any

from .flag import (
    Flag,
    Status,
    file_path,
    file_text,
    flag,
    integer,
    json_object,
    number,
    quoted_names,
    switch,
    tristate,
)

MOOT = Status.MOOT


def hosts(value: str) -> tuple[str, ...]:
    """Addresses to listen on."""
    found = quoted_names(value)
    if not found:
        raise ValueError("expected at least one address")
    return found


def existing_folder(value: str) -> str:
    """A folder that is there."""
    path = os.path.abspath(os.path.expanduser(value))
    if not value or not os.path.isdir(path):
        raise ValueError(f"not a directory: '{value}'")
    return path


def key_file(value: str) -> tuple[str, ...]:
    """Keys of a file, one a line; lines that start with # are comments."""
    lines = file_text(value).splitlines()
    return tuple(line for line in lines if line and not line.startswith("#"))


def readable_file(value: str) -> str:
    """Absolute path of a file that can be read."""
    path = os.path.abspath(os.path.expanduser(value))
    try:
        with open(path, "rb"):
            return path
    except OSError as error:
        raise ValueError(f"cannot read '{value}': {error.strerror}") from None


def json_file(value: str) -> dict[str, Any]:
    """A file that holds a JSON object."""
    return json_object(file_text(value))


def prefix(value: str) -> str:
    """A path prefix."""
    if value and (not value.startswith("/") or value.endswith("/")):
        raise ValueError("must start with / and must not end with /")
    return value


SERVER: tuple[Flag, ...] = (
    flag(
        "--host",
        "addresses to listen on, comma-separated; a name that ends in .sock is a UNIX socket",
        hosts,
        metavar="HOST",
        env="LLAMA_ARG_HOST",
        default=("127.0.0.1",),
        shown="127.0.0.1",
    ),
    flag(
        "--port",
        "port to listen on; 0: any free one",
        integer(0, 65535),
        metavar="PORT",
        env="LLAMA_ARG_PORT",
        default=8080,
    ),
    switch("--reuse-port", "allow several servers on one port", env="LLAMA_ARG_REUSE_PORT"),
    flag(
        "--api-prefix",
        "path that all routes start with, such as /llm",
        prefix,
        metavar="PREFIX",
        env="LLAMA_ARG_API_PREFIX",
        default="",
    ),
    flag(
        "--api-key",
        "keys that clients must present, comma-separated",
        quoted_names,
        metavar="KEY",
        env="LLAMA_API_KEY",
        many=True,
        default=(),
        shown="none: everybody is let in",
    ),
    flag(
        "--api-key-file",
        "file with keys, one a line; # starts a comment",
        key_file,
        metavar="FNAME",
        env="LLAMA_ARG_API_KEY_FILE",
        many=True,
        default=(),
    ),
    flag(
        "--ssl-key-file",
        "PEM file with the private key of HTTPS; goes with --ssl-cert-file",
        readable_file,
        metavar="FNAME",
        env="LLAMA_ARG_SSL_KEY_FILE",
        default="",
    ),
    flag(
        "--ssl-cert-file",
        "PEM file with the certificate, and those that lead to its root; all addresses then "
        "speak HTTPS",
        readable_file,
        metavar="FNAME",
        env="LLAMA_ARG_SSL_CERT_FILE",
        default="",
    ),
    flag(
        "-to --timeout",
        "seconds that a client may be silent while it sends its request",
        integer(1, 1 << 30),
        metavar="N",
        env="LLAMA_ARG_TIMEOUT",
        default=3600,
    ),
    flag(
        "--drain-s",
        "seconds that requests in flight may take to end when the server is stopped; what was read "
        "for the others is kept (a second signal stops it at once)",
        number(0),
        metavar="N",
        env="STRATA_DRAIN_S",
        default=5.0,
        status=Status.OURS,
    ),
    flag(
        "--engine-hang-s",
        "seconds after which an engine that is still at the same step is replaced by a new one "
        "(twenty times what the step was predicted to take, where that is longer)",
        number(1),
        metavar="N",
        env="STRATA_ENGINE_HANG_S",
        default=120.0,
        status=Status.OURS,
    ),
    flag(
        "--sse-ping-interval",
        "seconds of silence after which a stream gets a comment line; -1: never",
        integer(-1, 1 << 30),
        metavar="N",
        env="LLAMA_ARG_SSE_PING_INTERVAL",
        default=30,
    ),
    flag(
        "--cors-origins",
        "origins whose pages may use the API, comma-separated; localhost: those of this machine; "
        "*: all",
        metavar="ORIGINS",
        env="LLAMA_ARG_CORS_ORIGINS",
        default="localhost",
    ),
    flag(
        "--cors-methods",
        "methods they may use",
        metavar="METHODS",
        env="LLAMA_ARG_CORS_METHODS",
        default="GET, POST, DELETE, OPTIONS",
    ),
    flag(
        "--cors-headers",
        "headers they may send",
        metavar="HEADERS",
        env="LLAMA_ARG_CORS_HEADERS",
        default="*",
    ),
    switch(
        "--cors-credentials",
        "allow them to send credentials",
        "--no-cors-credentials",
        env="LLAMA_ARG_CORS_CREDENTIALS",
        default=True,
    ),
    switch(
        "--metrics",
        "serve GET /metrics for Prometheus",
        env="LLAMA_ARG_ENDPOINT_METRICS",
    ),
    switch(
        "--slots",
        "serve GET /slots",
        "--no-slots",
        env="LLAMA_ARG_ENDPOINT_SLOTS",
        default=True,
    ),
    flag(
        "--slot-save-path",
        "folder of the files in which POST /slots/{id_slot} keeps what slots hold",
        existing_folder,
        metavar="PATH",
        default="",
    ),
    switch("--props", "accept POST /props", env="LLAMA_ARG_ENDPOINT_PROPS"),
    switch(
        "--ui --webui",
        "serve the pages at / and /strata",
        "--no-ui --no-webui",
        env="LLAMA_ARG_UI",
        default=True,
    ),
    flag(
        "--path",
        "folder of static files that are served at / instead of the chat page, open to all",
        existing_folder,
        metavar="PATH",
        env="LLAMA_ARG_STATIC_PATH",
        default="",
    ),
    flag(
        "--ui-config --webui-config",
        "JSON object with defaults for llama-server's page, told in GET /props",
        json_object,
        metavar="JSON",
        env="LLAMA_ARG_UI_CONFIG",
        default={},
    ),
    flag(
        "--ui-config-file --webui-config-file",
        "the same from a file",
        json_file,
        metavar="PATH",
        env="LLAMA_ARG_UI_CONFIG_FILE",
        default={},
    ),
    flag(
        "--threads-http",
        "not needed: one event loop serves all connections",
        integer(),
        metavar="N",
        env="LLAMA_ARG_THREADS_HTTP",
        default=-1,
        status=MOOT,
        note="one event loop serves all connections",
    ),
)

LOGGING: tuple[Flag, ...] = (
    flag(
        "-lv --verbosity --log-verbosity",
        "what to log: 0 nothing, 1 errors, 2 warnings, 3 requests, 4 more, 5 everything",
        integer(),
        metavar="N",
        env="LLAMA_ARG_LOG_VERBOSITY",
        default=3,
    ),
    switch("-v --verbose --log-verbose", "log everything"),
    switch("--log-disable", "log nothing"),
    flag(
        "--log-file",
        "write the log to a file, too",
        file_path,
        metavar="FNAME",
        env="LLAMA_ARG_LOG_FILE",
        default="",
    ),
    switch(
        "--log-jsonl",
        "log one JSON object per line to stdout",
        "--no-log-jsonl",
        env="LLAMA_ARG_LOG_JSONL",
    ),
    flag(
        "--log-colors",
        "colours in the log: on, off or auto",
        tristate,
        metavar="[on|off|auto]",
        env="LLAMA_ARG_LOG_COLORS",
        default="auto",
    ),
    switch(
        "--log-prefix",
        "level in front of each line",
        "--no-log-prefix",
        env="LLAMA_ARG_LOG_PREFIX",
        default=True,
    ),
    switch(
        "--log-timestamps",
        "time in front of each line",
        "--no-log-timestamps",
        env="LLAMA_ARG_LOG_TIMESTAMPS",
        default=True,
    ),
    switch("-h --help --usage", "show this and exit"),
    switch("--version", "show the versions of Strata and llama.cpp and exit"),
)
