"""Hands out rows and sequences before a step: the same way in the engine and in a simulation."""

from __future__ import annotations

from collections.abc import Callable

from .scheduler import Scheduler


def fill(
    scheduler: Scheduler,
    *,
    start: Callable[[int, int | None], bool],
    seated: Callable[[int, int], None],
    fits: Callable[[int], bool],
) -> None:
    """Seat and admit whoever can be.

    `start(request, slot)` finds a sequence and calls `scheduler.admit`; False when there is none,
    which ends the round. `seated` is told of rows given to those who read already. `fits` says
    whether a prompt that is read ahead would leave room for the others.
    """
    for request_id, slot in scheduler.seats():
        scheduler.seat(request_id, slot)
        seated(request_id, slot)
    for request_id, slot in scheduler.admissible():
        if not start(request_id, slot):
            return
    for request_id in scheduler.ahead():
        if fits(request_id) and not start(request_id, None):
            return
