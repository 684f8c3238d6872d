"""A hash over the content of a model's files, computed once per file.

It is kept by device, inode, size and times of change, so that a file that was replaced under the
same name, or changed in place, is read again. That takes as long as reading it does.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from contextlib import suppress
from pathlib import Path

CHUNK = 4 << 20
MOST_KEPT = 256  # files
_SPLIT = re.compile(r"(.*)-\d{5}-of-(\d{5})\.gguf")

log = logging.getLogger(__name__)


def model_files(path: Path) -> list[Path]:
    """The files of a model: all parts of one that was split, else `path` alone."""
    match = _SPLIT.fullmatch(path.name)
    if not match:
        return [path]
    stem, count = match[1], int(match[2])
    return [path.with_name(f"{stem}-{i:05d}-of-{count:05d}.gguf") for i in range(1, count + 1)]


def model_hash(path: Path, kept_in: Path) -> str:
    """Hex digest of a model's content; digests of its files are kept in the file `kept_in`.

    Raises OSError where a file of the model can't be read. What is kept and damaged is computed
    again.
    """
    kept = _load(kept_in)
    whole = hashlib.blake2b(digest_size=32)
    changed = False
    for file in model_files(path):
        identity = _identity(file)
        digest = kept.pop(identity, None)
        if digest is None:
            digest, changed = _digest(file), True
            if _identity(file) != identity:
                raise OSError(f"{file} changes while it is read")
        kept[identity] = digest
        whole.update(bytes.fromhex(digest))
    if changed:
        _save(kept_in, kept)
    return whole.hexdigest()


def _identity(file: Path) -> str:
    s = file.stat()
    return f"{s.st_dev}:{s.st_ino}:{s.st_size}:{s.st_mtime_ns}:{s.st_ctime_ns}"


def _digest(file: Path) -> str:
    state = hashlib.blake2b(digest_size=32)
    with file.open("rb", buffering=0) as source:
        while chunk := source.read(CHUNK):
            state.update(chunk)
    return state.hexdigest()


def _load(kept_in: Path) -> dict[str, str]:
    try:
        kept = json.loads(kept_in.read_bytes())
        return {str(k): bytes.fromhex(v).hex() for k, v in kept.items() if len(v) == 64}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        log.warning("%s is not used and will be written anew: %s", kept_in, error)
        return {}


def _save(kept_in: Path, kept: dict[str, str]) -> None:
    new = kept_in.with_name(f"{kept_in.name}.{os.getpid()}.new")
    try:
        kept_in.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new.write_text(json.dumps(dict(list(kept.items())[-MOST_KEPT:])))
        os.replace(new, kept_in)
    except OSError as error:
        log.warning("%s was not written: %s", kept_in, error)
        with suppress(OSError):
            new.unlink(missing_ok=True)
