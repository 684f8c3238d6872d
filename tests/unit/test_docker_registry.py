"""-dr against a stub of a registry: manifest, layer, redirect, digest, refusals."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strata_server.download import resumable
from strata_server.download.docker_registry import Registry, get_image, parse
from strata_server.download.http_client import DownloadError

from .model_host import Host, model_host

CONTENT, NEWER = b"GGUF first" * 1000, b"GGUF newer" * 1000
GGUF = "application/vnd.docker.ai.gguf.v3"
NOBODY = Registry("http://127.0.0.1:9/v2", "http://127.0.0.1:9/token?service=x")


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    monkeypatch.setattr(resumable, "WAITS_S", (0.0, 0.0))
    with model_host() as running:
        running.json("/token", {"token": "anonymous"})
        push(running, CONTENT)
        yield running


def push(host: Host, content: bytes, **changes: Any) -> None:
    digest = "sha256:" + hashlib.sha256(content).hexdigest()
    layer = {"mediaType": GGUF, "digest": digest, "size": len(content), **changes}
    licence = {"mediaType": "application/vnd.docker.ai.license", "digest": "sha256:0", "size": 1}
    host.json("/v2/ai/tiny/manifests/Q8", {"schemaVersion": 2, "layers": [licence, layer]})
    host.file(f"/v2/ai/tiny/blobs/{digest}", content)
    host.only_for("anonymous", "/v2/")


def pull(host: Host, folder: Path, told: list[str] | None = None, **options: Any) -> Path:
    registry = Registry(f"{host.url}/v2", f"{host.url}/token?service=stub")
    said = [] if told is None else told
    return get_image("tiny:Q8", folder, tell=said.append, registry=registry, **options)


@pytest.mark.parametrize(
    ("reference", "parts"),
    [
        ("gemma3", ("ai/gemma3", "latest")),
        ("smollm2:135M-Q4_0", ("ai/smollm2", "135M-Q4_0")),
        ("me/mine:x", ("me/mine", "x")),
    ],
)
def test_references(reference: str, parts: tuple[str, str]) -> None:
    assert parse(reference) == parts


def test_the_gguf_layer_is_downloaded_with_an_anonymous_token(host: Host, tmp_path: Path) -> None:
    path = pull(host, tmp_path)
    assert path == tmp_path / "ai_tiny_Q8.gguf"
    assert path.read_bytes() == CONTENT
    assert {a.path.partition("sha256")[0] for a in host.asked} == {
        "/token",
        "/v2/ai/tiny/manifests/Q8",
        "/v2/ai/tiny/blobs/",
    }


def test_the_token_is_not_shown_to_the_host_that_a_blob_is_redirected_to(
    host: Host, tmp_path: Path
) -> None:
    with model_host() as storage:
        target = storage.file("/signed", CONTENT)
        digest = hashlib.sha256(CONTENT).hexdigest()
        host.routes[f"/v2/ai/tiny/blobs/sha256:{digest}"] = lambda handler: handler.send(
            307, b"", {"Location": target}
        )
        assert pull(host, tmp_path).read_bytes() == CONTENT
        (asked,) = storage.asked
    assert "authorization" not in {name.lower() for name in asked.headers}


def test_a_second_start_reads_the_manifest_alone(host: Host, tmp_path: Path) -> None:
    pull(host, tmp_path)
    host.asked.clear()
    told: list[str] = []
    pull(host, tmp_path, told)
    assert host.bodies() == [] and told == []


def test_a_file_that_another_program_got_is_known_by_its_digest(host: Host, tmp_path: Path) -> None:
    (tmp_path / "ai_tiny_Q8.gguf").write_bytes(CONTENT)
    pull(host, tmp_path)
    assert host.bodies() == []
    assert (tmp_path / "ai_tiny_Q8.gguf.sha256").exists()


def test_a_tag_that_has_moved_is_downloaded_again(host: Host, tmp_path: Path) -> None:
    pull(host, tmp_path)
    push(host, NEWER)
    assert pull(host, tmp_path).read_bytes() == NEWER


def test_an_interrupted_download_is_gone_on_with(host: Host, tmp_path: Path) -> None:
    host.cuts[:] = [4000, 0, 0, 0]
    with pytest.raises(DownloadError, match=r"4.0 kB are kept"):
        pull(host, tmp_path)
    host.cuts.clear()
    host.asked.clear()
    assert pull(host, tmp_path).read_bytes() == CONTENT
    assert [a.headers["Range"].partition("-")[0] for a in host.bodies()] == ["bytes=4000"]


def test_a_tag_that_has_moved_meanwhile_begins_anew(host: Host, tmp_path: Path) -> None:
    host.cuts[:] = [4000, 0, 0, 0]
    with pytest.raises(DownloadError):
        pull(host, tmp_path)
    host.cuts.clear()
    push(host, NEWER)
    assert pull(host, tmp_path).read_bytes() == NEWER


def test_bytes_of_another_digest_are_not_taken(host: Host, tmp_path: Path) -> None:
    digest = hashlib.sha256(CONTENT).hexdigest()
    host.file(f"/v2/ai/tiny/blobs/sha256:{digest}", NEWER)
    with pytest.raises(DownloadError, match=r"ai_tiny_Q8.gguf is damaged"):
        pull(host, tmp_path)
    assert not (tmp_path / "ai_tiny_Q8.gguf").exists()


@pytest.mark.parametrize("status", [401, 404])
def test_an_image_that_does_not_exist(host: Host, tmp_path: Path, status: int) -> None:
    host.refuse("/v2/ai/tiny/manifests/Q8", status)
    with pytest.raises(DownloadError, match=rf"^127.0.0.1:\d+ has no ai/tiny:Q8 \({status}\)$"):
        pull(host, tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mediaType": "application/tar"}, "ai/tiny:Q8 holds no GGUF file"),
        ({"digest": "sha256:../../x"}, "unknown kind of digest"),
        ({"digest": "md5:00"}, "unknown kind of digest"),
    ],
)
def test_odd_manifests(host: Host, tmp_path: Path, changes: dict[str, str], message: str) -> None:
    push(host, CONTENT, **changes)
    with pytest.raises(DownloadError, match=message):
        pull(host, tmp_path)


@pytest.mark.parametrize("manifest", [[], {"errors": []}, {"layers": [1]}, {"layers": None}])
def test_what_is_no_manifest(host: Host, tmp_path: Path, manifest: Any) -> None:
    host.json("/v2/ai/tiny/manifests/Q8", manifest)
    with pytest.raises(DownloadError, match=r"sends no manifest for ai/tiny:Q8$"):
        pull(host, tmp_path)


def test_a_host_that_gives_no_token(host: Host, tmp_path: Path) -> None:
    host.json("/token", {})
    with pytest.raises(DownloadError, match=r"gives no token for ai/tiny$"):
        pull(host, tmp_path)


def test_without_network_what_is_there_is_served(host: Host, tmp_path: Path) -> None:
    told: list[str] = []
    with pytest.raises(DownloadError, match=r"^cannot reach 127.0.0.1:9: "):
        get_image("tiny:Q8", tmp_path, tell=told.append, registry=NOBODY)
    path = pull(host, tmp_path)
    assert get_image("tiny:Q8", tmp_path, tell=told.append, registry=NOBODY) == path
    assert told[-1].endswith(f"; serving {path}, which is there")


def test_offline_nothing_is_asked(host: Host, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=r"ai_tiny_Q8.gguf is not there, .*offline"):
        pull(host, tmp_path, offline=True)
    path = pull(host, tmp_path)
    host.asked.clear()
    assert pull(host, tmp_path, offline=True) == path
    assert host.asked == []
