"""Strata's scheduling flags, from the command line to the engine's configuration; `simulate`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from strata_plugin.build.info import BuildInfo
from strata_plugin.scheduling.config import SchedulingConfig
from strata_server.__main__ import run
from strata_server.cost_file import SPEED, cost_file, cpu_model, graphics_cards, machine
from strata_server.flag import Status
from strata_server.flags import UsageError, parse
from strata_server.flags_scheduling import SCHEDULING
from strata_server.model_file import ModelFile
from strata_server.options import engine_config, server_settings
from strata_server.settings import PriorityLimits

MODEL = ModelFile("/m.gguf", "m")
HOME = {"XDG_CACHE_HOME": "/c"}


def scheduling(*argv: str, environ: dict[str, str] | None = None) -> SchedulingConfig:
    parsed = parse(argv, environ or {})
    return engine_config(parsed, MODEL, server_settings(parsed, MODEL), HOME).scheduling


def test_the_defaults_are_those_of_the_scheduler() -> None:
    config = scheduling("--cost-model", "none")
    assert config == SchedulingConfig()


@pytest.mark.parametrize(
    ("argv", "field", "value"),
    [
        (["--scheduler", "upstream"], "policy", "upstream"),
        (["--itl-slo-ms", "75.5"], "itl_slo_ms", 75.5),
        (["--prefill-quantum-ms", "250"], "prefill_quantum_ms", 250.0),
        (["--prefill-min-share", "0.25"], "prefill_min_share", 0.25),
        (["--prefill-budget", "64"], "prefill_budget", 64),
        (["--short-read", "0"], "short_read", 0),
        (["--prefill-yield-chunks", "3"], "yield_chunks", 3),
        (["--prefill-yield-chunks", "auto"], "yield_chunks", 0),
        (["--prefill-steps", "8"], "yield_steps", 8),
        (["--prefill-steps", "auto"], "yield_steps", 0),
        (["--max-queue", "16"], "max_queue", 16),
        (["--cost-model", "none"], "cost_model_path", ""),
    ],
)
def test_each_flag_reaches_the_scheduler_from_both_sides(
    argv: list[str], field: str, value: Any
) -> None:
    assert getattr(scheduling(*argv), field) == value
    env = next(flag.env for flag in SCHEDULING if argv[0] in flag.names)
    assert getattr(scheduling(environ={env: argv[1]}), field) == value


def test_flags_of_the_http_process_reach_it() -> None:
    parsed = parse(["--max-priority", "5", "--max-prompt-tokens", "9"], {})
    settings = server_settings(parsed, MODEL)
    assert (settings.max_priority, settings.max_prompt_tokens) == (PriorityLimits(5), 9)
    assert server_settings(parse([], {}), MODEL).max_priority == PriorityLimits(0)


def test_priorities_may_be_limited_for_each_key() -> None:
    keys = ["--api-key", "a,b,c"]
    parsed = parse([*keys, "--max-priority", "1, key-2=5,key-3=0"], {})
    limits = server_settings(parsed, MODEL).max_priority
    assert [limits.highest(name) for name in ("key-1", "key-2", "key-3", "")] == [1, 5, 0, 1]
    with pytest.raises(UsageError, match="there is no key-4, only 3 API keys"):
        server_settings(parse([*keys, "--max-priority", "key-4=1"], {}), MODEL)


def test_all_are_marked_as_ours_and_have_an_environment_name() -> None:
    for flag in SCHEDULING:
        assert flag.status is Status.OURS
        assert flag.env == "STRATA_" + flag.key.upper()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--max-priority", "-1"], "--max-priority: must be at least 0, got -1"),
        (["--max-priority", ""], "--max-priority: expected a whole number, got ''"),
        (["--max-priority", "1,2"], "--max-priority: expected N or key-1=N, key-2=N, ...; got '2'"),
        (["--max-priority", "bob=2"], "--max-priority: expected N or key-1=N, key-2=N, ...; got"),
        (["--max-priority", "key-0=2"], "--max-priority: expected N or key-1=N, key-2=N, ...; got"),
        (["--max-priority", "key-1=x"], "--max-priority: expected a whole number, got 'x'"),
        (["--max-priority", "key-1=1,key-1=2"], "--max-priority: key-1 is there twice"),
        (["--itl-slo-ms", "0"], "--itl-slo-ms: must be above 0, got 0"),
        (["--itl-slo-ms", "-20"], "--itl-slo-ms: must be above 0, got -20"),
        (["--itl-slo-ms", "nan"], "--itl-slo-ms: expected a finite number, got 'nan'"),
        (["--itl-slo-ms", "inf"], "--itl-slo-ms: expected a finite number, got 'inf'"),
        (["--itl-slo-ms", "fast"], "--itl-slo-ms: expected a number, got 'fast'"),
        (["--prefill-quantum-ms", "0"], "--prefill-quantum-ms: must be at least 1, got 0"),
        (
            ["--prefill-yield-chunks", "0"],
            "--prefill-yield-chunks: must be at least 1, or auto; got 0",
        ),
        (
            ["--prefill-yield-chunks", "-1"],
            "--prefill-yield-chunks: must be at least 1, or auto; got",
        ),
        (["--prefill-steps", "0"], "--prefill-steps: must be at least 1, or auto; got 0"),
        (
            ["--prefill-steps", "x"],
            "--prefill-steps: expected a whole number, got 'x' (or write auto)",
        ),
        (["--prefill-min-share", "0"], "--prefill-min-share: must be above 0 and below 1, got 0"),
        (["--prefill-min-share", "1"], "--prefill-min-share: must be above 0 and below 1, got 1"),
        (["--prefill-min-share", "10%"], "--prefill-min-share: expected a number, got '10%'"),
        (["--prefill-budget", "-1"], "--prefill-budget: must be at least 0, got -1"),
        (["--short-read", "-1"], "--short-read: must be at least 0, got -1"),
        (["--max-queue", "-1"], "--max-queue: must be at least 0, got -1"),
        (["--max-priority", "-1"], "--max-priority: must be at least 0, got -1"),
        (["--scheduler", "fifo"], "--scheduler: 'fifo' is none of strata, upstream"),
        (["--cost-model", "/nowhere/x"], "--cost-model: no such directory: /nowhere"),
    ],
)
def test_bad_values_are_refused_by_flag_and_value(argv: list[str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(argv, {})
    assert str(caught.value).startswith(message)


def test_a_bad_target_ends_the_server_as_other_wrong_usage(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["--itl-slo-ms", "0"], {}) == 2
    assert capsys.readouterr().err == "strata-server: --itl-slo-ms: must be above 0, got 0\n"
    assert run([], {"STRATA_PREFILL_STEPS": "0"}) == 2
    assert capsys.readouterr().err.startswith("strata-server: STRATA_PREFILL_STEPS: must be at")


# ---- the cost model's file -----------------------------------------------------------------------


def path_for(model: Path, *argv: str, environ: dict[str, str] | None = None) -> str:
    return cost_file(parse(argv, {}), str(model), environ if environ is not None else HOME)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"weights")
    return file


def test_the_file_is_in_the_user_s_cache(model: Path) -> None:
    path = Path(path_for(model))
    assert path.parent == Path("/c/strata/cost")
    assert path.name.removesuffix(".cost").isalnum() and str(model) not in path.name
    home = Path(path_for(model, environ={}))
    assert home.parent == Path.home() / ".cache/strata/cost"
    assert path_for(model) == str(path)  # the same at the next start


def test_a_given_file_is_taken_as_it_is(model: Path, tmp_path: Path) -> None:
    own = str(tmp_path / "own")
    assert path_for(model, "--cost-model", own) == own
    assert path_for(model, "--cost-model", "none") == ""


def test_another_model_another_file(model: Path, tmp_path: Path) -> None:
    before = path_for(model)
    os.utime(model, ns=(1, 1))
    changed = path_for(model)
    model.write_bytes(b"more weights")
    os.utime(model, ns=(1, 1))
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(b"weights")
    link = tmp_path / "link.gguf"
    link.symlink_to(model)
    paths = [before, changed, path_for(model), path_for(copy), path_for(tmp_path / "gone.gguf")]
    assert len(set(paths)) == 5
    assert path_for(link) == path_for(model)


@pytest.mark.parametrize(
    "argv",
    [
        ["-fa", "on"],
        ["-t", "3"],
        ["-ngl", "5"],
        ["-dev", "none"],
        ["-ctk", "q8_0"],
        ["-ub", "64"],
        ["-ncmoe", "2"],
        ["-ot", "exps=CPU"],
        ["-nr"],
    ],
)
def test_a_flag_that_changes_speed_has_its_own_file(model: Path, argv: list[str]) -> None:
    assert path_for(model, *argv) != path_for(model)


@pytest.mark.parametrize(
    "argv", [["--port", "1"], ["--temp", "0"], ["--itl-slo-ms", "75"], ["-c", "512"], ["-np", "2"]]
)
def test_a_flag_that_does_not_shares_the_file(model: Path, argv: list[str]) -> None:
    assert path_for(model, *argv) == path_for(model)


def test_the_list_of_such_flags_names_flags() -> None:
    assert set(SPEED) <= set(parse([], {}).values)


def test_another_machine_another_file(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = path_for(model)
    assert path_for(model, environ={**HOME, "CUDA_VISIBLE_DEVICES": "1"}) != before
    monkeypatch.setattr("strata_server.cost_file.machine", lambda: ("other CPU", 64, 64, ""))
    assert path_for(model) != before


def test_another_build_another_file(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = path_for(model)
    other = BuildInfo(patched=True, key="another")
    monkeypatch.setattr("strata_server.cost_file.build_info", lambda: other)
    assert path_for(model) != before


def test_the_machine_is_described_without_asking_a_driver(tmp_path: Path) -> None:
    cpu, cores, usable, _ = machine()
    assert cpu and 1 <= usable <= cores
    info = tmp_path / "cpuinfo"
    info.write_text("processor: 0\nmodel name\t: A\ncpu MHz: 1\n\nmodel name\t: B\n")
    assert cpu_model(info).endswith(" A")
    assert cpu_model(tmp_path / "missing")
    for name, kind in (("0", "0x020000"), ("2", "0x030200"), ("1", "0x030000")):
        folder = tmp_path / "pci" / name
        folder.mkdir(parents=True)
        (folder / "class").write_text(kind + "\n")
        (folder / "vendor").write_text("0x10de\n")
        (folder / "device").write_text(f"0x000{name}\n")
    (tmp_path / "pci" / "3").mkdir()  # one that can't be read
    assert graphics_cards(tmp_path / "pci") == ["0x10de:0x0001", "0x10de:0x0002"]
    assert graphics_cards(tmp_path / "nothing") == []


# ---- simulate ------------------------------------------------------------------------------------


def test_simulate_gets_the_rest_of_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[list[str]] = []

    def main(argv: list[str]) -> int:
        given.append(argv)
        return 7

    module = ModuleType("strata_plugin.scheduling.simulate_cli")
    module.main = main  # type: ignore[attr-defined]
    package = sys.modules["strata_plugin.scheduling"]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(package, "simulate_cli", module, raising=False)
    argv = ["trace.jsonl", "--rows", "8", "--itl-slo-ms", "0"]
    assert run(["simulate", *argv], {"LLAMA_ARG_PORT": "bad"}) == 7
    assert given == [argv]


def test_only_the_first_word_asks_for_a_simulation(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--port", "1", "simulate"], {}) == 2
    assert "unexpected argument 'simulate'" in capsys.readouterr().err
