"""`bench parsing`: the call that it plays is the call that is read, in as few chunks as it says."""

from __future__ import annotations

import json

import pytest

from bench.parsing import FORMATS, main, measure, pieces
from strata_server import pacing
from tests.engine.smollm2 import need_native_library, vocabulary

need_native_library()


@pytest.mark.parametrize("name", FORMATS)
def test_token_by_token_each_has_a_chunk(name: str) -> None:
    cost = measure(name, 0, 300, vocabulary())
    assert cost.chunks == len(pieces(name, 300))
    assert cost.longest_hold_ms == 0 < cost.cpu_s


@pytest.mark.parametrize("name", FORMATS)
def test_where_chunks_are_costly_tokens_share_them_and_nothing_is_lost(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pacing, "FREE_S", 0.0)
    monkeypatch.setattr(pacing, "CHEAP_S", 0.0)
    monkeypatch.setattr(pacing, "TOKEN_S", 1e-9)  # so that each waits as long as it may
    cost = measure(name, 100, 300, vocabulary())  # checks the call
    assert cost.chunks <= 2 + len(pieces(name, 300)) / 10
    assert cost.longest_hold_ms == 100


def test_the_figures_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["--tokens", "100", "--rates", "50", "--json"])
    costs = json.loads(capsys.readouterr().out)
    assert [(c["format"], c["tokens_per_s"]) for c in costs] == [
        ("json", 0), ("json", 50), ("tags", 0), ("tags", 50),
    ]  # fmt: skip
    assert code in (0, 1)
