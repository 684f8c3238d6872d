"""A llama context without llama.cpp: the next token is a function of the sequence's tokens.

It keeps real book of cells and positions, so that whoever mixes up sequences, positions or reuse
gets other tokens than `expected_tokens` says.
"""

from __future__ import annotations

import time
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from strata_plugin.checkpoints.blocks import BlockStore
from strata_plugin.checkpoints.borders import Borders
from strata_plugin.checkpoints.parking import RamParkingLot
from strata_plugin.checkpoints.traits import PLAIN, WHOLE_ONLY, PrefixTraits
from strata_plugin.engine.block_states import BlockStates, EndState
from strata_plugin.engine.core import EngineCore
from strata_plugin.engine.disk_tier import DiskTier
from strata_plugin.engine.messages import Done, Failed, Frozen, Submit, Token
from strata_plugin.engine.sequences import Sequences
from strata_plugin.scheduling.config import SchedulingConfig
from strata_plugin.scheduling.cost import LearnedCost
from strata_plugin.scheduling.scheduler import Limits, Scheduler

EOS = 0
N_VOCAB = 50


def next_token(tokens: Sequence[int]) -> int:
    """What the fake model says after `tokens`; never EOS."""
    return 1 + zlib.crc32(np.asarray(tokens, np.int32).tobytes()) % (N_VOCAB - 1)


def lora_offset(mixture: tuple[tuple[int, float], ...]) -> int:
    """What LoRA adapters change: states computed with others are no good."""
    return zlib.crc32(repr(mixture).encode()) % 1000 * 1000 if mixture else 0


def expected_tokens(
    prompt: Sequence[int], n: int, mixture: tuple[tuple[int, float], ...] = ()
) -> list[int]:
    """The greedy continuation."""
    offset = lora_offset(mixture)
    states, tokens = [token + offset for token in prompt], []
    for _ in range(n):
        tokens.append(next_token(states))
        states.append(tokens[-1] + offset)
    return tokens


def word(token: int) -> str:
    """The fake text of a token: letters only."""
    return "".join(chr(ord("g") + int(digit)) for digit in str(token)) + " "


@dataclass
class FakeBatch:
    rows: list[tuple[int, int, int, bool]] = field(default_factory=list)

    def clear(self) -> None:
        self.rows = []

    def add(self, seq_id: int, tokens: np.ndarray, start: int, *, output: bool) -> int:
        for i, token in enumerate(tokens):
            last = i == len(tokens) - 1
            self.rows.append((seq_id, int(token), start + i, output and last))
        return len(self.rows) - 1


class FakeSampler:
    def __init__(self, fails_at: int = -1) -> None:
        self.error = ""
        self.n = 0
        self.fails_at = fails_at

    def piece(self, token: int) -> bytes:
        return f"<{token}>".encode()

    def probs(self, context: object, row: int, token: int) -> bytes:
        return b'{"id":%d}' % token

    def save(self) -> bytes:
        return b""


class FakeContext:
    """`n_ctx` cells; with `recurrent` sequences can't be cut. `codes` scripts decode results."""

    def __init__(self, n_ctx: int, *, n_batch: int = 64, recurrent: bool = False) -> None:
        self.n_ctx = n_ctx
        self.n_batch = n_batch
        self.recurrent = recurrent
        self.now = 0.0
        self.cells: dict[int, tuple[int, ...]] = {}  # cell id of each position, by sequence
        self.tokens: dict[int, list[int]] = {}
        self.unfinished: set[int] = set()  # sequences whose state at the end is missing
        self.codes: deque[int] = deque()
        self.poison: Callable[[FakeBatch], int] = lambda batch: 0
        self.n_computed = 0
        self.mixture: tuple[tuple[int, float], ...] = ()
        self.batches: list[list[tuple[int, int, int, bool]]] = []
        self._next_cell = 0
        self._answers: dict[int, int] = {}

    @property
    def used_cells(self) -> int:
        return len({c for cells in self.cells.values() for c in cells})

    def new_batch(self) -> FakeBatch:
        return FakeBatch()

    def decode(self, batch: FakeBatch) -> int:
        self.now += 0.001 * len(batch.rows)
        code = self.codes.popleft() if self.codes else self.poison(batch)
        if code not in (0, 2) and code >= -1:
            return code
        if self.used_cells + len(batch.rows) > self.n_ctx:
            return 1
        rows = batch.rows if code == 0 else batch.rows[: len(batch.rows) // 2]
        self._answers = {}
        self.batches.append(list(rows))
        assert len(rows) <= self.n_batch
        for i, (seq, token, position, output) in enumerate(rows):
            assert seq not in self.unfinished, f"the end of sequence {seq} was not restored"
            held = self.tokens.setdefault(seq, [])
            assert position == len(held), f"sequence {seq}: position {position}, held {len(held)}"
            held.append(token + lora_offset(self.mixture))
            self.cells[seq] = (*self.cells.get(seq, ()), self._next_cell)
            self._next_cell += 1
            self.n_computed += 1
            if output:
                self._answers[i] = next_token(held)
        return code

    def use_lora(self, mixture: tuple[tuple[int, float], ...]) -> None:
        self.mixture = mixture

    def synchronize(self) -> None:
        pass

    def sample(self, samplers: Sequence[FakeSampler], rows: Sequence[int]) -> list[int]:
        out = []
        for sampler, row in zip(samplers, rows, strict=True):
            sampler.n += 1
            if sampler.n == sampler.fails_at:
                sampler.error = "grammar broke"
                out.append(-1)
            else:
                out.append(self._answers[row])
        return out

    def remove(self, seq_id: int, start: int = 0) -> bool:
        if self.recurrent and 0 < start < len(self.tokens.get(seq_id, [])):
            return False
        if start <= 0:
            self.tokens.pop(seq_id, None)
            self.cells.pop(seq_id, None)
            self.unfinished.discard(seq_id)
        elif seq_id in self.tokens:
            del self.tokens[seq_id][start:]
            self.cells[seq_id] = self.cells[seq_id][:start]
        return True

    def copy(self, source: int, target: int, n: int | None = None) -> None:
        assert not self.tokens.get(target) and source not in self.unfinished
        if self.recurrent and n is not None:
            self.unfinished.add(target)
        self.tokens[target] = self.tokens[source][:n]
        self.cells[target] = self.cells[source][:n]

    def own_window(self, seq_id: int) -> None:
        raise AssertionError("this fake has no window")

    def position_range(self, seq_id: int) -> tuple[int, int]:
        n = len(self.tokens.get(seq_id, []))
        return (0, n - 1) if n else (-1, -1)

    def state_size(self, seq_id: int, flags: int = 0) -> int:
        return 8 if flags else 4 * len(self.tokens[seq_id])

    def save_state(self, seq_id: int, flags: int = 0) -> bytearray:
        """The tokens; with flags (a state that exists only at the end) a digest of them."""
        tokens = np.asarray(self.tokens[seq_id], np.int32)
        if flags:
            digest = [len(tokens), zlib.crc32(tokens.tobytes()) >> 1]
            return bytearray(np.asarray(digest, np.int32).tobytes())
        return bytearray(tokens.tobytes())

    def load_state(self, seq_id: int, data: bytearray, flags: int = 0) -> bool:
        if flags:
            self.unfinished.discard(seq_id)
            assert self.save_state(seq_id, flags) == data, "the end is another sequence's"
            return True
        tokens = np.frombuffer(bytes(data), np.int32).tolist()
        self.tokens.pop(seq_id, None)
        self.cells.pop(seq_id, None)
        return self._append(seq_id, tokens)

    def range_size(self, seq_id: int, start: int, stop: int) -> int:
        return 4 * (1 + stop - start)

    def save_range(self, seq_id: int, start: int, stop: int) -> bytearray:
        assert stop <= len(self.tokens[seq_id])
        tokens = [start, *self.tokens[seq_id][start:stop]]
        return bytearray(np.asarray(tokens, np.int32).tobytes())

    def append_ranges(self, seq_id: int, ranges: Sequence[bytearray]) -> bool:
        new: list[int] = []
        held = len(self.tokens.get(seq_id, []))
        for data in ranges:
            start, *tokens = np.frombuffer(bytes(data), np.int32).tolist()
            assert start == held + len(new), "there would be a hole"
            new += tokens
        if self.recurrent and new:
            self.unfinished.add(seq_id)
        return self._append(seq_id, new)

    def _append(self, seq_id: int, tokens: Sequence[int]) -> bool:
        if self.used_cells + len(tokens) > self.n_ctx:
            return False
        if tokens:
            self.tokens[seq_id] = [*self.tokens.get(seq_id, []), *tokens]
            cells = range(self._next_cell, self._next_cell + len(tokens))
            self.cells[seq_id] = (*self.cells.get(seq_id, ()), *cells)
            self._next_cell += len(tokens)
        return True


class FakeEngine:
    """An `EngineCore` on a `FakeContext`, with helpers to run requests to their end."""

    def __init__(
        self,
        *,
        n_ctx: int = 1000,
        n_rows: int = 4,
        n_batch: int = 64,
        recurrent: bool = False,
        park_bytes: int = 1 << 20,
        quantum_ms: float = 500.0,
        n_seqs: int | None = None,
        n_ctx_slot: int | None = None,
        n_spare: int = 4,
        block_tokens: int = 16,
        disk: DiskTier | None = None,
        **scheduling: Any,
    ) -> None:
        self.context = FakeContext(n_ctx, n_batch=n_batch, recurrent=recurrent)
        self.lot = RamParkingLot(park_bytes)
        traits: PrefixTraits = WHOLE_ONLY if recurrent else PLAIN
        n_seqs = n_seqs or n_rows + 8
        blocks, borders = None, None
        if block_tokens:
            blocks = BlockStates(
                self.context,
                BlockStore(self.lot, block_tokens, only_checkpoints=recurrent),
                recompute_ms=lambda start, n: float(n),
                clock=lambda: self.context.now,
                disk=disk,
                end=EndState(flags=1) if recurrent else None,
            )
            borders = Borders(4 * block_tokens, 2 * block_tokens, block_tokens)
        self.sequences = Sequences(
            self.context,
            self.lot,
            n_seqs=n_seqs,
            traits=traits,
            survives_failed_step=not recurrent,
            blocks=blocks,
            borders=borders,
        )
        self.scheduler = Scheduler(
            Limits(n_rows=n_rows, n_batch=n_batch, n_ubatch=16, n_spare=n_spare),
            SchedulingConfig(prefill_quantum_ms=quantum_ms, **scheduling),
            LearnedCost(16),
        )
        self.core = EngineCore(
            self.context,
            self.scheduler,
            self.sequences,
            clock=lambda: self.context.now,
            n_ctx_slot=n_ctx_slot or n_ctx,
            eog_tokens=frozenset({EOS}),
            text=lambda tokens: "".join(word(token) for token in tokens.tolist()),
            debug=True,
        )
        self.events: list[Frozen] = []

    def submit(
        self,
        request_id: int,
        prompt: Sequence[int],
        n: int = 8,
        *,
        fails_at: int = -1,
        **kw: object,
    ) -> None:
        data = np.asarray(prompt, "<i4").tobytes()
        submit = Submit(
            request_id=request_id, prompt=data, sampling=b"{}", n_predict=n, **kw  # type: ignore
        )
        self.core.submit(submit, FakeSampler(fails_at))
        self._collect()

    def cancel(self, request_id: int) -> None:
        self.core.cancel(request_id)
        self._collect()

    def step(self) -> bool:
        more = self.core.step()
        self.core.check_integrity()
        self.lot.check_integrity()
        self._collect()
        return more

    def run(self, max_steps: int = 10_000) -> None:
        for _ in range(max_steps):
            if self.core.idle:
                return
            if not self.step() and not self.core.idle:
                assert not self.core._generations, "stuck: requests but nothing to compute"
                time.sleep(0.001)  # the disk is read
        raise AssertionError("did not finish")

    def tokens(self, request_id: int) -> list[int]:
        return [e.token for e in self.of(request_id) if isinstance(e, Token)]

    def of(self, request_id: int) -> list[Frozen]:
        return [e for e in self.events if getattr(e, "request_id", None) == request_id]

    def parked_states(self) -> list[int]:
        """Requests whose state is in RAM (idle states are filed under negative numbers)."""
        return sorted(key for key in self.lot._parked if key >= 0)

    def end(self, request_id: int) -> Done | Failed:
        last = self.of(request_id)[-1]
        assert isinstance(last, Done | Failed)
        return last

    def rest(self) -> None:
        """Do what is to be done without requests."""
        while not self.core.at_rest:
            self.step()

    def _collect(self) -> None:
        self.events += self.core.events
        self.core.events.clear()
