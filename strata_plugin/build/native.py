"""Our own C++ sources: read once, so that the key and the build speak of the same bytes."""

from collections.abc import Mapping
from pathlib import Path

from .errors import BuildError

NATIVE_DIR = Path(__file__).resolve().parents[1] / "native"
_SUFFIXES = {".h", ".hpp", ".c", ".cc", ".cpp", ".cu", ".cuh", ".cmake", ".txt", ".in"}


def read_native(folder: Path = NATIVE_DIR) -> dict[str, bytes]:
    """Returns the content of each source and CMake file, by its path below the folder."""
    if not (folder / "CMakeLists.txt").is_file():
        raise BuildError(f"{folder / 'CMakeLists.txt'} is missing")
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.suffix in _SUFFIXES and path.is_file()
    }


def write_native(folder: Path, files: Mapping[str, bytes]) -> None:
    """Makes the folder hold exactly these files; unchanged ones keep their time stamps."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.rglob("*"):
        if path.is_file() and path.relative_to(folder).as_posix() not in files:
            path.unlink()
    for name, content in files.items():
        path = folder / name
        if path.is_file() and path.read_bytes() == content:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
