"""The pages as a person sees them: a real server, a real browser."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.browser.conftest import KEY, ONE_THREAD, Watched
from tests.http.server_process import ServerProcess

HEADERS = {"Authorization": f"Bearer {KEY}"}
HOSTILE = '<img src=x onerror="alert(1)"><script>alert(2)</script>'


def give_key(page: Any) -> None:
    page.locator("#key").fill(KEY)
    page.locator("#key").press("Enter")


@contextlib.contextmanager
def running(server: ServerProcess, *prompts: list[int]) -> Iterator[None]:
    """Requests that go on until the block ends; each begins to wait or run before the next."""
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(httpx.Client(base_url=server.url, timeout=60))
        for number, prompt in enumerate(prompts):
            request = {"prompt": prompt, "n_predict": -1, "ignore_eos": True, "stream": True}
            names = {"X-Request-Id": f"number {number}", "User-Agent": HOSTILE}
            stack.enter_context(
                client.stream("POST", "/completion", json=request, headers={**HEADERS, **names})
            )
        yield


def numbers(first: int, length: int) -> list[int]:
    return [first, *(100 + n % 1000 for n in range(length - 1))]


def until(page: Any, condition: Callable[[], Any], seconds: float = 20) -> None:
    """Wait until `condition()` is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        page.wait_for_timeout(50)


def test_a_message_streams_and_can_be_stopped(tab: Watched, pages_server: ServerProcess) -> None:
    page = tab.page
    page.goto(pages_server.url + "/")
    page.locator("#state", has_text="this server asks for a key").wait_for()
    give_key(page)
    page.locator("#state", has_text="SmolLM2").wait_for()
    page.locator("#text").fill("Tell me a long story about the sea.")
    page.locator("#text").press("Enter")
    answer = page.locator("article.assistant .said")
    until(page, answer.text_content)
    first = answer.text_content()
    until(page, lambda: answer.text_content() != first)
    assert page.locator("#stop").is_visible()
    page.keyboard.press("Escape")
    page.locator("article.assistant", has_text="stopped").wait_for()
    assert answer.text_content().startswith(first)
    assert page.locator("#send").is_visible() and not page.locator("#stop").is_visible()
    queue = pages_server.url + "/queue"
    until(page, lambda: not httpx.get(queue, headers=HEADERS).json()["requests"])


def test_who_waits_is_told_how_long(tab: Watched, pages_server: ServerProcess) -> None:
    page = tab.page
    page.goto(pages_server.url + "/")
    give_key(page)
    with running(pages_server, numbers(5, 8)):
        page.locator("#text").fill("And me?")
        page.locator("#send").click()
        note = page.locator("article.assistant .dim")
        told = re.compile(r"before this one, first token expected [\d.]+ (ms|s|min)")
        until(page, lambda: told.search(note.text_content() or ""))
        page.locator("#stop").click()
        page.locator("article.assistant", has_text="stopped").wait_for()
        # nothing came, so that it can be sent again
        assert page.locator("#text").input_value() == "And me?"


def test_the_live_page_shows_who_waits(tab: Watched, pages_server: ServerProcess) -> None:
    page = tab.page
    page.goto(pages_server.url + "/")
    give_key(page)
    page.get_by_role("link", name="Queue and cache").click()
    page.locator("#state", has_text="live").wait_for()  # the key came along
    assert page.url == pages_server.url + "/strata"
    # more than are read ahead, and more than there are cells for
    long = [numbers(first, 1400) for first in range(10, 16)]
    with running(pages_server, numbers(6, 8), *long):
        waiting = page.locator("#queue tr", has_text="number 6")
        waiting.locator("td", has_text="queued").wait_for()
        cells = waiting.locator("td").all_text_contents()
        assert int(cells[3]) >= 1
        assert cells[4] == "0 of 1400"
        assert re.match(r"in [\d.]+ (ms|s|min)", cells[8]), cells
        assert page.locator("#queue tr", has_text="number 0").locator("td").nth(2).inner_text() == (
            "writing"
        )
        assert HOSTILE[:20] in cells[1]  # what a client calls itself is text
        page.locator("dl.figures div", has_text="gap p99").locator(
            "dd", has_text=re.compile(r"\d")
        ).wait_for()
        page.locator("#queue-chart polyline").wait_for(state="attached")
        label = page.locator("#queue-chart").get_attribute("aria-label")
        assert re.search("at most [1-6]$", label)
    page.locator("#queue-note", has_text="nobody is here").wait_for()
    assert page.locator("#tiers tr").count() >= 2
    assert page.locator("#queue img, main script").count() == 0


def test_the_live_page_tells_why_a_prompt_was_read_again(
    tab: Watched, pages_server: ServerProcess
) -> None:
    prompt = numbers(9, 300)
    with httpx.Client(base_url=pages_server.url, timeout=110, headers=HEADERS) as client:
        for name in ("first", HOSTILE):
            request = {"prompt": prompt, "n_predict": 1}
            reply = client.post("/completion", json=request, headers={"X-Request-Id": name})
            assert reply.status_code == 200
            prompt[200:210] = range(5000, 5010)
    page = tab.page
    page.goto(pages_server.url + "/strata")
    give_key(page)
    page.locator("#hints tr", has_text="edited").wait_for()
    miss = page.locator("#misses details").first
    assert HOSTILE in (miss.locator("summary").text_content() or "")
    miss.locator("summary").click()
    page.wait_for_timeout(6000)  # the next look at the cache leaves it open
    assert miss.get_attribute("open") is not None
    assert miss.locator("pre").count() == 2
    assert page.locator("main img").count() == 0


def test_errors_are_shown_and_the_question_is_not_lost(
    tab: Watched, pages_server: ServerProcess
) -> None:
    page = tab.page
    page.goto(pages_server.url + "/")
    give_key(page)
    question = "word " * 9000
    page.locator("#text").fill(question)
    page.locator("#send").click()
    error = page.locator("article.error")
    error.wait_for()
    assert "exceeds the available context size" in (error.text_content() or "")
    assert page.locator("#text").input_value() == question.strip()
    page.locator("#clear").click()
    assert page.locator("article").count() == 0


def test_a_wrong_key_is_told_and_the_field_stays(tab: Watched, pages_server: ServerProcess) -> None:
    page = tab.page
    for path in ("/", "/strata"):
        page.goto(pages_server.url + path)
        page.locator("#key").fill("wrong")
        page.locator("#key").press("Enter")
        page.locator("#state", has_text="the server does not know this key").wait_for()
        assert page.locator("#key").is_visible()


def test_llama_server_s_page_chats_with_this_server(browser: Any) -> None:
    from strata_plugin.build.ui import built_ui

    if built_ui() is None:
        pytest.skip("llama-server's page is not built here: make ui")
    context = browser.new_context()
    with ServerProcess("-c", "2048", *ONE_THREAD) as server:
        page = context.new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(server.url + "/")
        page.locator("textarea").first.fill("Name three colours.")
        page.keyboard.press("Enter")
        text = page.locator("body")
        until(page, lambda: re.search("red|blue|green", text.inner_text().lower()), 40)
        assert page.evaluate("window.crossOriginIsolated")
        assert errors == []
    context.close()
