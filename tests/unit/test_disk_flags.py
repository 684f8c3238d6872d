"""--cache-disk and --cache-dir: what they make of the disk tier."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from strata_plugin.engine.config import DiskConfig
from strata_server.disk_cache import AUTO_MOST, auto_limit, disk_config
from strata_server.flags import UsageError, parse

Usage = type(shutil.disk_usage("/"))


def config(*argv: str, environ: dict[str, str] | None = None) -> DiskConfig:
    environ = environ or {"XDG_CACHE_HOME": "/nowhere/cache"}
    return disk_config(parse(argv, environ), environ)


def test_by_default_a_tenth_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(100 << 30, 0, 50 << 30))
    assert config() == DiskConfig(
        folder="/nowhere/cache/strata/prompts", limit_bytes=int(0.1 * (50 << 30))
    )
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(9 << 40, 0, 9 << 40))
    assert config().limit_bytes == AUTO_MOST


def test_what_is_kept_already_does_not_shrink_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1 << 30, 0, 1000))
    before = auto_limit(tmp_path)
    (tmp_path / "kept").write_bytes(b"x" * 1000)
    assert (before, auto_limit(tmp_path)) == (100, 200)


def test_a_disk_that_does_not_answer_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(path: Path) -> None:
        raise OSError("stale file handle")

    monkeypatch.setattr(shutil, "disk_usage", fails)
    assert config().limit_bytes == 0


def test_the_flags_say_where_and_how_much(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    assert config("--cache-dir", str(folder), "--cache-disk", "5") == DiskConfig(
        folder=str(folder), limit_bytes=5 << 20
    )
    environ = {"STRATA_CACHE_DIR": str(folder), "STRATA_CACHE_DISK": "7"}
    assert config(environ=environ) == DiskConfig(folder=str(folder), limit_bytes=7 << 20)


def test_it_is_off_by_flag_and_without_ram_to_pass_through() -> None:
    assert config("--cache-disk", "0") == DiskConfig()
    assert config("--cache-ram", "0") == DiskConfig()


@pytest.mark.parametrize(
    "argv", [["--cache-disk", "-2"], ["--cache-disk", "much"], ["--cache-dir", __file__]]
)
def test_bad_values_are_refused(argv: list[str]) -> None:
    with pytest.raises(UsageError, match=argv[0]):
        parse(argv, {})
