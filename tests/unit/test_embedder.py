"""The step loop of a server that embeds: right vectors, fair turns, failures that stay alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_plugin.engine.embedder import Embedder
from strata_plugin.engine.messages import Embed, Embedded, Failed, Queue, Slots
from strata_server.queue_view import FIELDS, REQUEST_FIELDS

WIDTH = 2


def vector(tokens: list[int], end: int) -> list[float]:
    """The fake model's vector of the token before `end`: it depends on all before it."""
    return [float(tokens[end - 1]), float(sum(tokens[:end]))]


class FakeBatch:
    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.rows: list[tuple[int, int, int]] = []
        self.n_tokens = 0

    def add_all(self, seq_id: int, tokens: np.ndarray, start: int) -> int:
        self.rows += [(seq_id, int(t), start + i) for i, t in enumerate(tokens)]
        self.n_tokens = len(self.rows)
        return self.n_tokens - 1


class FakeVectors:
    """A context that keeps book of its sequences; a token of `poison` fails the step."""

    def __init__(self, *, splits: bool = True, pooling: str = "mean", n_batch: int = 8) -> None:
        self.splits, self.pooling, self.n_batch = splits, pooling, n_batch
        self.n_ctx, self.n_seq_max = 40, 3
        self.longest_input, self.longest_trained = 40 if splits else n_batch, 20
        self.poison = -1
        self.now = 0.0
        self.held: dict[int, list[int]] = {}
        self.steps: list[set[int]] = []
        self._rows: list[list[float]] = []

    def new_batch(self) -> FakeBatch:
        return FakeBatch()

    def decode(self, batch: FakeBatch) -> int:
        assert 0 < batch.n_tokens <= self.n_batch
        self.now += 0.01
        self._rows = []
        for seq_id, token, position in batch.rows:
            held = self.held.setdefault(seq_id, [])
            assert position == len(held)
            held.append(token)
            self._rows.append(vector(held, len(held)))
        assert sum(map(len, self.held.values())) <= self.n_ctx
        self.steps.append({seq_id for seq_id, _, _ in batch.rows})
        return 1 if any(token == self.poison for _, token, _ in batch.rows) else 0

    def token_vectors(self, first: int, n: int) -> np.ndarray:
        return np.array(self._rows[first : first + n], np.float32)

    def pooled_vector(self, seq_id: int) -> np.ndarray:
        held = self.held[seq_id]
        return np.array([vector(held, len(held))], np.float32)

    def remove(self, seq_id: int, start: int = 0) -> bool:
        self.held.pop(seq_id, None)
        return True

    def clear(self) -> None:
        self.held.clear()


class Run:
    """An embedder on a fake context."""

    def __init__(self, **kind: Any) -> None:
        self.context = FakeVectors(**kind)
        self.core = Embedder(self.context, clock=lambda: self.context.now)

    def embed(self, request_id: int, *inputs: list[int], **more: Any) -> None:
        data = tuple(np.array(tokens, "<i4").tobytes() for tokens in inputs)
        self.core.embed(Embed(request_id=request_id, inputs=data, **more))

    def finish(self) -> None:
        for _ in range(1000):
            if not self.core.step():
                break
        assert self.core.at_rest
        assert not self.context.held

    def ends(self) -> list[int]:
        return [e.request_id for e in self.core.events if isinstance(e, (Embedded, Failed))]

    def vectors(self, request_id: int) -> list[list[list[float]]]:
        (found,) = [
            e for e in self.core.events if isinstance(e, Embedded) and e.request_id == request_id
        ]
        return [np.frombuffer(v, "<f4").reshape(-1, WIDTH).tolist() for v in found.vectors]


@pytest.mark.parametrize(
    "pooling, wanted",
    [
        ("none", [[1.0, 1.0], [2.0, 3.0], [3.0, 6.0]]),
        ("mean", [[2.0, 10 / 3]]),
        ("cls", [[1.0, 1.0]]),
        ("last", [[3.0, 6.0]]),
    ],
)
def test_each_pooling_gives_its_vectors(pooling: str, wanted: list[list[float]]) -> None:
    run = Run(pooling=pooling)
    run.embed(1, [1, 2, 3])
    run.finish()
    assert run.vectors(1)[0] == [pytest.approx(row) for row in wanted]


def test_an_input_longer_than_a_step_is_computed_in_pieces() -> None:
    run = Run(pooling="last")
    tokens = list(range(1, 31))
    run.embed(1, tokens)
    run.finish()
    assert len(run.context.steps) > 3
    assert run.vectors(1)[0] == [[30.0, float(sum(tokens))]]


def test_what_can_not_be_cut_and_does_not_fit_is_refused_with_the_size_that_would() -> None:
    run = Run(splits=False)
    run.embed(1, [1] * 9)
    run.embed(3, [1] * 21)
    failed, hopeless = run.core.events
    assert isinstance(failed, Failed) and failed.code == 400
    assert "9 tokens" in failed.message and "-ub 9" in failed.message
    assert isinstance(hopeless, Failed) and "-ub" not in hopeless.message
    run.embed(2, [1] * 8)
    run.finish()
    assert run.ends() == [1, 3, 2]


def test_a_short_request_does_not_wait_for_all_of_a_long_one() -> None:
    run = Run()
    run.embed(1, *[[1] * 8] * 20, tenant="busy")
    run.core.step()
    run.embed(2, [2, 3], tenant="person")
    run.finish()
    assert run.ends() == [2, 1]


def test_who_comes_late_has_no_claim_to_what_others_had_before() -> None:
    run = Run()
    run.embed(1, *[[1] * 8] * 20, tenant="a")
    for _ in range(10):
        run.core.step()
    run.embed(2, *[[1] * 8] * 20, tenant="b")
    for _ in range(10):
        run.core.step()
    run.core.queue(1)
    (queue,) = [e for e in run.core.events if isinstance(e, Queue)]
    computed = {r["id"]: r["computed_tokens"] for r in queue.queue["requests"]}
    assert computed == {"1": 80 + 40, "2": 40}


def test_a_request_that_fails_fails_alone() -> None:
    run = Run()
    run.context.poison = 99
    run.embed(1, [1, 2])
    run.embed(2, [99])
    run.embed(3, [4, 5], [6])
    run.finish()
    assert sorted(run.ends()) == [1, 2, 3]
    failures = [e for e in run.core.events if isinstance(e, Failed)]
    assert [f.request_id for f in failures] == [2]
    assert run.vectors(3)[1] == [[6.0, 6.0]]


def test_a_cancelled_request_frees_what_it_held() -> None:
    run = Run()
    run.embed(1, [1] * 30)
    run.core.step()
    run.core.cancel(1)
    run.embed(2, [1] * 38)
    run.finish()
    assert run.ends() == [2]


def test_slots_and_queue_show_what_is_computed_and_what_waits() -> None:
    run = Run()
    run.embed(1, *[[1] * 7] * 3, dialect="embeddings", client="me", name="mine")
    run.embed(2, [1] * 30)
    run.core.step()
    run.core.slots(1)
    run.core.queue(2)
    slots, queue = run.core.events[-2:]
    assert isinstance(slots, Slots) and isinstance(queue, Queue)
    assert sum(s["is_processing"] for s in slots.slots) > 0
    shown = {r["id"]: r for r in queue.queue["requests"]}
    assert set(queue.queue) == set(FIELDS)
    assert all(set(row) == set(REQUEST_FIELDS) for row in shown.values())
    assert shown["mine"]["prompt_tokens"] == 21 and shown["2"]["prompt_tokens"] == 30
    assert shown["mine"]["client"] == "me"
    assert (shown["mine"]["position"], shown["2"]["position"]) == (-1, 0)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whatever_comes_all_get_their_own_vectors(data: st.DataObject) -> None:
    splits = data.draw(st.booleans())
    run = Run(splits=splits, pooling="last")
    wanted: dict[int, list[list[int]]] = {}
    for request_id in range(data.draw(st.integers(1, 6))):
        longest = 40 if splits else 8
        inputs = data.draw(
            st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=longest), min_size=1,
                     max_size=4)
        )
        wanted[request_id] = inputs
        run.embed(request_id, *inputs, tenant=data.draw(st.sampled_from("ab")))
        for _ in range(data.draw(st.integers(0, 2))):
            run.core.step()
        if data.draw(st.integers(0, 5)) == 0 and request_id not in run.ends():
            run.core.cancel(request_id)
            del wanted[request_id]
    run.finish()
    for request_id, inputs in wanted.items():
        expected = [[vector(tokens, len(tokens))] for tokens in inputs]
        assert run.vectors(request_id) == expected
