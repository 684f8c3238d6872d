"""One file from one URL: goes on where it was cut off, is checked, and appears only when complete.

huggingface_hub begins each file anew in a new process; over a line at home that may be hours.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import httpx2
from filelock import FileLock, Timeout

from .http_client import DownloadError, Refused, client, failure, host, reason
from .progress import Progress, Say, say, size_text

PARTIAL = ".downloadInProgress"  # llama.cpp's ending: each program goes on with the other's
PIECE = 16 << 30  # bytes of one answer at most; content networks refuse to send 50 GB in one
CHUNK = 1 << 20
WAITS_S = (1.0, 2.0, 4.0, 8.0)  # between attempts that brought nothing
BUSY = (408, 429, 500, 502, 503, 504)
LONG_WAIT_S = 60.0


@dataclass(frozen=True)
class Download:
    """What to get and where it goes. `headers` is called for each request: tokens grow old.

    A partial file is gone on with where its own name or the note beside it says that it is of this
    `sha256`; without one, while the server's strong ETag is the one noted.
    """

    url: str
    path: Path
    headers: Callable[[], dict[str, str]] = dict
    size: int | None = None
    sha256: str = ""
    name: str = ""

    @property
    def shown(self) -> str:
        """What a person calls the file."""
        return self.name or self.path.name

    @property
    def partial(self) -> Path:
        """Where the file grows."""
        return self.path.with_name(self.path.name + PARTIAL)

    @property
    def missing(self) -> int:
        """Bytes still to be written, as far as that is known."""
        there = self.partial.stat().st_size if self.partial.exists() else 0
        return max(0, (self.size or 0) - there)


def fetch(download: Download, tell: Say = say) -> str:
    """Get the file and put it in its place; returns the server's ETag, "" where it sends none.

    An older file is replaced. Raises `DownloadError`; what came until then is kept.
    """
    began, partial = time.monotonic(), download.partial
    note = partial.with_name(partial.name + ".etag")
    try:
        partial.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("a+b") as file:
            transfer = _Transfer(download, file, note, tell)
            transfer.run()
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, download.path)
        note.unlink(missing_ok=True)
    except OSError as error:
        raise DownloadError(f"cannot write {download.path}: {error.strerror or error}") from None
    finally:
        if partial.exists() and not partial.stat().st_size:  # refused, or found to be damaged
            partial.unlink()
    took = time.monotonic() - began
    tell(f"downloaded {download.shown} ({size_text(transfer.have)}) in {took:.0f} s")
    return transfer.etag


def check_room(folder: Path, n_bytes: int, name: str) -> None:
    """`DownloadError` where the disk that `folder` is on, or will be, has no room for `n_bytes`."""
    there = folder.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    free = shutil.disk_usage(there).free
    if n_bytes > free:
        raise DownloadError(
            f"no room for {name}: it needs {size_text(n_bytes)} more, {folder} has "
            f"{size_text(free)} free"
        )


@contextlib.contextmanager
def locked(path: Path, name: str, tell: Say = say) -> Iterator[None]:
    """One process at a time gets `name`; `path` is a file for the lock alone."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            tell(f"another process is downloading {name}; waiting for it")
            lock.acquire()
    except OSError as error:
        raise DownloadError(f"cannot write {path}: {error.strerror or error}") from None
    try:
        yield
    finally:
        lock.release()


class _Interrupted(Exception):
    """An attempt that may be repeated."""

    def __init__(self, text: str, wait_s: float = 0.0):
        super().__init__(text)
        self.wait_s = wait_s


class _Transfer:
    """A file on its way; `have` bytes are on disk."""

    def __init__(self, download: Download, file: BinaryIO, note: Path, tell: Say):
        self.download, self.file, self.note, self.tell = download, file, note, tell
        self.total = download.size
        self.etag = note.read_text(encoding="utf-8").strip() if note.exists() else ""
        self.have = file.seek(0, os.SEEK_END)
        self.hash = hashlib.sha256()
        self.answered = False
        if download.sha256:
            same = download.sha256 in (download.path.name, self.etag)
        else:
            same = bool(self.etag) and not self.etag.startswith("W/")
        if not same or (self.total is not None and self.have > self.total):
            self._empty()
        elif self.have:
            tell(f"going on with {download.shown} at {size_text(self.have)}")
            self._read_again()

    def run(self) -> None:
        """Until all is there and checked; `DownloadError` where that can't be."""
        name, waits = self.download.shown, iter(WAITS_S)
        with client() as web:
            while self.total is None or self.have < self.total:
                before = self.have
                try:
                    self._attempt(web)
                except _Interrupted as error:
                    if self.have > before:
                        waits = iter(WAITS_S)
                    wait = next(waits, None)
                    if wait is None:
                        kept = f"; {size_text(self.have)} are kept for the next start"
                        raise DownloadError(f"{name}: {error}{kept if self.have else ''}") from None
                    wait = max(wait, error.wait_s)
                    self.tell(f"{name}: {error}; trying again in {wait:g} s")
                    time.sleep(wait)
        if self.download.sha256 and self.hash.hexdigest() != self.download.sha256.lower():
            self._empty()
            raise DownloadError(f"{name} is damaged (its checksum is another); it was removed")

    def _attempt(self, web: httpx2.Client) -> None:
        url = self.download.url
        headers = self.download.headers()
        if self.have or (self.total or 0) > PIECE:
            headers["Range"] = f"bytes={self.have}-{self.have + PIECE - 1}"
            if self.have and not self.download.sha256:
                headers["If-Range"] = self.etag
        try:
            with web.stream("GET", url, headers=headers) as answer:
                self.answered = True
                if self._accept(answer):
                    self._take(answer)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            if not self.answered or not isinstance(error, httpx2.TransportError):
                raise failure(url, error) from None
            raise _Interrupted(f"the connection was lost ({reason(error)})") from None

    def _accept(self, answer: httpx2.Response) -> bool:
        """Whether the body belongs at the end of the file, which is emptied where it must be."""
        status, url = answer.status_code, self.download.url
        if status in BUSY:
            asked = answer.headers.get("Retry-After", "")
            wait = min(float(asked), LONG_WAIT_S) if asked.isdigit() else 0.0
            raise _Interrupted(f"{host(url)} answers {status}", wait)
        if status not in (200, 206, 416) or (status == 416 and not self.have):
            raise Refused(url, answer)
        span = re.match(r"bytes (?:(\d+)-\d+|\*)/(\d+)", answer.headers.get("Content-Range", ""))
        if status == 416:  # nothing after what is there: it is all, or it is not of this file
            if span and int(span[2]) == self.have:
                self.total = self.have
            else:
                self._empty()
            return False
        if status == 200:
            self._empty()
            length = answer.headers.get("Content-Length", "")
            total = int(length) if length.isdigit() else None
        elif span and span[1] and int(span[1]) == self.have:
            total = int(span[2])
        else:
            raise DownloadError(f"{host(url)} sends another part of the file than was asked for")
        if self.download.size is not None and total not in (None, self.download.size):
            raise DownloadError(
                f"{self.download.shown}: {host(url)} announced {self.download.size} bytes and "
                f"sends {total}"
            )
        self.total = total if total is not None else self.download.size
        self.etag = answer.headers.get("ETag", "")
        if not self.have and self.download.sha256 != self.download.path.name:
            self.note.write_text(self.download.sha256 or self.etag, encoding="utf-8")
        return True

    def _take(self, answer: httpx2.Response) -> None:
        name, total = self.download.shown, self.total
        if total is not None:
            check_room(self.download.path.parent, total - self.have, name)
        if not self.have:
            size = f" ({size_text(total)})" if total is not None else ""
            self.tell(f"downloading {name}{size} to {self.download.path.parent}")
        progress = Progress(name, total, self.have, self.tell)
        try:
            for chunk in answer.iter_raw():
                self.file.write(chunk)
                self.have += len(chunk)
                if self.download.sha256:
                    self.hash.update(chunk)
                progress.advance(len(chunk))
        finally:
            progress.close()
        if self.total is None:
            self.total = self.have

    def _empty(self) -> None:
        self.file.truncate(0)
        self.have, self.hash, self.etag = 0, hashlib.sha256(), ""

    def _read_again(self) -> None:
        """The checksum of what is there already."""
        if not self.download.sha256:
            return
        self.file.seek(0)
        while chunk := self.file.read(CHUNK):
            self.hash.update(chunk)
