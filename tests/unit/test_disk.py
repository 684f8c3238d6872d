"""The disk tier's folder: what is written comes back, and whatever else lies there is a miss."""

from __future__ import annotations

import errno
import os
import pickle
import random
import signal
import sqlite3
import stat
import time
from collections.abc import Callable
from pathlib import Path

import diskcache
import numpy as np
import pytest

from strata_plugin.checkpoints.disk import FORMAT, ORPHAN_S, DiskError, DiskFolder, Entry
from strata_plugin.checkpoints.keys import block_key, namespace

ROOT = namespace({})


def block(seed: int = 0, n: int = 1000, parent: bytes = ROOT, start: int = 0) -> tuple:
    tokens = np.arange(seed, seed + 8, dtype=np.int32)
    data = bytearray(random.Random(seed).randbytes(n))
    key = block_key(parent, tokens)
    return Entry(key, parent, ROOT, start, tokens, n, None, 2.5), data


def checkpoint(after: Entry, n: int = 1000) -> tuple:
    data, rest = bytearray(b""), bytearray(random.Random(7).randbytes(n))
    none = np.zeros(0, np.int32)
    key = block_key(after.key, none, checkpoint=True)
    return Entry(key, after.key, ROOT, 8, none, 0, n, 2.5), data, rest


def folder(path: Path, limit: int = 1 << 20) -> DiskFolder:
    return DiskFolder(path, limit)


def files(path: Path) -> list[Path]:
    return sorted((path / f"blocks-{FORMAT}").glob("??/??/*.val"))


def test_a_block_comes_back_as_it_was_also_in_another_process(tmp_path: Path) -> None:
    entry, data = block()
    first = folder(tmp_path)
    assert first.write(entry, data)
    assert first.write(entry, data)  # once more changes nothing
    for disk in (first, folder(tmp_path)):
        found = disk.read(entry.key)
        assert found is not None and found.data == data and found.rest is None
        assert (found.entry.parent, found.entry.start) == (ROOT, 0)
        assert found.entry.cost_ms == 2.5
        assert found.entry.tokens.tolist() == entry.tokens.tolist()
        (listed,) = disk.entries()
        assert listed.key == entry.key and abs(listed.used - time.time()) < 60
        assert disk.read(block(99)[0].key) is None
    assert len(files(tmp_path)) == 1
    first.remove(entry.key)
    assert first.read(entry.key) is None and not files(tmp_path)


def test_a_checkpoint_comes_back_with_the_state_of_its_end(tmp_path: Path) -> None:
    entry, data = block()
    disk = folder(tmp_path)
    ending, nothing, rest = checkpoint(entry)
    assert disk.write(entry, data) and disk.write(ending, nothing, rest)
    found = disk.read(ending.key)
    assert found is not None and (found.data, found.rest) == (nothing, rest)
    assert found.entry.n_rest == len(rest) and not len(found.entry.tokens)
    (path,) = [p for p in files(tmp_path) if rest[:50] in p.read_bytes()]
    raw = bytearray(path.read_bytes())
    raw[-20] ^= 1
    path.write_bytes(raw)
    assert disk.read(ending.key) is None and disk.read(entry.key) is not None


def test_only_the_user_may_read_it(tmp_path: Path) -> None:
    disk = folder(tmp_path)
    disk.write(*block())
    assert stat.S_IMODE(disk.path.stat().st_mode) == 0o700
    assert [stat.S_IMODE(path.stat().st_mode) for path in files(tmp_path)] == [0o600]


def test_the_limit_holds_for_all_servers_together(tmp_path: Path) -> None:
    one, other = folder(tmp_path, 200_000), folder(tmp_path, 200_000)
    written = 0
    for seed in range(40):
        disk = (one, other)[seed % 2]
        written += disk.write(*block(seed * 10, 10_000))
        assert disk.volume() <= 200_000
        taken = sum(path.stat().st_size for path in files(tmp_path))
        assert taken <= 200_000
    assert 10 < written < 20
    assert not one.write(*block(5, 1 << 20))


def test_recency_outlives_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = folder(tmp_path)
    now = time.time()
    for seed in range(3):
        monkeypatch.setattr(time, "time", lambda at=seed: now + at)
        disk.write(*block(seed * 10))
    monkeypatch.setattr(time, "time", lambda: now + 10)
    disk.read(block(0)[0].key)
    order = sorted(folder(tmp_path).entries(), key=lambda entry: entry.used)
    assert [int(entry.tokens[0]) for entry in order] == [10, 20, 0]
    monkeypatch.setattr(time, "time", lambda: now - 10 * 86400 * 365)  # the clock was set back
    assert disk.read(block(10)[0].key) is not None


# ---- bad luck ------------------------------------------------------------------------------------


def flip(at: int) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        raw = bytearray(path.read_bytes())
        raw[at] ^= 0x10
        path.write_bytes(raw)

    return damage


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"more")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def pickled(path: Path) -> None:
    path.write_bytes(pickle.dumps(Bomb()))


def another(path: Path) -> None:
    """A whole entry, but of other tokens."""
    other = path.parent.parent.parent / "other"
    disk = DiskFolder(other, 1 << 20)
    disk.write(*block(500))
    path.write_bytes(files(other)[0].read_bytes())


class Bomb:
    """Unpickling it would be noticed."""

    def __reduce__(self) -> tuple:
        return os._exit, (66,)


@pytest.mark.parametrize(
    "damage",
    [*(flip(at) for at in (0, 9, 30, 60, 90, 120, 150, 500, -1)), cut, lengthen, empty, pickled,
     another, Path.unlink],
)  # fmt: skip
def test_a_damaged_file_is_a_miss_and_goes(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    disk = folder(tmp_path)
    entry, data = block()
    disk.write(entry, data)
    disk.write(*block(10))
    (path,) = [p for p in files(tmp_path) if data[:50] in p.read_bytes()]
    damage(path)
    assert disk.read(entry.key) is None
    assert entry.key not in [listed.key for listed in disk.entries()]
    assert disk.read(block(10)[0].key) is not None
    assert disk.write(entry, data) and disk.read(entry.key) is not None


def test_a_planted_pickle_or_foreign_row_is_never_opened(tmp_path: Path) -> None:
    disk = folder(tmp_path)
    outside = tmp_path / "precious.val"
    outside.write_text("mine")
    key = block(1)[0].key
    with sqlite3.connect(disk.path / "cache.db") as db:
        columns = "key, raw, mode, filename, value, size"
        insert = f"INSERT INTO Cache({columns}) VALUES (?, ?, ?, ?, ?, 1)"
        db.execute(insert, (key, 1, 4, None, pickle.dumps(Bomb())))
        db.execute(insert, (block(11)[0].key, 1, 2, "../precious.val", None))
        db.execute(insert, (pickle.dumps(Bomb()), 0, 4, None, pickle.dumps(Bomb())))
        db.execute(insert, ("text", 1, 2, "cache.db", None))
        db.execute(insert, (7, 1, 1, None, 7))
    assert disk.read(key) is None
    assert disk.read(block(11)[0].key) is None
    assert list(disk.entries()) == []
    disk.remove_orphans()
    assert disk.write(*block(1)) and disk.read(key) is not None
    assert outside.read_text() == "mine"


def test_a_damaged_index_is_begun_anew(tmp_path: Path) -> None:
    disk = folder(tmp_path)
    disk.write(*block())
    disk.close()
    for garbage in (b"no database at all" * 1000, b""):
        for name in ("cache.db-wal", "cache.db-shm"):
            (disk.path / name).unlink(missing_ok=True)
        (disk.path / "cache.db").write_bytes(garbage)
        again = folder(tmp_path)
        assert list(again.entries()) == []
        assert again.write(*block()) and again.read(block()[0].key) is not None
        again.close()


def test_files_that_no_entry_lists_go_once_nobody_can_be_writing_them(tmp_path: Path) -> None:
    disk = folder(tmp_path)
    disk.write(*block())
    (kept,) = files(tmp_path)
    orphans = [kept.with_name(f"{number:028x}.val") for number in range(2)]
    for path in orphans:
        path.write_bytes(b"half a blo")
    old = time.time() - 2 * ORPHAN_S
    os.utime(orphans[0], (old, old))
    os.utime(kept, (old, old))
    assert disk.remove_orphans() == 1
    assert files(tmp_path) == sorted([kept, orphans[1]])


def test_a_full_disk_is_a_failed_write_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = folder(tmp_path)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(diskcache.Cache, "_row_insert", full)
        assert not disk.write(*block())
    assert list(disk.entries()) == [] and files(tmp_path) == []
    assert disk.write(*block())


def test_opening_waits_for_others_that_write(tmp_path: Path) -> None:
    folder(tmp_path).close()
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        db = sqlite3.connect(tmp_path / f"blocks-{FORMAT}" / "cache.db", isolation_level=None)
        db.execute("BEGIN EXCLUSIVE")
        os.write(tell, b"!")
        time.sleep(0.5)
        os._exit(0)
    os.read(told, 1)
    began = time.monotonic()
    disk = folder(tmp_path)
    assert time.monotonic() - began > 0.3
    assert disk.write(*block())
    os.waitpid(child, 0)


def test_a_folder_that_cannot_be_made_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskError, match=rf"cannot use .*blocks-{FORMAT}"):
        folder(tmp_path / "file")


def test_entries_of_another_version_are_not_seen(tmp_path: Path) -> None:
    older = tmp_path / "blocks-0"
    older.mkdir()
    (older / "cache.db").write_bytes(b"from another version")
    disk = folder(tmp_path)
    assert list(disk.entries()) == []
    assert (older / "cache.db").exists()


def test_whenever_a_writer_is_killed_what_is_listed_is_whole(tmp_path: Path) -> None:
    rng = random.Random(1)
    folder(tmp_path, 1 << 30).close()
    for number in range(200):
        told, tell = os.pipe()
        child = os.fork()
        if not child:
            try:
                disk = folder(tmp_path, 1 << 30)
                os.write(tell, b"!")
                for seed in range(1000):
                    disk.write(*block(10 * (1000 * number + seed), 20_000))
            finally:
                os._exit(0)
        os.close(tell)
        os.read(told, 1)
        os.close(told)
        time.sleep(rng.uniform(0.0, 0.015))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    disk = folder(tmp_path, 1 << 30)
    entries = list(disk.entries())
    assert len(entries) > 20
    for entry in entries:
        found = disk.read(entry.key)
        assert found is not None
        assert found.data == block(int(entry.tokens[0]), 20_000)[1]
    assert disk.write(*block(3))
