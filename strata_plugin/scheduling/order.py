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
from math import inf

from .request import ScheduledRequest

AGEING_TURN = 4


class FairShares:
    """Computing time in milliseconds that each tenant had.

    A tenant who comes, or comes back, starts where one would be now who had got an equal share all
    the time: what was not used earlier is no claim on later. Where one who is there lags far behind
    that, though, the newcomer comes right after that one's next answer, rather than after all that
    one has to catch up on. Either way new tenants, however many, don't keep those waiting who have
    been there.
    """

    def __init__(self) -> None:
        self._used: dict[str, float] = {}
        self._present: dict[str, int] = {}  # number of requests
        self._equal = 0.0  # what a tenant would have used who always had an equal share

    def knows(self, tenant: str) -> bool:
        """Whether a request of `tenant` is there."""
        return tenant in self._present

    def enter(self, tenant: str, first_due: float = inf) -> None:
        """A request of `tenant` came; the next answer of those who wait is due at `first_due`."""
        if tenant not in self._present:
            start = min(self._equal, first_due)
            self._used[tenant] = max(self._used.get(tenant, 0.0), start)
            self._present[tenant] = 0
        self._present[tenant] += 1

    def leave(self, tenant: str) -> None:
        """A request of `tenant` ended."""
        self._present[tenant] -= 1
        if not self._present[tenant]:
            del self._present[tenant]
            if not self._present:
                self._used.clear()  # nobody is left to compare with
                self._equal = 0.0

    def charge(self, tenant: str, milliseconds: float) -> None:
        """`tenant` was computed for."""
        self._used[tenant] += milliseconds
        self._equal += milliseconds / len(self._present)

    def used(self, tenant: str) -> float:
        """Milliseconds, comparable between tenants only."""
        return self._used[tenant]

    def copy(self) -> FairShares:
        """An independent copy."""
        other = FairShares()
        other._used = dict(self._used)
        other._present = dict(self._present)
        other._equal = self._equal
        return other


def in_order(
    requests: Iterable[ScheduledRequest],
    shares: FairShares,
    ms_per_token: float = 1.0,
    *,
    ageing: bool = True,
) -> list[ScheduledRequest]:
    """`requests` in the order in which the next turn serves them; without `ageing` as if it were
    nobody's fourth.

    `ms_per_token` is the time that reading a token takes, so that what is left to read and what was
    used can be added.
    """
    requests = list(requests)
    due: dict[str, tuple[float, float]] = {}
    aged: set[tuple[int, str]] = set()
    for r in requests:
        mine = (_due(r, shares, ms_per_token), r.arrival)
        due[r.tenant] = min(mine, due.get(r.tenant, mine))
        if ageing and r.passed_over >= AGEING_TURN - 1:
            aged.add(r.group)
    return sorted(
        requests,
        key=lambda r: (
            -r.priority,
            due[r.tenant],
            0 if r.group in aged else r.unread,
            r.arrival,
            r.sequence,
        ),
    )


def first_due(
    requests: Iterable[ScheduledRequest], shares: FairShares, ms_per_token: float
) -> float:
    """When the next answer is due of those who are not read yet: as `FairShares` counts time."""
    return min((_due(r, shares, ms_per_token) for r in requests if r.unread), default=inf)


def _due(request: ScheduledRequest, shares: FairShares, ms_per_token: float) -> float:
    return shares.used(request.tenant) + request.unread * ms_per_token


def by_turns(ordered: Iterable[ScheduledRequest]) -> list[ScheduledRequest]:
    """`ordered` (without ageing) as they are served one a turn: every fourth turn the oldest."""
    ordered = list(ordered)
    ages: dict[tuple[int, str], list[ScheduledRequest]] = {}
    for r in sorted(ordered, key=lambda r: r.order, reverse=True):
        ages.setdefault(r.group, []).append(r)
    passed = {group: members[-1].passed_over for group, members in ages.items()}
    taken: set[int] = set()
    result = []
    for r in ordered:
        group = r.group
        members = ages[group]
        while r.request_id not in taken:
            while members[-1].request_id in taken:
                members.pop()
            oldest = members[-1]
            turn = oldest if passed[group] >= AGEING_TURN - 1 else r
            passed[group] = 0 if turn is oldest else passed[group] + 1
            taken.add(turn.request_id)
            result.append(turn)
    return result


def count_turn(
    waiting: Iterable[ScheduledRequest], served: Iterable[ScheduledRequest], turns: int = 1
) -> None:
    """`served`, in their order, had `turns` turns out of `waiting`: note whose age counts next.

    Of each tenant (and priority) that was served, the oldest was first, or was passed over.
    """
    first: dict[tuple[int, str], ScheduledRequest] = {}
    for r in served:
        first.setdefault(r.group, r)
    oldest: dict[tuple[int, str], ScheduledRequest] = {}
    for r in waiting:
        group = r.group
        if group in first and (group not in oldest or r.order < oldest[group].order):
            oldest[group] = r
    for group, r in oldest.items():
        r.passed_over = 0 if first[group] is r else r.passed_over + turns
