"""`python -m bench frontier`: what a small gap of a running stream costs the newcomer.

Each setting of both servers is one point: the p99 gap of a stream while another client's prompt is
read, and that prompt's TTFT. Strata's settings are inter-token targets, llama-server's are batch
sizes, with flash attention on and off. One server runs at a time.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import math
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench import machine, plots, report, scenarios, scheduling, sides
from bench.scenario import ScenarioError
from bench.servers import Server, ServerError
from bench.stats import median

TARGETS_MS = (75, 150, 300, 600, 1200)
BATCHES = (8, 16, 32, 64, 128, 512, 2048)
OURS, THEIRS = "strata-server", "llama-server"


@dataclass(frozen=True)
class Setting:
    """One way to start one of the servers."""

    side: str
    name: str
    flags: tuple[str, ...]


@dataclass(frozen=True)
class Point:
    """What one setting gave: medians over its runs."""

    side: str
    name: str
    flags: tuple[str, ...]
    gap_p99_ms: float
    gap_max_ms: float
    ttft_s: float
    stream_tokens: float  # that the stream got meanwhile
    read_tokens_per_s: float  # of a prompt of the same length with nobody decoding


@dataclass(frozen=True)
class Comparison:
    """One point of ours against llama-server at the same p99 gap."""

    name: str
    gap_p99_ms: float
    ttft_s: float
    theirs_ttft_s: float | None  # None: no setting of llama-server has so small a gap

    @property
    def ratio(self) -> float | None:
        """Our TTFT / theirs."""
        return None if self.theirs_ttft_s is None else self.ttft_s / self.theirs_ttft_s


def settings(targets: Sequence[int], batches: Sequence[int]) -> list[Setting]:
    """All settings, ours first."""
    ours = [Setting(OURS, f"{t} ms", ("--itl-slo-ms", str(t))) for t in targets]
    theirs = [
        Setting(THEIRS, f"-b {batch} -fa {attention}", ("-b", str(batch), "-fa", attention))
        for batch in batches
        for attention in ("on", "off")
    ]
    return ours + theirs


def measure(server: Server, setting: Setting, words: int, repeat: int) -> Point:
    """Start `server` with a setting's flags and take its point; it is stopped afterwards."""
    server.start(setting.flags)
    try:
        # nobody decodes; being a first run of the same length, it warms up the next ones too
        scenarios.prefill(words)(server, -1)
        reads = [scenarios.prefill(words)(server, run) for run in range(repeat)]
        runs = [scheduling.stall(words)(server, run) for run in range(repeat)]
    finally:
        server.stop()
    return Point(
        setting.side,
        setting.name,
        setting.flags,
        gap_p99_ms=median([run["gap_p99_ms"] for run in runs]),
        gap_max_ms=median([run["gap_max_ms"] for run in runs]),
        ttft_s=median([run["ttft_s"] for run in runs]),
        stream_tokens=median([run["stream_tokens"] for run in runs]),
        read_tokens_per_s=median([read["tokens_per_s"] for read in reads]),
    )


def best(points: Sequence[Point]) -> list[Point]:
    """Those that no other beats in both gap and TTFT, by rising gap."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda point: (point.gap_p99_ms, point.ttft_s)):
        if not kept or point.ttft_s < kept[-1].ttft_s:
            kept.append(point)
    return kept


def ttft_at(frontier: Sequence[Point], gap_ms: float) -> float | None:
    """The TTFT at `gap_ms` on a frontier that `best` gave, or None where all its gaps are longer.

    Between two points the TTFT runs straight over the gap's logarithm. Beyond the longest gap it
    stays what it is there, since who may have longer gaps may have shorter ones as well.
    """
    if not frontier or gap_ms < frontier[0].gap_p99_ms:
        return None
    for low, high in itertools.pairwise(frontier):
        if gap_ms <= high.gap_p99_ms:
            span = math.log(high.gap_p99_ms / low.gap_p99_ms)
            share = math.log(gap_ms / low.gap_p99_ms) / span
            return low.ttft_s + share * (high.ttft_s - low.ttft_s)
    return frontier[-1].ttft_s


def compare(points: Sequence[Point]) -> list[Comparison]:
    """Each of our points against llama-server's frontier."""
    theirs = best([point for point in points if point.side == THEIRS])
    return [
        Comparison(p.name, p.gap_p99_ms, p.ttft_s, ttft_at(theirs, p.gap_p99_ms))
        for p in points
        if p.side == OURS
    ]


def read_ratio(points: Sequence[Point]) -> float | None:
    """Our read speed with nobody decoding (median of our settings) / llama-server's best."""
    ours = [point.read_tokens_per_s for point in points if point.side == OURS]
    theirs = [point.read_tokens_per_s for point in points if point.side == THEIRS]
    return median(ours) / max(theirs) if ours and theirs else None


def table(result: dict[str, Any]) -> str:
    """The points and the comparison in Markdown."""
    lines = [
        "| server | setting | gap p99, ms | longest, ms | TTFT, s | stream tokens | read, tok/s |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for point in result["points"]:
        lines.append(
            f"| {point['side']} | {point['name']} | {point['gap_p99_ms']:.0f} "
            f"| {point['gap_max_ms']:.0f} | {point['ttft_s']:.2f} "
            f"| {point['stream_tokens']:.0f} | {point['read_tokens_per_s']:.0f} |"
        )
    lines += [f"| {one['side']} | {one['name']} | failed |||||" for one in result["failed"]]
    lines += [
        "",
        "| target | gap p99, ms | TTFT, s | llama-server's at that gap, s | ratio, ≤ × 1.0 |",
        "|---|---:|---:|---:|---|",
    ]
    for one in result["compared"]:
        theirs, ratio = one["theirs_ttft_s"], one["ratio"]
        lines.append(
            f"| {one['name']} | {one['gap_p99_ms']:.0f} | {one['ttft_s']:.2f} "
            + (
                "| no setting has it | |"
                if ratio is None
                else f"| {theirs:.2f} | {_verdict(ratio)} |"
            )
        )
    if result["read_ratio"] is not None:
        verdict = "met" if result["read_ratio"] >= 0.97 else "MISSED"
        lines += [
            "",
            f"Read speed with nobody decoding, against llama-server's best: "
            f"× {result['read_ratio']:.3f}, ≥ × 0.97: {verdict}.",
        ]
    about = machine.Machine(**result["machine"]).line()
    lines += ["", f"A prompt of {result['words']} words. {about}; {result['started'][:10]}."]
    return "\n".join(lines) + "\n"


def draw(points: Sequence[Point], words: int, path: Path) -> None:
    """The plot: p99 gap over TTFT, ours and llama-server's best."""
    ours = sorted((p for p in points if p.side == OURS), key=lambda p: p.gap_p99_ms)
    theirs = [point for point in points if point.side == THEIRS]
    frontier = best(theirs)
    beaten = [point for point in theirs if point not in frontier]
    lines = [
        plots.Line(label, [(p.gap_p99_ms, p.ttft_s) for p in chosen], [p.name for p in chosen], s)
        for label, chosen, s in (
            ("Strata, --itl-slo-ms", ours, "o-"),
            ("llama-server, best settings", frontier, "s-"),
            ("llama-server, other settings", beaten, "x"),
        )
        if chosen
    ]
    title = f"A stream runs while a prompt of {words} tokens is read"
    plots.chart(lines, title, "p99 gap of the stream, ms", "newcomer's TTFT, s", path)


def run(
    servers: dict[str, Server],
    chosen: Sequence[Setting],
    words: int,
    repeat: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Measure all settings; one that fails is reported and left out."""
    started = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    points: list[Point] = []
    failed: list[dict[str, str]] = []
    for setting in chosen:
        try:
            point = measure(servers[setting.side], setting, words, repeat)
        except (ScenarioError, ServerError) as exc:
            say(f"{setting.side} {setting.name}: failed: {exc}")
            failed.append({"side": setting.side, "name": setting.name, "error": str(exc)})
            continue
        say(
            f"{setting.side} {setting.name}: gap p99 {point.gap_p99_ms:.0f} ms, "
            f"TTFT {point.ttft_s:.2f} s, alone {point.read_tokens_per_s:.0f} tok/s"
        )
        points.append(point)
    return {
        "format": 1,
        "started": started,
        "machine": machine.describe(),
        "words": words,
        "repeat": repeat,
        "servers": {name: sides.describe(server) for name, server in servers.items()},
        "points": [asdict(point) for point in points],
        "failed": failed,
        "compared": [asdict(one) | {"ratio": one.ratio} for one in compare(points)],
        "read_ratio": read_ratio(points),
    }


def main(arguments: Sequence[str]) -> int:
    """Measure, write frontier.json, .md and .png; 0 where every setting gave a point."""
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server is stopped
    try:
        if not options.no_plot:
            plots.check()
        servers = {OURS: sides.ours(options), THEIRS: sides.theirs(options)}
    except (sides.SetupError, plots.PlotError) as exc:
        print(f"bench: {exc}", file=sys.stderr)
        return 1
    chosen = settings(options.targets, options.batches)
    result = run(servers, chosen, options.words, options.repeat, report.say)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "frontier.json"
    path.write_text(json.dumps(result, indent=1))
    path.with_suffix(".md").write_text(table(result))
    if not options.no_plot and result["points"]:
        points = [Point(**point) for point in result["points"]]
        draw(points, options.words, path.with_suffix(".png"))
    print(table(result))
    print(f"Written to {path}")
    return 1 if result["failed"] else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench frontier", description=__doc__)
    parser.add_argument(
        "--words", type=_positive, default=2000, help="length of the prompt that is read"
    )
    parser.add_argument(
        "--repeat", type=_positive, default=1, help="runs of each setting; medians count"
    )
    parser.add_argument(
        "--targets", type=_positive, nargs="*", default=TARGETS_MS, help="ms, for --itl-slo-ms"
    )
    parser.add_argument(
        "--batches", type=_positive, nargs="*", default=BATCHES, help="llama-server's -b"
    )
    parser.add_argument("--no-plot", action="store_true", help="no PNG, no matplotlib needed")
    sides.add_options(parser)
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {value}")
    return value


def _verdict(ratio: float) -> str:
    return f"× {ratio:.3f}: {'met' if ratio <= 1.0 else 'MISSED'}"
