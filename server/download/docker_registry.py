"""A model from Docker Hub (-dr): the GGUF layer of an OCI manifest, kept in llama.cpp's folder."""

from __future__ import annotations

import contextlib
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .http_client import DownloadError, Refused, ask, host, in_time
from .progress import Say, say
from .resumable import Download, fetch, locked

CHECK_S = 5.0
CHUNK = 1 << 20
MANIFESTS = (
    "application/vnd.docker.distribution.manifest.v2+json,application/vnd.oci.image.manifest.v1+json"
)
DEFAULT_OWNER, DEFAULT_TAG = "ai", "latest"


@dataclass(frozen=True)
class Registry:
    """Where manifests and blobs are, and who gives anonymous tokens for reading them."""

    url: str
    tokens: str


DOCKER_HUB = Registry(
    "https://registry-1.docker.io/v2",
    "https://auth.docker.io/token?service=registry.docker.io",
)


@dataclass(frozen=True)
class Layer:
    """A GGUF file of a manifest; `sha256` in lower case, `size` in bytes if told."""

    sha256: str
    size: int | None


def get_image(
    reference: str,
    folder: Path,
    offline: bool = False,
    tell: Say = say,
    registry: Registry = DOCKER_HUB,
) -> Path:
    """Path of the model [OWNER/]NAME[:TAG] in `folder`, where it is put if need be.

    What is there is used when the registry can't be asked, or what is newer can't be had. Raises
    `DownloadError`.
    """
    repository, tag = parse(reference)
    where = host(registry.url)
    path = folder / f"{repository.replace('/', '_')}_{tag}.gguf"
    if offline:
        if not path.exists():
            raise DownloadError(f"{path} is not there, and nothing may be downloaded (offline)")
        return path
    try:
        if path.exists():
            layer = in_time(CHECK_S, where, lambda: _layer(registry, repository, tag))
        else:
            layer = _layer(registry, repository, tag)
        if not _is(path, layer):
            with locked(path.with_name(path.name + ".lock"), path.name, tell):
                if not _is(path, layer):
                    _get(registry, repository, layer, path, tell)
    except DownloadError as error:
        if not path.exists():
            raise
        tell(f"{error}; serving {path}, which is there")
    return path


def parse(reference: str) -> tuple[str, str]:
    """Repository and tag of [OWNER/]NAME[:TAG]."""
    repository, _, tag = reference.partition(":")
    if "/" not in repository:
        repository = f"{DEFAULT_OWNER}/{repository}"
    return repository, tag or DEFAULT_TAG


def _layer(registry: Registry, repository: str, tag: str) -> Layer:
    headers = {**_token(registry, repository), "Accept": MANIFESTS}
    name = f"{repository}:{tag}"
    try:
        answer: Any = ask(f"{registry.url}/{repository}/manifests/{tag}", headers).json()
        layers = [layer for layer in answer["layers"] if "gguf" in layer["mediaType"]]
        digest, size = (layers[0]["digest"], layers[0].get("size")) if layers else ("", None)
    except Refused as error:
        if error.status in (401, 403, 404):
            raise DownloadError(f"{host(registry.url)} has no {name} ({error.status})") from None
        raise
    except (ValueError, KeyError, TypeError):
        raise DownloadError(f"{host(registry.url)} sends no manifest for {name}") from None
    if not layers:
        raise DownloadError(f"{name} holds no GGUF file")
    match = re.fullmatch("sha256:([0-9a-fA-F]{64})", str(digest))
    if not match:
        raise DownloadError(f"{name} names its GGUF file by an unknown kind of digest")
    return Layer(match[1].lower(), size if isinstance(size, int) else None)


def _token(registry: Registry, repository: str) -> dict[str, str]:
    """A header that allows anybody to read `repository`, for some minutes."""
    answer = ask(f"{registry.tokens}&scope=repository:{repository}:pull")
    try:
        return {"Authorization": f"Bearer {answer.json()['token']}"}
    except (ValueError, KeyError, TypeError):
        raise DownloadError(f"{host(registry.tokens)} gives no token for {repository}") from None


def _get(registry: Registry, repository: str, layer: Layer, path: Path, tell: Say) -> None:
    def headers() -> dict[str, str]:
        return _token(registry, repository)

    url = f"{registry.url}/{repository}/blobs/sha256:{layer.sha256}"
    fetch(Download(url, path, headers, layer.size, layer.sha256), tell)
    _note(path, layer.sha256)


def _is(path: Path, layer: Layer) -> bool:
    """Whether `path` holds the layer. Its digest is computed once and kept beside it."""
    if not path.exists():
        return False
    kept = _digest_file(path)
    with contextlib.suppress(OSError):
        if kept.stat().st_mtime_ns >= path.stat().st_mtime_ns:
            return kept.read_text(encoding="utf-8").strip() == layer.sha256
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    _note(path, digest.hexdigest())
    return digest.hexdigest() == layer.sha256


def _digest_file(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _note(path: Path, digest: str) -> None:
    with contextlib.suppress(OSError):  # only costs the computing of it at the next start
        _digest_file(path).write_text(digest, encoding="utf-8")
