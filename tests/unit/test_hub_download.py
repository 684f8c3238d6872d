"""-hf against a stub of the hub: what is downloaded, what is not, what is said when it fails."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from strata_server.download import hub_download, resumable
from strata_server.download.http_client import DownloadError
from strata_server.download.hub_cache import find_model, list_models
from strata_server.download.hub_download import Hub, endpoint, get_model

from .model_host import Host, model_host

OLD, NEW = "a" * 40, "c" * 40
Q8, Q4 = b"GGUF eight" * 1000, b"GGUF four" * 1000
NOBODY = "http://127.0.0.1:9"  # no server has this port


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
    monkeypatch.setattr(resumable, "WAITS_S", (0.0, 0.0))
    with model_host() as running:
        files = {"README.md": b"hello", "m-Q4_K_M.gguf": Q4, "m-Q8_0.gguf": Q8}
        running.repository("o/m", OLD, files)
        yield running


@pytest.fixture
def told() -> list[str]:
    return []


def hub(host: Host, folder: Path, token: str = "") -> Hub:
    return Hub(folder, host.url, token)


def test_a_first_download_lies_in_the_cache_as_the_hubs_library_puts_it(
    host: Host, tmp_path: Path, told: list[str]
) -> None:
    path = get_model(hub(host, tmp_path), "o/m:q8_0", tell=told.append)
    assert path.read_bytes() == Q8
    assert path == tmp_path / f"models--o--m/snapshots/{OLD}/m-Q8_0.gguf"
    assert path.is_symlink() and not os.path.isabs(os.readlink(path))
    assert path.resolve().parent.name == "blobs" and len(path.resolve().name) == 64
    assert (tmp_path / "models--o--m/refs/main").read_text() == OLD
    assert list_models(tmp_path) == ["o/m:Q8_0"]
    assert [a.path for a in host.bodies()] == [f"/o/m/resolve/{OLD}/m-Q8_0.gguf"]
    assert told[0].startswith("downloading m-Q8_0.gguf (10.0 kB) to ")
    assert told[-1].startswith("downloaded m-Q8_0.gguf (10.0 kB) in ")


def test_the_hubs_own_library_finds_what_was_downloaded(host: Host, tmp_path: Path) -> None:
    from huggingface_hub import try_to_load_from_cache

    path = get_model(hub(host, tmp_path), "o/m:Q8_0", tell=lambda _: None)
    found = try_to_load_from_cache("o/m", "m-Q8_0.gguf", cache_dir=tmp_path)
    assert found == str(path)


def test_a_second_start_asks_for_no_file(host: Host, tmp_path: Path, told: list[str]) -> None:
    first = get_model(hub(host, tmp_path), "o/m:Q8_0", tell=told.append)
    host.asked.clear()
    told.clear()
    assert get_model(hub(host, tmp_path), "o/m:Q8_0", tell=told.append) == first
    assert [a.path for a in host.asked] == ["/api/models/o/m/refs"]
    assert told == []


def test_a_start_from_the_cache_does_not_import_the_hubs_library(
    host: Host, tmp_path: Path
) -> None:
    get_model(hub(host, tmp_path), "o/m:Q8_0", tell=lambda _: None)
    program = (
        "import sys; from pathlib import Path; from strata_server.download.hub_download import *\n"
        f"get_model(Hub(Path({str(tmp_path)!r}), {host.url!r}), 'o/m:Q8_0')\n"
        "sys.exit('huggingface_hub' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0


def test_without_a_quant_the_preferred_one_is_downloaded_though_another_is_there(
    host: Host, tmp_path: Path
) -> None:
    get_model(hub(host, tmp_path), "o/m:Q8_0", tell=lambda _: None)
    assert get_model(hub(host, tmp_path), "o/m", tell=lambda _: None).name == "m-Q4_K_M.gguf"


def test_a_file_by_its_name(host: Host, tmp_path: Path) -> None:
    host.repository("o/m", OLD, {"sub dir/x#1.gguf": Q8, "m-Q4_K_M.gguf": Q4})
    path = get_model(hub(host, tmp_path), "o/m:Q4_K_M", "sub dir/x#1.gguf", lambda _: None)
    assert path.read_bytes() == Q8


def test_all_parts_of_a_split_model_are_downloaded(host: Host, tmp_path: Path) -> None:
    names = [f"Q4_K_M/m-Q4_K_M-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    host.repository("o/m", OLD, {name: name.encode() for name in names})
    path = get_model(hub(host, tmp_path), "o/m", tell=lambda _: None)
    assert path.name == "m-Q4_K_M-00001-of-00003.gguf"
    parts = sorted(path.parent.iterdir())
    assert [part.read_bytes() for part in parts] == [name.encode() for name in names]


def test_of_a_split_model_only_the_missing_part_is_downloaded(host: Host, tmp_path: Path) -> None:
    names = [f"m-Q4_K_M-0000{i}-of-00002.gguf" for i in (1, 2)]
    host.repository("o/m", OLD, {name: name.encode() for name in names})
    path = get_model(hub(host, tmp_path), "o/m", tell=lambda _: None)
    (path.parent / names[1]).resolve().unlink()
    host.asked.clear()
    assert get_model(hub(host, tmp_path), "o/m", tell=lambda _: None) == path
    assert [a.path for a in host.bodies()] == [f"/o/m/resolve/{OLD}/{names[1]}"]


def test_a_newer_file_replaces_the_cached_one_and_the_rest_of_the_cache_stays(
    host: Host, tmp_path: Path
) -> None:
    for quant in ("Q8_0", "Q4_K_M"):
        get_model(hub(host, tmp_path), f"o/m:{quant}", tell=lambda _: None)
    host.repository("o/m", NEW, {"m-Q4_K_M.gguf": Q4, "m-Q8_0.gguf": Q8 + b"!"})
    host.asked.clear()
    assert get_model(hub(host, tmp_path), "o/m:Q8_0", tell=lambda _: None).read_bytes() == Q8 + b"!"
    assert len(host.bodies()) == 1
    assert find_model(tmp_path, "o/m:Q4_K_M").read_bytes() == Q4


def test_a_new_commit_with_the_same_file_downloads_nothing(host: Host, tmp_path: Path) -> None:
    get_model(hub(host, tmp_path), "o/m:Q8_0", tell=lambda _: None)
    host.repository("o/m", NEW, {"README.md": b"changed", "m-Q8_0.gguf": Q8})
    host.asked.clear()
    path = get_model(hub(host, tmp_path), "o/m:Q8_0", tell=lambda _: None)
    assert NEW in str(path) and path.read_bytes() == Q8
    assert host.bodies() == []


def test_a_cut_connection_is_gone_on_with_in_the_same_start(
    host: Host, tmp_path: Path, told: list[str]
) -> None:
    host.cuts[:] = [4000, 3000]
    assert get_model(hub(host, tmp_path), "o/m:Q8_0", tell=told.append).read_bytes() == Q8
    ranges = [a.headers.get("Range", "").partition("-")[0] for a in host.bodies()]
    assert ranges == ["", "bytes=4000", "bytes=7000"]
    assert "the connection was lost" in told[1]


def test_a_download_that_was_given_up_is_gone_on_with_by_the_next_start(
    host: Host, tmp_path: Path, told: list[str]
) -> None:
    host.cuts[:] = [4000, 0, 0, 0]
    with pytest.raises(DownloadError, match=r"^m-Q8_0.gguf: .* was lost .*4.0 kB are kept"):
        get_model(hub(host, tmp_path), "o/m:Q8_0", tell=told.append)
    assert not list_models(tmp_path)
    host.cuts.clear()
    host.asked.clear()
    assert get_model(hub(host, tmp_path), "o/m:Q8_0", tell=told.append).read_bytes() == Q8
    assert [a.headers["Range"].partition("-")[0] for a in host.bodies()] == ["bytes=4000"]
    assert "going on with m-Q8_0.gguf at 4.0 kB" in told
    assert [p.name for p in (tmp_path / "models--o--m/blobs").iterdir() if "." in p.name] == []


def test_a_partial_file_that_is_damaged_is_found_out(host: Host, tmp_path: Path) -> None:
    host.cuts[:] = [4000, 0, 0, 0]
    with pytest.raises(DownloadError):
        get_model(hub(host, tmp_path), "o/m:Q8_0", tell=lambda _: None)
    (partial,) = (tmp_path / "models--o--m/blobs").glob("*.downloadInProgress")
    partial.write_bytes(b"\0" * 4000)
    host.cuts.clear()
    with pytest.raises(DownloadError, match=r"m-Q8_0.gguf is damaged"):
        get_model(hub(host, tmp_path), "o/m:Q8_0", tell=lambda _: None)
    assert get_model(hub(host, tmp_path), "o/m:Q8_0", tell=lambda _: None).read_bytes() == Q8


def test_a_host_without_ranges_sends_all_again(host: Host, tmp_path: Path) -> None:
    host.ranges = False
    host.cuts[:] = [4000]
    assert get_model(hub(host, tmp_path), "o/m:Q8_0", tell=lambda _: None).read_bytes() == Q8


def test_large_files_come_in_pieces(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resumable, "PIECE", 4096)
    assert get_model(hub(host, tmp_path), "o/m:Q8_0", tell=lambda _: None).read_bytes() == Q8
    assert [a.headers["Range"] for a in host.bodies()] == [
        "bytes=0-4095",
        "bytes=4096-8191",
        "bytes=8192-12287",
    ]


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_host_is_asked_again(host: Host, tmp_path: Path, status: int) -> None:
    path = f"/o/m/resolve/{OLD}/m-Q8_0.gguf"
    file = host.routes[path]
    host.refuse(path, status, Retry_After="0")
    said: list[str] = []

    def tell(text: str) -> None:
        said.append(text)
        host.routes[path] = file

    assert get_model(hub(host, tmp_path), "o/m:Q8_0", tell=tell).read_bytes() == Q8
    assert f"answers {status}; trying again" in said[0]


def test_a_token_is_shown_to_the_hub_alone(host: Host, tmp_path: Path) -> None:
    with model_host() as content_network:
        target = content_network.file("/signed", Q8)
        host.routes[f"/o/m/resolve/{OLD}/m-Q8_0.gguf"] = lambda handler: handler.send(
            302, b"", {"Location": target}
        )
        host.only_for("hf_good", "/")
        path = get_model(hub(host, tmp_path, "hf_good"), "o/m:Q8_0", tell=lambda _: None)
        assert path.read_bytes() == Q8
        (asked,) = content_network.asked
    assert "authorization" not in {name.lower() for name in asked.headers}


def test_a_wrong_token(host: Host, tmp_path: Path) -> None:
    host.only_for("hf_good", "/", X_Error_Message="Invalid credentials in Authorization header")
    with pytest.raises(DownloadError, match=r"does not take this token for o/m \(401\)$"):
        get_model(hub(host, tmp_path, "hf_bad"), "o/m:Q8_0", tell=lambda _: None)


def test_no_token_where_one_is_needed(host: Host, tmp_path: Path) -> None:
    host.only_for("hf_good", "/", X_Error_Code="RepoNotFound")
    with pytest.raises(DownloadError, match=r"has no o/m \(401\); .* give a token \(-hft or"):
        get_model(hub(host, tmp_path), "o/m:Q8_0", tell=lambda _: None)


@pytest.mark.parametrize("token", ["", "hf_other"])
def test_a_gated_repository(host: Host, tmp_path: Path, token: str) -> None:
    host.only_for("hf_good", "/o/m/resolve/", 403, X_Error_Code="GatedRepo")
    with pytest.raises(DownloadError, match=r"^o/m is gated on .*: ask for access at ") as e:
        get_model(hub(host, tmp_path, token), "o/m:Q8_0", tell=lambda _: None)
    assert ("then give a token" in str(e.value)) == (not token)


def test_a_missing_repository(host: Host, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=r"has no o/nothing \(404\); if it is private"):
        get_model(hub(host, tmp_path), "o/nothing", tell=lambda _: None)
    assert not list(tmp_path.iterdir())


def test_a_quant_or_a_file_that_the_repository_does_not_have(host: Host, tmp_path: Path) -> None:
    there = r"\(there: Q4_K_M, Q8_0\)$"
    with pytest.raises(DownloadError, match=r"^o/m has nothing for 'Q2_K' " + there):
        get_model(hub(host, tmp_path), "o/m:Q2_K", tell=lambda _: None)
    with pytest.raises(DownloadError, match=r"^o/m has nothing for 'x.gguf' " + there):
        get_model(hub(host, tmp_path), "o/m", "x.gguf", lambda _: None)
    host.repository("o/m", OLD, {"model.safetensors": b"x"})
    with pytest.raises(DownloadError, match=r"\(there: no GGUF file of a model\)$"):
        get_model(hub(host, tmp_path), "o/m", tell=lambda _: None)


def test_a_host_that_is_no_hub(host: Host, tmp_path: Path) -> None:
    host.routes["/api/models/o/m"] = lambda handler: handler.send(200, b"<html>\nwelcome")
    with pytest.raises(DownloadError, match=r"^127.0.0.1:\d+ cannot be asked for o/m: ") as error:
        get_model(hub(host, tmp_path), "o/m", tell=lambda _: None)
    assert "\n" not in str(error.value)


def test_names_that_would_leave_the_cache_are_passed_over(host: Host, tmp_path: Path) -> None:
    host.repository("o/m", OLD, {"../../../m-Q8_0.gguf": Q8})
    with pytest.raises(DownloadError, match="has nothing for 'Q8_0'"):
        get_model(hub(host, tmp_path / "cache"), "o/m:Q8_0", tell=lambda _: None)


def test_without_network_the_first_download_says_so(tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=r"^cannot reach 127.0.0.1:9: .*refused"):
        get_model(Hub(tmp_path, NOBODY), "o/m", tell=lambda _: None)


def test_without_network_the_cached_file_is_served(
    host: Host, tmp_path: Path, told: list[str]
) -> None:
    path = get_model(hub(host, tmp_path), "o/m:Q8_0", tell=lambda _: None)
    for wanted in ("o/m:Q8_0", "o/m"):
        assert get_model(Hub(tmp_path, NOBODY), wanted, tell=told.append) == path
    assert told[0].startswith("no newer m-Q8_0.gguf was looked for: cannot reach 127.0.0.1:9: ")
    assert told[0].endswith("; serving m-Q8_0.gguf from the cache")


def test_a_hub_that_does_not_answer_costs_a_moment_only(
    host: Host, tmp_path: Path, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    path = get_model(hub(host, tmp_path), "o/m:Q8_0", tell=lambda _: None)
    answered = threading.Event()
    host.routes["/api/models/o/m/refs"] = lambda handler: (answered.wait(20), None)[1]
    monkeypatch.setattr(hub_download, "CHECK_S", 0.2)
    assert get_model(hub(host, tmp_path), "o/m:Q8_0", tell=told.append) == path
    answered.set()
    assert "no answer from 127.0.0.1:" in told[0] and "within 0.2 s" in told[0]


def test_a_newer_file_that_cannot_be_had_leaves_the_cached_one_in_service(
    host: Host, tmp_path: Path, told: list[str]
) -> None:
    path = get_model(hub(host, tmp_path), "o/m:Q8_0", tell=lambda _: None)
    host.repository("o/m", NEW, {"m-Q8_0.gguf": Q8 + b"!"})
    host.cuts[:] = [10, 0, 0, 0]
    assert get_model(hub(host, tmp_path), "o/m:Q8_0", tell=told.append) == path
    assert told[-1].endswith("; serving m-Q8_0.gguf from the cache")
    assert find_model(tmp_path, "o/m:Q8_0") == path


def test_no_room_on_the_disk_is_told_before_anything_is_fetched(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resumable.shutil, "disk_usage", lambda _: type("", (), {"free": 5000}))
    with pytest.raises(DownloadError, match=r"^no room for o/m: it needs 10.0 kB .*5.0 kB free$"):
        get_model(hub(host, tmp_path), "o/m:Q8_0", tell=lambda _: None)
    assert host.bodies() == []


def test_a_disk_that_gets_full_is_one_line(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(resumable.os, "fsync", full)
    with pytest.raises(DownloadError, match=r"^cannot write .*: No space left on device$"):
        get_model(hub(host, tmp_path), "o/m:Q8_0", tell=lambda _: None)
    assert not list_models(tmp_path)


def test_a_cache_that_cannot_be_written_to_is_one_line(host: Host, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DownloadError, match=r"^cannot write .*: "):
        get_model(hub(host, tmp_path / "file"), "o/m:Q8_0", tell=lambda _: None)


def test_two_starts_at_once_download_the_file_once(host: Host, tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(4) as pool:
        starts = [
            pool.submit(get_model, hub(host, tmp_path), "o/m:Q8_0", "", lambda _: None)
            for _ in range(4)
        ]
        assert {start.result().read_bytes() for start in starts} == {Q8}
    assert len(host.bodies()) == 1


@pytest.mark.parametrize(
    ("environ", "url"),
    [
        ({}, "https://huggingface.co"),
        ({"HF_ENDPOINT": "https://mirror/"}, "https://mirror"),
        ({"HF_ENDPOINT": "https://a", "MODEL_ENDPOINT": "https://b/"}, "https://b"),
    ],
)
def test_which_hub_is_asked(environ: dict[str, str], url: str) -> None:
    assert endpoint(environ) == url
