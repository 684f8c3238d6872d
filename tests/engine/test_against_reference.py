"""The engine computes what plain llama.cpp computes, for any number of rows."""

from __future__ import annotations

import numpy as np
import pytest

from tests.models import tiny_model

from .reference import Recorder
from .running import Session, load


def prompt_of(i: int, n: int, n_vocab: int) -> list[int]:
    return [int(t) for t in np.random.default_rng(i).integers(5, n_vocab - 5, n)]


@pytest.mark.parametrize("n_rows", [1, 2, 8, 9, 16, 32])
@pytest.mark.parametrize("name", ["dense", "moe", "swa", "hybrid"])
def test_each_stream_equals_the_reference(name, n_rows):
    engine = load(tiny_model(name), n_parallel=n_rows, n_batch=128, n_ubatch=64)
    recorder = Recorder(engine)
    session = Session(engine)
    n_requests = n_rows + 2  # two have to queue
    prompts = [prompt_of(i, 3 + 5 * i % 60, engine.model.n_vocab) for i in range(n_requests)]
    for i, prompt in enumerate(prompts):
        session.submit(i, prompt, 6, n_probs=0)
        if i % 3 == 0:
            session.step()  # arrivals while others read and write
    session.run()
    reference = recorder.replay()
    assert len(reference) == len(recorder.logits) == 6 * n_requests - _ended_early(session, 6)
    for ours, theirs in zip(recorder.logits, reference, strict=True):
        assert np.array_equal(ours, theirs)
    greedy = [int(row.argmax()) for row in reference]
    produced = [e.token for e in session.events if type(e).__name__ == "Token"]
    assert produced == greedy
    engine.close()


def _ended_early(session: Session, n: int) -> int:
    ids = {e.request_id for e in session.events if hasattr(e, "request_id")}
    return sum(n - len(session.tokens(i)) for i in ids)
