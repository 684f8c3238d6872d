"""Every flag of llama-server is known, and what we do with it is what the tables say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from strata_server.flag import Status
from strata_server.flags import ALL, AVAILABLE, BY_NAME, UsageError, parse
from strata_server.flags_absent import ABSENT, REMOVED

LIST = Path(__file__).with_name("llama_server_flags.txt")


def llama_server_options() -> list[tuple[list[str], str]]:
    options = []
    for line in LIST.read_text().splitlines():
        if line and not line.startswith("#"):
            names, _, env = line.partition(" = ")
            options.append((names.split(), env))
    return options


def value_for(flag: Any) -> list[str]:
    return ["1"] * flag.n_values if flag.read else []


def test_the_list_is_complete_and_each_name_of_an_option_means_the_same_flag() -> None:
    options = llama_server_options()
    assert len(options) == 255
    for names, env in options:
        flags = {id(BY_NAME[name][0]) for name in names}
        assert len(flags) == 1, names
        assert env in ("HF_TOKEN", BY_NAME[names[0]][0].env), names


def test_no_name_and_no_environment_name_means_two_flags() -> None:
    names = [name for flag in ALL for name in flag.all_names]
    assert len(names) == len(set(names))
    envs = [flag.env for flag in ALL if flag.env]
    assert len(envs) == len(set(envs))
    keys = [flag.key for flag in AVAILABLE]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("flag", ABSENT, ids=lambda flag: flag.names[-1])
def test_absent_flags_are_refused_by_name(flag: Any) -> None:
    value = ["something"] * flag.n_values if flag.read else []
    for name in flag.names:
        wanted = "on" in flag.harmless
        if wanted:
            parse([name], {})
            continue
        with pytest.raises(UsageError) as caught:
            parse([name, *value], {})
        assert str(caught.value) == f"{name}: known llama-server flag, not available in strata yet"


@pytest.mark.parametrize(
    ("argv", "environ"),
    [
        (["--no-mmproj"], {}),
        (["--no-context-shift"], {}),
        (["-cb"], {}),
        (["--fit", "off"], {}),
        (["--cache-reuse", "0"], {}),
        (["--prio", "0"], {}),
        ([], {"LLAMA_ARG_CONTEXT_SHIFT": "0"}),
        ([], {"LLAMA_ARG_NO_CONTEXT_SHIFT": "1"}),
        ([], {"LLAMA_ARG_SPEC_TYPE": "none"}),
    ],
)
def test_absent_flags_that_ask_for_what_we_do_anyway_are_taken(
    argv: list[str], environ: dict[str, str]
) -> None:
    assert parse(argv, environ).warnings == []


@pytest.mark.parametrize(
    ("argv", "environ"),
    [
        (["--no-cont-batching"], {}),
        ([], {"LLAMA_ARG_CONT_BATCHING": "0"}),
        ([], {"LLAMA_ARG_NO_CONT_BATCHING": "1"}),
        (["--control-vector", "x.gguf"], {}),
        ([], {"LLAMA_ARG_MMPROJ": "x.gguf"}),
    ],
)
def test_what_we_do_not_do_is_refused_from_the_environment_too(
    argv: list[str], environ: dict[str, str]
) -> None:
    with pytest.raises(UsageError, match="not available in strata yet"):
        parse(argv, environ)


@pytest.mark.parametrize("flag", REMOVED, ids=lambda flag: flag.names[-1])
def test_removed_flags_name_their_successor(flag: Any) -> None:
    for name in flag.names:
        with pytest.raises(UsageError, match="removed from llama-server; use "):
            parse([name, *value_for(flag)], {})


@pytest.mark.parametrize("flag", [f for f in AVAILABLE if f.status is Status.MOOT and f.note])
def test_flags_without_effect_warn(flag: Any) -> None:
    parsed = parse([flag.names[0], *value_for(flag)], {})
    assert parsed.warnings == [f"{flag.names[0]} changes nothing here: {flag.note}"]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("--ctx-sizes", "--ctx-sizes: unknown flag; did you mean --ctx-size?"),
        ("--prot", "--prot: unknown flag; did you mean --port?"),
        ("--qqqqqqqqqqq", "--qqqqqqqqqqq: unknown flag"),
        ("--port=8080", "--port=8080: write '--port 8080', without the equals sign"),
        ("model.gguf", "unexpected argument 'model.gguf'; a model is given with -m"),
    ],
)
def test_unknown_words(word: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse([word], {})
    assert str(caught.value) == message


def test_underscores_are_dashes_in_long_names() -> None:
    assert parse(["--ctx_size", "512"], {})["ctx_size"] == 512


def test_a_missing_value_is_told() -> None:
    with pytest.raises(UsageError, match=r"^--port: expected a value$"):
        parse(["--port"], {})


def test_the_last_of_several_counts_with_a_warning() -> None:
    parsed = parse(["--port", "1", "--port", "2"], {})
    assert parsed["port"] == 2
    assert parsed.warnings == ["--port is given several times; the last one counts"]


def test_the_command_line_wins_over_the_environment() -> None:
    parsed = parse(["--port", "2"], {"LLAMA_ARG_PORT": "1"})
    assert parsed["port"] == 2
    assert parsed.warnings == ["--port wins over the environment variable LLAMA_ARG_PORT"]


@pytest.mark.parametrize(
    ("environ", "key", "value"),
    [
        ({"LLAMA_ARG_CTX_SIZE": "1024"}, "ctx_size", 1024),
        ({"LLAMA_ARG_JINJA": "off"}, "jinja", False),
        ({"LLAMA_ARG_JINJA": "1"}, "jinja", True),
        ({"LLAMA_ARG_NO_JINJA": "0"}, "jinja", False),  # any value: llama-server looks at the name
        ({"LLAMA_ARG_JINJA": "1", "LLAMA_ARG_NO_JINJA": "1"}, "jinja", False),
        ({"LLAMA_ARG_ENDPOINT_METRICS": "true"}, "metrics", True),
        ({"LLAMA_ARG_ENDPOINT_METRICS": "0"}, "metrics", False),
        ({"LLAMA_API_KEY": "a,b"}, "api_key", ("a", "b")),
        ({"LLAMA_ARG_UI": "off"}, "ui", False),
    ],
)
def test_the_environment(environ: dict[str, str], key: str, value: Any) -> None:
    assert parse([], environ)[key] == value


def test_a_bad_environment_value_names_its_variable() -> None:
    with pytest.raises(UsageError, match=r"^LLAMA_ARG_PORT: expected a whole number, got 'x'$"):
        parse([], {"LLAMA_ARG_PORT": "x"})
    with pytest.raises(UsageError, match=r"^LLAMA_ARG_JINJA: 'maybe' is none of on"):
        parse([], {"LLAMA_ARG_JINJA": "maybe"})
    odd = parse([], {"LLAMA_ARG_ENDPOINT_METRICS": "yes"})
    assert odd["metrics"] is False
    assert odd.warnings == ["LLAMA_ARG_ENDPOINT_METRICS: 'yes' is none of on, true, 1; ignored"]
