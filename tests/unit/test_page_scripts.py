"""What the pages' scripts compute, run by Node.js where there is one."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from strata_server.outlook import queue_comment, queue_headers
from strata_server.prometheus import render
from tests.unit.fake_backend import queued

UI = Path(__file__).parents[2] / "server" / "ui"
NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="no Node.js here")


def run(script: str, value: Any) -> Any:
    """What `script`, an expression of `value`, gives; it sees all that the modules export."""
    names = {
        "events.js": "EventReader, waitAtFirst, waitOf, seconds",
        "histogram.js": "bucketsOf, since, quantile",
        "chart.js": "niceAbove",
    }
    lines = [f"import {{ {names[n]} }} from {json.dumps((UI / n).as_uri())};" for n in names]
    lines += [f"const value = {json.dumps(value)};", f"console.log(JSON.stringify({script}));"]
    assert NODE is not None
    done = subprocess.run(
        [NODE, "--input-type=module", "-e", "\n".join(lines)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_events_come_out_the_same_wherever_the_stream_is_split() -> None:
    comment = queue_comment(queued(1, 2, 2300, 1900, 3100)).decode()
    text = f':\n\n{comment}data: {{"a": "b\\n"}}\n\n: x\ndata: two\ndata: lines\n\ndata: [DONE]\n\n'
    wanted = [
        {"comment": ""},
        {"comment": comment[2:].strip()},
        {"data": '{"a": "b\\n"}'},
        {"comment": "x"},
        {"data": "two\nlines"},
        {"data": "[DONE]"},
    ]
    script = (
        "[...Array(value.length + 1).keys()].map((at) => { const r = new EventReader();"
        " return [...r.feed(value.slice(0, at)), ...r.feed(value.slice(at))]; })"
    )
    found = run(script, text)
    assert len(found) == len(text) + 1
    assert all(events == wanted for events in found)
    assert run("new EventReader().feed(value)", "data: not yet complete\n") == []


def test_what_the_server_says_of_the_wait_is_said_in_words() -> None:
    comments = [
        queue_comment(queued(1, 2, 2300, 1900, 3100)),
        queue_comment(queued(1, 0, 700)),
        queue_comment(queued(1, 1)),
        b": something else\n\n",
        b":\n\n",
    ]
    texts = [comment.decode()[1:].strip() for comment in comments]
    assert run("value.map(waitOf)", texts) == [
        "2 before this one, first token expected 2.3 s (1.9 s to 3.1 s) after it was sent",
        "none before this one, first token expected 700 ms after it was sent",
        "1 before this one",
        None,
        None,
    ]


def test_so_are_the_headers_that_come_before() -> None:
    headers = [
        {name.decode(): value.decode() for name, value in queue_headers(told)}
        for told in (queued(1, 2, 2300, 1900, 3100), queued(1, -1), None)
    ]
    assert run("value.map((h) => waitAtFirst(new Headers(h)))", headers) == [
        "2 before this one, first token expected 2.3 s after it was sent",
        "none before this one",
        None,
    ]


def test_times_in_words() -> None:
    times = [0, 999.4, 1000, 59_999, 60_000, 3_725_000]
    assert run("value.map(seconds)", times) == [
        "0 ms",
        "999 ms",
        "1.0 s",
        "60.0 s",
        "1 min 0 s",
        "62 min 5 s",
    ]


def metrics(counts: dict[str, tuple[int, int, int]]) -> str:
    """GET /metrics with a histogram of three buckets for each size of prompt."""
    values = {}
    for size, (low, high, every) in counts.items():
        for bound, count in (("0.1", low), ("0.5", high), ("+Inf", every)):
            values[f'itl_seconds_bucket{{size="{size}",le="{bound}"}}'] = float(count)
        values[f'itl_seconds_sum{{size="{size}"}}'] = 1.0
        values[f'itl_seconds_count{{size="{size}"}}'] = float(every)
    return render(values)


def test_quantiles_of_all_sizes_together_since_the_last_look() -> None:
    before = metrics({"small": (10, 10, 10), "large": (0, 2, 2)})
    now = metrics({"small": (60, 60, 60), "large": (0, 50, 52)})
    script = (
        "(() => { const [a, b] = value.map((t) => bucketsOf(t, 'strata:itl_seconds'));"
        " const d = since(b, a); return [[...d], quantile(d, 0.25), quantile(d, 0.99),"
        " quantile(d, 1), quantile(since(a, b), 0.5), quantile(since(a, a), 0.5)]; })()"
    )
    buckets, quarter, p99, most, after_reset, nothing = run(script, [before, now])
    assert buckets == [[0.1, 50], [0.5, 98], [None, 100]]  # JSON has no infinity
    assert quarter == pytest.approx(0.05)  # half of the first bucket
    assert p99 == most == 0.5  # what lies above the last bound is at least that
    assert after_reset == pytest.approx(0.06)  # a new engine counts from zero
    assert nothing is None


def test_the_top_of_a_chart_is_a_round_number() -> None:
    assert run("value.map(niceAbove)", [1, 1.1, 150, 201, 999, 5000]) == [
        1,
        2,
        200,
        500,
        1000,
        5000,
    ]
