"""`python -m bench cpu-experts`: what patch 0007 (experts on the CPU with a few rows) gains.

Two processes compute the same, one with STRATA_CPU_MULTI_ROW=0 and one with 1, on the same core, in
turns of some 10 ms. Compared is CPU time of one thread, so other programs on the machine matter
little; a ratio is the median over the pairs, above 1 where the patch is quicker. Weights are random
bits.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import machine
from bench.stats import Summary, summarize
from tests.models.experts import write_experts

SWITCH = "STRATA_CPU_MULTI_ROW"
TYPES = (
    "iq3_s", "iq3_xxs", "iq2_xxs", "iq2_xs", "iq2_s", "iq1_s", "iq1_m", "iq4_xs", "iq4_nl", "q2_0",
)  # fmt: skip
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 16)
TOKENS = (1, 4, 16, 32, 64, 128)
SLICE_S = 0.01  # CPU seconds of one measurement, about


class Worker:
    """A process with the switch set to `value`."""

    def __init__(self, value: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.expert_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, SWITCH: value},
        )

    def seconds(self, times: int, **work: Any) -> float:
        """CPU seconds of doing it `times` times; `work` says what from now on."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps({**work, "times": times}), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit(f"bench: a worker ended with code {self._process.wait()}")
        return float(json.loads(answer))

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def compare(off: Worker, on: Worker, pairs: int, **work: Any) -> tuple[Summary, int]:
    """Seconds of both sides and off/on; how many times the work was done in a measurement.

    Thrice in memory that is allocated anew, since where it lies makes some percent.
    """
    rows: list[tuple[float, float]] = []
    times = 0
    while len(rows) < pairs:
        for worker in (off, on):
            worker.seconds(1, **work)
        if not times:
            once = min(off.seconds(1) for _ in range(3))
            times = max(1, round(SLICE_S / max(once, 1e-6)))
        for number in range(min((pairs + 2) // 3, pairs - len(rows))):
            first, second = (off, on) if number % 2 == 0 else (on, off)
            a, b = first.seconds(times), second.seconds(times)
            rows.append((a, b) if number % 2 == 0 else (b, a))
    return summarize([a for a, _ in rows], [b for _, b in rows], difference=False), times


def main(arguments: Sequence[str]) -> int:
    """Print tables in Markdown."""
    parser = argparse.ArgumentParser(prog="python -m bench cpu-experts", description=__doc__)
    parser.add_argument("--types", type=lambda text: text.split(","), default=TYPES)
    parser.add_argument("--rows", type=_numbers, default=ROWS, help="rows of each expert")
    parser.add_argument("--tokens", type=_numbers, default=TOKENS, help="of a whole model's step")
    parser.add_argument("--pairs", type=int, default=21)
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--n-in", type=int, default=2048, help="weights of a row")
    parser.add_argument("--n-out", type=int, default=768, help="rows of a matrix")
    parser.add_argument("--models", action="store_true", help="whole models, too: takes 2 GB")
    options = parser.parse_args(arguments)
    cpu = machine.describe()
    # cores that share their units with other machines' differ in speed, so both sides use one
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    print(f"{cpu['cpu']}, one thread, {options.pairs} pairs\n")
    off, on = Worker("0"), Worker("1")
    _kernels(off, on, options)
    if options.models:
        _models(off, on, options)
    off.close()
    on.close()
    return 0


def _kernels(off: Worker, on: Worker, options: argparse.Namespace) -> None:
    shape = {"experts": options.experts, "n_in": options.n_in, "n_out": options.n_out}
    print(f"MUL_MAT_ID, {options.experts} experts of {options.n_in} x {options.n_out}: "
          "off/on (GFLOPS off → on)\n")  # fmt: skip
    print("| rows an expert | " + " | ".join(map(str, options.rows)) + " |")
    print("|---" * (len(options.rows) + 1) + "|")
    for dtype in options.types:
        cells = []
        for rows in options.rows:
            work = {"dtype": dtype, "rows": rows, **shape}
            found, times = compare(off, on, options.pairs, experts=work)
            flop = 2e-9 * times * rows * options.experts * options.n_in * options.n_out
            rates = [flop / seconds for seconds in (found.ours, found.theirs)]
            cells.append(f"{found.center:.2f} ({rates[0]:.0f} → {rates[1]:.0f})")
        print(f"| {dtype} | " + " | ".join(cells) + " |", flush=True)
    print()


def _models(off: Worker, on: Worker, options: argparse.Namespace) -> None:
    print("A whole model's step: off/on (ms off → on)\n")
    print("| tokens | " + " | ".join(map(str, options.tokens)) + " |")
    print("|---" * (len(options.tokens) + 1) + "|")
    for experts, used in ((8, 2), (128, 8)):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.gguf"
            write_experts(path, experts=experts, used=used, n_embd=2048, n_ff=768, n_layer=2)
            cells = []
            for tokens in options.tokens:
                work = {"path": str(path), "n": tokens}
                found, times = compare(off, on, options.pairs, tokens=work)
                ms = [1e3 * seconds / times for seconds in (found.ours, found.theirs)]
                cells.append(f"{found.center:.2f} ({ms[0]:.1f} → {ms[1]:.1f})")
            print(f"| {experts} experts, {used} used | " + " | ".join(cells) + " |", flush=True)
    print()


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))
