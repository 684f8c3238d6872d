"""Our pages: open to all, nothing from elsewhere, nothing that runs what a client has sent."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from strata_server.ui.page import CHAT, LIVE
from tests.unit.fake_backend import FakeEngine, fake_service
from tests.unit.http_server import run, serving

UI = Path(__file__).parents[2] / "server" / "ui"
OWN = CHAT | LIVE
SCRIPTS = sorted(UI.glob("*.js"))
DANGEROUS = (
    "innerHTML",
    "outerHTML",
    "insertAdjacentHTML",
    "setHTML",
    "srcdoc",
    "document.write",
    "DOMParser",
    "createContextualFragment",
    "eval(",
    "Function(",
)


def get(path: str, headers: Any = None, **settings: Any) -> httpx.Response:
    replies: list[httpx.Response] = []

    async def body() -> None:
        async with serving(fake_service(FakeEngine(), **settings)) as client:
            replies.append(await client.get(path, headers=headers))

    run(body())
    return replies[0]


@pytest.mark.parametrize("path", OWN)
def test_a_page_may_load_and_run_only_what_comes_from_this_server(path: str) -> None:
    reply = get(path)
    assert reply.status_code == 200
    policy = dict(part.strip().split(" ", 1) for part in csp(reply).split(";"))
    assert policy == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "img-src": "'self'",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["referrer-policy"] == "no-referrer"


def csp(reply: httpx.Response) -> str:
    return reply.headers["content-security-policy"]


def test_pages_work_with_keys_and_while_the_model_loads() -> None:
    async def body() -> None:
        service = fake_service(FakeEngine(), loaded=False, api_keys=("k",), api_prefix="/llm")
        async with serving(service) as client:
            for path in (*OWN, "/sw.js"):
                assert (await client.get("/llm" + path)).status_code == 200, path
                assert (await client.get(path)).status_code == 503
            assert (await client.post("/llm/strata")).status_code == 503
            assert (await client.get("/llm/queue")).status_code == 503

    run(body())


def test_without_ui_there_are_no_pages() -> None:
    async def body() -> None:
        async with serving(fake_service(FakeEngine(), ui=False)) as client:
            for path in OWN:
                assert (await client.get(path)).status_code == 404, path
            assert (await client.get("/health")).status_code == 200

    run(body())


@pytest.mark.parametrize("settings", [{}, {"ui": False}])
def test_the_worker_of_llama_server_s_page_is_replaced_by_one_that_retires(settings: Any) -> None:
    reply = get("/sw.js", api_keys=("k",), **settings)
    assert reply.headers["content-type"].startswith("text/javascript")
    assert reply.headers["cache-control"] == "no-cache"
    assert "registration.unregister()" in reply.text


def test_a_page_is_not_sent_again_while_it_is_the_same() -> None:
    first = get("/strata")
    for known in (first.headers["etag"], f'"x", W/{first.headers["etag"]}'):
        again = get("/strata", {"If-None-Match": known})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == first.headers["etag"]
        assert csp(again) == csp(first)
    assert get("/strata", {"If-None-Match": '"other"'}).content == first.content


def test_head_of_a_page_tells_its_length() -> None:
    async def body() -> None:
        async with serving(fake_service(FakeEngine())) as client:
            reply = await client.head("/strata")
            length = len((UI / "live.html").read_bytes())
            assert (reply.status_code, reply.content) == (200, b"")
            assert reply.headers["content-length"] == str(length)

    run(body())


@pytest.mark.parametrize("path", ["/", "/strata"])
def test_whatever_a_page_refers_to_is_there_below_any_prefix(path: str) -> None:
    async def body() -> None:
        async with serving(fake_service(FakeEngine(), api_prefix="/a/b")) as client:
            seen: set[str] = set()
            todo = ["/a/b" + path]
            while todo:
                url = todo.pop()
                if url in seen:
                    continue
                seen.add(url)
                reply = await client.get(url)
                assert reply.status_code == 200, url
                found = re.findall(r"""(?:src|href)="([^"]+)"|from "([^"]+)";""", reply.text)
                names = [a or b for a, b in found]
                assert not [n for n in names if re.match(r"[a-z]+:|/", n)], url
                todo += [str(httpx.URL("http://x" + url).join(n).path) for n in names]
            assert seen >= {"/a/b/", "/a/b/strata", "/a/b/strata/api.js", "/a/b/strata/page.css"}

    run(body())


@pytest.mark.parametrize("page", ["chat.html", "live.html"])
def test_pages_have_neither_scripts_nor_styles_nor_handlers_in_them(page: str) -> None:
    text = (UI / page).read_text(encoding="utf-8")
    assert not re.findall(r"<script(?![^>]* src=)|<style|\son\w+=|\sstyle=|javascript:", text)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.name)
def test_scripts_never_turn_text_into_elements_or_code(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for word in DANGEROUS:
        assert word not in text, word
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)


def test_the_key_stays_in_the_tab() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in SCRIPTS)
    assert "sessionStorage" in text
    assert "localStorage" not in text and "document.cookie" not in text
