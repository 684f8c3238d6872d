"""Where a sequence's state waits when the KV cache has no room for it.

Bytes are reserved before they are allocated, so the bound holds at every moment. Only committed
states can be taken: a reservation is a different thing from a state, and becomes one exactly once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, eq=False)
class Reservation:
    """The right to commit a state of at most `n_bytes` bytes, once, in the lot that gave it."""

    n_bytes: int


@dataclass(frozen=True)
class ParkedState:
    """A sequence's whole state after its first `n_tokens` tokens."""

    request_id: int
    n_tokens: int
    data: bytes | bytearray | memoryview = field(repr=False)


class ParkingLot(Protocol):
    """A bounded place for parked states; a request has at most one."""

    @property
    def used_bytes(self) -> int:
        """Bytes of committed states and open reservations."""

    def reserve(self, n_bytes: int) -> Reservation | None:
        """Set room aside; None when there is not enough."""

    def cancel(self, reservation: Reservation) -> None:
        """Give back a reservation that will not be committed."""

    def commit(
        self,
        reservation: Reservation,
        request_id: int,
        data: bytes | bytearray | memoryview,
        n_tokens: int,
    ) -> None:
        """Park `data` in the place reserved; the lot owns it from now on."""

    def take(self, request_id: int) -> ParkedState | None:
        """Remove and return a request's state; None when it has none."""

    def drop(self, request_id: int) -> bool:
        """Throw a request's state away; whether it had one."""


class RamParkingLot:
    """Parked states in this process's memory, `limit_bytes` in all."""

    def __init__(self, limit_bytes: int) -> None:
        if limit_bytes < 0:
            raise ValueError(f"limit_bytes must not be negative, got {limit_bytes}")
        self.limit_bytes = limit_bytes
        self._open: set[Reservation] = set()  # compared by identity
        self._parked: dict[int, ParkedState] = {}  # by request id
        self._used = 0

    @property
    def used_bytes(self) -> int:
        """Bytes of committed states and open reservations."""
        return self._used

    def reserve(self, n_bytes: int) -> Reservation | None:
        """Set `n_bytes` bytes aside; None when they do not fit beside what is there."""
        if n_bytes < 1:
            raise ValueError(f"can't reserve {n_bytes} bytes")
        if self._used + n_bytes > self.limit_bytes:
            return None
        reservation = Reservation(n_bytes)
        self._open.add(reservation)
        self._used += n_bytes
        return reservation

    def cancel(self, reservation: Reservation) -> None:
        """Give back a reservation; ValueError when it is not open in this lot."""
        self._check_open(reservation)
        self._close(reservation)

    def commit(
        self,
        reservation: Reservation,
        request_id: int,
        data: bytes | bytearray | memoryview,
        n_tokens: int,
    ) -> None:
        """Park `data`, a state of `n_tokens` tokens, in the place reserved; what it does not fill
        is free again.

        Raises ValueError, and leaves the reservation open, when `data` is larger than that, or when
        the request is parked already.
        """
        self._check_open(reservation)
        n_bytes = _n_bytes(data)
        if n_bytes > reservation.n_bytes:
            raise ValueError(f"{n_bytes} bytes do not fit into {reservation.n_bytes} reserved ones")
        if request_id in self._parked:
            raise ValueError(f"request {request_id} is parked already")
        self._close(reservation)
        self._parked[request_id] = ParkedState(request_id, n_tokens, data)
        self._used += n_bytes

    def take(self, request_id: int) -> ParkedState | None:
        """Remove and return a request's state, whose bytes count no more; None when it has none."""
        state = self._parked.pop(request_id, None)
        if state is not None:
            self._used -= _n_bytes(state.data)
        return state

    def peek(self, request_id: int) -> ParkedState:
        """A state that stays where it is; KeyError when there is none."""
        return self._parked[request_id]

    def drop(self, request_id: int) -> bool:
        """Throw a request's state away; whether it had one."""
        return self.take(request_id) is not None

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._parked

    def __len__(self) -> int:
        return len(self._parked)

    def check_integrity(self) -> None:
        """Raise AssertionError naming the first broken invariant."""
        reserved = sum(r.n_bytes for r in self._open)
        parked = sum(_n_bytes(state.data) for state in self._parked.values())
        assert self._used == reserved + parked, f"{self._used} used, {reserved} + {parked} found"
        assert self._used <= self.limit_bytes, f"{self._used} of {self.limit_bytes} bytes used"
        for request_id, state in self._parked.items():
            assert request_id == state.request_id, f"state of {state.request_id} is filed wrongly"

    def _check_open(self, reservation: Reservation) -> None:
        if reservation not in self._open:
            raise ValueError("the reservation is not open in this lot")

    def _close(self, reservation: Reservation) -> None:
        self._open.remove(reservation)
        self._used -= reservation.n_bytes


def _n_bytes(data: bytes | bytearray | memoryview) -> int:
    return memoryview(data).nbytes
