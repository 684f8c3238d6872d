"""The build's cache folder: where things lie, the lock, atomic publishing, and what is thrown away.

Layout below the root:
    sdist/      the pinned source archive, as downloaded
    src/        unpacked trees that others read (patched and unpatched)
    work/       build trees, kept so that the next build compiles only what changed
    wheels/     one folder per key with one wheel
    upstream/   one folder per key with upstream's llama-server and its libraries
    ui/         one folder per key with the files of llama-server's page
    logs/       one full log per key
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from strata_plugin.cache_folder import cache_folder

KEPT = {"wheels": 4, "upstream": 2, "ui": 2, "work": 2, "src": 4, "logs": 8}
STALE_SECONDS = 24 * 3600.0
_TEMPORARY = ".tmp-"


def cache_root(environ: Mapping[str, str] = os.environ) -> Path:
    """$STRATA_BUILD_CACHE, else $XDG_CACHE_HOME/strata/build, else ~/.cache/strata/build."""
    if own := environ.get("STRATA_BUILD_CACHE"):
        return Path(own).absolute()
    return cache_folder("build", environ)


class BuildCache:
    """One cache folder. Entries appear whole (by rename) or not at all."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root if root is not None else cache_root()

    def folder(self, kind: str) -> Path:
        """Returns the folder of one kind of entry ("wheels", "src", ...), made when missing."""
        path = self.root / kind
        path.mkdir(parents=True, exist_ok=True)
        return path

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Holds the cache against other builds; says so when it has to wait for one."""
        self.root.mkdir(parents=True, exist_ok=True)
        with open(self.root / "lock", "a+", encoding="ascii") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                holder = file.read().strip() or "unknown"
                print(f"waiting for another build (process {holder}) ...", flush=True)
                fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            file.truncate()
            file.write(f"{os.getpid()}\n")
            file.flush()
            try:
                yield
            finally:
                # closing would not do while a forked child still has the file open
                fcntl.flock(file, fcntl.LOCK_UN)

    @contextlib.contextmanager
    def publishing(self, kind: str, name: str) -> Iterator[Path]:
        """Yields an empty folder that becomes `kind/name` if the block ends well, else vanishes."""
        parent = self.folder(kind)
        temporary = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=parent))
        try:
            yield temporary
            final = parent / name
            if final.exists():
                shutil.rmtree(final)
            temporary.chmod(0o755)
            temporary.rename(final)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def prune(self, kind: str, now: float | None = None) -> list[str]:
        """Keeps the most recently used entries of a kind; returns the names of those removed."""
        now = time.time() if now is None else now
        removed = []
        entries = []
        for path in self.folder(kind).iterdir():
            modified = path.stat().st_mtime
            if not path.name.startswith(_TEMPORARY):
                entries.append((modified, path))
            elif now - modified > STALE_SECONDS:  # left by a build that was killed
                _remove(path)
        entries.sort(key=lambda entry: entry[0], reverse=True)
        for _, path in entries[KEPT[kind] :]:
            _remove(path)
            removed.append(path.name)
        return removed


def touch(path: Path) -> None:
    """Marks an entry as just used, which keeps it from being pruned."""
    os.utime(path)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
