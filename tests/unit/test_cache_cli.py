"""`strata-cache`: what it says of a folder, finds in it, and removes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from strata_plugin.checkpoints.disk import DiskFolder
from strata_server.cache_cli import main
from tests.unit.test_disk import block, files


@pytest.fixture
def disk(tmp_path: Path) -> DiskFolder:
    """Two prompts: one of three blocks, and another that shares the first with it."""
    disk = DiskFolder(tmp_path, 1 << 30)
    first, data = block(0, 300_000)
    disk.write(first, data)
    second, data = block(10, 300_000, first.key, 8)
    disk.write(second, data)
    disk.write(*block(20, 300_000, second.key, 16))
    time.sleep(0.01)
    disk.write(*block(30, 300_000, first.key, 8))
    return disk


def run(tmp_path: Path, *args: str) -> int:
    return main(["--cache-dir", str(tmp_path), *args])


def test_stats_and_ls_tell_what_is_there(
    disk: DiskFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "stats") == 0
    out = capsys.readouterr().out
    assert "blocks   4, 32 tokens" in out and "2 that end differently" in out and "1.2 MiB" in out
    assert run(tmp_path, "ls") == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[2] for line in lines] == ["16", "24"]  # used last, first


def test_verify_finds_nothing_in_a_sound_folder(
    disk: DiskFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "verify") == 0
    assert capsys.readouterr().out.startswith("4 blocks are whole; removed: 0 damaged, 0 without")


def test_verify_removes_what_is_damaged_and_what_it_began(
    disk: DiskFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    needle = bytes(block(10, 300_000)[1][:40])
    (path,) = [path for path in files(tmp_path) if needle in path.read_bytes()]
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert run(tmp_path, "verify") == 1
    out = capsys.readouterr().out
    assert out.startswith("2 blocks are whole; removed: 1 damaged, 1 without their beginning")
    assert run(tmp_path, "verify") == 0


def test_prune_removes_ends_first_and_the_oldest(
    disk: DiskFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "prune", "--to", "1") == 0
    assert capsys.readouterr().out.startswith("1 blocks removed")
    assert sorted(int(e.tokens[0]) for e in disk.entries()) == [0, 10, 30]
    assert run(tmp_path, "prune", "--to", "0") == 0
    assert not list(disk.entries()) and not files(tmp_path)


def test_clear_removes_everything(disk: DiskFolder, tmp_path: Path) -> None:
    assert run(tmp_path, "clear") == 0
    assert not files(tmp_path)


def test_a_folder_that_is_none_is_told_and_not_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path / "nowhere", "stats") == 1
    assert "no prompts are kept in" in capsys.readouterr().err
    assert not (tmp_path / "nowhere").exists()
