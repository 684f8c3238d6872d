"""POST /slots/{id_slot} in the engine, for every kind of memory."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from strata_plugin.engine.messages import ActOnSlot, Done, SlotActed
from tests.models import TINY_MODELS, tiny_model

from .running import Session, load
from .test_blocks import prompt_n, prompt_of


def act(session: Session, action: str, slot: int, path: Path, **kw: str) -> SlotActed:
    session.engine.core.act_on_slot(ActOnSlot(7, action, slot, str(path), **kw))
    for _ in range(2000):
        session.step()
        found = [e for e in session.events if isinstance(e, SlotActed)]
        if found:
            session.events.remove(found[0])
            return found[0]
        time.sleep(0.005)
    raise AssertionError("no answer")


def slot_of(session: Session, request_id: int) -> int:
    done = session.end(request_id)
    assert isinstance(done, Done)
    return done.id_slot


@pytest.mark.parametrize("name", sorted(TINY_MODELS))
def test_a_restored_slot_needs_no_reading_and_an_erased_one_all(name: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "n_parallel": 2, "n_batch": 64, "n_ubatch": 32, "n_ctx": 1024, "block_tokens": 32,
        "checkpoint_root": 64,
    }  # fmt: skip
    prompt, more = prompt_of(1, 150), prompt_of(2, 20)
    path = tmp_path / "slot"
    engine = load(tiny_model(name), **settings)
    session = Session(engine)
    answer = session.generate(prompt, 5, request_id=1)
    slot = slot_of(session, 1)
    follow_up = prompt + answer + more
    expected = session.generate(follow_up, 6, request_id=2, cache_prompt=False)
    session.generate(prompt, 5, request_id=3, id_slot=slot)
    saved = act(session, "save", slot, path)
    assert not saved.error and saved.values["n_saved"] == 154
    assert saved.values["n_written"] == path.stat().st_size
    engine.close()

    engine = load(tiny_model(name), **settings)
    if engine.sequences._blocks is not None:
        engine.sequences._blocks._recompute_ms = lambda start, n: 1e6
    session = Session(engine)
    restored = act(session, "restore", 0, path)
    assert not restored.error and restored.values["n_restored"] == 154
    assert restored.values["filename"] == "slot"
    assert session.generate(follow_up, 6, request_id=1) == expected
    assert prompt_n(session, 1) <= len(follow_up) - 154
    shorter = prompt[:130] + prompt_of(3, 20)  # back to a checkpoint, or into a block
    session.generate(shorter, 6, request_id=3)
    back = 128 if engine.sequences._blocks is not None else 0
    assert prompt_n(session, 3) <= len(shorter) - back
    for number in (4, 5):
        session.generate(prompt_of(4, 150), 6, request_id=number)
        assert prompt_n(session, number) == 150
        erased = act(session, "erase", slot_of(session, number), path)
        assert erased.values["n_erased"] >= 150
    session.generate(follow_up, 6, request_id=6)
    assert prompt_n(session, 6) <= 32, "what others have stays"
    engine.close()


def test_others_hold_nothing_and_a_busy_slot_is_waited_for(tmp_path: Path) -> None:
    engine = load(tiny_model("dense"), n_parallel=1, n_ctx=1024)
    session = Session(engine)
    session.generate(prompt_of(1, 100), 4, request_id=1, tenant="key-1", salt="a")
    path = tmp_path / "slot"
    assert "nothing" in act(session, "save", 0, path, tenant="key-2", salt="b").error
    assert act(session, "erase", 0, path, tenant="key-2", salt="b").values["n_erased"] == 0
    assert not path.exists()
    session.submit(2, prompt_of(2, 100), 30, tenant="key-1", salt="a")
    for _ in range(5):
        session.step()
    saved = act(session, "save", 0, path, tenant="key-1", salt="a")
    assert isinstance(session.end(2), Done) and saved.values["n_saved"] == 129
    # it is restored for who asks
    act(session, "restore", 0, path, tenant="key-2", salt="b")
    session.generate(prompt_of(2, 100), 4, request_id=3, tenant="key-2", salt="b")
    assert prompt_n(session, 3) == 1
    engine.close()


def test_files_of_another_model_or_none_are_refused(tmp_path: Path) -> None:
    engine = load(tiny_model("dense"), n_parallel=1, n_ctx=1024)
    session = Session(engine)
    session.generate(prompt_of(1, 100), 4)
    path = tmp_path / "slot"
    act(session, "save", 0, path)
    assert "No such file" in act(session, "restore", 0, tmp_path / "other").error
    engine.close()
    for other in ("moe", "swa"):
        engine = load(tiny_model(other), n_parallel=1, n_ctx=1024)
        assert "another model" in act(Session(engine), "restore", 0, path).error
        engine.close()
    engine = load(tiny_model("dense"), n_parallel=1, n_ctx=1024, block_tokens=32)
    session = Session(engine)
    assert "--block-tokens" in act(session, "restore", 0, path).error
    session.generate(prompt_of(2, 100), 4)
    act(session, "save", 0, path)
    engine.close()
    engine = load(tiny_model("dense"), n_parallel=1, n_ctx=1024)
    assert "--block-tokens" in act(Session(engine), "restore", 0, path).error
    engine.close()
    engine = load(tiny_model("dense"), n_parallel=1, n_ctx=1024, park_bytes=4096)
    assert "--cache-ram" in act(Session(engine), "restore", 0, path).error
    engine.close()
