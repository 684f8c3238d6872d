"""The pages in docs/ and the README name what exists, and what exists is in them."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from strata_plugin.engine.messages import Metrics, Queue
from strata_server import replay
from strata_server.api.absent import DISABLED, ROUTES
from strata_server.docs import PAGES, routes
from strata_server.errors import CODES
from strata_server.flags import AVAILABLE, BY_NAME
from strata_server.information import help_text
from strata_server.outlook import HEADERS
from strata_server.own_fields import OwnFields
from strata_server.prometheus import COUNTERS, GAUGES, HISTOGRAMS, OWN_COUNTERS, OWN_GAUGES
from strata_server.queue_view import FIELDS as QUEUE_FIELDS
from strata_server.queue_view import REQUEST_FIELDS

from .fake_engine import FakeEngine

ROOT = Path(__file__).parents[2]
TEXTS = [p for p in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if p.exists()]

# flags of other programs that our pages mention
FOREIGN = {"--include"}


@pytest.mark.parametrize("name", PAGES)
def test_generated_pages_are_up_to_date(name: str) -> None:
    written = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert written == PAGES[name](), "run python -m strata_server.docs"


def test_every_flag_is_in_the_flags_page_and_in_the_help() -> None:
    page = (ROOT / "docs/flags.md").read_text(encoding="utf-8")
    text = help_text()
    for flag in AVAILABLE:
        for name in flag.all_names:
            assert f"`{name}`" in page
            assert re.search(rf"(?<!\S){re.escape(name)}(?![\w-])", text), name


def test_every_route_and_metric_is_in_the_api_page() -> None:
    page = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    for method, path, _ in routes():
        assert f"| {method} | `{path}` |" in page
    for name in (*COUNTERS, *GAUGES):
        assert f"`llamacpp:{name}`" in page
    for name in (*OWN_COUNTERS, *OWN_GAUGES, *HISTOGRAMS):
        assert f"`strata:{name}`" in page


def test_every_header_error_and_field_of_ours_is_in_the_api_page() -> None:
    page = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    for name in (*HEADERS, *(field.name for field in dataclasses.fields(OwnFields))):
        assert f"| `{name}` |" in page
    for name, code in CODES.items():
        assert f"| `{name}` | {code} |" in page


@pytest.mark.parametrize("path", TEXTS, ids=lambda p: p.name)
def test_flags_that_a_page_names_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    server_flags = re.findall(r"(?<![\w-])--[a-z][a-z0-9.-]*[a-z0-9](?![\w*-])", _about_us(text))
    unknown = {name for name in server_flags if name not in BY_NAME} - FOREIGN
    assert not unknown


def _about_us(text: str) -> str:
    """`text` without the command lines of other programs."""
    names = r"pip|git|cmake|python -m (?!strata_server)|hf|curl|docker|strata-server simulate"
    others = rf"^\s*(?:\$ )?(?:{names})\b.*$"
    return re.sub(others, "", text, flags=re.MULTILINE)


@pytest.mark.parametrize("path", TEXTS, ids=lambda p: p.name)
def test_routes_that_a_page_names_exist(path: Path) -> None:
    known = {(method, route) for method, route, _ in routes()}
    known |= {(line.split()[0], line.split()[1]) for line in ROUTES.split("\n") if line}
    known |= {(method, route) for route in DISABLED for method in ("GET", "POST")}
    known |= {("GET", "/"), ("GET", "/strata")}
    named = re.findall(r"\b(GET|POST|DELETE) (/[\w/{}.-]*)", path.read_text(encoding="utf-8"))
    assert not set(named) - known


@pytest.mark.parametrize("path", TEXTS, ids=lambda p: p.name)
def test_metrics_that_a_page_names_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not set(re.findall(r"llamacpp:(\w+)", text)) - {*COUNTERS, *GAUGES}
    assert not set(re.findall(r"strata:(\w+)", text)) - {*OWN_COUNTERS, *OWN_GAUGES, *HISTOGRAMS}


@pytest.mark.parametrize("path", TEXTS, ids=lambda p: p.name)
def test_headers_and_errors_that_a_page_names_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    named = re.findall(r"\bX-(?!Api-Key|Accel)[A-Z][\w-]+", text)
    assert not set(named) - set(HEADERS) - set(replay.HEADERS)
    assert not set(re.findall(r"`(\w+_error)`", text)) - set(CODES)


def test_the_queue_and_the_metrics_of_the_engine_are_what_the_pages_say() -> None:
    engine = FakeEngine()
    engine.submit(1, [1, 2, 3], n=5)
    engine.step()
    engine.core.queue(1)
    engine.core.get_metrics(2, False)
    queue, metrics = engine.core.events[-2:]
    assert isinstance(queue, Queue)
    assert isinstance(metrics, Metrics)
    assert set(queue.queue) == set(QUEUE_FIELDS)
    assert set(queue.queue["requests"][0]) == set(REQUEST_FIELDS)
    names = {re.sub(r"(_bucket|_sum|_count)?(\{.*)?$", "", name) for name in metrics.values}
    assert names <= {*COUNTERS, *GAUGES, *OWN_COUNTERS, *OWN_GAUGES, *HISTOGRAMS}
    told_outside = {"engine_restarts_total"}  # by who starts the engines
    assert {*OWN_COUNTERS, *OWN_GAUGES, *HISTOGRAMS} - told_outside <= names
