"""Unpacked source trees of the pinned archive, with or without the patch series."""

import hashlib
from pathlib import Path

from . import sdist
from .cache import BuildCache, touch
from .patches import Patch, apply_series, read_series


def unpack(dest: Path, patched: bool, cache: BuildCache | None = None) -> None:
    """Unpacks the pinned archive into `dest` (empty or missing); applies the series if `patched`.

    llama.cpp itself lies in `dest/vendor/llama.cpp`. Raises BuildError when the archive cannot be
    had or a patch does not apply.
    """
    patches = read_series() if patched else ()
    unpack_with(dest, patches, cache or BuildCache())


def unpack_with(dest: Path, patches: tuple[Patch, ...], cache: BuildCache) -> None:
    """Unpacks the archive and applies just these patches."""
    sdist.extract(sdist.fetch(cache), dest)
    apply_series(dest, patches)


def source_tree(patched: bool, cache: BuildCache | None = None) -> Path:
    """Returns an unpacked tree in the cache, made when missing. Read only: others use it too."""
    cache = cache or BuildCache()
    patches = read_series() if patched else ()
    name = tree_name(patches)
    path = cache.folder("src") / name
    if not path.is_dir():
        with cache.publishing("src", name) as folder:
            unpack_with(folder, patches, cache)
    touch(path)
    cache.prune("src")
    return path


def tree_name(patches: tuple[Patch, ...]) -> str:
    """Returns a name that changes with the archive and with each patch's content."""
    digest = hashlib.sha256(sdist.SHA256.encode("ascii"))
    for patch in patches:
        digest.update(f"\0{patch.name}\0".encode())
        digest.update(patch.text.encode("utf-8", "surrogateescape"))
    return f"{sdist.VERSION}-{digest.hexdigest()[:12]}"


def read_llama_commit(tree: Path) -> str:
    """Returns the llama.cpp commit that the tree's changelog names for the pinned version."""
    return sdist.llama_commit((tree / "CHANGELOG.md").read_text(encoding="utf-8"))
