"""From flags to the engine's and the server's configuration."""

from __future__ import annotations

import os
from typing import Any

import pytest

from strata_server.flags import UsageError, parse
from strata_server.model_file import ModelFile
from strata_server.options import context_sizes, engine_config, server_settings

MODEL = ModelFile("/m.gguf", "m")


def config(*argv: str) -> Any:
    parsed = parse(argv, {})
    return engine_config(parsed, MODEL, server_settings(parsed, MODEL))


@pytest.mark.parametrize(
    ("argv", "sizes"),
    [  # as llama-server reports them for a model trained with 8192 tokens; 0 stands for those
        ([], (4, 0, 0)),
        (["-c", "4096"], (4, 4096, 0)),
        (["-np", "-1", "-c", "4096"], (4, 4096, 0)),
        (["-np", "2", "-c", "4096"], (2, 4096, 2048)),
        (["-np", "3", "-c", "4096"], (3, 4608, 1536)),
        (["-np", "2", "-c", "300"], (2, 512, 256)),
        (["-np", "2", "-c", "4096", "-kvu"], (2, 4096, 0)),
        (["-np", "2"], (2, 0, 0)),
        (["-c", "4096", "--kv-unified-per-slot", "1000"], (4, 4096, 1000)),
        (["-np", "3", "--kv-unified-per-slot", "1000"], (3, 3072, 1000)),
        (["-c", "0", "--kv-unified-per-slot", "1000"], (4, 0, 1000)),
    ],
)
def test_slots_and_context(argv: list[str], sizes: tuple[int, int, int]) -> None:
    assert context_sizes(parse(argv, {})) == sizes


def test_threads_of_zero_mean_all() -> None:
    context = config("-t", "0", "-tb", "3").context
    assert (context.threads, context.threads_batch) == (os.cpu_count(), 3)
    assert config().context.threads == -1


def test_rope_scale_is_the_inverse_of_rope_freq_scale() -> None:
    assert config("--rope-scale", "4").context.rope_freq_scale == 0.25
    assert config("--rope-freq-scale", "0.5").context.rope_freq_scale == 0.5


def test_experts_on_the_cpu_come_after_what_the_user_placed() -> None:
    overrides = config("-cmoe", "-ot", "a=CUDA0", "-ncmoe", "1").model.tensor_overrides
    assert overrides[0] == ("a", "CUDA0")
    assert [buffer for _, buffer in overrides[1:]] == ["CPU", "CPU"]


def test_parking_memory() -> None:
    assert config().park_bytes == 8192 << 20
    assert config("-cram", "0").park_bytes == 0
    assert config("-cram", "-1").park_bytes > 1 << 60


def test_only_sampling_flags_that_are_given_are_passed_on() -> None:
    assert config().frontend["sampling"] == {}
    frontend = config("--temp", "0", "--typical", "0.9", "--mirostat-lr", "0.2").frontend
    assert frontend["sampling"] == {"temperature": 0.0, "typical_p": 0.9, "mirostat_eta": 0.2}


def test_sampler_flags_become_request_fields() -> None:
    sampling = config("--samplers", "top_k;temperature", "-l", "5+1").frontend["sampling"]
    assert sampling == {"samplers": ["top_k", "temperature"], "logit_bias": [[5, 1.0]]}
    assert config("--sampler-seq", "kt").frontend["sampling"]["samplers"] == [
        "top_k",
        "temperature",
    ]
    assert config("--dry-base", "0.5").frontend["sampling"] == {}  # as llama-server: ignored


def test_escapes_in_stop_texts_and_breakers() -> None:
    frontend = config("-r", r"a\nb\x41\q", "--dry-sequence-breaker", r"\t").frontend
    assert frontend["antiprompt"] == ["a\nbA\\q"]
    assert frontend["sampling"]["dry_sequence_breakers"] == ["\t"]
    assert config("--no-escape", "-r", r"\n").frontend["antiprompt"] == [r"\n"]
    none = config("--dry-sequence-breaker", "none").frontend
    assert none["sampling"]["dry_sequence_breakers"] == []


def test_two_grammars_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="--grammar and --json-schema exclude each other"):
        config("--grammar", "root ::= x", "-j", "{}")


def test_template_variables() -> None:
    assert config().frontend["chat_template_kwargs"] == {"preserve_reasoning": True}
    frontend = config(
        "-rea", "off", "--reasoning-effort", "low", "--no-reasoning-preserve"
    ).frontend
    assert frontend["chat_template_kwargs"] == {
        "preserve_reasoning": False,
        "enable_thinking": False,
        "reasoning_effort": "low",
    }
    assert frontend["reasoning"] == 0
    assert "reasoning_format" not in config().frontend
    assert config("--reasoning-format", "none").frontend["reasoning_format"] == "none"


def test_names_of_the_model() -> None:
    parsed = parse([], {})
    assert server_settings(parsed, MODEL).model_name == "m"
    parsed = parse(["-a", "zeta,alpha", "--tags", "x"], {})
    settings = server_settings(parsed, MODEL)
    assert (settings.model_name, settings.aliases) == ("alpha", ("alpha", "zeta"))
    assert settings.tags == ("x",)


def test_keys_come_from_flag_and_file(tmp_path: Any) -> None:
    file = tmp_path / "keys"
    file.write_text("b\n")
    parsed = parse(["--api-key", "a", "--api-key-file", str(file)], {})
    assert server_settings(parsed, MODEL).api_keys == ("a", "b")


def test_settings_of_the_page_come_from_flag_or_file(tmp_path: Any) -> None:
    file = tmp_path / "ui.json"
    file.write_text('{"a": 2}')
    inline, from_file = ["--ui-config", '{"a": 1}'], ["--webui-config-file", str(file)]
    assert server_settings(parse([], {}), MODEL).ui_settings == {}
    assert server_settings(parse(inline, {}), MODEL).ui_settings == {"a": 1}
    assert server_settings(parse(from_file, {}), MODEL).ui_settings == {"a": 2}
    with pytest.raises(UsageError, match="--ui-config and --ui-config-file exclude each other"):
        server_settings(parse(inline + from_file, {}), MODEL)
    file.write_text("[1]")
    with pytest.raises(UsageError, match="--webui-config-file: expected a JSON object"):
        parse(from_file, {})


def test_flags_of_the_server_reach_its_settings(tmp_path: Any) -> None:
    argv = ["--timeout", "5", "--api-prefix", "/llm", "--cors-origins", "http://a.b"]
    parsed = parse([*argv, "--path", str(tmp_path), "--threads-http", "3"], {})
    settings = server_settings(parsed, MODEL)
    assert (settings.timeout, settings.api_prefix) == (5, "/llm")
    assert (settings.cors_origins, settings.static_path) == ("http://a.b", str(tmp_path))
    assert server_settings(parse([], {}), MODEL).timeout == 3600


def test_verbose_is_more_than_any_level() -> None:
    assert config("-v").verbosity > 1000
    assert config("-lv", "1").verbosity == 1
