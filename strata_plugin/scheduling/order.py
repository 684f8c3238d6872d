"""Who goes first: priority, then fair shares between tenants, then the shortest, then the oldest.

Shortest first is best for the time to the first token, but alone it starves long prompts. So every
fourth turn belongs to the oldest, whatever its size: what waits behind others gets at least a
quarter of the turns, and is the oldest itself one day.
"""

from __future__ import annotations

from collections.abc import Iterable

from .request import ScheduledRequest

AGEING_TURN = 4


class FairShares:
    """Computing time in milliseconds that each tenant had; the one with the least goes first.

    A tenant who comes, or comes back, starts level with the least of those who are there: what was
    not used earlier is no claim on later.
    """

    def __init__(self) -> None:
        self._used: dict[str, float] = {}
        self._present: dict[str, int] = {}  # number of requests

    def enter(self, tenant: str) -> None:
        """A request of `tenant` came."""
        if tenant not in self._present:
            level = min((self._used[other] for other in self._present), default=0.0)
            self._used[tenant] = max(self._used.get(tenant, 0.0), level)
            self._present[tenant] = 0
        self._present[tenant] += 1

    def leave(self, tenant: str) -> None:
        """A request of `tenant` ended."""
        self._present[tenant] -= 1
        if not self._present[tenant]:
            del self._present[tenant]
            if not self._present:
                self._used.clear()  # nobody is left to compare with

    def charge(self, tenant: str, milliseconds: float) -> None:
        """`tenant` was computed for."""
        self._used[tenant] += milliseconds

    def used(self, tenant: str) -> float:
        """Milliseconds, comparable between tenants only."""
        return self._used[tenant]

    def copy(self) -> FairShares:
        """An independent copy."""
        other = FairShares()
        other._used = dict(self._used)
        other._present = dict(self._present)
        return other


def in_order(
    requests: Iterable[ScheduledRequest], shares: FairShares, turn: int
) -> list[ScheduledRequest]:
    """`requests` in the order in which turn number `turn` serves them."""
    oldest_first = turn % AGEING_TURN == AGEING_TURN - 1
    return sorted(
        requests,
        key=lambda r: (
            -r.priority,
            shares.used(r.tenant),
            0 if oldest_first else r.unread,
            r.arrival,
            r.sequence,
        ),
    )


