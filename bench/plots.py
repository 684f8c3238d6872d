"""PNG plots of results; matplotlib is loaded only when one is drawn."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class PlotError(Exception):
    """There is nothing to draw with; the message says what to install."""


@dataclass(frozen=True)
class Line:
    """Points from left to right; `names` are written beside them where there are any."""

    label: str
    points: Sequence[tuple[float, float]]
    names: Sequence[str] = ()
    style: str = "o-"  # marker and line, as matplotlib writes them


def check() -> None:
    """Raise `PlotError` where matplotlib is missing; call it before hours of measuring."""
    _pyplot()


def chart(lines: Sequence[Line], title: str, x: str, y: str, path: Path) -> None:
    """Draw `lines` over a logarithmic x axis into the PNG at `path`."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(8.0, 5.0), layout="constrained")
    try:
        for line in lines:
            xs, ys = [p[0] for p in line.points], [p[1] for p in line.points]
            axes.plot(xs, ys, line.style, label=line.label, markersize=4, linewidth=1.2)
            for name, point in zip(line.names, line.points, strict=False):
                axes.annotate(
                    name, point, textcoords="offset points", xytext=(4, 4), fontsize=7
                )  # fmt: skip
        axes.margins(x=0.12)  # room for the names
        _finish(axes, title, x, y)
        figure.savefig(path, dpi=120)
    finally:
        pyplot.close(figure)


def shares(groups: Mapping[str, Mapping[str, Sequence[float]]], x: str, path: Path) -> None:
    """For each group a field with one curve a label: the share of values at or below x."""
    pyplot = _pyplot()
    figure, fields = pyplot.subplots(
        1, len(groups), figsize=(4.2 * len(groups), 4.0), layout="constrained", squeeze=False
    )
    try:
        for axes, (title, curves) in zip(fields[0], groups.items(), strict=True):
            for label, values in curves.items():
                ordered = sorted(values)
                count = len(ordered)
                ys = [(place + 1) / count for place in range(count)]
                axes.step(ordered, ys, where="post", label=f"{label} ({count})", linewidth=1.2)
            axes.set_ylim(0.0, 1.02)
            _finish(axes, title, x, "share of all")
        figure.savefig(path, dpi=120)
    finally:
        pyplot.close(figure)


def _finish(axes: Any, title: str, x: str, y: str) -> None:
    axes.set_xscale("log")
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(True, which="both", alpha=0.25)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8)


def _pyplot() -> Any:
    try:
        matplotlib = importlib.import_module("matplotlib")
        matplotlib.use("Agg")  # draws into files; no display is needed
        return importlib.import_module("matplotlib.pyplot")
    except ImportError as exc:
        raise PlotError(
            "plots need matplotlib: pip install 'strata[bench]', or leave them out with --no-plot"
        ) from exc
