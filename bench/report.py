"""Renders a benchmark's JSON: a table for the terminal, and Markdown for a README.

`python -m bench.report [FILE]` prints the Markdown of FILE (bench/results/latest.json).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.machine import Machine

RESULTS = Path(__file__).parent / "results"
_TARGET_SIGN = {"higher": "≥", "lower": "≤"}


def header(result: Mapping[str, Any]) -> tuple[str, ...]:
    """The table's column names."""
    sides = (result["ours"]["name"], result["theirs"]["name"])
    return ("scenario", "figure", *sides, "compared", "95 % interval", "target")


def rows(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The table's rows, in the order of `header`; a scenario's name stands in its first row."""
    table: list[tuple[str, ...]] = []
    for scenario in result["scenarios"]:
        title = scenario["title"]
        if scenario["error"]:
            table.append((title, "failed: " + scenario["error"].splitlines()[0][:60], *[""] * 5))
        for metric in scenario["metrics"]:
            unit = metric["unit"]
            table.append(
                (
                    title,
                    metric["label"],
                    _number(metric["ours"], unit),
                    _number(metric["theirs"], unit),
                    _compared(metric, metric["compared"]),
                    _interval(metric),
                    _target(metric),
                )
            )
            title = ""
    return table


def terminal(result: Mapping[str, Any]) -> str:
    """A table in plain text with the machine above it."""
    table = [header(result), *rows(result)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join([*about(result), "", *lines])


def markdown(result: Mapping[str, Any]) -> str:
    """The same table in Markdown, with the machine and the versions below it."""
    lines = ["| " + " | ".join(row) + " |" for row in (header(result), *rows(result))]
    lines.insert(1, "|---|---|" + "---:|" * 4 + "---|")
    return "\n".join([*lines, "", *(f"- {line}" for line in about(result))]) + "\n"


def about(result: Mapping[str, Any]) -> list[str]:
    """Machine, model, versions and how many pairs stand behind the medians."""
    counts = sorted(
        {scenario["pairs_used"] for scenario in result["scenarios"] if scenario["metrics"]}
    )
    pairs = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else "".join(map(str, counts))
    lines = [
        f"Machine: {Machine(**result['machine']).line()}.",
        f"Model: {result['model']}; both servers with the same flags, taken in turns; "
        f"medians of {pairs} pairs.",
        *(f"{result[side]['name']}: {result[side]['version']}." for side in ("ours", "theirs")),
        f"Date: {result['started'][:10]}; other processes used "
        f"{result['others']:.0%} of the CPU meanwhile (median).",
    ]
    if result["others"] > 0.05:
        lines.append("The machine was not idle: read the figures as rough.")
    return lines


def write(result: Mapping[str, Any], folder: Path) -> Path:
    """Write NAME.json, NAME.md and both as `latest`; returns the path of NAME.json."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(result, indent=1)
    name = result["started"].replace(":", "").replace("+0000", "Z")
    for stem in (name, "latest"):
        (folder / f"{stem}.json").write_text(text)
        (folder / f"{stem}.md").write_text(markdown(result))
    return folder / f"{name}.json"


def say(line: str) -> None:
    """One line of progress, to stderr."""
    print(line, file=sys.stderr, flush=True)


def main(arguments: Sequence[str]) -> int:
    """Print the Markdown of the given JSON file."""
    path = Path(arguments[0]) if arguments else RESULTS / "latest.json"
    try:
        print(markdown(json.loads(path.read_text())), end="")
    except (OSError, ValueError) as exc:
        print(f"cannot read {path}: {exc}", file=sys.stderr)
        return 1
    return 0


def _number(value: float, unit: str) -> str:
    text = f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
    return f"{text} {unit}".rstrip()


def _compared(metric: Mapping[str, Any], value: float) -> str:
    if metric["compare"] == "ratio":
        return f"× {value:.3f}"
    if metric["compare"] == "difference":
        sign = "+" if value >= 0 else "−"
        return sign + _number(abs(value), metric["unit"])
    return _number(value, metric["unit"])


def _interval(metric: Mapping[str, Any]) -> str:
    if metric["compare"] == "value" or metric["pairs"] < 2:
        return ""
    low, high = metric["interval_low"], metric["interval_high"]
    if metric["compare"] == "ratio":
        return f"{low:.3f} to {high:.3f}"
    return f"{_compared(metric, low)} to {_compared(metric, high)}"


def _target(metric: Mapping[str, Any]) -> str:
    if metric["target"] is None:
        return ""
    ratio = metric["compare"] == "ratio"
    bound = f"× {metric['target']}" if ratio else _number(metric["target"], metric["unit"])
    verdict = "met" if metric["met"] else "MISSED"
    return f"{_TARGET_SIGN[metric['better']]} {bound}: {verdict}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
