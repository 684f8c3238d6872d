"""`python -m bench bandwidth`: how quickly states move between KV cache, RAM and disk, without a
server.

Each figure is a ratio within one run: to a plain copy of the same bytes in memory, or to plain
files of the same sizes in the same folder, written and read in order.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from bench import sides
from bench.stats import median
from strata_plugin.checkpoints.disk import DiskFolder, Entry
from strata_plugin.checkpoints.keys import Key, block_key, namespace
from strata_plugin.runtime.config import ContextConfig, ModelConfig
from strata_plugin.runtime.context import Context
from strata_plugin.runtime.library import log_to_stderr
from strata_plugin.runtime.model import Model

BLOCK = 256
TARGET = 0.5  # of the plain copy


def main(arguments: Sequence[str]) -> int:
    """Print a table; 1 where a ratio is below `TARGET`."""
    parser = argparse.ArgumentParser(prog="python -m bench bandwidth", description=__doc__)
    parser.add_argument("--blocks", type=int, default=16, help="blocks of 256 tokens to move")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where files are written (default: temporary)")
    sides.add_options(parser)
    options = parser.parse_args(arguments)
    log_to_stderr(1)
    model = Model(ModelConfig(path=str(sides.model(options)), n_gpu_layers=0))
    below = 0
    n = options.blocks * BLOCK
    for flash_attn in ("on", "off"):
        states, missed = _memory(model, flash_attn, n, options.rounds)
        below += missed
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        below += _disk(Path(folder), states, options.rounds)
    model.close()
    return 1 if below else 0


def _memory(
    model: Model, flash_attn: str, n: int, rounds: int
) -> tuple[list[bytearray], int]:
    """The states of `n` tokens, and how many ratios are below the target."""
    config = ContextConfig(n_ctx=2 * n + BLOCK, n_batch=512, n_ubatch=512, flash_attn=flash_attn)
    context = Context(model, config, n_seq_max=2)
    _fill(context, n)
    states = [context.save_range(0, at, at + BLOCK) for at in range(0, n, BLOCK)]
    n_bytes = sum(map(len, states))
    print(f"flash attention {flash_attn}: {n} tokens, {n_bytes / 2**20:.0f} MiB")
    places = [bytearray(len(state)) for state in states]
    copy = _rate(rounds, n_bytes, lambda: _copied(states, places))
    rate = _rate(rounds, n_bytes, lambda: _saved(context, n))
    below = _show("KV cache -> RAM", rate, copy, "memcpy")
    rate = _rate(rounds, n_bytes, lambda: _appended(context, states), lambda: context.remove(1))
    below += _show("RAM -> KV cache", rate, copy, "memcpy")
    context.close()
    return states, below


def _fill(context: Context, n: int) -> None:
    tokens = np.random.default_rng(0).integers(100, 250, n).astype(np.int32)
    batch = context.new_batch()
    for start in range(0, n, context.n_batch):
        batch.clear()
        batch.add(0, tokens[start : start + context.n_batch], start, output=False)
        if context.decode(batch):
            raise SystemExit("bench: llama_decode failed")
    context.synchronize()


def _copied(states: Sequence[bytearray], places: Sequence[bytearray]) -> None:
    for place, state in zip(places, states, strict=True):
        place[:] = state


def _saved(context: Context, n: int) -> None:
    for at in range(0, n, BLOCK):
        context.save_range(0, at, at + BLOCK)


def _appended(context: Context, states: Sequence[bytearray]) -> None:
    if not context.append_ranges(1, states):
        raise SystemExit("bench: there is no room in the KV cache")


def _disk(folder: Path, states: Sequence[bytearray], rounds: int) -> int:
    """Blocks in the disk tier against plain files; whether a ratio is below the target."""
    n_bytes = sum(map(len, states))
    print(f"disk: {len(states)} blocks, {n_bytes / 2**20:.0f} MiB, checksums included")
    plain = [folder / f"plain-{number}" for number in range(len(states))]
    tier = DiskFolder(folder / "tier", 4 * n_bytes + (1 << 30))
    entries = _entries(states)

    def write_tier() -> None:
        for entry, state in zip(entries, states, strict=True):
            if not tier.write(entry, state):
                raise SystemExit("bench: a block was not written")

    def write_plain() -> None:
        for path, state in zip(plain, states, strict=True):
            path.write_bytes(state)

    def clear() -> None:
        for entry in entries:
            tier.remove(entry.key)

    below = 0
    reference = _rate(rounds, n_bytes, write_plain, lambda: [p.unlink() for p in plain])
    rate = _rate(rounds, n_bytes, write_tier, clear)
    below += _show("written", rate, reference, "plain files")
    write_plain()
    write_tier()
    cold: tuple[tuple[str, Callable[[], object]], ...] = (
        ("read, page cache warm", lambda: None),
        ("read, page cache cold", _drop),
    )
    for name, before in cold:
        reference = _rate(rounds, n_bytes, lambda: [p.read_bytes() for p in plain], before=before)
        rate = _rate(rounds, n_bytes, lambda: [tier.read(e.key) for e in entries], before=before)
        below += _show(name, rate, reference, "plain files")
    if not _drop():
        print("  (the page cache can't be emptied here: the last line is warm, too)")
    tier.close()
    return below


def _entries(states: Sequence[bytearray]) -> list[Entry]:
    root = namespace({})
    found, parent, tokens = [], root, np.arange(BLOCK, dtype=np.int32)
    for number, state in enumerate(states):
        key: Key = block_key(parent, tokens)
        found.append(Entry(key, parent, root, number * BLOCK, tokens, len(state), None, 1.0))
        parent = key
    return found


def _drop() -> bool:
    """Empty the page cache; whether that was possible."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("1")
    except OSError:
        return False
    return True


def _rate(
    rounds: int,
    n_bytes: int,
    move: Callable[[], object],
    after: Callable[[], object] = lambda: None,
    before: Callable[[], object] = lambda: None,
) -> float:
    """Median bytes per second of `rounds` moves."""
    rates = []
    for _ in range(rounds):
        before()
        began = time.perf_counter()
        move()
        rates.append(n_bytes / (time.perf_counter() - began))
        after()
    return median(rates)


def _show(name: str, rate: float, reference: float, what: str) -> int:
    ratio = rate / reference
    print(f"  {name:24} {rate / 1e9:6.2f} GB/s, {ratio:.2f} x {what} ({reference / 1e9:.2f} GB/s)")
    return int(ratio < TARGET)
