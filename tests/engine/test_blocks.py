"""States in blocks: llama.cpp takes back bit by bit what it gave, and streams don't notice.

Logits are the same within rounding only (`logits.py`).
"""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from strata_plugin.checkpoints.blocks import BlockStore
from strata_plugin.checkpoints.keys import namespace
from strata_plugin.checkpoints.parking import RamParkingLot
from strata_plugin.engine.block_states import BlockStates, EndState
from strata_plugin.engine.messages import Done
from strata_plugin.runtime.config import ContextConfig, ModelConfig
from strata_plugin.runtime.context import STATE_PARTIAL, Context
from strata_plugin.runtime.library import log_to_stderr
from strata_plugin.runtime.model import Model
from tests.models import TINY_MODELS, tiny_model
from tests.unit.test_memory_doc import documented

from .logits import assert_same
from .running import Session, load

# those that can be cut and copied anywhere
NAMES = sorted(
    name
    for name, model in TINY_MODELS.items()
    if model.memory_class in ("llama_kv_cache", "llama_kv_cache_dsa")
)
# those with a state that exists only at the end of a sequence
ENDED = sorted(
    name
    for name, model in TINY_MODELS.items()
    if model.memory_class
    in (
        "llama_kv_cache_iswa",
        "llama_kv_cache_dsa_iswa",
        "llama_memory_recurrent",
        "llama_memory_hybrid",
        "llama_memory_hybrid_iswa",
    )
)
ROOT = namespace({})
N_SEQS = 5


def prompt_of(seed: int, n: int) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(5, 250, n)]


def logits_after(context: Context, seq_id: int, position: int) -> np.ndarray:
    """Logits of one more token, which stays."""
    batch = context.new_batch()
    row = batch.add(seq_id, np.array([77], np.int32), position, output=True)
    assert context.decode(batch) == 0
    return context.logits(row).copy()


def logits_of_next(context: Context, seq_id: int, position: int) -> np.ndarray:
    logits = logits_after(context, seq_id, position)
    context.remove(seq_id, position)
    return logits


def small_context(name: str, flash_attn: str) -> tuple[Model, Context]:
    log_to_stderr(0)
    model = Model(ModelConfig(path=str(tiny_model(name)), n_gpu_layers=0))
    settings = ContextConfig(
        n_ctx=1024, n_batch=64, n_ubatch=64, flash_attn=flash_attn, threads=1, threads_batch=1
    )
    return model, Context(model, settings, n_seq_max=N_SEQS)


def read_side_by_side(context: Context, n: int) -> list[np.ndarray]:
    """Four prompts of `n` tokens, computed so that their cells lie between each other's."""
    prompts = [np.array(prompt_of(seed, n), np.int32) for seed in range(4)]
    batch = context.new_batch()
    for start in range(0, n, 10):
        batch.clear()
        for seq_id, prompt in enumerate(prompts):
            batch.add(seq_id, prompt[start : start + 10], start, output=start + 10 == n)
        assert context.decode(batch) == 0
    return prompts


@pytest.mark.parametrize("flash_attn", ["on", "off"])
@pytest.mark.parametrize("name", NAMES)
def test_what_was_stored_in_blocks_is_there_again_bit_by_bit(name: str, flash_attn: str) -> None:
    model, context = small_context(name, flash_attn)
    store = BlockStore(RamParkingLot(64 << 20), 32)
    blocks = BlockStates(
        context, store, recompute_ms=lambda start, n: float(n), clock=lambda: 0.0
    )
    n = 150
    prompts = read_side_by_side(context, n)
    expected = [logits_of_next(context, seq_id, n) for seq_id in range(4)]
    for seq_id, prompt in enumerate(prompts):
        assert blocks.keep(seq_id, ROOT, prompt)
        assert context.position_range(seq_id) == (0, n - 1)
    assert len(store) == 4 * 5
    # one is restored whole, one on top of what is left of it, one in part, into another's place
    context.remove(0)
    context.remove(1, 70)
    context.remove(3)
    for seq_id, held, limit in ((0, 0, n), (1, 70, n)):
        match = blocks.find(ROOT, prompts[seq_id], limit, held)
        assert match is not None and match.reuse == limit
        first = blocks.first_held(match, held)
        assert first == held // 32 * 32
        context.remove(seq_id, first)
        assert blocks.load(seq_id, match, first, lambda: False) == limit
        for block in match.blocks:
            assert context.save_range(seq_id, block.start, block.end) == block.data
        assert_same(logits_of_next(context, seq_id, n), expected[seq_id])
    match = blocks.find(ROOT, prompts[2], 100, 0)
    assert match is not None and blocks.load(3, match, 0, lambda: False) == 100
    assert context.position_range(3) == (0, 99)
    context.remove(2, 100)
    in_part = logits_of_next(context, 3, 100)
    assert_same(in_part, logits_of_next(context, 2, 100))
    context.close()
    model.close()


@pytest.mark.parametrize("flash_attn", ["on", "off"])
@pytest.mark.parametrize("name", ENDED)
def test_a_state_that_can_not_be_cut_is_put_together_again_bit_by_bit(
    name: str, flash_attn: str
) -> None:
    model, context = small_context(name, flash_attn)
    store = BlockStore(RamParkingLot(64 << 20), 32, only_checkpoints=True)
    per_token = name != "recurrent"
    blocks = BlockStates(
        context, store, recompute_ms=lambda start, n: float(n), clock=lambda: 0.0,
        end=EndState(flags=STATE_PARTIAL if per_token else 0, per_token=per_token),
    )  # fmt: skip
    n = 150
    prompts = read_side_by_side(context, n)
    for seq_id, prompt in enumerate(prompts):
        assert blocks.keep(seq_id, ROOT, prompt)
        assert context.position_range(seq_id)[1] == n - 1
    expected = [logits_after(context, seq_id, n) for seq_id in range(4)]
    for seq_id, prompt in enumerate(prompts):
        context.remove(seq_id)
        match = blocks.find(ROOT, prompt, n, 0)
        assert match is not None and blocks.load(seq_id, match, 0, lambda: False) == n
        for block in match.blocks:
            if len(block.data):
                assert context.save_range(seq_id, block.start, block.end) == block.data
        assert blocks.end is not None
        end = context.save_state(seq_id, blocks.end.flags)
        assert without_sequence(end) == without_sequence(match.blocks[-1].rest)
    for seq_id in range(4):
        assert_same(logits_after(context, seq_id, n), expected[seq_id])
    context.close()
    model.close()


def without_sequence(state: bytearray | None) -> bytearray:
    """A state without the magic number and the sequence it was saved from."""
    assert state is not None and len(state) > 100
    return state[8:]


def test_what_goes_through_a_staging_buffer_is_the_same() -> None:
    """Host memory is copied directly; this makes it go the way of a device's."""
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-k", "bit_by_bit", __file__],
        env={**os.environ, "STRATA_STATE_STAGED": "1"}, capture_output=True, timeout=110,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-3000:].decode()


@pytest.mark.parametrize("name", [*NAMES, *ENDED])
def test_conversations_that_left_the_cache_come_back_without_being_read_again(name: str) -> None:
    """Eight in turn on two rows with cells for two: what llama-server reads again each time."""
    settings = {"n_parallel": 2, "n_batch": 64, "n_ubatch": 32, "n_ctx": 512}
    engine = load(tiny_model(name), block_tokens=32, **settings)
    blocks = engine.sequences._blocks
    assert blocks is not None and (blocks.end is None) == (name in NAMES)
    blocks._recompute_ms = lambda start, n: 1e6  # it computes about as quickly as it restores
    session = Session(engine)
    common = prompt_of(99, 64)
    history = {number: common + prompt_of(number, 120) for number in range(8)}
    request = 0
    for turn in range(3):
        for number, prompt in history.items():
            request += 1
            answer = session.generate(prompt, 6, request_id=request)
            read = prompt_n(session, request)
            if turn:
                assert read <= 20 + 1
            elif number > 1 or (number and not blocks.end):  # the second one finds the branch
                assert read <= 120 + 32
            history[number] = prompt + answer + prompt_of(1000 * turn + number, 20)
    tokens = sum(len(block.tokens) for block in blocks.store._blocks.values() if len(block.data))
    assert tokens < 64 + 8 * (3 * 146 + 64)  # the common prefix is there once
    fresh = load(tiny_model(name), **settings)
    for number, prompt in list(history.items())[:2]:
        expected = Session(fresh).generate(prompt, 6, cache_prompt=False)
        assert session.generate(prompt, 6, request_id=5000 + number) == expected
    fresh.close()
    engine.close()


def prompt_n(session: Session, request_id: int) -> int:
    done = session.end(request_id)
    assert isinstance(done, Done)
    return done.timings.prompt_n


@pytest.mark.parametrize("name", ENDED)
def test_what_can_not_be_cut_is_read_again_from_the_last_checkpoint_only(name: str) -> None:
    settings = {"n_parallel": 2, "n_batch": 64, "n_ubatch": 32, "n_ctx": 1024}
    engine = load(
        tiny_model(name), block_tokens=16, checkpoint_every=128, checkpoint_root=64, **settings
    )
    engine.sequences._blocks._recompute_ms = lambda start, n: 1e6  # type: ignore[union-attr]
    session = Session(engine)
    prompt = prompt_of(1, 500)
    first = session.generate(prompt, 40, request_id=1)
    # the same again: not the last block
    assert session.generate(prompt, 40, request_id=2) == first
    assert prompt_n(session, 2) <= 16
    # edits: one in the prompt, one in the answer
    for number, at in enumerate((470, 400, 250, 130), 3):
        edited = prompt[:at] + prompt_of(number, 60)
        answer = session.generate(edited, 6, request_id=number)
        assert prompt_n(session, number) <= 60 + 64 + 16
        fresh = load(tiny_model(name), **settings)
        assert Session(fresh).generate(edited, 6, cache_prompt=False) == answer
        fresh.close()
    session.generate(prompt + first[:35] + prompt_of(7, 20), 6, request_id=7)
    assert prompt_n(session, 7) <= 20 + 35 + 16
    # where a message ends: a header that is another one next time costs nothing
    eog = next(iter(engine.model.eog_tokens))
    turn = [*prompt_of(8, 90), eog]
    session.generate(turn + prompt_of(9, 4), 6, request_id=8)
    session.generate(turn + prompt_of(10, 30), 6, request_id=9)
    assert prompt_n(session, 9) == 30
    engine.close()


@pytest.mark.parametrize("name", sorted(TINY_MODELS))
def test_what_the_documentation_calls_whole_has_no_ranges(name: str) -> None:
    engine = load(tiny_model(name), n_parallel=2, n_ctx=512)
    *_, stored = documented()[engine.ready.model.memory_class]
    assert (engine.sequences._blocks is None) == (stored == "whole")
    assert (engine.sequences._blocks is not None) == (name in (*NAMES, *ENDED))
    engine.close()


@pytest.mark.parametrize("flash_attn", ["on", "off"])
def test_a_block_between_the_cells_of_others_takes_few_copies(flash_attn: str) -> None:
    """From a device each copy costs as much as many bytes; rows that write take turns in cells."""
    log_to_stderr(0)
    model = Model(ModelConfig(path=str(tiny_model("dense")), n_gpu_layers=0))
    settings = ContextConfig(
        n_ctx=8192, n_batch=64, n_ubatch=64, flash_attn=flash_attn, threads=1, threads_batch=1
    )
    context = Context(model, settings, n_seq_max=4)
    batch = context.new_batch()
    for position in range(256):
        batch.clear()
        for seq_id in range(4):
            batch.add(seq_id, np.array([position % 200 + 5], np.int32), position, output=False)
        assert context.decode(batch) == 0
    assert context.range_copies(2, 0, 256) == 2 * model.n_layer
    assert context.range_copies(2, 64, 64) == 0
    context.close()
    model.close()


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
