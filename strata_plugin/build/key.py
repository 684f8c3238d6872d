"""All that goes into a build, and the cache key made of it."""

import hashlib
import json
import os
import platform
import shlex
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from . import sdist
from .backend import Backend, choose_backend
from .native import read_native
from .patches import Patch, read_series
from .toolchain import Compiler, cmake_value, find_compilers, native_cpu, output_of

# Grows when the way of building changes so that equal inputs give another result.
RECIPE = 1

# Environment variables that compilers or CMake read and that change what is built.
_COMPILER_ENVIRONMENT = {"CC", "CXX", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS"}
_COMPILER_ENVIRONMENT |= {"CUDAFLAGS", "CUDAHOSTCXX", "SOURCE_DATE_EPOCH"}
_NOT_IN_KEY = {"CMAKE_ARGS", "CMAKE_BUILD_PARALLEL_LEVEL"}


@dataclass(frozen=True)
class BuildInputs:
    """Everything that decides what a build produces."""

    cmake_args: tuple[str, ...]
    backend: Backend
    compilers: tuple[Compiler, ...]  # C, C++, CUDA
    patches: tuple[Patch, ...] = ()
    native: Mapping[str, bytes] = field(default_factory=dict)
    sdist_sha256: str = sdist.SHA256
    cpu: str = ""  # the instruction set that is compiled for; "" where not this machine's own
    environment: tuple[tuple[str, str], ...] = ()
    python: str = ""
    libc: str = ""
    recipe: int = RECIPE

    def key(self) -> str:
        """Returns the cache key: equal inputs, equal key, whatever the day and the folder."""
        content = {f.name: getattr(self, f.name) for f in fields(self)}
        content["backend"] = [self.backend.name, self.backend.cuda_arch]
        content["compilers"] = [str(compiler) for compiler in self.compilers]
        content["patches"] = [[p.name, _sha(p.text)] for p in self.patches]
        content["native"] = {name: _sha(data) for name, data in self.native.items()}
        return _sha(json.dumps(content, sort_keys=True))[:20]

    def tree_key(self) -> str:
        """Returns the key without our native sources; builds that differ there share a tree."""
        return replace(self, native={}).key()


def _sha(data: str | bytes) -> str:
    if isinstance(data, str):
        data = data.encode("utf-8", "surrogateescape")
    return hashlib.sha256(data).hexdigest()


def collect(
    backend: str = "auto",
    cuda_arch: str | None = None,
    *,
    patched: bool = True,
    extra_args: tuple[str, ...] = (),
    environ: Mapping[str, str] = os.environ,
) -> BuildInputs:
    """Looks at the checkout and the machine and returns the inputs of a build made here and now.

    `patched` takes the series and our native sources in; `extra_args` are CMake arguments of the
    one product. The user's CMAKE_ARGS come last, so they win.
    """
    chosen = choose_backend(backend, cuda_arch)
    args = (*backend_args(chosen), *extra_args, *shlex.split(environ.get("CMAKE_ARGS", "")))
    c, cxx = find_compilers(args, environ)
    compilers = [c, cxx]
    if chosen.nvcc:
        version = (output_of([chosen.nvcc, "--version"]) or "unknown").strip().splitlines()
        compilers.append(Compiler((chosen.nvcc,), version[-1]))
    return BuildInputs(
        cmake_args=args,
        backend=chosen,
        compilers=tuple(compilers),
        patches=read_series() if patched else (),
        native=read_native() if patched else {},
        cpu=native_cpu(c) if builds_for_this_cpu(args, environ) else "",
        environment=_relevant(environ),
        python=f"{sys.version_info[0]}.{sys.version_info[1]} {sysconfig.get_config_var('SOABI')}",
        libc=" ".join((*platform.libc_ver(), platform.system(), platform.machine())),
    )


def backend_args(backend: Backend) -> tuple[str, ...]:
    """Returns the CMake arguments that all our builds share."""
    # ccache is set up by us, for all targets; llama.cpp's own warnings would bury ours in the log
    args = ["-DLLAMA_OPENSSL=OFF", "-DGGML_CCACHE=OFF", "-DLLAMA_ALL_WARNINGS=OFF", "-Wno-dev"]
    if backend.name == "cuda":
        args += ["-DGGML_CUDA=ON", f"-DCMAKE_CUDA_ARCHITECTURES={backend.cuda_arch}"]
    else:
        args.append("-DGGML_CUDA=OFF")
    return tuple(args)


def builds_for_this_cpu(args: tuple[str, ...], environ: Mapping[str, str]) -> bool:
    """True when GGML_NATIVE is on: given, or by ggml's default."""
    value = cmake_value(args, "GGML_NATIVE")
    if value is None:
        return "SOURCE_DATE_EPOCH" not in environ
    return value.upper() not in ("OFF", "0", "NO", "FALSE", "N", "")


def _relevant(environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(
        (name, value)
        for name, value in sorted(environ.items())
        if name in _COMPILER_ENVIRONMENT
        or (name.startswith(("CMAKE_", "SKBUILD_")) and name not in _NOT_IN_KEY)
    )
