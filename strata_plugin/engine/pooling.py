"""From the vectors of an input's tokens to the one vector that it is asked for."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]


class Pool:
    """Collects the vectors of one input's tokens, which come in pieces. `kind` is none, mean, cls
    or last.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._parts: list[Vectors] = []
        self._n = 0

    def add(self, vectors: Vectors) -> None:
        """Vectors of the next tokens, shape (n, width)."""
        if self._kind == "none":
            self._parts.append(vectors)
        elif self._kind == "mean":
            total = vectors.sum(axis=0, dtype=np.float64, keepdims=True)
            self._parts = [self._parts[0] + total] if self._parts else [total]
        elif self._kind == "last" or not self._parts:
            self._parts = [vectors[-1:] if self._kind == "last" else vectors[:1]]
        self._n += len(vectors)

    def result(self) -> Vectors:
        """Shape (1, width), with pooling "none" (n, width)."""
        if self._kind == "mean":
            mean: Vectors = (self._parts[0] / self._n).astype(np.float32)
            return mean
        return np.concatenate(self._parts)
