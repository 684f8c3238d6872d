"""Models of a Hugging Face hub (-hf): found in the cache, renewed or downloaded when online.

The hub's library takes half a second to import. So a start that finds its model in the cache asks
for the newest commit by itself, and needs the library only when that is another one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .gguf_names import PREFERRED, choose, has_quant, quants, split_parts
from .http_client import DownloadError, Refused, Unreachable, ask, host, in_time
from .hub_api import HubFile, Listing, list_files, refused
from .hub_cache import NotCached, add_file, find_model, folder_of, set_commit, snapshot_of
from .progress import Say, say
from .resumable import Download, check_room, fetch, locked

PUBLIC_HUB = "https://huggingface.co"
CHECK_S = 3.0  # a start does not wait longer to hear of a newer file


@dataclass(frozen=True)
class Hub:
    """A hub and the folder that holds what was got from it."""

    cache: Path
    endpoint: str = PUBLIC_HUB
    token: str = ""


def endpoint(environ: Mapping[str, str]) -> str:
    """The hub to ask, as llama.cpp chooses it; without a slash at the end."""
    return (environ.get("MODEL_ENDPOINT") or environ.get("HF_ENDPOINT") or PUBLIC_HUB).rstrip("/")


def get_model(hub: Hub, repository: str, file: str = "", tell: Say = say) -> Path:
    """Path of the model USER/MODEL[:QUANT], or of `file` in it; of a split one, of its first part.

    What is in the cache is used when the hub can't be asked, or what is newer can't be had.
    Raises `DownloadError`.
    """
    name, _, quant = repository.partition(":")
    cached: Path | None = None
    with contextlib.suppress(NotCached):
        cached = find_model(hub.cache, repository, file)
    try:
        if cached is not None and _is_newest(hub, name, cached, file or quant):
            return cached
        return _download(hub, name, quant, file, tell)
    except DownloadError as error:
        if cached is None:
            raise
        tell(f"{error}; serving {cached.name} from the cache")
        return cached


def _is_newest(hub: Hub, name: str, cached: Path, asked: str) -> bool:
    """Whether the hub, asked for its commit alone, would choose `cached`. Raises `Unreachable`.

    Nothing `asked` for, it would for certain only with the quant that is preferred most.
    """
    snapshot = snapshot_of(hub.cache, name)
    headers = {"Authorization": f"Bearer {hub.token}"} if hub.token else {}
    url = f"{hub.endpoint}/api/models/{name}/refs"
    try:
        answer = in_time(CHECK_S, host(url), lambda: ask(url, headers))
        branches: Any = answer.json()["branches"]
        commits = {branch["name"]: branch["targetCommit"] for branch in branches}
    except Unreachable as error:
        raise Unreachable(f"no newer {cached.name} was looked for: {error}") from None
    except (Refused, ValueError, KeyError, TypeError):
        return False  # the library may have a token, and refusals get their words there
    newest = commits.get("main") or next(iter(commits.values()), None)
    same = snapshot is not None and newest == snapshot.name
    return same and (bool(asked) or has_quant(cached.name, PREFERRED[0]))


def _download(hub: Hub, name: str, quant: str, file: str, tell: Say) -> Path:
    """Put what is chosen from the hub's list into the cache; returns the first part's path."""
    listing = list_files(hub.endpoint, name, hub.token)
    files = {f.path: f for f in listing.files}
    chosen = (file if file in files else None) if file else choose(files, quant)
    if chosen is None:
        wanted = file or quant or "any quant"
        raise DownloadError(f"{name} has nothing for '{wanted}' (there: {quants(files)})")
    folder = folder_of(hub.cache, name)
    snapshot = folder / "snapshots" / listing.commit
    try:
        missing = [
            _job(files[part], folder, listing)
            for part in split_parts(chosen)
            if part in files and not (snapshot / part).exists()
        ]
        _get_all(missing, hub, name, listing, tell)
        for f in listing.files:  # also what was there before and is the same in this commit
            if (folder / "blobs" / f.oid).exists():
                add_file(folder, listing.commit, f.path, folder / "blobs" / f.oid)
        set_commit(folder, listing.commit)
    except OSError as error:
        raise DownloadError(f"cannot write to {folder}: {error.strerror or error}") from None
    return snapshot / chosen


def _job(file: HubFile, folder: Path, listing: Listing) -> Download:
    def headers() -> dict[str, str]:
        return {"Authorization": f"Bearer {listing.token}"} if listing.token else {}

    blob = folder / "blobs" / file.oid
    return Download(file.url, blob, headers, file.size, file.sha256, name=Path(file.path).name)


def _get_all(jobs: list[Download], hub: Hub, name: str, listing: Listing, tell: Say) -> None:
    jobs = [job for job in jobs if not job.path.exists()]
    check_room(hub.cache, sum(job.missing for job in jobs), name)
    for job in jobs:
        lock = hub.cache / ".locks" / folder_of(hub.cache, name).name / f"{job.path.name}.lock"
        with locked(lock, job.shown, tell):
            if job.path.exists():
                continue
            try:
                fetch(job, tell)
            except Refused as error:
                raise refused(hub.endpoint, name, listing.token, error) from None
