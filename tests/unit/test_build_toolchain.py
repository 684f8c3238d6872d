"""Choosing backend and tools, with probes put in their place."""

import sys
from pathlib import Path

import pytest

from strata_plugin.build import toolchain
from strata_plugin.build.backend import Backend, choose_backend, find_nvcc
from strata_plugin.build.errors import BuildError
from strata_plugin.build.toolchain import Compiler, find_compilers, native_cpu, parallel_jobs
from strata_plugin.build.upstream import amx_args


def choose(wanted: str, *, driver: bool, nvcc: bool, given: str | None = None) -> Backend:
    return choose_backend(
        wanted,
        given,
        driver=lambda: driver,
        nvcc=lambda: "/opt/nvcc" if nvcc else None,
        arch=lambda: "90",
    )


def test_auto_takes_cuda_only_with_driver_and_compiler() -> None:
    assert choose("auto", driver=True, nvcc=True) == Backend("cuda", "90", "/opt/nvcc")
    assert choose("auto", driver=False, nvcc=True).name == "cpu"
    assert choose("auto", driver=False, nvcc=False).name == "cpu"


def test_auto_says_why_a_gpu_is_left_out() -> None:
    chosen = choose("auto", driver=True, nvcc=False)
    assert chosen.name == "cpu"
    assert "no nvcc" in chosen.note


def test_cpu_is_cpu_whatever_is_there() -> None:
    assert choose("cpu", driver=True, nvcc=True) == Backend("cpu")


def test_cuda_needs_no_driver_but_a_compiler() -> None:
    assert choose("cuda", driver=False, nvcc=True).name == "cuda"
    with pytest.raises(BuildError, match="needs nvcc"):
        choose("cuda", driver=True, nvcc=False)


def test_given_architecture_wins_and_89_is_the_last_resort() -> None:
    assert choose("cuda", driver=True, nvcc=True, given="120").cuda_arch == "120"
    unknown = choose_backend("cuda", driver=lambda: True, nvcc=lambda: "/n", arch=lambda: None)
    assert unknown.cuda_arch == "89"


def test_unknown_backend_is_refused() -> None:
    with pytest.raises(BuildError, match="unknown backend 'metal'"):
        choose_backend("metal")


def test_nvcc_is_found_below_cuda_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvcc = program(tmp_path / "bin" / "nvcc", "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert find_nvcc({"CUDA_HOME": str(tmp_path)}) == str(nvcc)


def program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_no_compiler_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(BuildError, match=r"no C compiler found .*apt-get install g\+\+"):
        find_compilers([], {})


def test_compiler_is_taken_from_cmake_args_then_environment(tmp_path: Path) -> None:
    one = program(tmp_path / "one", "echo one 1.0")
    two = program(tmp_path / "two", "echo two $1")
    c, cxx = find_compilers([f"-DCMAKE_C_COMPILER={one}"], {"CC": str(two), "CXX": f"{two} --flag"})
    assert c == Compiler((str(one),), "one 1.0")
    assert cxx == Compiler((str(two), "--flag"), "two --flag")


def test_cpu_name_follows_what_the_compiler_makes_of_it(tmp_path: Path) -> None:
    def named(words: str) -> str:
        script = f"echo 'lib/cc1 -E {words}' >&2"
        return native_cpu(Compiler((str(program(tmp_path / "cc", script)),), ""))

    plain = named("-march=haswell -mavx2")
    assert named("-march=haswell -mavx2 --param l2-cache-size=512") == plain
    assert named("-march=haswell -mavx2 -mavx512f") != plain
    assert named("-cc1 -target-cpu znver3") != named("-cc1 -target-cpu znver4")


@pytest.mark.parametrize(
    ("version", "found"), [("3.20.9", False), ("3.21.0", True), ("4.0.1", True)]
)
def test_cmake_must_be_new_enough(
    version: str, found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cmake = program(tmp_path / "bin" / "cmake", f"echo cmake version {version}")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "python"))
    monkeypatch.setenv("PATH", str(cmake.parent))
    if found:
        assert toolchain.find_cmake() == str(cmake)
    else:
        with pytest.raises(BuildError, match=r"3\.21 or newer is needed .*is 3\.20"):
            toolchain.find_cmake()


def test_environment_s_own_cmake_is_taken_where_the_system_s_is_too_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = program(tmp_path / "bin" / "cmake", "echo cmake version 3.10.2")
    new = program(tmp_path / "venv" / "cmake", "echo cmake version 3.31.0")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "python"))
    monkeypatch.setenv("PATH", str(old.parent))
    assert toolchain.find_cmake() == str(new)


def test_jobs_are_bounded_by_cpus_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(16)))
    for kilobytes, cpu, cuda in [(64 << 20, 16, 16), (8 << 20, 8, 2), (1 << 18, 1, 1)]:
        text = f"MemTotal: 1 kB\nMemAvailable:   {kilobytes} kB\n"
        monkeypatch.setattr(toolchain, "_meminfo", lambda text=text: text)
        assert (parallel_jobs("cpu"), parallel_jobs("cuda")) == (cpu, cuda)


def test_only_the_gcc_that_drops_the_tile_configuration_gets_a_flag_for_the_yardstick() -> None:
    assert amx_args("g++ (Debian 12.2.0-14+deb12u1) 12.2.0") == ("-DCMAKE_CXX_FLAGS=-fno-dse",)
    assert amx_args("g++ (Ubuntu 13.3.0-6ubuntu2) 13.3.0") == ()
    assert amx_args("Debian clang version 14.0.6") == ()
