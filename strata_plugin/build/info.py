"""What is installed: which llama.cpp, which patches, which backend; for --version and /props.

Reads the small file that the build puts beside the libraries; loads no library.
"""

import importlib.metadata
import importlib.util
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

INFO_FILE = "strata-build.json"


@dataclass(frozen=True)
class BuildInfo:
    """Describes the llama-cpp-python that `import llama_cpp` finds."""

    patched: bool
    llama_commit: str | None = None  # short hash; None when a stock package does not say
    patches: tuple[str, ...] = ()  # in the order they were applied
    backend: str | None = None  # cpu or cuda
    cuda_arch: str | None = None
    key: str | None = None
    version: str | None = None  # of llama-cpp-python; None when it is not installed

    def to_json(self) -> str:
        """Returns the content of the file beside the libraries."""
        return json.dumps(asdict(self), indent=2) + "\n"

    def __str__(self) -> str:
        if self.version is None:
            return "llama-cpp-python is not installed"
        if not self.patched:
            return f"stock llama-cpp-python {self.version}, without Strata's patches"
        backend = f"{self.backend} {self.cuda_arch}" if self.cuda_arch else str(self.backend)
        return (
            f"llama.cpp {self.llama_commit} (llama-cpp-python {self.version}, {backend}), "
            f"patches: {', '.join(self.patches) or 'none'}"
        )


def library_folder(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Returns the folder that llama_cpp loads its libraries from, None when not installed."""
    if override := environ.get("LLAMA_CPP_LIB_PATH"):
        return Path(override)
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "lib"


def read_build_info(folder: Path) -> BuildInfo | None:
    """Returns what the file in a library folder says, None when there is none or it is damaged."""
    try:
        content = json.loads((folder / INFO_FILE).read_text(encoding="utf-8"))
        content["patches"] = tuple(content["patches"])
        return BuildInfo(**content)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def build_info() -> BuildInfo:
    """Returns what is installed; a stock or missing llama-cpp-python gives `patched` False."""
    folder = library_folder()
    info = read_build_info(folder) if folder else None
    if info is not None:
        return info
    try:
        version = importlib.metadata.version("llama-cpp-python") if folder else None
    except importlib.metadata.PackageNotFoundError:
        version = "unknown"
    return BuildInfo(patched=False, version=version)
