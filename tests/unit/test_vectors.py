"""Vectors as clients want them, and how those of tokens become one."""

from __future__ import annotations

import itertools
from base64 import b64decode

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from strata_plugin.engine.pooling import Pool
from strata_server.vectors import in_base64, normalised

ROWS = np.array([[3.0, 4.0], [0.0, 0.0], [-1.0, 1.0]], np.float32)


def test_each_way_of_normalising_divides_by_its_norm() -> None:
    assert normalised(ROWS, -1).tolist() == ROWS.tolist()
    assert normalised(ROWS, 2)[0].tolist() == pytest.approx([0.6, 0.8])
    assert normalised(ROWS, 1)[0].tolist() == pytest.approx([3 / 7, 4 / 7])
    assert normalised(ROWS, 0)[0].tolist() == pytest.approx([24570.0, 32760.0])
    assert normalised(ROWS, 3)[2].tolist() == pytest.approx([-(2 ** (-1 / 3)), 2 ** (-1 / 3)])


def test_a_vector_of_zeros_stays_one() -> None:
    for how in (-1, 0, 1, 2, 7):
        assert normalised(ROWS, how)[1].tolist() == [0.0, 0.0]


def test_a_large_norm_does_not_overflow() -> None:
    assert np.isfinite(normalised(ROWS * 1e30, 100)).all()


def test_base64_holds_the_very_floats() -> None:
    assert np.frombuffer(b64decode(in_base64(ROWS[0])), "<f4").tolist() == [3.0, 4.0]


@given(
    arrays.arrays(np.float32, (7, 3), elements=st.floats(-9, 9, width=32)),
    st.lists(st.integers(1, 6), max_size=4),
)
def test_pooling_does_not_depend_on_the_pieces(vectors: np.ndarray, cuts: list[int]) -> None:
    borders = [0, *sorted(set(cuts)), 7]
    expected = {
        "none": vectors,
        "mean": vectors.mean(axis=0, keepdims=True, dtype=np.float64),
        "cls": vectors[:1],
        "last": vectors[-1:],
    }
    for kind, right in expected.items():
        pool = Pool(kind)
        for start, stop in itertools.pairwise(borders):
            pool.add(vectors[start:stop])
        np.testing.assert_allclose(pool.result(), right, atol=1e-6)
