"""`python -m tests.kernels.backend_ops [ARGUMENTS]`: ggml's own test-backend-ops, built from the
patched source for the CPU, run on MUL_MAT_ID or with the arguments that are given.

Not part of the test suite: it compiles for minutes and runs for half an hour.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from strata_plugin.build.cache import BuildCache
from strata_plugin.build.source import source_tree
from strata_plugin.build.toolchain import find_cmake, find_ninja

DEFAULT = ("test", "-b", "CPU", "-o", "MUL_MAT_ID")


def build(cache: BuildCache) -> Path:
    """The compiled program."""
    tree = source_tree(patched=True, cache=cache)
    folder = cache.folder("work") / f"backend-ops-{tree.name}"
    cmake = find_cmake()
    options = ["-DCMAKE_BUILD_TYPE=Release", f"-DCMAKE_MAKE_PROGRAM={find_ninja()}"]
    options += [f"-DLLAMA_BUILD_{part}=OFF" for part in ("TOOLS", "EXAMPLES", "SERVER")]
    if ccache := shutil.which("ccache"):
        options += [f"-DCMAKE_{language}_COMPILER_LAUNCHER={ccache}" for language in ("C", "CXX")]
    source = tree / "vendor/llama.cpp"
    subprocess.run(
        [cmake, "-S", source, "-B", folder, "-G", "Ninja", "-DLLAMA_BUILD_TESTS=ON", *options],
        check=True,
    )
    subprocess.run([cmake, "--build", folder, "--target", "test-backend-ops"], check=True)
    return folder / "bin/test-backend-ops"


def main(arguments: Sequence[str]) -> None:
    """Build it, then become it."""
    program = build(BuildCache())
    os.execv(program, [str(program), *(arguments or DEFAULT)])


if __name__ == "__main__":
    main(sys.argv[1:])
