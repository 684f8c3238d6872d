"""A Chromium and a server for the tests of the pages; without a Chromium they are skipped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser.chromium import HOW, chromium
from tests.http.server_process import ServerProcess, need_native_library

KEY = "sesame"
ONE_THREAD = ("-t", "1", "-tb", "1")  # threads that wait for each other suffer beside a browser


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="no playwright here: make browser-test installs it"
    )
    program = chromium()
    if program is None:
        pytest.skip(HOW)
    with playwright.sync_playwright() as started:
        # no sandbox: it can't be had in most containers, and only our own pages are shown
        found = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="session")
def pages_server(browser: Any) -> Iterator[ServerProcess]:
    """One row, so that requests have to wait; a key, a prefix, and our own pages."""
    need_native_library()
    args = ("-c", "8192", "-np", "1", "--metrics", "--api-key", KEY, "--api-prefix", "/llm")
    with ServerProcess(*args, *ONE_THREAD, env={"STRATA_BUILD_CACHE": "/nowhere"}) as process:
        yield process


class Watched:
    """A tab, and all that should not happen in it."""

    def __init__(self, page: Any, url: str) -> None:
        self.page = page
        self.faults: list[str] = []
        page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        page.on("dialog", lambda dialog: self.faults.append(f"dialog: {dialog.message}"))
        page.on("console", self._console)
        page.on("request", lambda r: r.url.startswith(url) or self.faults.append(r.url))

    def _console(self, message: Any) -> None:
        # Chromium reports each reply that is no success; the pages are meant to get 401 and 400
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            self.faults.append(f"console: {message.text}")


@pytest.fixture
def tab(browser: Any, pages_server: ServerProcess) -> Iterator[Watched]:
    """A fresh tab; fails the test when something of another origin was asked for, a policy was
    broken, or a script threw.
    """
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    context.set_default_timeout(20_000)
    watched = Watched(context.new_page(), pages_server.url.removesuffix("/llm"))
    yield watched
    context.close()
    assert watched.faults == []
