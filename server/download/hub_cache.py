"""The local Hugging Face cache: `models--USER--MODEL/{blobs,refs,snapshots}`. No network."""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from collections.abc import Mapping
from pathlib import Path

from .gguf_names import choose, models, quant_of, quants, split_parts

REF = "main"
YES = ("1", "ON", "YES", "TRUE")


class NotCached(Exception):
    """The model is not in the cache; one line that says what is."""


def cache_directory(environ: Mapping[str, str]) -> Path:
    """Where the cache is; the variables and their order are llama.cpp's."""
    for name, below in (
        ("LLAMA_CACHE", ""),
        ("HF_HUB_CACHE", ""),
        ("HUGGINGFACE_HUB_CACHE", ""),
        ("HF_HOME", "hub"),
        ("XDG_CACHE_HOME", "huggingface/hub"),
    ):
        if environ.get(name):
            return Path(environ[name], below)
    return Path(environ.get("HOME") or os.path.expanduser("~"), ".cache/huggingface/hub")


def is_offline(flag: bool, environ: Mapping[str, str]) -> bool:
    """Whether --offline or the hub library's own variable forbids the network."""
    return flag or environ.get("HF_HUB_OFFLINE", "").upper() in YES


def find_model(cache: Path, repository: str, file: str = "") -> Path:
    """The GGUF file of `repository` (USER/MODEL[:QUANT]), `file` where given.

    Of a split model it is the first part, and only when all parts are there. Raises `NotCached`.
    """
    name, _, quant = repository.partition(":")
    snapshot = snapshot_of(cache, name)
    if snapshot is None:
        raise NotCached(f"{name} is not in the cache ({cache})")
    there = _files(snapshot)
    complete = file if set(split_parts(file)) <= set(there) else None
    chosen = complete if file else choose(there, quant)
    if chosen is None:
        wanted = file or quant or "any quant"
        raise NotCached(f"{name}: nothing for '{wanted}' in the cache (there: {quants(there)})")
    return snapshot / chosen


def list_models(cache: Path) -> list[str]:
    """USER/MODEL:QUANT of each model in the cache, sorted."""
    found: set[str] = set()
    for folder in cache.glob("models--*") if cache.is_dir() else ():
        name = folder.name[len("models--") :].replace("--", "/")
        snapshot = snapshot_of(cache, name)
        for file in models(_files(snapshot)) if snapshot else ():
            found.add(f"{name}:{quant_of(file)}" if quant_of(file) else name)
    return sorted(found)


def folder_of(cache: Path, name: str) -> Path:
    """Where the repository USER/MODEL lies, whether it is there or not."""
    return cache / ("models--" + name.replace("/", "--"))


def snapshot_of(cache: Path, name: str) -> Path | None:
    """The snapshot that refs/main names, else any that a ref names; its name is a commit."""
    folder = folder_of(cache, name)
    refs = folder / "refs"
    found = sorted(p for p in refs.iterdir() if p.is_file()) if refs.is_dir() else []
    for ref in sorted(found, key=lambda p: p.name != REF):
        commit = ref.read_text(encoding="utf-8", errors="replace").strip()
        if re.fullmatch("[0-9a-fA-F]{40}", commit) and (folder / "snapshots" / commit).is_dir():
            return folder / "snapshots" / commit
    return None


def add_file(folder: Path, commit: str, file: str, blob: Path) -> Path:
    """Make `blob` the `file` of a snapshot: a link, or itself where there are no links."""
    path = folder / "snapshots" / commit / file
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # a link to a blob that is gone
            path.unlink()
        try:
            path.symlink_to(os.path.relpath(blob, path.parent))
        except FileExistsError:  # another process was quicker
            pass
        except OSError:
            os.replace(blob, path)
    return path


def set_commit(folder: Path, commit: str) -> None:
    """From now on refs/main names `commit`, whose files are there."""
    ref = folder / "refs" / REF
    ref.parent.mkdir(parents=True, exist_ok=True)
    new = folder / f"{REF}.{uuid.uuid4().hex}.new"  # not in refs, where each file counts
    new.write_text(commit, encoding="utf-8")
    os.replace(new, ref)


def _files(snapshot: Path) -> list[str]:
    """GGUF files below `snapshot`, sorted, as paths relative to it; no links to what is gone."""
    found = [path for path in sorted(snapshot.rglob("*.gguf")) if path.exists()]
    return [path.relative_to(snapshot).as_posix() for path in found]
