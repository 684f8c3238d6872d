"""Builds upstream's own llama-server from the same pinned archive, unpatched: the yardstick."""

import json
import os
import re
import shutil
import sys
import time
from pathlib import Path

from .cache import BuildCache, touch
from .key import BuildInputs, collect
from .progress import Progress, run_logged
from .source import read_llama_commit
from .toolchain import find_cmake, find_compilers, find_ninja, parallel_jobs
from .wheel import build_environ, describe, launcher_args, version_args, work_tree

# Upstream's defaults, without what the server does not need or would have to download.
_ARGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DCMAKE_BUILD_RPATH_USE_ORIGIN=ON",  # lets the finished folder be moved
)


def upstream_inputs(backend: str = "auto", cuda_arch: str | None = None) -> BuildInputs:
    """Returns the inputs of the unpatched server, with the same GGML flags as the wheel's."""
    _, cxx = find_compilers((), os.environ)
    return collect(backend, cuda_arch, patched=False, extra_args=(*_ARGS, *amx_args(cxx.version)))


def amx_args(compiler: str) -> tuple[str, ...]:
    """Returns what GCC before 13 needs to compile ggml's AMX code right without our patch 0003.

    It drops stores to the tile configuration as dead; llama-server then crashes on CPUs with AMX.
    `compiler` is the first line of its --version.
    """
    match = re.search(r"(\d+)\.\d+\.\d+\s*$", compiler)
    if "clang" in compiler or not match or int(match[1]) >= 13:
        return ()
    return ("-DCMAKE_CXX_FLAGS=-fno-dse",)


def ensure_server(cache: BuildCache, inputs: BuildInputs) -> Path:
    """Returns the path of llama-server, its libraries beside it; builds it when needed."""
    key = inputs.key()
    binary = cache.folder("upstream") / key / "llama-server"
    with cache.lock():
        if not binary.is_file():
            _build(cache, inputs, key)
        touch(binary.parent)
        cache.prune("upstream")
    return binary


def _build(cache: BuildCache, inputs: BuildInputs, key: str) -> None:
    cmake, ninja = find_cmake(), find_ninja()
    started = time.monotonic()
    work = work_tree(cache, inputs)
    build = work / "build"
    commit = read_llama_commit(work / "tree")
    jobs = parallel_jobs(inputs.backend.name)
    log = cache.folder("logs") / f"{key}.log"
    log.unlink(missing_ok=True)
    print(
        f"building upstream's llama-server {commit} for {describe(inputs)}, {jobs} jobs, log {log}",
        file=sys.stderr,
        flush=True,
    )
    args = [*version_args(commit), *launcher_args(inputs), *inputs.cmake_args]
    source = work / "tree" / "vendor" / "llama.cpp"
    env = build_environ(cache, inputs, cmake, ninja, jobs)
    for command in (
        [cmake, "-S", str(source), "-B", str(build), *args],
        [cmake, "--build", str(build), "--target", "llama-server"],
    ):
        progress = Progress("compiling", sys.stderr)
        run_logged(command, cwd=work, env=env, log=log, progress=progress)
    with cache.publishing("upstream", key) as folder:
        for path in sorted((build / "bin").iterdir()):
            if path.is_file():
                shutil.copy2(path, folder / path.name, follow_symlinks=False)
        content = {"llama_commit": commit, "key": key, "cmake_args": list(inputs.cmake_args)}
        (folder / "build.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    shutil.rmtree(work)
    print(f"built in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
