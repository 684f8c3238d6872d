"""The log: one line per event on stderr, in llama-server's levels; no prompts, no keys."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

from .settings import ServerSettings

LEVELS = {0: logging.CRITICAL + 1, 1: logging.ERROR, 2: logging.WARNING, 3: logging.INFO}
COLORS = {"D": "\033[2m", "W": "\033[33m", "E": "\033[31m", "C": "\033[31m"}
RESET = "\033[0m"


class LineFormatter(logging.Formatter):
    """`12.345 I message`: seconds since the start, the level's letter, the message."""

    def __init__(self, settings: ServerSettings, colors: bool):
        super().__init__()
        self._timestamps = settings.log_timestamps
        self._prefix = settings.log_prefix
        self._colors = colors

    def format(self, record: logging.LogRecord) -> str:
        """One line (more with a traceback)."""
        letter = record.levelname[0]
        text = super().format(record)
        if self._prefix:
            text = f"{letter} {text}"
        if self._timestamps:
            text = f"{record.relativeCreated / 1e3:9.3f} {text}"
        color = COLORS.get(letter, "") if self._colors else ""
        return f"{color}{text}{RESET}" if color else text


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON."""
        fields: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


def set_up(settings: ServerSettings) -> None:
    """Configure the root logger as the --log-* flags say."""
    root = logging.getLogger()
    level = LEVELS.get(max(settings.verbosity, 0), logging.DEBUG)
    root.setLevel(level if not settings.log_disable else logging.CRITICAL + 1)
    stream = sys.stdout if settings.log_jsonl else sys.stderr
    auto = stream.isatty()
    colors = {"on": True, "off": False}.get(settings.log_colors, auto)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if settings.log_jsonl else LineFormatter(settings, colors))
    handlers: list[logging.Handler] = [handler]
    if settings.log_file:
        to_file = logging.FileHandler(settings.log_file, encoding="utf-8")
        to_file.setFormatter(
            JsonFormatter() if settings.log_jsonl else LineFormatter(settings, False)
        )
        handlers.append(to_file)
    root.handlers[:] = handlers
    http = logging.getLogger("uvicorn.error")
    http.setLevel(max(level, logging.WARNING))
    http.addFilter(_is_of_use)
    logging.getLogger("asyncio").setLevel(max(level, logging.WARNING))


def _is_of_use(record: logging.LogRecord) -> bool:
    """Not so: uvicorn's advice to install a library for WebSockets, which are not served here."""
    return "No supported WebSocket library" not in record.getMessage()
