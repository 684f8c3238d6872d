"""GET /metrics as a strict reader of Prometheus' text format sees it."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import pytest

from strata_server.prometheus import HISTOGRAMS, render
from tests.unit.fake_backend import FakeEngine, fake_service
from tests.unit.http_server import run, serving

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
SAMPLE = re.compile(rf"({NAME})(?:\{{(.*)\}})? (\S+)")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')


def read(text: str) -> dict[str, Any]:
    """Families by name: {"type", "samples": [(name, labels, value)]}. AssertionError where the text
    is not in the format, or a histogram is none."""
    families: dict[str, Any] = {}
    family = ""
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# HELP "):
            family, help_text = line[len("# HELP ") :].split(" ", 1)
            assert family not in families, f"{family} comes twice"
            assert help_text
            families[family] = {"type": "", "samples": []}
        elif line.startswith("# TYPE "):
            name, kind = line[len("# TYPE ") :].split(" ")
            assert name == family and not families[family]["type"]
            assert kind in ("counter", "gauge", "histogram")
            families[family]["type"] = kind
        else:
            match = SAMPLE.fullmatch(line)
            assert match, line
            name, inside, value = match[1], match[2] or "", float(match[3])
            labels = dict(LABEL.findall(inside))
            assert LABEL.sub("", inside) == "", line
            ends = ("_bucket", "_sum", "_count")
            own = [family + end for end in ends]
            histogram = families[family]["type"] == "histogram"
            assert name in own if histogram else name == family
            families[family]["samples"].append((name, labels, value))
    for name, found in families.items():
        samples = found["samples"]
        keys = [(n, tuple(sorted(labels.items()))) for n, labels, _ in samples]
        assert len(keys) == len(set(keys)), f"{name}: a sample comes twice"
        if found["type"] == "histogram":
            check_histogram(name, samples)
    return families


def check_histogram(name: str, samples: list[Any]) -> None:
    sets: dict[Any, dict[str, Any]] = {}
    for sample, labels, value in samples:
        rest = tuple(sorted((k, v) for k, v in labels.items() if k != "le"))
        parts = sets.setdefault(rest, {"buckets": []})
        if sample == name + "_bucket":
            assert "sum" not in parts, "buckets come first"
            parts["buckets"].append((float(labels["le"]), value))
        else:
            assert "le" not in labels
            parts[sample.rpartition("_")[2]] = value
    for parts in sets.values():
        bounds = parts["buckets"]
        assert all(a[0] < b[0] and a[1] <= b[1] for a, b in pairwise(bounds)), bounds
        assert bounds[-1][0] == float("inf")
        assert bounds[-1][1] == parts["count"] and "sum" in parts


def histogram(name: str, labels: str, counts: dict[str, float], total: float) -> dict[str, float]:
    """As the engine sends it: cumulative buckets, in no order that matters."""
    comma = f"{labels}," if labels else ""
    values = {f'{name}_bucket{{{comma}le="{le}"}}': n for le, n in counts.items()}
    braces = f"{{{labels}}}" if labels else ""
    values[f"{name}_sum{braces}"] = total
    values[f"{name}_count{braces}"] = max(counts.values())
    return values


def test_histograms_are_written_as_families_with_ascending_buckets() -> None:
    values: dict[str, float] = {"prompt_tokens_total": 7.0, "queue_length": 2.0}
    for name in HISTOGRAMS:
        for size in ("short", "extreme"):
            counts = {"10": 5.0, "2.5": 4.0, "+Inf": 6.0, "0.5": 1.0}
            values |= histogram(name, f'size="{size}"', counts, 12.5)
    families = read(render(values))
    assert families["llamacpp:prompt_tokens_total"]["type"] == "counter"
    assert families["strata:queue_length"] == {
        "type": "gauge",
        "samples": [("strata:queue_length", {}, 2.0)],
    }
    for name in HISTOGRAMS:
        found = families["strata:" + name]
        assert found["type"] == "histogram"
        own = [s for s in found["samples"] if s[1]["size"] == "short"]
        short = [(sample, labels.get("le"), value) for sample, labels, value in own]
        assert short == [
            (f"strata:{name}_bucket", "0.5", 1.0),
            (f"strata:{name}_bucket", "2.5", 4.0),
            (f"strata:{name}_bucket", "10", 5.0),
            (f"strata:{name}_bucket", "+Inf", 6.0),
            (f"strata:{name}_sum", None, 12.5),
            (f"strata:{name}_count", None, 6.0),
        ]
    assert not [name for name in families if name.endswith(("_bucket", "_sum", "_count"))]


def test_a_histogram_without_labels_or_without_its_last_bucket_is_whole() -> None:
    values = histogram("step_seconds", "", {"1": 2.0, "0.1": 1.0}, 1.5)
    values["step_seconds_count"] = 3.0  # one lies above the highest bound
    samples = read(render(values))["strata:step_seconds"]["samples"]
    assert samples[-3:] == [
        ("strata:step_seconds_bucket", {"le": "+Inf"}, 3.0),
        ("strata:step_seconds_sum", {}, 1.5),
        ("strata:step_seconds_count", {}, 3.0),
    ]


def test_labels_of_other_values_are_one_family() -> None:
    values = {'rows{state="busy"}': 1.0, 'rows{state="a \\"b\\",c"}': 2.0, "step_sum": 4.0}
    families = read(render(values))
    assert families["strata:rows"]["samples"] == [
        ("strata:rows", {"state": 'a \\"b\\",c'}, 2.0),
        ("strata:rows", {"state": "busy"}, 1.0),
    ]
    assert families["strata:step_sum"]["type"] == "gauge"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(float("inf"), "+Inf"), (float("nan"), "NaN"), (0.1, "0.1"), (3.0, "3"), (1e-7, "1e-07")],
)
def test_numbers(value: float, shown: str) -> None:
    assert f"\nstrata:x {shown}\n" in render({"x": value})


def test_a_name_that_is_none_is_a_fault_of_ours_and_not_written() -> None:
    with pytest.raises(ValueError, match="no metric has such a name"):
        render({"a b": 1.0})


def test_the_route_writes_the_same_format() -> None:
    async def body() -> None:
        async with serving(fake_service(FakeEngine(), endpoint_metrics=True)) as client:
            families = read((await client.get("/metrics")).text)
            assert families["strata:parked_bytes"]["samples"][0][2] == 3.0

    run(body())
