"""Builds the patched wheel, or takes it from the cache."""

import importlib.util
import json
import os
import shlex
import shutil
import sys
import time
import zipfile
from pathlib import Path

from . import sdist
from .cache import BuildCache, touch
from .errors import BuildError
from .info import INFO_FILE, BuildInfo
from .key import BuildInputs
from .native import write_native
from .progress import Progress, run_logged
from .source import read_llama_commit, unpack_with
from .toolchain import find_cmake, find_ninja, parallel_jobs

# Without one of these the engine cannot start.
REQUIRED_LIBRARIES = ("ggml", "ggml-base", "ggml-cpu", "llama", "llama-common", "mtmd", "strata")

# Run as a program of its own: the build backend prints straight to our pipe.
_BACKEND_CALL = """
import json, sys
from scikit_build_core.build import build_wheel
print("wheel:", build_wheel(sys.argv[1], json.loads(sys.argv[2])))
"""


def cached_wheel(cache: BuildCache, key: str) -> Path | None:
    """Returns the wheel of this key, None when it has not been built yet."""
    folder = cache.folder("wheels") / key
    return next(iter(sorted(folder.glob("*.whl"))), None) if folder.is_dir() else None


def ensure_wheel(cache: BuildCache, inputs: BuildInputs) -> Path:
    """Returns the wheel of these inputs, built when the cache has none. Holds the cache's lock."""
    key = inputs.key()
    with cache.lock():
        wheel = cached_wheel(cache, key)
        if wheel is None:
            _build(cache, inputs, key)
            wheel = cached_wheel(cache, key)
            assert wheel is not None
        touch(wheel.parent)
        cache.prune("wheels")
    return wheel


def _build(cache: BuildCache, inputs: BuildInputs, key: str) -> None:
    cmake, ninja = find_cmake(), find_ninja()
    _require_scikit_build_core()
    started = time.monotonic()
    work = work_tree(cache, inputs)
    tree = work / "tree"
    write_native(work / "native", inputs.native)
    commit = read_llama_commit(tree)
    info = BuildInfo(
        patched=True,
        llama_commit=commit,
        patches=tuple(patch.title for patch in inputs.patches),
        backend=inputs.backend.name,
        cuda_arch=inputs.backend.cuda_arch,
        key=key,
        version=sdist.VERSION,
    )
    # CMake installs into the package's own folder as well; nothing of an earlier build may stay
    shutil.rmtree(tree / "llama_cpp" / "lib", ignore_errors=True)
    (work / INFO_FILE).write_text(info.to_json(), encoding="utf-8")
    args = [
        *version_args(commit),
        f"-DSTRATA_NATIVE_DIR={work / 'native'}",
        f"-DSTRATA_BUILD_INFO={work / INFO_FILE}",
        f"-DSTRATA_PATCHES={','.join(info.patches)}",
        f"-DSTRATA_LLAMA_COMMIT={commit}",
        *launcher_args(inputs),
        *inputs.cmake_args,
    ]
    settings = {
        "build-dir": str(work / "build"),
        "cmake.args": args,
        "install.components": ["llama_cpp_python"],
        "cmake.verbose": "false",  # ninja still shows the command that fails
    }
    log = cache.folder("logs") / f"{key}.log"
    log.unlink(missing_ok=True)
    jobs = parallel_jobs(inputs.backend.name)
    print(
        f"building llama.cpp {commit} + {len(inputs.patches)} patches for {describe(inputs)}, "
        f"{jobs} jobs, log {log}",
        flush=True,
    )
    with cache.publishing("wheels", key) as folder:
        run_logged(
            [sys.executable, "-u", "-c", _BACKEND_CALL, str(folder), json.dumps(settings)],
            cwd=tree,
            env=build_environ(cache, inputs, cmake, ninja, jobs),
            log=log,
            progress=Progress("compiling", sys.stdout),
        )
        check_wheel(next(folder.glob("*.whl")))
    cache.prune("work")
    cache.prune("logs")
    print(f"built in {time.monotonic() - started:.0f} s", flush=True)


def work_tree(cache: BuildCache, inputs: BuildInputs) -> Path:
    """Returns a folder with the unpacked, patched `tree`; `build` beside it is kept between builds.

    It is shared by builds that differ in our native sources only, and by one that was interrupted
    and its next try, so only what changed is compiled again.
    """
    name = inputs.tree_key()
    work = cache.folder("work") / name
    if not work.is_dir():
        with cache.publishing("work", name) as folder:
            unpack_with(folder / "tree", inputs.patches, cache)
    touch(work)
    return work


def version_args(commit: str) -> list[str]:
    """Returns what makes llama_build_info() name the commit: the archive is no git checkout."""
    # The build number counts upstream's commits, which the archive does not tell.
    return [f"-DLLAMA_BUILD_COMMIT={commit}", "-DLLAMA_BUILD_NUMBER=0"]


def launcher_args(inputs: BuildInputs) -> list[str]:
    """Returns CMake arguments that put ccache before each compiler, where there is one."""
    ccache = shutil.which("ccache")
    languages = ("C", "CXX", "CUDA")[: len(inputs.compilers)] if ccache else ()
    return [f"-DCMAKE_{language}_COMPILER_LAUNCHER={ccache}" for language in languages]


def build_environ(
    cache: BuildCache, inputs: BuildInputs, cmake: str, ninja: str, jobs: int
) -> dict[str, str]:
    """Returns the environment that CMake and ninja run in."""
    env: dict[str, str] = dict(os.environ)
    env.pop("CMAKE_ARGS", None)  # already among the arguments, after ours
    path = env.get("PATH", os.defpath).split(os.pathsep)
    tools = dict.fromkeys(str(Path(tool).parent) for tool in (cmake, ninja))
    # only what is missing goes in front: a folder moved there could change the compiler found
    env["PATH"] = os.pathsep.join([*(tool for tool in tools if tool not in path), *path])
    env["CMAKE_GENERATOR"] = "Ninja"
    env["CMAKE_BUILD_PARALLEL_LEVEL"] = str(jobs)
    # The compilers of the key, whatever CMake or the build backend would choose themselves.
    for name, compiler in zip(("CC", "CXX", "CUDACXX"), inputs.compilers, strict=False):
        env.setdefault(name, shlex.join(compiler.command))
    # A repository that the cache may lie in has no say in llama.cpp's version.
    env["GIT_CEILING_DIRECTORIES"] = str(cache.root)
    # Paths relative to the cache let ccache find objects compiled in another build tree.
    env.setdefault("CCACHE_BASEDIR", str(cache.root))
    env.setdefault("CCACHE_NOHASHDIR", "1")
    return env


def describe(inputs: BuildInputs) -> str:
    """Names the backend for people."""
    backend = inputs.backend
    return f"CUDA {backend.cuda_arch}" if backend.name == "cuda" else "CPU"


def check_wheel(wheel: Path) -> None:
    """Raises BuildError when the wheel lacks a library or the build's description."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    wanted = [f"llama_cpp/lib/lib{name}.so" for name in REQUIRED_LIBRARIES]
    missing = [name for name in [*wanted, f"llama_cpp/lib/{INFO_FILE}"] if name not in names]
    if missing:
        raise BuildError(f"{wheel.name} lacks {', '.join(missing)}")


def _require_scikit_build_core() -> None:
    if importlib.util.find_spec("scikit_build_core") is None:
        raise BuildError(
            f"scikit-build-core is not installed for {sys.executable}: pip install -e '.[build]'"
        )
