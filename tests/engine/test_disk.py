"""The disk tier under real models: what comes back goes on as if it had never left."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from strata_plugin.engine.assembly import LoadedEngine
from strata_plugin.engine.messages import Done
from tests.models import tiny_model

from .running import Session, load
from .test_blocks import ENDED, NAMES, prompt_of


def opened(name: str, folder: Path, **context: Any) -> tuple[LoadedEngine, Session]:
    """An engine whose disk tier is open."""
    engine = load(tiny_model(name), block_tokens=32, disk=folder, n_parallel=2, **context)
    blocks = engine.sequences._blocks
    assert blocks is not None and blocks.disk is not None
    blocks._recompute_ms = lambda start, n: 1e6  # so small a model computes as quickly as it reads
    for _ in range(1000):
        if blocks.disk.is_open:
            break
        time.sleep(0.005)
    return engine, Session(engine)


def cached(session: Session, request_id: int) -> int:
    done = session.end(request_id)
    assert isinstance(done, Done)
    return done.timings.cache_n


@pytest.mark.parametrize("flash_attn", ["on", "off"])
@pytest.mark.parametrize("name", NAMES)
def test_a_restored_prompt_is_continued_as_before(
    name: str, flash_attn: str, tmp_path: Path
) -> None:
    prompt = prompt_of(5, 200)
    engine, session = opened(name, tmp_path, flash_attn=flash_attn)
    first = session.generate(prompt, 12, request_id=1)
    engine.close()
    engine, session = opened(name, tmp_path, flash_attn=flash_attn)
    assert session.generate(prompt, 12, request_id=2) == first
    assert cached(session, 2) == 199
    follow_up = prompt + first + prompt_of(6, 30)
    second = session.generate(follow_up, 12, request_id=3)
    assert cached(session, 3) >= 200
    engine.close()
    fresh = load(tiny_model(name), n_parallel=2, flash_attn=flash_attn)
    assert Session(fresh).generate(follow_up, 12, cache_prompt=False) == second
    fresh.close()


def test_what_changes_a_state_makes_it_another(tmp_path: Path) -> None:
    prompt = prompt_of(5, 200)
    engine, session = opened("dense", tmp_path)
    session.generate(prompt, 2, request_id=1)
    engine.close()
    for name, context in (
        ("moe", {}),
        ("dense", {"type_k": "q8_0"}),
        ("dense", {"rope_freq_base": 5000.0}),
        ("dense", {"flash_attn": "off"}),
    ):
        engine, session = opened(name, tmp_path, **context)
        session.generate(prompt, 2, request_id=1)
        assert cached(session, 1) == 0
        engine.close()
    engine, session = opened("dense", tmp_path)
    session.generate(prompt, 2, request_id=1)
    assert cached(session, 1) == 199
    engine.close()


@pytest.mark.parametrize("name", ENDED)
def test_a_state_that_can_not_be_cut_is_continued_as_before(name: str, tmp_path: Path) -> None:
    prompt, more = prompt_of(1, 200), prompt_of(2, 20)
    engine, session = opened(name, tmp_path)
    answer = session.generate(prompt, 6, request_id=1)
    engine.close()
    follow_up = prompt + answer + more
    engine, session = opened(name, tmp_path)
    told = session.generate(follow_up, 6, request_id=3)
    assert cached(session, 3) == 205
    assert session.generate(follow_up, 6, request_id=4, cache_prompt=False) == told
    engine.close()
