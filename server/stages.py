"""How far one choice has come: a line in the log for each change, and a comment for its client
while it waits. Prompts and answers never get here.
"""

from __future__ import annotations

import logging
import time

from strata_plugin.engine.messages import Moved, Queued, Started, Token

from .outlook import prediction, queue_comment
from .ports import Event

log = logging.getLogger("strata.requests")

QUEUED, READING, WRITING = "queued", "reading", "writing"  # the engine may name others


class Stages:
    """Follows the events of one choice; `label` is its name in the log.

    `told`: the client has the first `Queued` already, in the headers. `comments`: a stream wants
    to hear about the others.
    """

    def __init__(self, label: str, comments: bool = False):
        self.stage = ""
        self.first: Queued | None = None  # where the request stood when it arrived
        self.told = False
        self._label = label
        self._comments = comments
        self._answered = False
        self._began = time.monotonic()

    def note(self, event: Event) -> bytes:
        """Follow `event`; returns what the client's stream should carry about it (b"": nothing)."""
        match event:
            case Queued():
                return self._outlook(event)
            case Started():
                self._enter(READING, f", {event.n_cached} prompt tokens cached")
            case Token():
                first = "" if self._answered else f", first token after {self._elapsed:.0f} ms"
                self._answered = True
                self._enter(WRITING, first)
            case Moved():
                self._enter(event.stage)
        return b""

    def _outlook(self, queued: Queued) -> bytes:
        known = self.told if self.first is None else False
        never_waited = self.first is None and queued.position < 0
        self.first = self.first or queued
        if queued.position >= 0 and not self._answered:
            self._enter(QUEUED, f", position {queued.position}{prediction(queued)}")
        if known or never_waited or self._answered or not self._comments:
            return b""
        return queue_comment(queued)

    def _enter(self, stage: str, more: str = "") -> None:
        if stage != self.stage:
            self.stage = stage
            log.info("request %s: %s%s", self._label, stage, more)

    @property
    def _elapsed(self) -> float:
        return (time.monotonic() - self._began) * 1e3
