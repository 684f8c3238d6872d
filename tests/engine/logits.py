"""When two rows of logits of a tiny model are the same, and when they are not.

Attention adds up in the order of the cells, and with half-precision values: the same state in other
cells gives other logits in the last digits, by how much depends on the CPU's vector width (0.002
was seen). A lost cell changes them by more than 0.1, another state by more than `WRONG`: tiny
models' logits have a standard deviation of 2.5.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

ROUNDING = 0.05
WRONG = 0.5


def error(got: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """Largest difference of any logit."""
    return float(np.abs(got - expected).max())


def assert_same(
    got: NDArray[np.float32], expected: NDArray[np.float32], *, flips: int = 0
) -> None:
    """The same state: bit by bit where cells lie alike, else but for the order of sums.

    `flips` of the rows [row, token] may be others: sparse attention chooses cells by their score,
    and rounding may swap the last one that is chosen with the first one that is not.
    """
    errors = np.sort(np.abs(got - expected).max(axis=-1).reshape(-1))
    assert errors[-1 - flips] < ROUNDING, f"largest error of each row: {errors[::-1][:20]}"


def assert_other(got: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    """Not the same state."""
    assert error(got, expected) > WRONG
