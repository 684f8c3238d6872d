"""Blocks on disk: one file each, listed by diskcache (SQLite), shared by all servers of a user.

An entry is there once it is complete: its file is written first, then its row. Nothing that is read
is executed: values are raw bytes, checked by length and checksum, and keys are bytes as well.
Whatever is damaged, foreign or planted is a miss, is removed where it is ours, and costs one line
in the log. The limit holds for all servers together, since each checks it within the transaction
that adds an entry.

What was used last is kept as an entry's time of expiry, a hundred years later: that is what
diskcache lets one change without writing the value again.
"""

from __future__ import annotations

import logging
import os
import re
import sqlite3
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import diskcache
import numpy as np

from .keys import KEY_BYTES, Key, block_key
from .raw_bytes import checksum, private, read_exactly
from .tokens import Tokens

FORMAT = 2  # of the files; other versions have folders of their own
CENTURY_S = 100.0 * 365 * 86400
LOCKED_S = 30.0  # that opening waits for other servers' writes
INDEX_GROWTH = 16 << 10  # bytes that a row may add to the index, at most
ORPHAN_S = 60.0  # a file without a row that is older was left by a process that died

_MAGIC = b"strata\0b"
_NO_REST = (1 << 64) - 1
# magic, format, key, parent's key, root, position, tokens, bytes of state, bytes of the state that
# exists only at the end, ms to compute it again
_HEADER = struct.Struct("<8sI32s32s32sQIQQd")
_CHECKSUM = struct.Struct("<I")
_FILE = re.compile(r"[0-9a-f]{2}/[0-9a-f]{2}/[0-9a-f]{28}\.val")
_MOST_TOKENS = 1 << 16
_BINARY = 2  # diskcache's mode of a value in a file of its own

log = logging.getLogger(__name__)

Damage = (ValueError, struct.error, EOFError)
Trouble = (OSError, sqlite3.Error, diskcache.Timeout)


class DiskError(OSError):
    """The folder can't be used; the message is one line for a person."""


@dataclass(frozen=True)
class Entry:
    """A stored block without its state. `parent` is a block's key, or `root` for the first.

    `n_rest` is None for blocks that are no checkpoints.
    """

    key: Key
    parent: Key
    root: Key
    start: int
    tokens: Tokens
    n_data: int
    n_rest: int | None
    cost_ms: float
    used: float = 0.0  # seconds since the epoch, by the clock of who used it

    @property
    def n_file(self) -> int:
        """Bytes of its file."""
        n_state = self.n_data + (self.n_rest or 0)
        return _HEADER.size + 4 * len(self.tokens) + n_state + 3 * _CHECKSUM.size


@dataclass(frozen=True)
class Stored:
    """An entry with its state, as it was read."""

    entry: Entry
    data: bytearray
    rest: bytearray | None


class RawDisk(diskcache.Disk):  # type: ignore[misc]
    """Values and keys as raw bytes: nothing is pickled, and nothing unpickled."""

    def __init__(self, directory: str, **settings: Any) -> None:
        super().__init__(directory, **settings)
        self._stored = threading.local()  # name of the file that this thread wrote last

    def put(self, key: Any) -> tuple[Any, bool]:
        """A key as it is stored."""
        if type(key) is not bytes:
            raise TypeError("keys are bytes")
        return sqlite3.Binary(key), True

    def get(self, key: Any, raw: Any) -> bytes:
        """A stored key; b"" for one that is not ours."""
        return bytes(key) if raw and isinstance(key, bytes) else b""

    def store(self, value: Any, read: bool, key: Any = None) -> tuple[int, int, str, None]:
        """Write a sequence of buffers to a new file."""
        name, path = self.filename()
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        try:
            with open(path, "xb", opener=private) as file:
                size = sum(file.write(part) for part in value)
        except BaseException:
            self.remove(name)
            raise
        self._stored.name = name
        return size, _BINARY, name, None

    def undo(self) -> None:
        """Remove the file that this thread wrote last: its row was not added."""
        self.remove(self._stored.__dict__.pop("name", None))

    def fetch(self, mode: Any, filename: Any, value: Any, read: bool) -> BinaryIO:
        """The open file of a value; OSError for one that we would not have stored."""
        if mode != _BINARY or not isinstance(filename, str) or not _FILE.fullmatch(filename):
            raise OSError("not an entry of ours")
        return open(os.path.join(self._directory, filename), "rb")

    def remove(self, file_path: Any) -> None:
        """Remove a file of ours; any other stays."""
        if isinstance(file_path, str) and _FILE.fullmatch(file_path):
            super().remove(file_path)


class DiskFolder:
    """One folder. All methods may take as long as the disk does, and may be called by any thread.

    Trouble with the disk makes writes fail and reads miss.
    """

    def __init__(self, path: Path, limit_bytes: int) -> None:
        """Open or make it; raises `DiskError`."""
        self.path = path / f"blocks-{FORMAT}"
        self.limit_bytes = limit_bytes
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.chmod(0o700)
            self._cache = self._open()
        except Trouble as error:
            raise DiskError(f"cannot use {self.path}: {error}") from error

    def _open(self) -> Any:
        begun_anew, until = False, time.monotonic() + LOCKED_S
        while True:
            try:
                return diskcache.Cache(
                    str(self.path), timeout=10, disk=RawDisk, eviction_policy="none",
                    cull_limit=0, statistics=0, tag_index=0, sqlite_journal_mode="truncate",
                    # a power cut may cost the index, which is begun anew; entries prove themselves
                    sqlite_synchronous=0,
                )  # fmt: skip
            except sqlite3.OperationalError as error:
                # diskcache waits for other servers' writes everywhere but here
                if "locked" not in str(error) or time.monotonic() > until:
                    raise
                time.sleep(0.01)
            except (sqlite3.DatabaseError, ValueError, TypeError) as error:
                if begun_anew:
                    raise
                begun_anew = True
                log.warning("the index of %s is damaged and begun anew: %s", self.path, error)
                for name in ("cache.db", "cache.db-wal", "cache.db-shm"):
                    (self.path / name).unlink(missing_ok=True)

    def close(self) -> None:
        """Close this thread's connection."""
        self._cache.close()

    # ---- entries ---------------------------------------------------------------------------------

    def volume(self) -> int:
        """Bytes that the folder takes, index included."""
        return int(self._cache.volume())

    def has_room(self, entry: Entry) -> bool:
        """Whether an entry fits beside what is there."""
        return self.volume() + entry.n_file + INDEX_GROWTH <= self.limit_bytes

    def entries(self) -> Iterator[Entry]:
        """All entries, in no order. Those that are none are removed."""
        for key in self._cache.iterkeys():
            entry = self._look(key)
            if entry is not None:
                yield entry

    def write(self, entry: Entry, data: bytearray, rest: bytearray | None = None) -> bool:
        """Store a block; False where there is no room for it, or trouble. Raises nothing."""
        head = _HEADER.pack(
            _MAGIC, FORMAT, entry.key, entry.parent, entry.root, entry.start, len(entry.tokens),
            len(data), _NO_REST if rest is None else len(rest), entry.cost_ms,
        ) + entry.tokens.astype("<i4", copy=False).tobytes()  # fmt: skip
        end = rest or b""
        parts = (head, _checksum(head), data, _checksum(data), end, _checksum(end))
        try:
            with self._cache.transact():
                if entry.key in self._cache:
                    return True  # another server was quicker
                if not self.has_room(entry):
                    return False
                try:
                    self._cache.set(entry.key, parts, expire=CENTURY_S)
                except BaseException:
                    self._cache.disk.undo()
                    raise
            return True
        except Trouble as error:
            log.warning("a block was not written to %s: %s", self.path, error)
            return False

    def count(self) -> int:
        """Rows of the index, entries or not."""
        return len(self._cache)

    def read(self, key: Key, *, used: bool = True) -> Stored | None:
        """A block and its state; None where it is not there, or is damaged and removed. `used`: as
        of now.

        Raises `Trouble` or MemoryError where it may be there and can't be read now.
        """
        file: BinaryIO | None = self._cache.get(key, read=True)
        if file is None:
            return None
        try:
            with file:
                entry = self._head(file, key)
                data = _read_state(file, entry.n_data)
                rest = _read_state(file, entry.n_rest or 0)
            if used:
                self._cache.touch(key, expire=CENTURY_S)
            return Stored(entry, data, None if entry.n_rest is None else rest)
        except Damage as error:
            self._damaged(key, error)
            return None

    def remove(self, key: Key) -> None:
        """Remove an entry, if it is there."""
        try:
            self._cache.delete(key)
        except Trouble as error:
            log.warning("a block was not removed from %s: %s", self.path, error)

    def remove_orphans(self) -> int:
        """Remove files that no entry lists and that nobody can be writing; how many there were."""
        listed = set()
        for key in self._cache.iterkeys():
            file = self._file(key)
            if file is not None:
                with file:
                    listed.add(os.path.relpath(file.name, self.path))
        found = 0
        for path in self.path.glob("??/??/*.val"):
            name = str(path.relative_to(self.path))
            try:
                if name not in listed and time.time() - path.stat().st_mtime > ORPHAN_S:
                    path.unlink()
                    found += 1
            except OSError as error:
                log.warning("a left-over file in %s stays: %s", self.path, error)
        return found

    # ---- inside ----------------------------------------------------------------------------------

    def _file(self, key: Key) -> BinaryIO | None:
        try:
            file: BinaryIO | None = self._cache.get(key, read=True)
            return file
        except Trouble as error:
            log.warning("a block was not read from %s: %s", self.path, error)
            return None

    def _look(self, key: Key) -> Entry | None:
        if len(key) != KEY_BYTES:
            log.warning("an entry of %s is none of ours", self.path)
            return None
        try:
            file, expires = self._cache.get(key, read=True, expire_time=True)
            if file is None:
                raise ValueError("its file is gone")
            with file:
                entry = self._head(file, key)
            used = float(expires or 0.0) - CENTURY_S
            return Entry(**{**vars(entry), "used": used})
        except (*Damage, *Trouble) as error:
            self._damaged(key, error)
            return None

    @staticmethod
    def _head(file: BinaryIO, key: Key) -> Entry:
        entry = _read_head(file, key)
        if os.fstat(file.fileno()).st_size != entry.n_file:
            raise ValueError("its length is wrong")
        return entry

    def _damaged(self, key: Key, error: Exception) -> None:
        log.warning("a block in %s is damaged and removed: %s", self.path, error)
        self.remove(key)


def _read_head(file: BinaryIO, key: Key) -> Entry:
    head = file.read(_HEADER.size)
    magic, version, own, parent, root, start, n_tokens, *sizes, cost_ms = _HEADER.unpack(head)
    n_data, n_rest = sizes
    checkpoint = n_rest != _NO_REST
    least = 0 if checkpoint else 1
    if magic != _MAGIC or version != FORMAT or own != key or not least <= n_tokens <= _MOST_TOKENS:
        raise ValueError("it is none of ours")
    raw = file.read(4 * n_tokens)
    if file.read(_CHECKSUM.size) != _checksum(head + raw):
        raise ValueError("the checksum of its head is wrong")
    tokens = np.frombuffer(raw, "<i4").astype(np.int32)
    if block_key(parent, tokens, checkpoint=checkpoint) != key:
        raise ValueError("its key is another block's")
    return Entry(
        key, parent, root, start, tokens, n_data, n_rest if checkpoint else None, cost_ms
    )


def _read_state(file: BinaryIO, n: int) -> bytearray:
    """The next `n` bytes, whose length was checked before, and their checksum."""
    data = read_exactly(file, n)
    if file.read(_CHECKSUM.size) != _checksum(data):
        raise ValueError("its checksum is wrong")
    return data


def _checksum(data: bytes | bytearray) -> bytes:
    return _CHECKSUM.pack(checksum((data,)))
