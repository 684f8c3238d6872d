"""Which queued request gets which free slot."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from .request import ScheduledRequest


def assign_slots(
    queue: Sequence[ScheduledRequest], waiting: Collection[int], free: Sequence[int]
) -> list[tuple[ScheduledRequest, int]]:
    """Pairs (request, slot) in the order of `queue`; those whose id is in `waiting` get none.

    No slot stays free while anybody could use it: one who waits, be it for a busy slot, holds
    nobody up, and those who accept any slot leave the ones that others are pinned to for last.
    """
    ready = [request for request in queue if request.request_id not in waiting]
    wanted_now = {request.id_slot for request in ready}
    wanted_later = {request.id_slot for request in queue}
    # the best slot for one who accepts any comes last, to be popped
    left = sorted(free, key=lambda s: (s in wanted_now, s in wanted_later, s), reverse=True)
    pairs = []
    for request in ready:
        if not left:
            break
        if request.id_slot < 0:
            pairs.append((request, left.pop()))
        elif request.id_slot in left:
            left.remove(request.id_slot)
            pairs.append((request, request.id_slot))
    return pairs
