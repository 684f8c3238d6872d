"""What the flags that only print something print."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from strata_server import information
from strata_server.flags import BY_NAME
from tests.unit.test_model_file import repository


def shown(action: str, capsys: Any, environ: dict[str, str] | None = None) -> str:
    assert information.show(action, environ or {}) == 0
    out: str = capsys.readouterr().out
    return out


def test_the_help_is_grouped_and_fits_a_terminal(capsys: Any) -> None:
    text = shown("help", capsys)
    for title in ("Model:", "Context and speed:", "Sampling defaults:", "Chat:", "Server:"):
        assert f"\n{title}\n" in text
    assert max(len(line) for line in text.splitlines()) <= 100
    assert "they are refused" in text and "--lora" in text


def test_a_flag_tells_default_and_environment_name() -> None:
    describe = information.describe
    assert describe(BY_NAME["--port"][0]) == (
        "port to listen on; 0: any free one (default: 8080; env: LLAMA_ARG_PORT)"
    )
    assert describe(BY_NAME["--jinja"][0]).endswith("(default: on; env: LLAMA_ARG_JINJA)")
    assert describe(BY_NAME["--threads-http"][0]).endswith(
        "(accepted, changes nothing; env: LLAMA_ARG_THREADS_HTTP)"
    )


def test_models_in_the_cache(capsys: Any, tmp_path: Path) -> None:
    repository(tmp_path, "o/m", "m-Q8_0.gguf")
    text = shown("cache_list", capsys, {"LLAMA_CACHE": str(tmp_path)})
    assert text == f"models in {tmp_path}: 1\n   1. o/m:Q8_0\n"


def test_the_version_names_llama_cpp_and_each_patch(
    capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = {
        "llama_commit": "abc123",
        "build_number": 7,
        "compiler": "GNU 12",
        "target": "x86_64",
        "patches": ["0001-a", "0002-b"],
    }
    monkeypatch.setattr(information, "native_build", lambda: build)
    lines = shown("version", capsys).splitlines()
    assert lines[0].startswith("strata ")
    assert lines[1:] == [
        "llama.cpp abc123 (build 7), GNU 12 for x86_64",
        "patches: 0001-a, 0002-b",
        "kernel switches: none",
    ]


def test_the_version_without_a_patched_build_says_so(
    capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> Any:
        raise RuntimeError("not built")

    monkeypatch.setattr(information, "native_build", missing)
    assert "the native library cannot be loaded (not built)" in shown("version", capsys)
