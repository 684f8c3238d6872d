"""`python -m strata_server.docs [DIRECTORY]` writes docs/flags.md and docs/api.md from tables."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from strata_plugin.checkpoints.misses import Cause
from strata_plugin.engine.client import EngineClient
from strata_plugin.engine.config import EngineConfig
from strata_plugin.engine.messages import Queued
from strata_plugin.kernels import KERNELS
from strata_plugin.runtime.config import ModelConfig
from strata_plugin.scheduling.sizes import SIZES

from . import replay
from .api.absent import DISABLED, ROUTES
from .app import create_api
from .cache_view import EXPLANATION, OWN, TIERS
from .cache_view import FIELDS as CACHE_FIELDS
from .choice import TIMINGS
from .errors import CODES
from .flag import Flag, Status
from .flags import GROUPS
from .flags_absent import ABSENT, REMOVED
from .information import shown_default
from .outlook import HEADERS, queue_comment
from .own_fields import FIELDS
from .prometheus import COUNTERS, GAUGES, HISTOGRAMS, OWN_COUNTERS, OWN_GAUGES
from .queue_view import FIELDS as QUEUE_FIELDS
from .queue_view import REQUEST_FIELDS
from .service import Service
from .settings import ServerSettings

HEAD = "<!-- Written by `python -m strata_server.docs`; change the tables in server/ instead. -->\n"


def flags_page() -> str:
    """docs/flags.md."""
    parts = [
        HEAD,
        "# Flags\n",
        "Names, environment names and defaults are llama-server's. The command line wins over the "
        "environment; a switch that can be turned off is also turned off by its environment name "
        "with `LLAMA_ARG_NO_` in front.\n",
    ]
    for title, flags in GROUPS:
        parts += [f"## {title}\n", "| flag | default | environment | |", "|---|---|---|---|"]
        parts += [_flag_row(flag) for flag in flags]
        parts.append("")
    parts += [
        "## Kernel switches\n",
        "Environment variables that the patched llama.cpp reads once, when it starts to compute. "
        "`GET /props` and `--version` show what they are set to.\n",
        "| variable | values | default | patch | |",
        "|---|---|---|---|---|",
        *(
            f"| `{k.env}` | {', '.join(k.values)} | {k.default} | {k.patch} | {k.about} |"
            for k in KERNELS
        ),
        "",
        "## Not available yet\n",
        "These flags of llama-server are refused with a message that says so, unless their value "
        "asks for what Strata does anyway.\n",
        ", ".join(f"`{name}`" for flag in ABSENT for name in flag.names) + "\n",
        "## Removed\n",
        "llama-server has removed these; Strata names what to use instead.\n",
        "| flag | |",
        "|---|---|",
        *(f"| {_names(flag)} | {flag.note} |" for flag in REMOVED),
        "",
    ]
    return "\n".join(parts)


def _names(flag: Flag) -> str:
    return ", ".join(f"`{name}`" for name in flag.all_names)


def _flag_row(flag: Flag) -> str:
    value = f" `{flag.metavar}`" if flag.metavar else ""
    default = shown_default(flag)
    mark = "Strata's own: " if flag.status is Status.OURS else ""
    env = f"`{flag.env}`" if flag.env else ""
    cells = (_names(flag) + value, default, env, mark + flag.help)
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def routes() -> list[tuple[str, str, str]]:
    """Method, path and summary of each documented route."""
    engine = EngineClient(EngineConfig(model=ModelConfig(path="")))  # never started
    document = create_api(Service(ServerSettings(), engine)).openapi()
    return [
        (method.upper(), path, operation["summary"])
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    ]


def _sizes() -> str:
    """The names of the lengths of prompts, and their bounds in tokens."""
    *bounded, rest = SIZES
    words = [f'"{name}" up to {SIZES[name]:,.0f} tokens' for name in bounded]
    return ", ".join(words) + f', else "{rest}"'


def api_page() -> str:
    """docs/api.md."""
    missing = [line for line in ROUTES.split("\n") if line]
    parts = [
        HEAD,
        "# API\n",
        "Requests and replies are llama-server's, field by field; `compat.md` lists what differs. "
        "An OpenAPI document is at `/openapi.json`. All paths move below `--api-prefix`.\n",
        "| method | path | |",
        "|---|---|---|",
        *(f"| {method} | `{path}` | {summary} |" for method, path, summary in routes()),
        "| GET | `/`, `/index.html` | A page to chat with the model; llama-server's own where "
        "`make ui` has built it; the files of `--path` where that is given |",
        "| GET | `/strata` | A page that shows the queue, gaps between tokens, the cache, and why "
        "prompts missed it |",
        "",
        "The pages are open without a key and hold no data; they ask for the key. `--no-ui` "
        "removes them.\n",
        *_waiting(),
        *_errors(),
        "## Not available yet\n",
        "Answered with 501 and a message that says so.\n",
        *(f"- `{line}`" for line in missing),
        "",
        "Disabled as in llama-server by default (403): "
        + ", ".join(f"`{path}`" for path in DISABLED)
        + ".\n",
        "## Metrics\n",
        "`GET /metrics` (with `--metrics`), in Prometheus' text format; `?peek=1` leaves the "
        "averages since the last scrape to who scrapes. Histograms about requests "
        f"have a label `size`, from the length of the prompt: {_sizes()}; those about the "
        "prefix cache a label `tier`: resident, ram or disk. Further values of the engine appear "
        "as `strata:` gauges.\n",
        "| name | type | |",
        "|---|---|---|",
        *(
            f"| `{prefix}:{name}` | {kind} | {text} |"
            for prefix, kind, table in (
                ("llamacpp", "counter", COUNTERS),
                ("llamacpp", "gauge", GAUGES),
                ("strata", "counter", OWN_COUNTERS),
                ("strata", "gauge", OWN_GAUGES),
                ("strata", "histogram", HISTOGRAMS),
            )
            for name, text in table.items()
        ),
        "",
    ]
    return "\n".join(parts)


def _waiting() -> list[str]:
    """What requests may ask for, and what they are told while they wait."""
    example = Queued(request_id=1, position=3, predicted_ttft_ms=2300, low_ms=1900, high_ms=3100)
    return [
        "## OwnFields\n",
        "Two fields that requests of all dialects may have. A value that can't be used is answered "
        "with 400.\n",
        *_table("field", FIELDS),
        "## Waiting\n",
        "Headers of replies:\n",
        *_table("header", HEADERS),
        "`X-Request-Id` is on every reply, the next two on those that the engine has generated. A "
        "stream's headers go out when the engine has told where the request stands, and after a "
        "second at the latest; then the two may be missing. A request that the engine refuses in "
        "this time gets a plain HTTP error, later an error event.\n",
        "Until its first token, a stream that waits gets a comment line whenever its outlook "
        "changes, and otherwise an empty one after each `sse_ping_interval` of silence. With "
        "several choices, headers and comments tell about the first.\n",
        f"```\n{queue_comment(example).decode().strip()}\n```\n",
        "`GET /queue` shows all requests:\n",
        *_table("field", QUEUE_FIELDS),
        *_table("field of `requests`", REQUEST_FIELDS),
        "`GET /cache` shows what is kept of prompts, a tier each:\n",
        *_table("tier", TIERS),
        *_table("field of a tier", CACHE_FIELDS),
        "and of the caller's own requests (those that came with the same API key):\n",
        *_table("field", OWN),
        "`GET /cache/explain/{request_id}` tells of one of the last 256 requests what of its "
        "prompt was found, and why the rest was not. Nothing is said about what others have "
        "stored.\n",
        *_table("field", EXPLANATION),
        *_table("cause", {cause.name.lower(): cause.value for cause in Cause}),
        "`timings` of replies have three more fields:\n",
        *_table("field", TIMINGS),
        "## Coming back\n",
        *_table("header", replay.HEADERS),
        "`GET /v1/stream?conv_id=ID&from=N` gives the bytes of the stream from the N-th on and "
        "follows it to its end; 404: there is none, 400: that part is no longer kept. "
        f"{replay.MOST_BYTES >> 20} MiB of a stream are kept, and for {replay.KEPT_S:.0f} s after "
        "its end. `DELETE /v1/stream?conv_id=ID` stops and forgets it. `POST /v1/streams/lookup` "
        "with `conversation_ids` tells which have one. Each API key has its own.\n",
    ]


def _errors() -> list[str]:
    return [
        "## Errors\n",
        '`{"error": {"code": ..., "message": ..., "type": ...}}`; `code` is the HTTP status.\n',
        "| type | status |",
        "|---|---|",
        *(f"| `{name}` | {code} |" for name, code in CODES.items()),
        "",
        "On the routes of OpenAI's dialects `code` of a prompt that is too long is "
        "`context_length_exceeded`; a failed stream of POST /v1/responses ends with the events "
        "`response.failed` and `error`. On those of Anthropic's the error is "
        '`{"type": "error", "error": ...}`, with the types of that API.\n',
        "429 is answered only with `--max-queue`, and has `Retry-After`.\n",
    ]


def _table(head: str, rows: Mapping[str, str]) -> list[str]:
    lines = [f"| `{name}` | {text} |" for name, text in rows.items()]
    return [f"| {head} | |", "|---|---|", *lines, ""]


PAGES = {"flags.md": flags_page, "api.md": api_page}


def main() -> None:
    """Write the pages into the directory that is given, or into docs/."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs")
    for name, page in PAGES.items():
        (folder / name).write_text(page(), encoding="utf-8")
        print(folder / name)


if __name__ == "__main__":
    main()
