"""Samplers through libstrata, on real logits."""

from __future__ import annotations

import json
import math
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_plugin.runtime.native import Frontend, NativeError, Sampler, sample_rows
from tests.engine.smollm2 import ROWS, logits, need_native_library

need_native_library()

HALF = ROWS // 2
RANDOM: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 2.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    "dynamic temperature": {"temperature": 1.5, "dynatemp_range": 1.0, "top_k": 500},
    "mirostat": {"mirostat": 1, "temperature": 1.5},
    "mirostat 2": {"mirostat": 2, "temperature": 1.5, "mirostat_tau": 8.0},
    "xtc": {"xtc_probability": 0.5, "xtc_threshold": 0.02, "temperature": 1.5},
    "adaptive-p": {"samplers": ["top_k", "adaptive_p"], "adaptive_target": 0.3, "top_k": 500},
    "penalties and DRY": {
        "temperature": 1.5, "repeat_penalty": 1.3, "frequency_penalty": 0.3,
        "presence_penalty": 0.2, "dry_multiplier": 0.8, "min_p": 0.0,
    },
    "grammar": {"temperature": 2.0, "min_p": 0.0, "grammar": "root ::= [a-z ]+"},
    "lazy grammar": {
        "temperature": 2.0, "grammar": 'root ::= "x" [0-9]+', "grammar_lazy": True,
        "grammar_triggers": [{"type": 1, "value": "xyzzy"}],
    },
    "reasoning budget": {
        "temperature": 2.0, "reasoning_budget_tokens": 3,
        "reasoning_budget_start_tag": "<|im_start|>",
        "reasoning_budget_end_tags": ["<|im_end|>"], "generation_prompt": "<|im_start|>",
        "reasoning_budget_message": "",
    },
}  # fmt: skip


def new_sampler(sampling: dict[str, Any], *, prompt: bool = True) -> Sampler:
    sampler = Sampler(logits().frontend, json.dumps(sampling).encode())
    if prompt:
        sampler.accept(logits().tokens, generated=False)
    return sampler


def text(tokens: list[int], sampler: Sampler) -> str:
    return b"".join(sampler.piece(t) for t in tokens).decode("utf-8", "replace")


# ---- what is sampled ----------------------------------------------------------------------------


def test_temperature_zero_takes_the_most_likely_token() -> None:
    tokens = logits().sample(new_sampler({"temperature": 0.0}))
    assert tokens == [int(logits().row(i).argmax()) for i in range(ROWS)]


@pytest.mark.parametrize(
    "more",
    [{}, {"ignore_eos": True}, {"top_p": 0.1, "min_p": 0.9, "top_k": 1}, {"logit_bias": "best"}],
)
def test_the_short_way_at_temperature_zero_chooses_what_the_chain_chooses(
    more: dict[str, Any],
) -> None:
    """`n_probs` needs the candidates, so with it the whole chain runs."""
    rows = [int(logits().row(i).argmax()) for i in range(ROWS)]
    if more.get("logit_bias") == "best":  # ban and favour what would be chosen, one of them twice
        more = {"logit_bias": [[rows[0], False], [rows[1], -3.0], [rows[1], -2.5], [rows[2], 2.0]]}
    before = [logits().row(i).copy() for i in range(ROWS)]
    short = logits().sample(new_sampler({"temperature": 0, **more}))
    assert all(np.array_equal(logits().row(i), before[i]) for i in range(ROWS))
    assert short == logits().sample(new_sampler({"temperature": 0, "n_probs": 1, **more}))
    assert not more.get("logit_bias") or short != rows


@pytest.mark.parametrize("name", RANDOM)
def test_the_same_seed_gives_the_same_tokens(name: str) -> None:
    sampling = {**RANDOM[name], "seed": 11}
    assert logits().sample(new_sampler(sampling)) == logits().sample(new_sampler(sampling))


@pytest.mark.parametrize("name", RANDOM)
def test_another_seed_gives_other_tokens(name: str) -> None:
    one, other = (logits().sample(new_sampler({**RANDOM[name], "seed": s})) for s in (11, 12))
    assert one != other


def test_top_k_one_leaves_the_most_likely_token_at_any_temperature() -> None:
    tokens = logits().sample(new_sampler({"temperature": 5.0, "top_k": 1}))
    assert tokens == [int(logits().row(i).argmax()) for i in range(ROWS)]


def test_a_grammar_bounds_the_text() -> None:
    sampler = new_sampler({"temperature": 2.0, "seed": 3, "grammar": "root ::= [0-9]+"})
    assert text(logits().sample(sampler), sampler).isdigit()


def test_a_schema_bounds_the_text() -> None:
    schema = {"type": "array", "items": {"type": "boolean"}, "minItems": 40}
    sampler = new_sampler({"temperature": 2.0, "seed": 3, "json_schema": schema})
    assert text(logits().sample(sampler), sampler).startswith("[")


def test_penalties_see_the_prompt() -> None:
    """A presence penalty pushes a token of the prompt out only if the prompt was accepted."""
    best = [int(logits().row(i).argmax()) for i in range(ROWS)]
    i = next(i for i in range(ROWS) if best[i] in logits().tokens)
    sampling = {"temperature": 0.0, "presence_penalty": 100.0}
    assert logits().sample(new_sampler(sampling, prompt=False), range(i, i + 1)) == [best[i]]
    assert logits().sample(new_sampler(sampling), range(i, i + 1)) != [best[i]]


def test_logit_bias_bans_and_forces_tokens() -> None:
    best = int(logits().row(0).argmax())
    sampler = new_sampler({"temperature": 0.0, "logit_bias": [[best, False]]})
    assert logits().sample(sampler, range(1)) != [best]
    sampler = new_sampler({"temperature": 0.0, "logit_bias": [[77, 1000]]})
    assert logits().sample(sampler) == [77] * ROWS


def test_the_reasoning_budget_forces_its_end() -> None:
    sampler = new_sampler({**RANDOM["reasoning budget"], "seed": 5})
    tokens = logits().sample(sampler)
    assert tokens[3] == 2  # <|im_end|> after three tokens


def test_defaults_of_the_frontend_hold_where_a_request_is_silent() -> None:
    config = {"sampling": {"temperature": 0.0}, "templates": False, "verbosity": 0}
    greedy = Sampler(Frontend(logits().model.handle, config), b"{}")
    assert logits().sample(greedy) == [int(logits().row(i).argmax()) for i in range(ROWS)]


# ---- state --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [11, None])
@pytest.mark.parametrize("name", RANDOM)
def test_a_loaded_state_continues_as_the_saved_sampler(name: str, seed: int | None) -> None:
    sampling = RANDOM[name] if seed is None else {**RANDOM[name], "seed": seed}
    first = new_sampler(sampling)
    head = logits().sample(first, range(HALF))
    state = first.save()
    tail = logits().sample(first, range(HALF, ROWS))

    second = new_sampler(sampling)
    second.accept(head, generated=True)
    second.load(state)
    assert second.seed == first.seed
    assert logits().sample(second, range(HALF, ROWS)) == tail
    assert second.save() == first.save()


@pytest.mark.parametrize("name", ["temperature", "mirostat", "mirostat 2", "xtc", "adaptive-p"])
def test_without_its_state_a_sampler_continues_otherwise(name: str) -> None:
    sampling = {**RANDOM[name], "seed": 11}
    first = new_sampler(sampling)
    head = logits().sample(first, range(HALF))
    tail = logits().sample(first, range(HALF, ROWS))
    second = new_sampler(sampling)
    second.accept(head, generated=True)
    assert logits().sample(second, range(HALF, ROWS)) != tail


@pytest.mark.parametrize("name", RANDOM)
def test_a_state_is_small(name: str) -> None:
    sampler = new_sampler(RANDOM[name])
    logits().sample(sampler)
    assert len(sampler.save()) <= 40


def test_a_state_is_refused_where_it_does_not_belong() -> None:
    first = new_sampler({"seed": 1})
    head = logits().sample(first, range(4))
    state = first.save()

    behind = new_sampler({"seed": 1})
    behind.accept(head[:3], generated=True)
    with pytest.raises(NativeError, match="accepted"):
        behind.load(state)
    other = new_sampler({"mirostat": 1})
    other.accept(head, generated=True)
    with pytest.raises(NativeError, match="another request"):
        other.load(state)
    for broken in (b"", state[:-1], state + b"\0"):
        with pytest.raises(NativeError):
            first.load(broken)
    assert first.save() == state  # refusing changed nothing


@pytest.mark.parametrize("name", RANDOM)
def test_a_clone_continues_alike_and_independently(name: str) -> None:
    sampling = {**RANDOM[name], "seed": 11}
    control = logits().sample(new_sampler(sampling))
    first = new_sampler(sampling)
    assert logits().sample(first, range(HALF)) == control[:HALF]
    clone = first.clone()
    assert logits().sample(clone, range(HALF, ROWS)) == control[HALF:]
    assert logits().sample(first, range(HALF, ROWS)) == control[HALF:]


def test_a_clone_outlives_its_original() -> None:
    first = new_sampler({**RANDOM["grammar"], "seed": 11})
    control = logits().sample(first.clone())
    clone = first.clone()
    del first
    assert logits().sample(clone) == control


def test_a_sampler_may_change_threads() -> None:
    made: list[Sampler] = []
    thread = threading.Thread(target=lambda: made.append(new_sampler(RANDOM["grammar"])))
    thread.start()
    thread.join()
    assert len(logits().sample(made[0])) == ROWS


# ---- rows, probabilities, pieces ----------------------------------------------------------------


def test_rows_are_sampled_each_with_its_own_sampler() -> None:
    samplers = [new_sampler({"temperature": 1.5, "seed": s}) for s in range(8)]
    alone = [logits().sample(s.clone(), range(i, i + 1))[0] for i, s in enumerate(samplers)]
    together = sample_rows(logits().context, samplers, [logits().rows[i] for i in range(8)])
    assert together == alone


def test_a_failing_row_fails_alone() -> None:
    good, bad = new_sampler({"temperature": 0.0}), new_sampler({"temperature": 0.0})
    tokens = sample_rows(logits().context, [bad, good], [10**6, logits().rows[0]])
    assert tokens == [-1, int(logits().row(0).argmax())]
    assert "logits" in bad.error and good.error == ""
    assert logits().sample(bad, range(1)) == tokens[1:]  # it works again
    assert bad.error == ""


def test_accepting_what_the_grammar_forbids_is_an_error() -> None:
    sampler = new_sampler({"grammar": "root ::= [0-9]+"})
    with pytest.raises(NativeError, match="grammar"):
        sampler.accept(logits().tokens, generated=True)


@pytest.mark.parametrize("token", [-1, 10**9, 49152])
def test_unknown_tokens_are_refused(token: int) -> None:
    sampler = new_sampler({})
    with pytest.raises(NativeError, match="invalid token"):
        sampler.accept([token], generated=True)
    assert sampler.piece(token) == b""


def test_special_tokens_are_hidden_unless_the_request_keeps_them() -> None:
    assert new_sampler({}).piece(1) == b""
    assert new_sampler({"preserved_tokens": ["<|im_start|>"]}).piece(1) == b"<|im_start|>"


def test_probabilities_are_those_of_the_logits() -> None:
    sampler = new_sampler({"temperature": 0.0, "n_probs": 5})
    (token,) = logits().sample(sampler, range(1))
    probs = json.loads(sampler.probs(logits().context, logits().rows[0], token))
    row = logits().row(0).astype(np.float64)
    expected = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
    order = np.argsort(-row)[:5]
    assert [p["id"] for p in probs["probs"]] == order.tolist()
    assert [p["prob"] for p in probs["probs"]] == pytest.approx(expected[order].tolist(), rel=0.01)
    assert probs["id"] == token and probs["prob"] == pytest.approx(expected[token], rel=0.01)
    assert bytes(probs["text"]) == sampler.piece(token)


def test_probabilities_after_sampling_cover_what_was_left() -> None:
    sampler = new_sampler({"temperature": 1.0, "top_k": 3, "n_probs": 9, "min_p": 0.0,
                           "top_p": 1.0, "post_sampling_probs": True})  # fmt: skip
    (token,) = logits().sample(sampler, range(1))
    probs = json.loads(sampler.probs(logits().context, logits().rows[0], token))["probs"]
    assert len(probs) == 3 and math.isclose(sum(p["prob"] for p in probs), 1.0, rel_tol=1e-4)


def test_probabilities_need_a_sampled_row() -> None:
    sampler = new_sampler({"n_probs": 5, "post_sampling_probs": True})
    logits().sample(sampler, range(1))
    with pytest.raises(NativeError):
        sampler.clone().probs(logits().context, logits().rows[0], 0)


def test_infill_over_a_whole_vocabulary_is_refused() -> None:
    """It would take minutes per token."""
    for sampling in ({"samplers": ["infill"]}, {"samplers": "ki", "top_k": 0}):
        with pytest.raises(NativeError, match="infill"):
            new_sampler(sampling)
    assert logits().sample(new_sampler({"samplers": ["top_k", "infill"]}))


# ---- absurd requests ----------------------------------------------------------------------------

numbers = st.one_of(
    st.sampled_from([0, -1, 1, 2, 1e-45, 1e30, -1e30, 1e38, 1e300, 2**31 - 1, -(2**31), 2**63]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(-10, 200),
)
NUMERIC = [
    "temperature", "top_k", "top_p", "min_p", "top_n_sigma", "xtc_probability", "xtc_threshold",
    "typical_p", "dynatemp_range", "dynatemp_exponent", "repeat_last_n", "repeat_penalty",
    "frequency_penalty", "presence_penalty", "dry_multiplier", "dry_base", "dry_allowed_length",
    "dry_penalty_last_n", "mirostat", "mirostat_tau", "mirostat_eta", "adaptive_target",
    "adaptive_decay", "seed", "min_keep", "n_probs",
]  # fmt: skip
absurd = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(NUMERIC, numbers),
        "samplers": st.text("edskypmxtia", max_size=12),
        "logit_bias": st.lists(st.tuples(st.integers(-2, 49153), numbers | st.just(False))),
        "ignore_eos": st.booleans(),
        "post_sampling_probs": st.booleans(),
    },
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(absurd)
def test_any_numbers_give_a_token_or_an_error(sampling: dict[str, Any]) -> None:
    try:
        sampler = new_sampler(sampling)
    except NativeError as e:
        assert e.code == 400 and e.message
        return
    for row in logits().rows[:3]:
        (token,) = sample_rows(logits().context, [sampler], [row])
        assert (0 <= token < logits().model.n_vocab) or sampler.error
