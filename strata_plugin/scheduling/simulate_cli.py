"""`strata-server simulate TRACE`: a trace on a machine that is described, not there."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from .config import SchedulingConfig
from .cost import AnalyticCost
from .scheduler import Limits, Scheduler
from .simulation import Outcome, Simulation
from .sizes import SIZES, size_of
from .trace import read_trace

GPU = re.compile(r"^\s*(?:[^:]*:)?\s*([\d.]+)\s*tok/s\s*,\s*([\d.]+)\s*ms\s*$")


def gpu(text: str) -> AnalyticCost:
    """`NAME: N tok/s, M ms`: tokens read a second, milliseconds of a step that only decodes."""
    match = GPU.match(text)
    try:
        if match is None:
            raise ValueError
        speed, step = float(match[1]), float(match[2])
        if not (0 < speed < 1e9 and 0 < step < 1e6):
            raise ValueError
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected a machine as in '4090D: 3350 tok/s, 9.4 ms', got {text!r}"
        ) from None
    return AnalyticCost(pass_ms=step, token_ms=1e3 / speed)


def main(argv: list[str]) -> int:
    """Run the command; returns the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        with Path(arguments.trace).open(encoding="utf-8") as lines:
            trace = read_trace(lines)
        config = SchedulingConfig(
            policy=arguments.scheduler,
            itl_slo_ms=arguments.itl_slo_ms,
            prefill_quantum_ms=arguments.prefill_quantum_ms,
            short_read=arguments.short_read,
        )
        limits = Limits(arguments.rows, arguments.batch, arguments.ubatch, arguments.spare)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        print(f"strata-server simulate: {arguments.trace}: {error}", file=sys.stderr)
        return 2
    simulation = Simulation(
        Scheduler(limits, config, arguments.gpu),
        trace,
        arguments.gpu,
        n_cells=arguments.cells,
        keep_prefixes=not arguments.no_cache,
    )
    outcomes = simulation.run()
    report = summary(outcomes, simulation.queue_length)
    print(json.dumps(report, indent=1) if arguments.json else as_table(report))
    return 0


def summary(
    outcomes: Sequence[Outcome], queue_length: Sequence[tuple[float, int]]
) -> dict[str, object]:
    """TTFT (s) and gaps (ms) by length of the prompt, and the queue over time."""
    report: dict[str, object] = {}
    for name in SIZES:
        chosen = [o for o in outcomes if size_of(o.request.n_prompt) == name]
        ttfts = [o.ttft_s for o in chosen if o.ttft_s is not None]
        gaps = [gap * 1e3 for o in chosen for gap in o.gaps_s]
        report[name] = {
            "requests": len(chosen),
            "ttft_s": _quantiles(ttfts),
            "gap_ms": _quantiles(gaps),
            "longest_gap_ms": round(max(gaps), 3) if gaps else None,
        }
    end = max((o.end_s or 0.0) for o in outcomes)
    tokens = sum(o.request.n_prompt for o in outcomes)
    report["makespan_s"] = round(end, 3)
    report["cached_share"] = round(sum(o.cached for o in outcomes) / tokens, 4)
    report["queue_length"] = [[round(at, 3), length] for at, length in queue_length]
    return report


def as_table(report: dict[str, object]) -> str:
    """The report for people."""
    lines = [
        f"{'prompts':10}{'requests':>9}{'TTFT s P50':>12}{'P95':>9}{'P99':>9}"
        f"{'gap ms P50':>12}{'P95':>9}{'P99':>9}{'max':>9}"
    ]
    for name in SIZES:
        row = report[name]
        assert isinstance(row, dict)
        if not row["requests"]:
            continue
        cells = [*row["ttft_s"], *row["gap_ms"], row["longest_gap_ms"]]
        shown = ["-" if value is None else f"{value:.4g}" for value in cells]
        widths = (12, 9, 9, 12, 9, 9, 9)
        lines.append(
            f"{name:10}{row['requests']:>9}"
            + "".join(f"{cell:>{width}}" for cell, width in zip(shown, widths, strict=True))
        )
    queue = report["queue_length"]
    assert isinstance(queue, list)
    longest = max((length for _, length in queue), default=0)
    lines.append(
        f"all done after {report['makespan_s']} s; longest queue {longest}; "
        f"{report['cached_share']:.1%} of the prompt tokens found in a cache"
    )
    return "\n".join(lines)


def _quantiles(values: Sequence[float]) -> list[float | None]:
    """P50, P95, P99 (nearest rank)."""
    if not values:
        return [None, None, None]
    ordered = sorted(values)
    last = len(ordered) - 1
    return [round(ordered[min(last, int(q * len(ordered)))], 4) for q in (0.5, 0.95, 0.99)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="strata-server simulate", description=__doc__)
    parser.add_argument("trace", help="requests, one JSON object a line (Mooncake's form)")
    parser.add_argument(
        "--gpu",
        type=gpu,
        default="4090D: 3350 tok/s, 9.4 ms",
        help="the machine: prompt tokens a second, time of a step that only decodes",
    )
    parser.add_argument("--rows", type=_positive, default=4, help="requests written at once")
    parser.add_argument("--spare", type=int, default=28, help="prompts that may be read ahead")
    parser.add_argument("--cells", type=int, default=0, help="KV cells; 0: any number")
    parser.add_argument("--batch", type=_positive, default=2048, help="most tokens of a step")
    parser.add_argument("--ubatch", type=_positive, default=512, help="tokens of a pass")
    parser.add_argument("--itl-slo-ms", type=float, default=150.0)
    parser.add_argument("--prefill-quantum-ms", type=float, default=500.0)
    parser.add_argument("--short-read", type=int, default=256)
    parser.add_argument("--scheduler", choices=("strata", "upstream"), default="strata")
    parser.add_argument("--no-cache", action="store_true", help="no prefix is ever kept")
    parser.add_argument("--json", action="store_true", help="the whole report as JSON")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, got {value}")
    return value
