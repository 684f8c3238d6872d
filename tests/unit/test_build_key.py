"""The cache key: it changes with each thing that changes what is built, and with nothing else."""

from dataclasses import fields, replace
from pathlib import Path

import pytest

from strata_plugin.build import key as key_module
from strata_plugin.build.backend import Backend
from strata_plugin.build.errors import BuildError
from strata_plugin.build.key import BuildInputs, backend_args, builds_for_this_cpu, collect
from strata_plugin.build.native import read_native, write_native
from strata_plugin.build.patches import Patch
from strata_plugin.build.source import tree_name
from strata_plugin.build.toolchain import Compiler, cmake_value

BASE = BuildInputs(
    cmake_args=("-DGGML_CUDA=OFF",),
    backend=Backend("cpu"),
    compilers=(Compiler(("/usr/bin/cc",), "cc 12.2"),),
    patches=(Patch("0001-a.patch", "text"), Patch("0002-b.patch", "more")),
    native={"strata.h": b"x"},
    sdist_sha256="0" * 64,
    cpu="avx2",
    environment=(("CFLAGS", "-O2"),),
    python="3.11 cpython-311",
    libc="glibc 2.36",
)

CHANGES: dict[str, list[object]] = {
    "cmake_args": [("-DGGML_CUDA=OFF", "-DGGML_OPENMP=OFF"), ()],
    "backend": [Backend("cuda", "89"), Backend("cuda", "90")],
    "compilers": [
        (Compiler(("/usr/bin/cc",), "cc 13.1"),),
        (Compiler(("/opt/cc",), "cc 12.2"),),
        (Compiler(("/usr/bin/cc", "-m32"), "cc 12.2"),),
    ],
    "patches": [
        (Patch("0001-a.patch", "text2"), BASE.patches[1]),
        (Patch("0001-renamed.patch", "text"), BASE.patches[1]),
        BASE.patches[::-1],
        BASE.patches[:1],
    ],
    "native": [{"strata.h": b"y"}, {"strata2.h": b"x"}, {"strata.h": b"x", "new.cpp": b""}],
    "sdist_sha256": ["1" * 64],
    "cpu": ["avx512", ""],
    "environment": [(("CFLAGS", "-O3"),), ()],
    "python": ["3.12 cpython-312"],
    "libc": ["glibc 2.39"],
    "recipe": [BASE.recipe + 1],
}


def test_equal_inputs_give_an_equal_key_that_fits_a_folder_name() -> None:
    again = replace(BASE, native=dict(BASE.native))
    assert again.key() == BASE.key()
    assert BASE.key().isalnum()
    assert len(BASE.key()) == 20


@pytest.mark.parametrize("name", [f.name for f in fields(BuildInputs)])
def test_key_changes_when_an_input_changes(name: str) -> None:
    keys = [replace(BASE, **{name: value}).key() for value in CHANGES[name]]  # type: ignore[arg-type]
    assert len({BASE.key(), *keys}) == len(keys) + 1


def test_build_tree_is_shared_by_builds_that_differ_in_native_sources_only() -> None:
    assert replace(BASE, native={"strata.h": b"y"}).tree_key() == BASE.tree_key()
    assert replace(BASE, patches=()).tree_key() != BASE.tree_key()


def test_source_tree_name_changes_with_patch_content_and_order() -> None:
    names = [BASE.patches, BASE.patches[::-1], BASE.patches[:1], ()]
    assert len({tree_name(patches) for patches in names}) == len(names)


@pytest.mark.parametrize(
    ("args", "environ", "native"),
    [
        ((), {}, True),
        ((), {"SOURCE_DATE_EPOCH": "0"}, False),
        (("-DGGML_NATIVE=OFF",), {}, False),
        (("-DGGML_NATIVE:BOOL=0",), {}, False),
        (("-DGGML_NATIVE=OFF", "-DGGML_NATIVE=ON"), {"SOURCE_DATE_EPOCH": "0"}, True),
    ],
)
def test_cpu_counts_only_when_the_build_is_for_this_cpu(
    args: tuple[str, ...], environ: dict[str, str], native: bool
) -> None:
    assert builds_for_this_cpu(args, environ) is native


def test_cmake_value_takes_the_last_and_exact_name() -> None:
    args = ["-DA=1", "-DA:STRING=2", "-DAB=3", "A=4"]
    assert cmake_value(args, "A") == "2"
    assert cmake_value(args, "B") is None


def test_cuda_arguments_name_the_architecture() -> None:
    args = backend_args(Backend("cuda", "90"))
    assert cmake_value(args, "GGML_CUDA") == "ON"
    assert cmake_value(args, "CMAKE_CUDA_ARCHITECTURES") == "90"
    assert cmake_value(backend_args(Backend("cpu")), "GGML_CUDA") == "OFF"


@pytest.fixture
def fake_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = Compiler(("/usr/bin/cc",), "cc 12.2")
    monkeypatch.setattr(key_module, "find_compilers", lambda args, environ: (compiler, compiler))
    monkeypatch.setattr(key_module, "native_cpu", lambda c: "avx2")
    monkeypatch.setattr(key_module, "read_native", lambda: {"strata.h": b"x"})


@pytest.mark.usefixtures("fake_machine")
def test_cmake_args_of_the_user_come_last_and_change_the_key() -> None:
    plain = collect("cpu", environ={})
    own = collect("cpu", environ={"CMAKE_ARGS": "-DGGML_OPENMP=OFF '-DX=a b'"})
    assert own.cmake_args == (*plain.cmake_args, "-DGGML_OPENMP=OFF", "-DX=a b")
    assert own.key() != plain.key()


@pytest.mark.usefixtures("fake_machine")
def test_only_environment_that_matters_changes_the_key() -> None:
    plain = collect("cpu", environ={})
    assert collect("cpu", environ={"HOME": "/x", "CMAKE_BUILD_PARALLEL_LEVEL": "3"}) == plain
    for name in ("CXXFLAGS", "SOURCE_DATE_EPOCH", "CMAKE_PREFIX_PATH"):
        assert collect("cpu", environ={name: "1"}).key() != plain.key(), name


@pytest.mark.usefixtures("fake_machine")
def test_unpatched_build_takes_neither_patches_nor_native_sources() -> None:
    inputs = collect("cpu", patched=False, extra_args=("-DX=1",), environ={})
    assert inputs.patches == ()
    assert inputs.native == {}
    assert inputs.cmake_args[-1] == "-DX=1"


def test_native_folder_is_read_without_python_and_written_exactly(tmp_path: Path) -> None:
    source, dest = tmp_path / "source", tmp_path / "dest"
    (source / "sub").mkdir(parents=True)
    for name in ("CMakeLists.txt", "a.cpp", "__init__.py", "sub/b.h"):
        (source / name).write_text(name)
    files = read_native(source)
    assert sorted(files) == ["CMakeLists.txt", "a.cpp", "sub/b.h"]
    write_native(dest, files)
    before = (dest / "a.cpp").stat().st_mtime_ns
    (source / "sub" / "b.h").unlink()
    write_native(dest, read_native(source))
    assert not (dest / "sub" / "b.h").exists()
    assert (dest / "a.cpp").stat().st_mtime_ns == before, "unchanged files must not be recompiled"


def test_native_folder_without_cmake_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"CMakeLists\.txt is missing"):
        read_native(tmp_path)
