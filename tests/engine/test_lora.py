"""LoRA adapters on a real model: each request is computed with its own, and reuses only that."""

from __future__ import annotations

from pathlib import Path

import pytest

from strata_plugin.engine.assembly import LoadError
from strata_plugin.engine.messages import Done
from tests.models import tiny_model
from tests.models.adapter import write_adapter

from .running import Session, load

PROMPT = [5 + i * 7 % 400 for i in range(90)]
MIXTURES = ((), ((0, 1.0),), ((1, 1.0),), ((0, 0.5), (1, 0.5)))


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("adapters")
    paths = [folder / "one.gguf", folder / "two.gguf"]
    for seed, path in enumerate(paths):
        write_adapter(path, seed, strength=2.0, task=f"task {seed}")
    return paths


def alone(adapters: list[Path], mixture: tuple[tuple[int, float], ...]) -> list[int]:
    engine = load(tiny_model("dense"), adapters=adapters)
    try:
        return Session(engine).generate(PROMPT, 12, lora=mixture)
    finally:
        engine.close()


def test_requests_with_other_adapters_side_by_side_say_what_each_says_alone(
    adapters: list[Path],
) -> None:
    engine = load(tiny_model("dense"), adapters=adapters)
    session = Session(engine)
    for number, mixture in enumerate(MIXTURES):
        session.submit(number, PROMPT, 12, lora=mixture)
    session.run()
    texts = [session.tokens(number) for number in range(len(MIXTURES))]
    assert len(set(map(tuple, texts))) == len(MIXTURES)  # each adapter changes something
    session.submit(9, PROMPT, 12, lora=((1, 1.0),))
    session.run()
    end = session.end(9)
    assert isinstance(end, Done) and end.timings.cache_n == len(PROMPT) - 1
    assert session.tokens(9) == texts[2]
    engine.close()
    assert texts == [alone(adapters, mixture) for mixture in MIXTURES]


def test_what_is_told_about_adapters_comes_from_their_files(adapters: list[Path]) -> None:
    engine = load(tiny_model("dense"), adapters=adapters)
    assert [a.task_name for a in engine.ready.adapters] == ["task 0", "task 1"]
    assert [a.path for a in engine.ready.adapters] == [str(p) for p in adapters]
    engine.close()


def test_a_file_that_is_no_adapter_for_this_model_is_refused(adapters: list[Path]) -> None:
    for bad in (tiny_model("dense"), "nowhere.gguf"):
        with pytest.raises(LoadError):
            load(tiny_model("dense"), adapters=[bad])
    with pytest.raises(LoadError):
        load(tiny_model("recurrent"), adapters=adapters)
