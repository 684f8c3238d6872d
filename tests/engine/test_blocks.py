"""States in blocks: llama.cpp takes back bit by bit what it gave, and streams don't notice.

Logits are the same within rounding only: attention adds up in the order of the cells.
"""

from __future__ import annotations

import numpy as np
import pytest

from strata_plugin.checkpoints.blocks import BlockStore
from strata_plugin.checkpoints.keys import namespace
from strata_plugin.checkpoints.parking import RamParkingLot
from strata_plugin.engine.block_states import BlockStates
from strata_plugin.engine.messages import Done
from strata_plugin.runtime.config import ContextConfig, ModelConfig
from strata_plugin.runtime.context import Context
from strata_plugin.runtime.library import log_to_stderr
from strata_plugin.runtime.model import Model
from tests.models import TINY_MODELS, tiny_model

from .running import Session, load

# those that can be cut and copied anywhere
NAMES = sorted(
    name
    for name, model in TINY_MODELS.items()
    if model.memory_class in ("llama_kv_cache", "llama_kv_cache_dsa")
)
ROOT = namespace({})
SCRATCH = 5


def prompt_of(seed: int, n: int) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(5, 250, n)]


def logits_of_next(context: Context, seq_id: int, position: int) -> np.ndarray:
    batch = context.new_batch()
    row = batch.add(seq_id, np.array([77], np.int32), position, output=True)
    assert context.decode(batch) == 0
    logits = context.logits(row).copy()
    context.remove(seq_id, position)
    return logits


@pytest.mark.parametrize("flash_attn", ["on", "off"])
@pytest.mark.parametrize("name", NAMES)
def test_what_was_stored_in_blocks_is_there_again_bit_by_bit(name: str, flash_attn: str) -> None:
    log_to_stderr(0)
    model = Model(ModelConfig(path=str(tiny_model(name)), n_gpu_layers=0))
    settings = ContextConfig(
        n_ctx=1024, n_batch=64, n_ubatch=64, flash_attn=flash_attn, threads=1, threads_batch=1
    )
    context = Context(model, settings, n_seq_max=SCRATCH + 1)
    store = BlockStore(RamParkingLot(64 << 20), 32)
    blocks = BlockStates(
        context, store, SCRATCH, recompute_ms=lambda start, n: float(n), clock=lambda: 0.0
    )
    n = 150
    prompts = [np.array(prompt_of(seed, n), np.int32) for seed in range(4)]
    batch = context.new_batch()
    for start in range(0, n, 10):  # cells of the four lie between each other's
        batch.clear()
        for seq_id, prompt in enumerate(prompts):
            batch.add(seq_id, prompt[start : start + 10], start, output=start + 10 == n)
        assert context.decode(batch) == 0
    expected = [logits_of_next(context, seq_id, n) for seq_id in range(4)]
    for seq_id, prompt in enumerate(prompts):
        assert blocks.keep(seq_id, ROOT, prompt)
        assert context.position_range(seq_id) == (0, n - 1)
        assert context.position_range(SCRATCH) == (-1, -1)
    assert len(store) == 4 * 5
    # one is restored whole, one on top of what is left of it, one in part, into another's place
    context.remove(0)
    context.remove(1, 70)
    context.remove(3)
    for seq_id, held, limit in ((0, 0, n), (1, 70, n)):
        match = blocks.find(ROOT, prompts[seq_id], limit, held)
        assert match is not None and match.reuse == limit
        assert blocks.load(seq_id, match, held, lambda: False) == limit
        for block in match.blocks:
            context.copy(seq_id, SCRATCH, block.end, block.start)
            assert context.save_state(SCRATCH) == block.data
            context.remove(SCRATCH)
        assert np.allclose(logits_of_next(context, seq_id, n), expected[seq_id], atol=1e-3)
    match = blocks.find(ROOT, prompts[2], 100, 0)
    assert match is not None and blocks.load(3, match, 0, lambda: False) == 100
    assert context.position_range(3) == (0, 99)
    context.remove(2, 100)
    in_part = logits_of_next(context, 3, 100)
    assert np.allclose(in_part, logits_of_next(context, 2, 100), atol=1e-3)
    context.close()
    model.close()


@pytest.mark.parametrize("name", NAMES)
def test_conversations_that_left_the_cache_come_back_without_being_read_again(name: str) -> None:
    """Eight in turn on two rows with cells for two: what llama-server reads again each time."""
    settings = {"n_parallel": 2, "n_batch": 64, "n_ubatch": 32, "n_ctx": 512}
    engine = load(tiny_model(name), block_tokens=32, **settings)
    # so small a model computes about as quickly as it restores
    engine.sequences._blocks._recompute_ms = lambda start, n: 1e6  # type: ignore[union-attr]
    session = Session(engine)
    common = prompt_of(99, 64)
    history = {number: common + prompt_of(number, 120) for number in range(8)}
    request = 0
    for turn in range(3):
        for number, prompt in history.items():
            request += 1
            answer = session.generate(prompt, 6, request_id=request)
            done = session.end(request)
            assert isinstance(done, Done)
            new = 0 if not turn else 20 + 1
            if turn or number:
                assert done.timings.prompt_n <= new + (120 if not turn else 0) + 32
            history[number] = prompt + answer + prompt_of(1000 * turn + number, 20)
    store = engine.sequences._blocks.store  # type: ignore[union-attr]
    assert len(store) < 8 * (64 + 3 * 146) // 32  # the common prefix is there once
    fresh = load(tiny_model(name), **settings)
    for number, prompt in list(history.items())[:2]:
        expected = Session(fresh).generate(prompt, 6, cache_prompt=False)
        assert session.generate(prompt, 6, request_id=5000 + number) == expected
    fresh.close()
    engine.close()


def test_tenants_never_find_each_others_states() -> None:
    engine = load(tiny_model("dense"), n_parallel=2, n_ctx=512)
    session = Session(engine)
    prompt = prompt_of(1, 100)
    cached = {}
    for number, tenant in enumerate(("a", "b", "a", "b"), 1):
        session.generate(prompt, 2, request_id=number, salt=tenant)
        done = session.end(number)
        assert isinstance(done, Done)
        cached[number] = done.timings.cache_n
    assert cached == {1: 0, 2: 0, 3: 99, 4: 99}
    engine.close()
