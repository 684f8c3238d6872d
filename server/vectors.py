"""Vectors as clients want them: normalised, shortened, in base64."""

from __future__ import annotations

from base64 import b64encode

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]

LARGEST_INT16 = 32760.0  # llama.cpp's, for normalisation 0


def normalised(vectors: Vectors, how: int) -> Vectors:
    """`vectors`, shape (n, width), each divided by a norm of its own.

    As llama.cpp's common_embd_normalize: -1 not at all, 0 so that the largest absolute value is
    32760, 1 taxicab, 2 Euclidean, p > 2 the p-norm. A vector of zeros stays one.
    """
    if how < 0:
        return vectors
    values = np.abs(vectors.astype(np.float64))
    if how == 0:
        norm = values.max(axis=1, keepdims=True) / LARGEST_INT16
    elif how == 2:
        norm = np.sqrt((values**2).sum(axis=1, keepdims=True))
    else:
        largest = values.max(axis=1, keepdims=True)
        largest[largest == 0] = 1.0
        norm = largest * ((values / largest) ** how).sum(axis=1, keepdims=True) ** (1.0 / how)
    scale = np.divide(1.0, norm, out=np.zeros_like(norm), where=norm > 0)
    scaled: Vectors = (vectors * scale).astype(np.float32)
    return scaled


def in_base64(vector: Vectors) -> str:
    """Its little-endian float32 in base64."""
    return b64encode(vector.astype("<f4", copy=False).tobytes()).decode()
