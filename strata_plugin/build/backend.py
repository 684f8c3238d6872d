"""Which backend to build for: CPU or CUDA, decided by what the machine has."""

import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .errors import BuildError
from .toolchain import output_of

DEFAULT_CUDA_ARCH = "89"
BACKENDS = ("auto", "cpu", "cuda")


def has_gpu_driver() -> bool:
    """True when an NVIDIA driver is there."""
    # /dev/dxg with NVIDIA's nvidia-smi is what Windows' Linux subsystem shows instead
    return Path("/dev/nvidia0").exists() or output_of(["nvidia-smi", "-L"]) is not None


def find_nvcc(environ: Mapping[str, str] = os.environ) -> str | None:
    """Returns the path of the CUDA compiler: $CUDACXX, PATH, $CUDA_HOME, /usr/local/cuda."""
    places = [environ.get("CUDACXX"), "nvcc"]
    for home in (environ.get("CUDA_HOME"), environ.get("CUDA_PATH"), "/usr/local/cuda"):
        places.append(f"{home}/bin/nvcc" if home else None)
    for place in filter(None, places):
        if path := shutil.which(place):
            return path
    return None


def gpu_arch() -> str | None:
    """Returns the first GPU's compute capability as CMake writes it, e.g. "89"; None if unknown."""
    text = output_of(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]) or ""
    match = re.match(r"(\d+)\.(\d)\b", text)
    return match[1] + match[2] if match else None


@dataclass(frozen=True)
class Backend:
    """The chosen backend; `note` says why when the choice may surprise."""

    name: str  # cpu or cuda
    cuda_arch: str | None = None
    nvcc: str | None = None
    note: str = ""


def choose_backend(
    wanted: str,
    cuda_arch: str | None = None,
    *,
    driver: Callable[[], bool] = has_gpu_driver,
    nvcc: Callable[[], str | None] = find_nvcc,
    arch: Callable[[], str | None] = gpu_arch,
) -> Backend:
    """Chooses CPU or CUDA; `auto` takes CUDA when both a GPU driver and nvcc are there."""
    if wanted not in BACKENDS:
        raise BuildError(f"unknown backend {wanted!r}: one of {', '.join(BACKENDS)}")
    if wanted == "cpu":
        return Backend("cpu")
    if wanted == "auto" and not driver():
        return Backend("cpu")
    compiler = nvcc()
    if compiler is None:
        if wanted == "cuda":
            raise BuildError(
                "BACKEND=cuda needs nvcc, which was not found. On Debian and Ubuntu: "
                "apt-get install nvidia-cuda-toolkit, or NVIDIA's own packages"
            )
        return Backend("cpu", note="a GPU driver is here but no nvcc: building for the CPU")
    return Backend("cuda", cuda_arch or arch() or DEFAULT_CUDA_ARCH, compiler)
