"""What the machine has to build with: compilers, CMake, ninja, and the CPU they build for."""

import hashlib
import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import BuildError

MIN_CMAKE = (3, 21)
_GIB = 1 << 30


@dataclass(frozen=True)
class Compiler:
    """A compiler as it enters the cache key."""

    command: tuple[str, ...]  # whole path first, then any words that $CC adds
    version: str  # first line of --version

    def __str__(self) -> str:
        return f"{shlex.join(self.command)}: {self.version}"


def output_of(command: Sequence[str]) -> str | None:
    """Returns what a quick command prints (both streams), or None when it fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout + done.stderr if done.returncode == 0 else None


def which(name: str) -> str | None:
    """Finds a program beside this Python (a virtual environment's), else on PATH."""
    beside = Path(sys.executable).parent / name
    return str(beside) if os.access(beside, os.X_OK) else shutil.which(name)


def cmake_value(args: Sequence[str], name: str) -> str | None:
    """Returns the last value that -DNAME[:TYPE]=VALUE gives a CMake variable."""
    value = None
    for argument in args:
        if match := re.fullmatch(rf"-D{re.escape(name)}(?::\w+)?=(.*)", argument, re.S):
            value = match[1]
    return value


def find_compilers(args: Sequence[str], environ: Mapping[str, str]) -> tuple[Compiler, Compiler]:
    """Returns the C and C++ compilers that CMake will choose."""
    c = _find_compiler("C", cmake_value(args, "CMAKE_C_COMPILER") or environ.get("CC"))
    cxx = _find_compiler("C++", cmake_value(args, "CMAKE_CXX_COMPILER") or environ.get("CXX"))
    return c, cxx


def _find_compiler(language: str, wanted: str | None) -> Compiler:
    usual = ["cc", "gcc", "clang"] if language == "C" else ["c++", "g++", "clang++"]
    candidates = [wanted] if wanted else usual
    for candidate in candidates:
        name, *words = shlex.split(candidate)
        path = shutil.which(name)
        version = output_of([path, *words, "--version"]) if path else None
        if path and version:
            return Compiler((path, *words), version.partition("\n")[0])
    raise BuildError(
        f"no {language} compiler found (looked for {', '.join(candidates)}). "
        "On Debian and Ubuntu: apt-get install g++"
    )


def find_cmake() -> str:
    """Returns the path of a CMake that is new enough."""
    seen = []
    beside = str(Path(sys.executable).parent / "cmake")
    for path in filter(None, (beside, shutil.which("cmake"))):
        version = output_of([path, "--version"]) or ""
        if match := re.search(r"version (\d+)\.(\d+)", version):
            if (int(match[1]), int(match[2])) >= MIN_CMAKE:
                return path
            seen.append(f"{path} is {match[1]}.{match[2]}")
    wanted = ".".join(map(str, MIN_CMAKE))
    raise BuildError(
        f"CMake {wanted} or newer is needed ({'; '.join(seen) or 'none found'}). "
        "On Debian and Ubuntu: apt-get install cmake; or: pip install cmake"
    )


def find_ninja() -> str:
    """Returns the path of ninja."""
    if path := which("ninja"):
        return path
    raise BuildError("ninja is needed. pip install ninja; or: apt-get install ninja-build")


def native_cpu(compiler: Compiler) -> str:
    """Names the instruction set that -march=native stands for here.

    Asks the compiler, since only what it makes of the CPU changes the code; cache sizes are left
    out, since virtual machines report changing ones.
    """
    for flag in ("-march=native", "-mcpu=native"):
        text = output_of([*compiler.command, flag, "-E", "-v", "-x", "c", "/dev/null"]) or ""
        for line in text.splitlines():
            if "cc1" in line:
                return _digest(_target_words(shlex.split(line)))
    return _digest(_cpuinfo())


def _target_words(words: Sequence[str]) -> list[str]:
    kept = [word for word in words if word.startswith("-m")]
    for option, value in itertools.pairwise(words):
        if option in ("-target-cpu", "-target-feature", "-tune-cpu"):  # clang's way to say it
            kept.append(f"{option}={value}")
    return kept


def _cpuinfo() -> list[str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    wanted = re.compile(r"^(?:model name|flags|Features|CPU part)\s*:.*$", re.M)
    return sorted(set(wanted.findall(text)))


def _digest(words: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:16]


def parallel_jobs(backend: str) -> int:
    """Returns how many compilers to run at once: one per CPU, fewer when memory is short."""
    cpus = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if match := re.search(r"^MemAvailable:\s+(\d+) kB", _meminfo(), re.M):
        memory = int(match[1]) * 1024
    need = 3 * _GIB if backend == "cuda" else _GIB
    return max(1, min(cpus, memory // need))


def _meminfo() -> str:
    try:
        return Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return ""
