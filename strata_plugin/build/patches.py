"""The patch series: read from `patches/`, applied in order, stopped by the first misfit."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import BuildError
from .unified_diff import DiffError, FileDiff, apply_hunks, parse

PATCHES_DIR = Path(__file__).resolve().parents[2] / "patches"


@dataclass(frozen=True)
class Patch:
    """One file of the series."""

    name: str  # file name, e.g. 0001-build-native.patch
    text: str

    @property
    def title(self) -> str:
        """The name without its suffix, as --version and /props show it."""
        return self.name.removesuffix(".patch")


def read_series(folder: Path = PATCHES_DIR) -> tuple[Patch, ...]:
    """Returns the patches that `folder/series` lists, in order; '#' starts a comment."""
    series = folder / "series"
    if not series.is_file():
        raise BuildError(f"{series} is missing: the build runs from a checkout of the project")
    patches = []
    for line in series.read_text(encoding="utf-8").splitlines():
        name = line.partition("#")[0].strip()
        if not name:
            continue
        path = folder / name
        if not path.is_file():
            raise BuildError(f"{series} lists {name}, which is not there")
        # bytes are kept as they are, whatever their encoding
        text = path.read_bytes().decode("utf-8", "surrogateescape")
        patches.append(Patch(name, text))
    return tuple(patches)


def apply_series(tree: Path, patches: Sequence[Patch]) -> None:
    """Applies each patch to the source tree, or raises BuildError naming the one that fails."""
    for patch in patches:
        try:
            changed = _apply(tree, parse(patch.text))
        except DiffError as error:
            raise BuildError(f"patch {patch.name} does not apply: {error}") from error
        for path, text in changed.items():
            _write(tree / path, text)


def _apply(tree: Path, files: Sequence[FileDiff]) -> dict[str, str | None]:
    """Returns the new text of each file, None where it goes; writes nothing."""
    changed: dict[str, str | None] = {}
    for file in files:
        source, target = file.old_path, file.new_path
        name = target or source
        assert name is not None
        if source and target and source != target:
            raise DiffError(f"{source} and {target}: renaming is not supported")
        path = tree / name
        before = changed.get(name, _read(path) if path.is_file() else None)
        if source is None and before is not None:
            raise DiffError(f"{name}: it creates a file that is already there")
        if source is not None and before is None:
            raise DiffError(f"{name}: no such file")
        try:
            after = apply_hunks(before or "", file.hunks)
        except DiffError as error:
            raise DiffError(f"{name}: {error}") from error
        if target is None and after:
            raise DiffError(f"{name}: it deletes a file that holds more text than the patch knows")
        changed[name] = None if target is None else after
    return changed


def _read(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "surrogateescape")


def _write(path: Path, text: str | None) -> None:
    if text is None:
        path.unlink()
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
