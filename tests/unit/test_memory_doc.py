"""docs/memory.md says what the table in strata_plugin/runtime/memory_classes.py says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from strata_plugin.runtime.memory_classes import KNOWN_CLASSES, Copy, Cost, Cut, memory_class
from tests.models import TINY_MODELS

_DOC = Path(__file__).parents[2] / "docs" / "memory.md"
_CUT = {Cut.ANYWHERE: "anywhere", Cut.IN_WINDOW: "in the window", Cut.NOWHERE: "nowhere"}
_COPY = {Copy.PREFIX: r"(any )?prefix\b", Copy.WHOLE: "whole", Copy.NOTHING: "nothing"}
_COST = {
    Cost.NOTHING: "nothing",
    Cost.WINDOW: "a window of cells",
    Cost.STATE: "a state",
    Cost.WINDOW_AND_STATE: "a window and a state",
    Cost.CONTEXT: "a context of cells",
}


def documented() -> dict[str, list[str]]:
    """Class name -> the other columns of its row."""
    rows = {}
    for line in _DOC.read_text().splitlines():
        found = re.match(r"\| `(\w+)` \|(.*)\|$", line)
        if found:
            rows[found[1]] = [cell.strip() for cell in found[2].split("|")]
    return rows


def test_every_class_has_a_row_and_every_row_a_class() -> None:
    assert set(documented()) == KNOWN_CLASSES


@pytest.mark.parametrize("name", sorted(KNOWN_CLASSES))
def test_row_says_what_the_table_says(name: str) -> None:
    row = memory_class(name, unified=memory_class(name).unified)
    _, models, cut, copy, failed_step, cost, stored = documented()[name]
    assert set(models.split(", ")) == {n for n, m in TINY_MODELS.items() if m.memory_class == name}
    assert cut == _CUT[row.cut]
    assert re.match(_COPY[row.copy], copy)
    assert ("shared" in copy) == row.shares_cells
    assert ("pins" in copy) == row.copy_pins_window
    assert failed_step == ("keeps what is done" if row.survives_failed_step else "lost")
    assert cost == _COST[row.cost_per_sequence]
    if stored != "whole":  # tests/engine/test_blocks.py asks llama.cpp
        assert ("blocks" in stored) == row.has_cells
        assert ("checkpoints" in stored) == (row.cut is not Cut.ANYWHERE)
        assert ("window" in stored) == ("window" in cost or row.has_window)
        assert ("state" in stored) == ("state" in cost)
