"""-mu against a stub: where the file goes, when it is downloaded again, what cuts do."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from strata_server.download import resumable, url_download
from strata_server.download.http_client import DownloadError
from strata_server.download.url_download import download_folder, get_url, part_urls

from .model_host import Host, model_host

CONTENT, NEWER = b"GGUF first" * 1000, b"GGUF newer" * 1000
NOBODY = "http://127.0.0.1:9/m.gguf"


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    monkeypatch.setattr(resumable, "WAITS_S", (0.0, 0.0))
    with model_host() as running:
        yield running


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"LLAMA_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"XDG_CACHE_HOME": "/b", "HOME": "/h"}, "/b/llama.cpp"),
        ({"HOME": "/h"}, "/h/.cache/llama.cpp"),
    ],
)
def test_where_files_go(
    environ: dict[str, str], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(url_download.sys, "platform", "linux")
    assert download_folder(environ) == Path(folder)


def test_a_first_download_keeps_the_etag_beside_the_file(host: Host, tmp_path: Path) -> None:
    url = host.file("/m.gguf", CONTENT, '"one"') + "?key=secret#part"
    path = get_url(url, tmp_path / "new/m.gguf", tell=lambda _: None)
    assert path.read_bytes() == CONTENT
    assert {p.name for p in path.parent.iterdir()} - {"m.gguf.lock"} == {"m.gguf", "m.gguf.etag"}
    assert (tmp_path / "new/m.gguf.etag").read_text() == '"one"'


def test_a_second_start_only_asks_for_the_etag(
    host: Host, tmp_path: Path, told: list[str]
) -> None:
    url = host.file("/m.gguf", CONTENT)
    get_url(url, tmp_path / "m.gguf", tell=told.append)
    told.clear()
    host.asked.clear()
    get_url(url, tmp_path / "m.gguf", tell=told.append)
    assert [a.method for a in host.asked] == ["HEAD"]
    assert told == []


def test_another_etag_means_another_download(host: Host, tmp_path: Path) -> None:
    get_url(host.file("/m.gguf", CONTENT), tmp_path / "m.gguf", tell=lambda _: None)
    path = get_url(host.file("/m.gguf", NEWER), tmp_path / "m.gguf", tell=lambda _: None)
    assert path.read_bytes() == NEWER


def test_a_file_that_came_by_other_means_is_taken_if_its_size_is_right(
    host: Host, tmp_path: Path
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(CONTENT)
    url = host.file("/m.gguf", CONTENT, '"one"')
    get_url(url, path, tell=lambda _: None)
    assert host.bodies() == [] and (tmp_path / "m.gguf.etag").read_text() == '"one"'
    (tmp_path / "m.gguf.etag").unlink()
    path.write_bytes(CONTENT[:-1])
    assert get_url(url, path, tell=lambda _: None).read_bytes() == CONTENT


def test_an_interrupted_download_is_gone_on_with_by_the_next_start(
    host: Host, tmp_path: Path, told: list[str]
) -> None:
    url = host.file("/m.gguf", CONTENT, '"one"')
    host.cuts[:] = [4000, 0, 0, 0]
    with pytest.raises(DownloadError, match=r"4.0 kB are kept for the next start"):
        get_url(url, tmp_path / "m.gguf", tell=told.append)
    assert not (tmp_path / "m.gguf").exists()
    host.cuts.clear()
    host.asked.clear()
    assert get_url(url, tmp_path / "m.gguf", tell=told.append).read_bytes() == CONTENT
    (asked,) = host.bodies()
    assert asked.headers["Range"].startswith("bytes=4000-") and asked.headers["If-Range"] == '"one"'


@pytest.mark.parametrize("etag", ['"two"', 'W/"one"'])
def test_what_is_there_of_another_version_is_thrown_away(
    host: Host, tmp_path: Path, etag: str
) -> None:
    url = host.file("/m.gguf", CONTENT, '"one"' if etag == '"two"' else etag)
    host.cuts[:] = [4000, 0, 0, 0]
    with pytest.raises(DownloadError):
        get_url(url, tmp_path / "m.gguf", tell=lambda _: None)
    host.cuts.clear()
    host.file("/m.gguf", NEWER, etag)
    assert get_url(url, tmp_path / "m.gguf", tell=lambda _: None).read_bytes() == NEWER


def test_a_partial_file_of_unknown_origin_is_not_gone_on_with(host: Host, tmp_path: Path) -> None:
    (tmp_path / "m.gguf.downloadInProgress").write_bytes(b"x" * 4000)
    url = host.file("/m.gguf", CONTENT)
    assert get_url(url, tmp_path / "m.gguf", tell=lambda _: None).read_bytes() == CONTENT


def test_a_partial_file_that_is_complete_is_taken(host: Host, tmp_path: Path) -> None:
    (tmp_path / "m.gguf.downloadInProgress").write_bytes(CONTENT)
    (tmp_path / "m.gguf.downloadInProgress.etag").write_text('"one"')
    url = host.file("/m.gguf", CONTENT, '"one"')
    assert get_url(url, tmp_path / "m.gguf", tell=lambda _: None).read_bytes() == CONTENT


def test_the_parts_of_a_split_model_lie_side_by_side(host: Host, tmp_path: Path) -> None:
    names = [f"m-0000{i}-of-00002.gguf" for i in (1, 2)]
    for name in names:
        host.file(f"/x/{name}", name.encode())
    path = get_url(f"{host.url}/x/{names[0]}?v=1", tmp_path / names[0], tell=lambda _: None)
    assert path == tmp_path / names[0]
    assert [(tmp_path / name).read_bytes() for name in names] == [name.encode() for name in names]
    assert part_urls("http://x/m.gguf?a-00001-of-00002.gguf") == [
        "http://x/m.gguf?a-00001-of-00002.gguf"
    ]


def test_a_missing_file(host: Host, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=r"^127.0.0.1:\d+ answers 404 for m.gguf$"):
        get_url(f"{host.url}/m.gguf", tmp_path / "m.gguf", tell=lambda _: None)
    assert {path.name for path in tmp_path.iterdir()} <= {"m.gguf.lock"}


def test_a_secret_in_a_url_is_not_told(tmp_path: Path) -> None:
    url = "http://user:secret@127.0.0.1:9/m.gguf?key=secret"
    with pytest.raises(DownloadError, match=r"^cannot reach 127.0.0.1:9: ") as error:
        get_url(url, tmp_path / "m.gguf", tell=lambda _: None)
    assert "secret" not in str(error.value)


def test_name_and_password_of_a_url_are_used(host: Host, tmp_path: Path) -> None:
    host.file("/m.gguf", CONTENT)
    url = f"{host.url}/m.gguf".replace("//", "//user:secret@")
    get_url(url, tmp_path / "m.gguf", tell=lambda _: None)
    (asked,) = host.bodies()
    assert asked.headers["Authorization"] == "Basic dXNlcjpzZWNyZXQ="


def test_without_network_what_is_there_is_served(tmp_path: Path, told: list[str]) -> None:
    path = tmp_path / "m.gguf"
    with pytest.raises(DownloadError, match=r"^cannot reach 127.0.0.1:9: "):
        get_url(NOBODY, path, tell=told.append)
    path.write_bytes(CONTENT)
    assert get_url(NOBODY, path, tell=told.append) == path
    assert told == [told[0]] and told[0].startswith("no newer m.gguf was looked for: cannot reach")


def test_offline_nothing_is_asked(host: Host, tmp_path: Path) -> None:
    url, path = host.file("/m.gguf", CONTENT), tmp_path / "m.gguf"
    with pytest.raises(DownloadError, match=r"m.gguf is not there, .*offline"):
        get_url(url, path, offline=True)
    path.write_bytes(b"old")
    assert get_url(url, path, offline=True) == path
    assert host.asked == []


def test_a_newer_file_that_cannot_be_had_leaves_the_older_in_service(
    host: Host, tmp_path: Path, told: list[str]
) -> None:
    url = host.file("/m.gguf", CONTENT)
    path = get_url(url, tmp_path / "m.gguf", tell=lambda _: None)
    host.file("/m.gguf", NEWER)
    host.cuts[:] = [0, 0, 0]
    assert get_url(url, path, tell=told.append).read_bytes() == CONTENT
    assert told[-1].endswith(f"; serving the older {path}")


def test_another_process_that_downloads_is_waited_for(
    host: Host, tmp_path: Path, told: list[str]
) -> None:
    from concurrent.futures import ThreadPoolExecutor

    url, path = host.file("/m.gguf", CONTENT), tmp_path / "m.gguf"
    with ThreadPoolExecutor() as pool:
        with resumable.locked(tmp_path / "m.gguf.lock", "m.gguf"):
            start = pool.submit(get_url, url, path, dict, False, told.append)
            while not told:
                time.sleep(0.005)
            path.write_bytes(CONTENT)
        assert start.result(10) == path
    assert told == ["another process is downloading m.gguf; waiting for it"]
    assert host.bodies() == []
