"""The cache folder, the pinned archive, the installed build's description, the progress display."""

import io
import json
import multiprocessing
import os
import re
import tarfile
from pathlib import Path

import pytest

from strata_plugin.build import info as info_module
from strata_plugin.build import sdist
from strata_plugin.build.cache import KEPT, STALE_SECONDS, BuildCache, cache_root
from strata_plugin.build.errors import BuildError
from strata_plugin.build.info import INFO_FILE, BuildInfo, build_info, read_build_info
from strata_plugin.build.progress import Progress, run_logged
from strata_plugin.build.wheel import cached_wheel, check_wheel


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/x")
    assert cache_root({}) == Path("/home/x/.cache/strata/build")
    assert cache_root({"XDG_CACHE_HOME": "/c"}) == Path("/c/strata/build")
    assert cache_root({"XDG_CACHE_HOME": "/c", "STRATA_BUILD_CACHE": "/own"}) == Path("/own")


def test_entry_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path)
    with pytest.raises(RuntimeError), cache.publishing("wheels", "key") as folder:
        (folder / "half.whl").write_text("half")
        assert cached_wheel(cache, "key") is None
        raise RuntimeError("interrupted")
    assert list((tmp_path / "wheels").iterdir()) == []
    with cache.publishing("wheels", "key") as folder:
        (folder / "x.whl").write_text("whole")
    assert cached_wheel(cache, "key") == tmp_path / "wheels" / "key" / "x.whl"


def test_oldest_entries_are_removed_and_leftovers_of_killed_builds(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path)
    names = [f"key{n}" for n in range(KEPT["wheels"] + 2)]
    for age, name in enumerate([*names, ".tmp-young"]):
        path = cache.folder("wheels") / name
        path.mkdir()
        os.utime(path, (1e9 - age, 1e9 - age))
    leftover = cache.folder("wheels") / ".tmp-old"
    leftover.mkdir()
    os.utime(leftover, (0, 0))
    assert sorted(cache.prune("wheels", now=1e9 + STALE_SECONDS / 2)) == names[-2:]
    left = {path.name for path in (tmp_path / "wheels").iterdir()}
    assert left == {*names[:-2], ".tmp-young"}


def _hold(root: Path, ready: "multiprocessing.synchronize.Event", done: Path) -> None:
    with BuildCache(root).lock():
        ready.set()
        done.write_text("first")


def test_second_build_waits_for_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    context = multiprocessing.get_context("fork")
    trying = context.Event()
    order = tmp_path / "order"
    cache = BuildCache(tmp_path)
    with cache.lock():
        other = context.Process(target=_hold, args=(tmp_path, trying, order), daemon=True)
        other.start()
        assert not trying.wait(0.2), "the other process must not get the lock meanwhile"
        assert not order.exists()
    assert trying.wait(10)
    other.join(10)
    assert other.exitcode == 0
    assert order.read_text() == "first"
    with cache.lock():
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_archive_with_another_hash_is_refused_with_both_hashes(tmp_path: Path) -> None:
    path = tmp_path / sdist.ARCHIVE
    path.write_bytes(b"not it")
    with pytest.raises(BuildError) as caught:
        sdist.check(path)
    assert sdist.SHA256 in str(caught.value)
    assert sdist.file_sha256(path) in str(caught.value)
    assert "not the pinned archive" in str(caught.value)


def test_damaged_archive_in_the_cache_is_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = BuildCache(tmp_path)
    (cache.folder("sdist") / sdist.ARCHIVE).write_bytes(b"cut short")

    def download(folder: Path) -> Path:
        path = folder / sdist.ARCHIVE
        path.write_bytes(b"whole")
        return path

    monkeypatch.setattr(sdist, "_download", download)
    monkeypatch.setattr(sdist, "SHA256", sdist.hashlib.sha256(b"whole").hexdigest())
    monkeypatch.setattr(sdist.check, "__defaults__", (sdist.SHA256,))
    assert sdist.fetch(cache).read_bytes() == b"whole"
    assert [p.name for p in (tmp_path / "sdist").iterdir()] == [sdist.ARCHIVE]


def test_archive_unpacks_without_its_leading_folder_and_git_metadata(tmp_path: Path) -> None:
    archive = tmp_path / "a.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name in ("top/CHANGELOG.md", "top/vendor/x.c", "top/.git/config", "top/vendor/.git"):
            tar.addfile(tarfile.TarInfo(name))
    sdist.extract(archive, tmp_path / "out")
    files = {p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").rglob("*")}
    assert files == {"CHANGELOG.md", "vendor", "vendor/x.c"}


def test_llama_commit_is_read_from_the_version_s_own_changelog_entry() -> None:
    text = "## [Unreleased]\n- llama.cpp@aaaaaaaaa\n## [0.3.36]\n\n- feat: x/llama.cpp@0c1e57098\n"
    text += "- older: llama.cpp@bbbbbbbbb\n## [0.3.35]\n- llama.cpp@4df29be4f\n"
    assert sdist.llama_commit(text, "0.3.36") == "0c1e57098"
    assert sdist.llama_commit(text, "0.3.35") == "4df29be4f"
    with pytest.raises(BuildError, match=r"for 0\.3\.3$"):
        sdist.llama_commit(text, "0.3.3")


INFO = BuildInfo(True, "0c1e57098", ("0001-a", "0002-b"), "cuda", "89", "abc", "0.3.36")


def test_build_info_is_read_back_and_names_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / INFO_FILE).write_text(INFO.to_json())
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(tmp_path))
    assert build_info() == INFO
    for word in ("0c1e57098", "0001-a", "0002-b", "cuda 89", "0.3.36"):
        assert word in str(INFO)


def test_stock_package_gives_an_unpatched_build_info(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(tmp_path))
    monkeypatch.setattr(info_module.importlib.metadata, "version", lambda name: "0.3.40")
    assert build_info() == BuildInfo(patched=False, version="0.3.40")
    assert str(build_info()) == "stock llama-cpp-python 0.3.40, without Strata's patches"


def test_missing_package_gives_a_sensible_build_info(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LLAMA_CPP_LIB_PATH", raising=False)
    monkeypatch.setattr(info_module.importlib.util, "find_spec", lambda name: None)
    assert build_info() == BuildInfo(patched=False)
    assert str(build_info()) == "llama-cpp-python is not installed"


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"patched": true}', json.dumps({"x": []})])
def test_damaged_build_description_counts_as_none(content: str, tmp_path: Path) -> None:
    (tmp_path / INFO_FILE).write_text(content)
    assert read_build_info(tmp_path) is None


def test_wheel_without_a_library_is_refused(tmp_path: Path) -> None:
    import zipfile

    wheel = tmp_path / "x.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in ("ggml", "ggml-base", "ggml-cpu", "llama", "llama-common", "mtmd"):
            archive.writestr(f"llama_cpp/lib/lib{name}.so", b"")
    with pytest.raises(BuildError, match=rf"lacks llama_cpp/lib/libstrata\.so, .*{INFO_FILE}"):
        check_wheel(wheel)


def test_progress_without_a_terminal_is_a_line_every_tenth() -> None:
    out = io.StringIO()
    progress = Progress("compiling", out)
    for n in range(1, 201):
        progress.feed(f"[{n}/200] Building x.o\n")
        progress.feed("In file included from y.h\n")
    progress.close()
    lines = out.getvalue().splitlines()
    assert len(lines) == 11
    assert re.fullmatch(r"compiling:  50 % \(100/200, \d+ s\)", lines[5])


def test_progress_on_a_terminal_stays_on_one_line() -> None:
    out = io.StringIO()
    progress = Progress("compiling", out, tty=True)
    for n in range(1, 4):
        progress.feed(f"[{n}/3] Building src/file{n}.cpp.o\n")
    progress.close()
    assert out.getvalue().count("\n") == 1
    assert out.getvalue().split("\r")[-1].rstrip().endswith("file3.cpp.o")


def test_failed_step_shows_the_end_of_its_output_and_keeps_all_in_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = "for i in $(seq 1 100); do echo line $i; done; echo error: no >&2; exit 3"
    with pytest.raises(BuildError) as caught:
        run_logged(
            ["/bin/sh", "-c", script],
            cwd=tmp_path,
            env=os.environ,
            log=log,
            progress=Progress("compiling", io.StringIO()),
        )
    message = str(caught.value)
    assert "compiling failed with status 3" in message
    assert str(log) in message
    assert message.endswith("line 100\nerror: no")
    assert "line 61\n" not in message
    assert "line 1\n" in log.read_text()
