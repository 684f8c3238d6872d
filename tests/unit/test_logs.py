"""The log's lines."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strata_server import logs
from strata_server.settings import ServerSettings

log = logging.getLogger("strata.test")


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def written(monkeypatch: pytest.MonkeyPatch, settings: ServerSettings) -> str:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    monkeypatch.setattr(sys, "stdout", out)
    logs.set_up(settings)
    log.debug("detail")
    log.info("hello %d", 5)
    log.error("trouble")
    return out.getvalue()


def test_levels_follow_verbosity(monkeypatch: pytest.MonkeyPatch) -> None:
    plain: Any = {"log_timestamps": False}
    assert written(monkeypatch, ServerSettings(**plain)) == "I hello 5\nE trouble\n"
    assert written(monkeypatch, ServerSettings(verbosity=1, **plain)) == "E trouble\n"
    assert written(monkeypatch, ServerSettings(verbosity=0, **plain)) == ""
    assert written(monkeypatch, ServerSettings(verbosity=1 << 30, **plain)).startswith("D detail")
    assert written(monkeypatch, ServerSettings(log_disable=True, **plain)) == ""


def test_prefix_time_and_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = ServerSettings(log_timestamps=False, log_prefix=False)
    assert written(monkeypatch, bare) == "hello 5\ntrouble\n"
    timed = written(monkeypatch, ServerSettings()).splitlines()[0]
    seconds, rest = timed.split(maxsplit=1)
    assert float(seconds) > 0 and rest == "I hello 5"
    colored = written(monkeypatch, ServerSettings(log_colors="on", log_timestamps=False))
    assert colored == "I hello 5\n\033[31mE trouble\033[0m\n"


def test_json_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = written(monkeypatch, ServerSettings(log_jsonl=True)).splitlines()
    assert [json.loads(line)["message"] for line in lines] == ["hello 5", "trouble"]
    assert json.loads(lines[1])["level"] == "error"


def test_a_file_gets_the_lines_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "log"
    settings = ServerSettings(log_file=str(path), log_timestamps=False, log_colors="on")
    written(monkeypatch, settings)
    assert path.read_text() == "I hello 5\nE trouble\n"
