"""Rows of quantised weights made of random bits, for kernels whose speed and exactness matter but
not what they compute: any bits are valid weights, only the block's scale has to be a number.

Drawing takes no time, while quantising to an IQ type takes minutes for a layer of experts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Format:
    """How a block of weights lies in memory (ggml-common.h)."""

    weights: int  # of a block
    n_bytes: int
    scales: tuple[int, ...]  # where a block's f16 scales are
    deviation: float  # of weights made of random bits, with a scale of 1


# Deviations: of what dequantize_row_*() makes of a million weights that this module drew.
FORMATS = {
    "iq1_s": Format(256, 50, (0,), 7.5),
    "iq1_m": Format(256, 56, (), 7.5),  # its scale is in pieces
    "iq2_xxs": Format(256, 66, (0,), 55.0),
    "iq2_xs": Format(256, 74, (0,), 58.0),
    "iq2_s": Format(256, 82, (0,), 59.0),
    "iq3_xxs": Format(256, 98, (0,), 148.0),
    "iq3_s": Format(256, 110, (0,), 145.0),
    "iq4_nl": Format(32, 18, (0,), 70.0),
    "iq4_xs": Format(256, 136, (0,), 1307.0),
    "q2_0": Format(64, 18, (0,), 1.17),
    "q4_k": Format(256, 144, (0, 2), 234.0),
    "q6_k": Format(256, 210, (208,), 1414.0),
}


def random_weights(
    dtype: str, rows: int, n: int, rng: np.random.Generator, *, deviation: float = 1.0
) -> Bytes:
    """`rows` rows of `n` weights as bytes, one row of the result for each."""
    form = FORMATS[dtype]
    blocks = rows * n // form.weights
    if n % form.weights:
        raise ValueError(f"a row of {n} weights is not whole blocks of {dtype}")
    data = rng.integers(0, 256, (blocks, form.n_bytes), dtype=np.uint8)
    # scales differ from block to block, so that a kernel that takes a wrong one is found out
    scale = (rng.uniform(0.5, 1.5, blocks) * deviation / form.deviation).astype(np.float16)
    raw = scale.view(np.uint8).reshape(blocks, 2)
    for at in form.scales:
        data[:, at : at + 2] = raw
    if dtype == "iq1_m":
        words = data[:, 48:56].view(np.uint16)
        bits = scale.view(np.uint16)
        for piece in range(4):
            words[:, piece] &= 0x0FFF
            words[:, piece] |= ((bits >> (4 * piece)) & 0xF) << 12
    return data.reshape(rows, -1)
