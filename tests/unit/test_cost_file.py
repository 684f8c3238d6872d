"""What was learnt is kept from one start to the next; what is damaged is rebuilt."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from strata_plugin.engine.cost_file import MOST_BYTES, CostFile
from strata_plugin.runtime.attention import Times
from strata_plugin.scheduling.cost import StepShape

SHAPE = StepShape(rows=1, prompt_tokens=64, cells=1024, pairs=65536.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cost" / "m.cost"


def learnt(path: Path) -> CostFile:
    file = CostFile(str(path))
    model = file.cost_model(512)
    for _ in range(4):
        model.observe(SHAPE, 120.0)
    file.attention = Times(flash=3.0, plain=2.0)
    file.save()
    return file


def test_what_was_learnt_is_there_at_the_next_start(path: Path) -> None:
    learnt(path)
    again = CostFile(str(path))
    assert again.cost_model(512).predict(SHAPE) == pytest.approx(120.0, rel=0.02)
    assert again.attention == Times(flash=3.0, plain=2.0)
    assert list(path.parent.iterdir()) == [path]  # nothing half-written beside it


def test_the_first_start_is_silent(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = CostFile(str(path))
    assert file.attention is None and file.cost_model(512).n_shapes == 0
    assert not caplog.records
    file.save()  # nothing was learnt
    assert not path.exists()


def test_attention_is_timed_once_even_if_nobody_asks_anything(path: Path) -> None:
    file = CostFile(str(path))
    file.cost_model(512)
    file.attention = Times(flash=3.0, plain=2.0)
    file.save()
    again = CostFile(str(path))
    assert again.attention == Times(flash=3.0, plain=2.0)
    assert again.cost_model(512).n_shapes == 0


def test_without_a_path_nothing_is_kept() -> None:
    file = CostFile("")
    file.cost_model(512).observe(SHAPE, 1.0)
    file.save()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"null",
        b"{}",
        b"[" * 100_000,
        b" " * (MOST_BYTES + 1),
        b'{"attention": [1.0], "steps": {}}',
        b'{"attention": [1.0, -2.0], "steps": {}}',
        b'{"attention": [1.0, NaN], "steps": {}}',
        b'{"attention": ["1.0", 2.0], "steps": {}}',
        b'{"attention": null, "steps": {"format": 1}}',
        b'{"attention": null, "steps": [1]}',
    ],
    ids=lambda content: repr(content[:40]),
)
def test_a_damaged_file_is_rebuilt(
    path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    file = CostFile(str(path))
    model = file.cost_model(512)
    assert model.n_shapes == 0
    (record,) = caplog.records
    assert record.levelno == logging.WARNING and str(path) in record.getMessage()
    model.observe(SHAPE, 50.0)
    file.save()
    assert CostFile(str(path)).cost_model(512).n_shapes == 1


def test_micro_batches_of_another_size_are_another_model(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    learnt(path)
    assert CostFile(str(path)).cost_model(256).n_shapes == 0
    assert "will be rebuilt" in caplog.text


def test_a_cut_file_is_rebuilt(path: Path) -> None:
    learnt(path)
    whole = path.read_bytes()
    for n in range(0, len(whole) - 1, 17):
        path.write_bytes(whole[:n])
        assert CostFile(str(path)).cost_model(512).n_shapes == 0


def test_a_folder_that_refuses_costs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    learnt(blocker / "m.cost")
    assert "not kept" in caplog.text
    assert list(tmp_path.iterdir()) == [blocker]


def test_the_file_is_plain_json(path: Path) -> None:
    learnt(path)
    assert set(json.loads(path.read_text())) == {"attention", "steps"}
