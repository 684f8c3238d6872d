"""What requests are told about what was found of their prompts, on a fake engine."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from strata_server.cache_view import EXPLANATION
from tests.unit.fake_engine import FakeEngine, word


def run(n: int, start: int = 1) -> list[int]:
    return list(range(start, start + n))


def ask(engine: FakeEngine, number: int, prompt: list[int], **kw: Any) -> dict[str, Any]:
    """The explanation of a request that is run to its end."""
    engine.submit(number, prompt, n=2, name=f"r{number}", **kw)
    engine.run()
    engine.rest()
    found = engine.core._explanations.of(kw.get("tenant", ""), f"r{number}")
    assert found is not None
    return found


def big(**kw: Any) -> FakeEngine:
    return FakeEngine(n_ctx=20_000, n_batch=512, **kw)


def test_what_is_new_and_what_goes_on_is_no_miss() -> None:
    engine = big()
    assert ask(engine, 1, run(1000))["cause"] == "new"
    second = ask(engine, 2, run(1400))
    assert (second["cause"], second["cached_tokens"]) == ("found", 1000)
    assert set(second) == set(EXPLANATION)
    assert second["differs_at"] is None and second["longest_prefix"] == 1000
    assert second["restore_ms"] is None
    ask(engine, 7, run(30, 9000))  # the first ones leave the KV cache
    engine.sequences.evict_one()
    engine.sequences.evict_one()
    third = ask(engine, 8, run(1600))
    assert third["recompute_ms"] >= 1400 > 10 > third["restore_ms"] >= 0
    branch = ask(engine, 3, [*run(700), *run(600, 5000)])
    assert (branch["cause"], branch["cached_tokens"]) == ("branch", 700)
    assert not engine.core._explanations.view("")["misses"]


def test_a_change_is_shown_with_both_texts(caplog: pytest.LogCaptureFixture) -> None:
    engine = big()
    ask(engine, 1, run(2000))
    with caplog.at_level(logging.INFO):
        found = ask(engine, 2, [*run(500), 7001, *run(1499, 502)])
    assert found["cause"] == "edited" and found["differs_at"] == 500
    assert f"{word(499)}{word(500)}<>{word(501)}{word(502)}" in found["stored_text"]
    assert f"{word(499)}{word(500)}<>{word(7001)}{word(502)}" in found["prompt_text"]
    (line,) = [r.getMessage() for r in caplog.records if "r2" in r.getMessage()]
    assert "500 of 2000 prompt tokens found" in line and word(500) not in line
    view = engine.core._explanations.view("")
    assert view["hints"] == [
        {"cause": "edited", "explanation": found["explanation"], "requests": 1}
    ]
    assert view["misses"] == [found]
    shown = view["conversations"]
    assert [talk["tokens"] for talk in shown] == [2001, 2001]
    assert shown[0]["begins"].startswith(word(1) + word(2)) and shown[0]["bytes"] > 8000


def test_nobody_hears_of_others_and_other_namespaces_of_ones_own_are_named() -> None:
    engine = big()
    ask(engine, 1, run(1000), tenant="key-1", salt="a")
    assert ask(engine, 2, run(1000), tenant="key-2", salt="b")["cause"] == "new"
    own = ask(engine, 3, run(1000), tenant="key-1", salt="a/other")
    assert own["cause"] == "namespace" and own["cached_tokens"] == 0
    explanations = engine.core._explanations
    assert explanations.of("key-2", "r1") is None and explanations.of("key-1", "r1") is not None
    assert not explanations.view("key-2")["misses"]
    assert len(explanations.view("key-1")["conversations"]) == 2
    assert len(explanations.view("key-2")["conversations"]) == 1
    assert not explanations.view("key-3")["conversations"]


def test_what_was_dropped_is_said_to_have_been_dropped() -> None:
    engine = FakeEngine(n_ctx=2000, n_batch=512, park_bytes=80_000)
    ask(engine, 1, run(1000))
    ask(engine, 2, run(1500, 5000))
    found = ask(engine, 3, run(1000))
    assert found["cause"] == "evicted" and found["cached_tokens"] < 1000


def test_without_a_checkpoint_a_state_that_can_not_be_cut_is_of_no_use() -> None:
    engine = big(recurrent=True, block_tokens=256)
    ask(engine, 1, run(1800))
    found = ask(engine, 2, [*run(900), *run(300, 7000), *run(600, 1201)])
    assert found["cause"] == "no_checkpoint" and found["cached_tokens"] == 512
    assert found["longest_prefix"] == 900


def test_who_does_not_ask_for_the_cache_is_told_so() -> None:
    engine = big()
    ask(engine, 1, run(1000))
    assert ask(engine, 2, run(1000), cache_prompt=False)["cause"] == "not_asked"


def test_only_the_last_ones_are_kept() -> None:
    engine = big()
    for number in range(300):
        ask(engine, number, run(20, 10 * number))
    assert engine.core._explanations.of("", "r0") is None
    assert engine.core._explanations.of("", "r299") is not None
