"""Loading libstrata: what a person is told when it is not there or too old."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from strata_plugin.runtime import native_library
from strata_plugin.runtime.native import Frontend, NativeUnavailable, build_info
from strata_plugin.runtime.native_library import API_VERSION, NativeError, error_of, library


@pytest.fixture(autouse=True)
def fresh_library() -> Iterator[None]:
    """No test leaves a library behind that another one would use."""
    library.cache_clear()
    yield
    library.cache_clear()


def one_sentence(text: str) -> bool:
    return text.count(". ") == 0 and text.endswith(".") and "\n" not in text


def test_a_stock_build_is_told_in_one_sentence_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_library, "lib_dir", lambda: tmp_path)
    for use in (build_info, lambda: Frontend(None, {})):
        with pytest.raises(NativeUnavailable, match="patched") as caught:
            use()
        assert one_sentence(str(caught.value))


def test_a_damaged_library_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_library, "lib_dir", lambda: tmp_path)
    for suffix in (".so", ".dylib", ".dll"):
        (tmp_path / f"libstrata{suffix}").write_bytes(b"not a library")
    with pytest.raises(NativeUnavailable, match="cannot be loaded"):
        library()


def test_a_library_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        library()
    except NativeUnavailable as e:
        pytest.skip(str(e))
    library.cache_clear()
    monkeypatch.setattr(native_library, "API_VERSION", API_VERSION + 1)
    with pytest.raises(NativeUnavailable, match="out of date"):
        library()


def test_the_plugin_is_imported_without_loading_anything() -> None:
    code = "import sys, strata_plugin; assert 'llama_cpp' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_an_error_without_a_text_is_out_of_memory() -> None:
    from ctypes import c_void_p

    error = error_of(None, c_void_p())
    assert isinstance(error, NativeError)
    assert (error.code, error.type, error.message) == (500, "server_error", "out of memory")


@pytest.mark.skipif(sys.platform != "linux", reason="$LD_LIBRARY_PATH is Linux's")
def test_another_llama_cpp_in_the_library_path_is_not_mixed_with_ours(tmp_path: Path) -> None:
    for name in ("ggml", "ggml-base", "ggml-cpu", "llama"):
        (tmp_path / f"lib{name}.so").write_bytes(b"not ours")
    code = "from strata_plugin.runtime.library import llama; llama.llama_backend_init()"
    environ = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], env=environ, check=True, timeout=60)
