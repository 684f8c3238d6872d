"""Who goes first: priority, then the tenant whose next answer is due first, then the shortest.

A tenant's next answer is due when it would have been read had all tenants been served in equal
shares: at the time that the tenant has used, plus what its shortest prompt still takes (weighted
fair queueing, Demers et al. 1989, by finish times). So one with many requests does not hold up one
with a single request, and equals are served one after another rather than all at the same slow
pace. Nobody waits longer than equal shares would make it wait, but for one step.

Among the requests of one tenant the shortest is best for the time to the first token, but alone
that starves long prompts. So every fourth turn belongs to the tenant's oldest.
"""

from __future__ import annotations

from collections.abc import Iterable

from .request import ScheduledRequest

AGEING_TURN = 4


class FairShares:
    """Computing time in milliseconds that each tenant had.

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
    requests: Iterable[ScheduledRequest],
    shares: FairShares,
    turn: int,
    ms_per_token: float = 1.0,
) -> list[ScheduledRequest]:
    """`requests` in the order in which turn number `turn` serves them.

    `ms_per_token` is the time that reading a token takes, so that what is left to read and what was
    used can be added.
    """
    requests = list(requests)
    due: dict[str, tuple[float, float]] = {}
    for r in requests:
        mine = (shares.used(r.tenant) + r.unread * ms_per_token, r.arrival)
        due[r.tenant] = min(mine, due.get(r.tenant, mine))
    oldest_first = turn % AGEING_TURN == AGEING_TURN - 1
    return sorted(
        requests,
        key=lambda r: (
            -r.priority,
            due[r.tenant],
            0 if oldest_first else r.unread,
            r.arrival,
            r.sequence,
        ),
    )
