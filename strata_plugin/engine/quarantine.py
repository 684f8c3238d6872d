"""After an engine has died: which requests are tried one by one, and whether to go on at all.

Pure book-keeping; time is an argument.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

MOST_FAILURES = 5
WITHIN_S = 600.0
FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 30.0


class Quarantine:
    """Requests that the engine worked on when it died go to the new one alone, each until it has
    got further. One that brings the engine down alone is guilty.
    """

    def __init__(self) -> None:
        self._suspects: deque[int] = deque()
        self._alone: int | None = None

    @property
    def active(self) -> bool:
        """Whether all other requests have to wait."""
        return self._alone is not None or bool(self._suspects)

    def crashed(self, working_on: Iterable[int]) -> int | None:
        """The engine has died while it worked on these; returns the guilty one, if that is known.

        Those that were to be tried remain so.
        """
        guilty, self._alone = self._alone, None
        more = [w for w in working_on if w != guilty and w not in self._suspects]
        self._suspects.extendleft(reversed(more))
        return guilty

    def next(self) -> int | None:
        """The request to send now; None while another is tried, and where none is left."""
        if self._alone is not None or not self._suspects:
            return None
        self._alone = self._suspects.popleft()
        return self._alone

    def passed(self, request_id: int) -> bool:
        """A request has got further, or has ended; True where another may be tried now."""
        if request_id == self._alone:
            self._alone = None
            return True
        if request_id in self._suspects:
            self._suspects.remove(request_id)
        return False


class Restarts:
    """When a new engine is started; gives up after too many failures within a while."""

    def __init__(self) -> None:
        self._failures: deque[float] = deque()
        self.total = 0

    def failed(self, now: float, *, in_quarantine: bool) -> float | None:
        """An engine has died, or could not load. Seconds until the next one is started; None: no
        other is. A request that was tried alone is to blame for its crash, not the engine.
        """
        self.total += 1
        if not in_quarantine:
            self._failures.append(now)
        while self._failures and self._failures[0] <= now - WITHIN_S:
            self._failures.popleft()
        if len(self._failures) >= MOST_FAILURES:
            return None
        before = max(0, len(self._failures) - 1)
        return float(min(LONGEST_DELAY_S, FIRST_DELAY_S * 4**before))
