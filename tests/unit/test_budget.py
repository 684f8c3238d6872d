"""The step budget on machines of several kinds, simulated."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_plugin.scheduling.budget import QuantumBudget, StepBudget

N_ROWS = 3


def passes(n: int) -> int:
    return -(-n // 512)


def run(
    budget: QuantumBudget, machine: Callable[[int], float], n_steps: int = 40, noise: float = 0.0
) -> list[int]:
    """Step sizes while `machine(tokens)` says how many milliseconds a step takes."""
    rng = random.Random(0)
    sizes = []
    for _ in range(n_steps):
        n_tokens = budget.step_tokens(N_ROWS)
        sizes.append(n_tokens)
        elapsed_ms = machine(n_tokens) * rng.lognormvariate(0, noise)
        budget.observe(n_tokens - N_ROWS, N_ROWS, elapsed_ms)
    return sizes


def test_a_step_budget_is_handed_out_until_it_is_used_up() -> None:
    budget = StepBudget(10)
    assert [budget.take(4), budget.take(8), budget.take(1)] == [4, 6, 0]


def test_the_first_guess_is_one_micro_batch() -> None:
    assert QuantumBudget(2048, 512, 500.0).step_tokens(4) == 512
    assert QuantumBudget(2048, 512, 500.0).tokens_per_s is None


def test_whole_micro_batches_are_taken_where_they_fit() -> None:
    budget = QuantumBudget(2048, 512, 500.0)
    assert set(run(budget, lambda n: n / 3.35)[1:]) == {1536}
    assert budget.tokens_per_s == pytest.approx(3350)


def test_a_fast_machine_is_bound_by_the_batch_size() -> None:
    assert run(QuantumBudget(2048, 512, 500.0), lambda n: n / 100.0)[-1] == 2048


def test_a_batch_that_is_no_multiple_is_filled_with_whole_micro_batches() -> None:
    assert run(QuantumBudget(700, 512, 500.0), lambda n: n / 100.0)[-1] == 512


def test_a_slow_machine_gets_parts_of_a_micro_batch_that_fit_the_quantum() -> None:
    budget = QuantumBudget(2048, 512, 500.0)
    assert set(run(budget, lambda n: n / 0.2)[1:]) == {96}


def test_the_slowest_machine_gets_the_floor() -> None:
    assert run(QuantumBudget(2048, 512, 500.0), lambda n: n / 0.001)[-1] == N_ROWS + 16


def test_steps_do_not_shrink_where_that_saves_no_time() -> None:
    """Experts streamed over PCIe: a pass takes 2 s, be it of 20 tokens or of 512."""
    sizes = run(QuantumBudget(2048, 512, 500.0), lambda n: 2000 * passes(n) + 0.1 * n, 200, 0.05)
    assert sum(sizes[5:]) / len(sizes[5:]) > 400
    assert max(sizes) == 512


def test_smaller_steps_are_tried_again_after_the_cost_of_a_pass_has_gone() -> None:
    """Steps of 512 take as long as ever, but now it is the tokens: a quarter would do."""
    budget = QuantumBudget(2048, 512, 500.0)
    run(budget, lambda n: 2000 * passes(n) + 0.1 * n, n_steps=10)
    assert budget.step_tokens(N_ROWS) == 512
    assert run(budget, lambda n: n * 4.0, n_steps=60)[-1] < 140


@pytest.mark.parametrize("outlier", [0.01, 100.0])
def test_a_single_outlier_changes_little(outlier: float) -> None:
    budget = QuantumBudget(2048, 512, 500.0)
    run(budget, lambda n: n / 0.8, noise=0.02)
    before = budget.step_tokens(N_ROWS)
    budget.observe(before, 0, before / 0.8 * outlier)
    assert 0.6 < budget.step_tokens(N_ROWS) / before < 1.4


@pytest.mark.parametrize("factor", [0.1, 10.0])
def test_a_lasting_change_is_followed_within_few_steps(factor: float) -> None:
    budget = QuantumBudget(2048, 512, 500.0)
    run(budget, lambda n: n / 1.2)
    sizes = run(budget, lambda n: n / (1.2 * factor), n_steps=6)
    expected = {0.1: 56, 10.0: 2048}[factor]
    assert sizes[-1] == expected


@pytest.mark.parametrize("factor", [0.5, 0.7, 1.5, 2.0])
@pytest.mark.parametrize("tokens_per_ms", [0.2, 0.4])
def test_a_slight_lasting_change_is_followed_without_leaps(
    factor: float, tokens_per_ms: float
) -> None:
    budget = QuantumBudget(2048, 512, 500.0)
    run(budget, lambda n: n / tokens_per_ms, n_steps=100)
    sizes = run(budget, lambda n: n / tokens_per_ms / factor, n_steps=25)
    assert sizes[-1] == pytest.approx(500 * tokens_per_ms * factor, rel=0.15)
    assert max(sizes) <= 1.5 * 500 * tokens_per_ms * max(1.0, factor)


def test_depth_that_slows_steps_down_is_followed() -> None:
    budget = QuantumBudget(2048, 512, 500.0)
    depth = 0

    def machine(n: int) -> float:
        nonlocal depth
        depth += n
        return n / 3.35 * (1 + depth / 20_000)

    times = [n / 3.35 * (1 + depth / 20_000) for n in run(budget, machine, 60, 0.02)]
    assert depth > 30_000
    assert times[-1] < 500 * 1.2


def test_a_short_rest_of_a_prompt_does_not_spoil_the_estimate() -> None:
    """A step of 20 tokens takes 30 ms, hardly less than one of 512: 20 ms are the pass itself."""
    budget = QuantumBudget(2048, 512, 500.0)

    def machine(n: int) -> float:
        return 20.0 * passes(n) + n / 3.35

    run(budget, machine)
    before = budget.step_tokens(N_ROWS)
    for _ in range(5):
        budget.observe(20, 0, machine(20))
    assert budget.step_tokens(N_ROWS) == before


def test_steps_of_rows_alone_teach_nothing() -> None:
    budget = QuantumBudget(2048, 512, 500.0)
    budget.observe(0, 4, 1e6)
    budget.observe(100, 4, 0.0)
    budget.observe(100, 4, math.nan)
    budget.observe(100, 4, math.inf)
    assert budget.tokens_per_s is None


def test_senseless_settings_are_refused() -> None:
    for n_batch, n_ubatch, quantum_ms in ((0, 1, 1.0), (1, 0, 1.0), (1, 1, 0.0), (1, 1, math.nan)):
        with pytest.raises(ValueError, match="must be positive"):
            QuantumBudget(n_batch, n_ubatch, quantum_ms)


@given(
    n_batch=st.integers(1, 4096),
    n_ubatch=st.integers(1, 4096),
    steps=st.lists(
        st.tuples(st.integers(0, 4096), st.integers(0, 64), st.floats(0, 1e9)), max_size=30
    ),
)
def test_any_history_gives_a_step_within_bounds(
    n_batch: int, n_ubatch: int, steps: list[tuple[int, int, float]]
) -> None:
    budget = QuantumBudget(n_batch, n_ubatch, 500.0)
    for n_prompt_tokens, n_rows, elapsed_ms in steps:
        budget.observe(n_prompt_tokens, n_rows, elapsed_ms)
        n_tokens = budget.step_tokens(n_rows)
        assert min(n_rows + 16, n_batch) <= n_tokens <= n_batch
        u = min(n_ubatch, n_batch)
        if n_tokens > max(u, n_rows + 16):
            assert n_tokens % u == 0
