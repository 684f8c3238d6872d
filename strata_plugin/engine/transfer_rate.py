"""How long moving states takes, by what it took so far."""

from __future__ import annotations

RATE = 0.2  # weight of a new transfer in the mean
FORGET = 0.95  # of the mean is kept when it is doubted


class TransferRate:
    """A running mean of milliseconds per byte; 0 while nothing was moved."""

    def __init__(self) -> None:
        self._ms_per_byte = 0.0

    def observe(self, n_bytes: int, ms: float) -> None:
        """Moving `n_bytes`, at least 1, took `ms`."""
        took, seen = ms / n_bytes, self._ms_per_byte
        self._ms_per_byte = seen + RATE * (took - seen) if seen else took

    def predict(self, n_bytes: int) -> float:
        """Milliseconds that moving `n_bytes` should take."""
        return n_bytes * self._ms_per_byte

    @property
    def bytes_per_s(self) -> float:
        """Bytes moved in a second; 0 while nothing was."""
        return 1e3 / self._ms_per_byte if self._ms_per_byte else 0.0

    def doubt(self) -> None:
        """It spoke against moving: else one slow transfer would be the last."""
        self._ms_per_byte *= FORGET
