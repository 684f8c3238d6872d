"""Models in the local Hugging Face cache: `models--USER--MODEL/{refs,snapshots}`. No network."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

PREFERRED = ("Q4_K_M", "Q8_0")  # without a quant in -hf
NOT_MODELS = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")


class NotCached(Exception):
    """The model is not in the cache; one line that says how to get it."""


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


def find_model(cache: Path, repository: str, file: str = "") -> Path:
    """The GGUF file of `repository` (USER/MODEL[:QUANT]), `file` where given.

    Of a split model it is the first part. Raises `NotCached`.
    """
    name, _, quant = repository.partition(":")
    snapshot = _snapshot(cache / ("models--" + name.replace("/", "--")))
    if snapshot is None:
        wanted = file or (f"*{quant}*" if quant else "*Q4_K_M*")
        raise NotCached(
            f"{name} is not in the cache ({cache}), and Strata does not download models yet; "
            f"get it with: hf download {name} --include '{wanted}'"
        )
    if file:
        path = snapshot / file
        if path.is_file():
            return path
    else:
        best = _best(list(_model_files(snapshot)), quant)
        if best is not None:
            return snapshot / best
    there = ", ".join(sorted(_model_files(snapshot))) or "no GGUF file"
    wanted = file or (f"*{quant}*" if quant else "*.gguf")
    raise NotCached(
        f"{name}: no file for '{file or quant or 'any quant'}' in the cache (there: {there}); "
        f"get it with: hf download {name} --include '{wanted}'"
    )


def list_models(cache: Path) -> list[str]:
    """USER/MODEL:QUANT of each model in the cache, sorted."""
    found: set[str] = set()
    folders = sorted(cache.glob("models--*")) if cache.is_dir() else []
    for folder in folders:
        snapshot = _snapshot(folder)
        name = folder.name[len("models--") :].replace("--", "/")
        for file in _model_files(snapshot) if snapshot else ():
            found.add(f"{name}:{_quant(file)}" if _quant(file) else name)
    return sorted(found)


def _snapshot(folder: Path) -> Path | None:
    """The snapshot that refs/main names, else any that a ref names."""
    refs = folder / "refs"
    names = sorted(p for p in refs.iterdir() if p.is_file()) if refs.is_dir() else []
    for ref in sorted(names, key=lambda p: p.name != "main"):
        commit = ref.read_text(encoding="utf-8", errors="replace").strip()
        if re.fullmatch("[0-9a-fA-F]{40}", commit) and (folder / "snapshots" / commit).is_dir():
            return folder / "snapshots" / commit
    return None


def _model_files(snapshot: Path) -> Iterator[str]:
    """Models below `snapshot`: relative paths, of split models the first part only."""
    for path in sorted(snapshot.rglob("*.gguf")):
        name = path.relative_to(snapshot).as_posix()
        part = re.search(r"-(\d{5})-of-\d{5}\.gguf$", name)
        if part and int(part[1]) != 1:
            continue
        if path.exists() and not any(mark in path.name for mark in NOT_MODELS):
            yield name


def _best(files: list[str], quant: str) -> str | None:
    for wanted in [quant] if quant else PREFERRED:
        pattern = re.compile(re.escape(wanted) + "[.-]", re.IGNORECASE)
        for name in files:
            if pattern.search(name):
                return name
    return files[0] if files and not quant else None


def _quant(file: str) -> str:
    stem = re.sub(r"(-\d{5}-of-\d{5})?\.gguf$", "", file)
    match = re.search(r"[-.]([A-Za-z0-9_]+)$", stem)
    return match[1].upper() if match else ""
