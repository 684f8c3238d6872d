"""Folders of static files: --path, and llama-server's own page."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.unit.fake_backend import FakeEngine, fake_service
from tests.unit.http_server import run, serving


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    site = tmp_path / "site"
    (site / "sub").mkdir(parents=True)
    (site / ".git").mkdir()
    (site / "index.html").write_text("my page")
    (site / "app.js").write_text("0123456789")
    (site / "a b%.txt").write_text("odd name")
    (site / "sub" / "index.html").write_text("sub page")
    (site / "props").write_text("not a route")
    (site / "completion").write_text("a file")
    (site / ".env").write_text("secret")
    (site / ".git" / "config").write_text("secret")
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "site-2").mkdir()
    (tmp_path / "site-2" / "x.txt").write_text("secret")
    (site / "out.txt").symlink_to(tmp_path / "secret.txt")
    (site / "up").symlink_to(tmp_path)
    (site / "beside").symlink_to(tmp_path / "site-2")
    (site / "in.txt").symlink_to("app.js")
    (site / "circle").symlink_to("circle")
    os.mkfifo(site / "pipe")
    return site


def fetch(
    folder: Path, *paths: str, headers: Any = None, method: str = "GET", **settings: Any
) -> list[httpx.Response]:
    replies: list[httpx.Response] = []

    async def body() -> None:
        service = fake_service(FakeEngine(), static_path=str(folder), **settings)
        async with serving(service) as client:
            for path in paths:
                replies.append(await client.request(method, path, headers=headers))

    run(body())
    return replies


def test_a_folder_takes_the_place_of_the_page(folder: Path) -> None:
    paths = ("/", "/index.html", "/app.js", "/a%20b%25.txt", "/in.txt", "/sub/")
    texts = [reply.text for reply in fetch(folder, *paths)]
    assert texts == ["my page", "my page", "0123456789", "odd name", "0123456789", "sub page"]
    (script,) = fetch(folder, "/app.js")
    assert script.headers["content-type"].startswith("text/javascript")
    assert script.headers["x-content-type-options"] == "nosniff"
    assert "content-security-policy" not in script.headers  # the page is not ours to judge


def test_a_folder_s_name_leads_to_its_page_whatever_the_prefix(folder: Path) -> None:
    for prefix in ("", "/llm"):
        (reply,) = fetch(folder, prefix + "/sub", api_prefix=prefix)
        assert reply.status_code == 307
        assert httpx.URL("http://x" + prefix + "/sub").join(reply.headers["location"]).path == (
            prefix + "/sub/"
        )


def test_the_live_page_and_routes_come_before_files(folder: Path) -> None:
    (folder / "strata").write_text("not the page")
    (folder / "health").write_text("not well")
    props, health, live, script = fetch(folder, "/props", "/health", "/strata", "/strata/live.js")
    assert props.json()["total_slots"] == 4
    assert health.json() == {"status": "ok"}
    assert "<title>Strata" in live.text
    assert script.status_code == 200
    # GET /completion is no route, so it may be a file; POST is one
    assert fetch(folder, "/completion")[0].text == "a file"
    assert fetch(folder, "/app.js", method="POST")[0].status_code == 404


def test_files_are_open_and_unknown_paths_still_ask_for_the_key(folder: Path) -> None:
    statuses = [
        reply.status_code
        for reply in fetch(
            folder, "/", "/app.js", "/sub/", "/strata", "/props", "/nope", "/.env", api_keys=("k",)
        )
    ]
    assert statuses == [200, 200, 200, 200, 401, 401, 401]
    key = {"Authorization": "Bearer k"}
    (nope,) = fetch(folder, "/nope", headers=key, api_keys=("k",))
    assert nope.status_code == 404
    assert nope.json()["error"]["type"] == "not_found_error"


SECRETS = [
    "/../secret.txt",
    "/sub/../../secret.txt",
    "/%2e%2e/secret.txt",
    "/..%2fsecret.txt",
    "/%2e%2e%2fsecret.txt",
    "/..%5csecret.txt",
    "//../secret.txt",
    "/./../secret.txt",
    "/out.txt",
    "/up/secret.txt",
    "/up/site-2/x.txt",
    "/beside/x.txt",
    "/../site-2/x.txt",
    "/.env",
    "/.git/config",
    "/sub/../.env",
    "/%2eenv",
    "/circle",
    "/pipe",
    "/app.js%00.txt",
    "/%00",
    "/" + "x" * 5000,
    "/" + "x/" * 3000,
    "/%ff%fe",
]


def test_what_lies_outside_or_is_hidden_stays_there(folder: Path) -> None:
    absolute = f"/{folder.parent}/secret.txt"

    async def body() -> None:
        async with serving(fake_service(FakeEngine(), static_path=str(folder))) as client:
            for path in [*SECRETS, absolute, "/" + absolute, "/" + absolute.replace("/", "%2f")]:
                head, content = await raw_get(client.base_url, path)
                assert head.startswith(b"HTTP/1.1 404"), (path, head)
                assert b"secret" not in content
            assert (await client.get("/app.js")).status_code == 200

    run(body())


async def raw_get(url: httpx.URL, path: str) -> tuple[bytes, bytes]:
    """What a client gets that does not tidy up its paths: head and body."""
    assert url.port is not None
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    answer = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    head, _, content = answer.partition(b"\r\n\r\n")
    return head, content


def test_ranges_validators_and_head(folder: Path) -> None:
    (whole,) = fetch(folder, "/app.js")
    tag = whole.headers["etag"]
    (same,) = fetch(folder, "/app.js", headers={"If-None-Match": tag})
    assert (same.status_code, same.content) == (304, b"")
    (part,) = fetch(folder, "/app.js", headers={"Range": "bytes=2-4"})
    assert (part.status_code, part.text) == (206, "234")
    assert part.headers["content-range"] == "bytes 2-4/10"
    (none,) = fetch(folder, "/app.js", headers={"Range": "bytes=20-30"})
    assert none.status_code == 416
    (head,) = fetch(folder, "/app.js", method="HEAD")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == "10"


def test_files_that_change_are_seen_without_a_new_start(folder: Path) -> None:
    async def body() -> None:
        async with serving(fake_service(FakeEngine(), static_path=str(folder))) as client:
            assert (await client.get("/new.txt")).status_code == 404
            (folder / "new.txt").write_text("new")
            reply = await client.get("/new.txt")
            assert (reply.text, reply.headers["cache-control"]) == ("new", "no-cache")

    run(body())


def test_a_folder_without_a_page_is_no_secret(folder: Path) -> None:
    (folder / "index.html").unlink()
    (reply,) = fetch(folder, "/", api_keys=("k",))
    assert reply.status_code == 404
    assert reply.json()["error"]["message"] == "File Not Found"


def test_without_ui_no_file_is_served(folder: Path) -> None:
    statuses = [reply.status_code for reply in fetch(folder, "/", "/app.js", ui=False)]
    assert statuses == [404, 404]


def test_a_worker_of_the_folder_is_served_instead_of_the_one_that_retires(folder: Path) -> None:
    assert "unregister" in fetch(folder, "/sw.js")[0].text
    (folder / "sw.js").write_text("mine")
    assert fetch(folder, "/sw.js")[0].text == "mine"


def test_llama_server_s_page_is_served_as_it_is_with_its_headers(tmp_path: Path) -> None:
    page = tmp_path / "page"
    (page / "_app" / "immutable").mkdir(parents=True)
    names = ("index.html", "sw.js", "_app/immutable/bundle.x.js", "_app/version.json")
    for name in names:
        (page / name).write_bytes(b"<" + name.encode() + b"\xff>")

    async def body() -> None:
        service = fake_service(FakeEngine(), api_keys=("k",), loaded=False)
        async with serving(service, page) as client:
            replies = {
                name: await client.get("/" + name, headers={"Accept-Encoding": "gzip"})
                for name in ("", *names)
            }
            assert (await client.get("/strata")).status_code == 200
        for name in names:
            assert replies[name].content == (page / name).read_bytes()
            assert "content-encoding" not in replies[name].headers
            assert replies[name].headers["etag"]
        for name in ("", "index.html"):
            headers = replies[name].headers
            assert headers["cross-origin-embedder-policy"] == "require-corp"
            assert headers["cross-origin-opener-policy"] == "same-origin"
            assert headers["content-security-policy"] == "frame-ancestors 'none'"
            assert headers["cache-control"] == "no-cache"
        bundle = replies["_app/immutable/bundle.x.js"].headers
        assert bundle["cache-control"] == "public, max-age=31536000, immutable"
        assert "cross-origin-opener-policy" not in bundle
        for name in ("sw.js", "_app/version.json"):
            assert replies[name].headers["cache-control"] == "no-cache"

    run(body())


def test_a_folder_of_one_s_own_wins_over_llama_server_s_page(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "page"
    page.mkdir()
    (page / "index.html").write_text("theirs")

    async def body() -> None:
        service = fake_service(FakeEngine(), static_path=str(folder))
        async with serving(service, page) as client:
            reply = await client.get("/")
            assert reply.text == "my page"
            assert "cross-origin-opener-policy" not in reply.headers

    run(body())
