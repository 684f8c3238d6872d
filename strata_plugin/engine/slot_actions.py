"""Saves, restores and erases what the last request of a slot has left: POST /slots.

Files are written and read in a thread of their own. Restored states lie in RAM, where the next
request that begins with them finds them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strata_plugin.checkpoints.keys import Key
from strata_plugin.checkpoints.slot_file import SlotFileError, SlotState, read_slot, write_slot

from .messages import ActOnSlot, Frozen, SlotActed
from .ports import Tokens
from .sequences import Sequences, root_of

Task = Callable[[], None]
ModelKey = Callable[[Path], Key]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Left:
    """What the last request of a slot has computed, and whose it is."""

    tenant: str
    root: Key
    tokens: Tokens


class SlotActions:
    """Of one engine. `model_key` names model and settings, given a folder to keep digests in."""

    def __init__(
        self,
        sequences: Sequences,
        model_key: ModelKey,
        post: Callable[[Task], None],
        tell: Callable[[Frozen], None],
    ) -> None:
        self._sequences = sequences
        self._model_key = model_key
        self._post = post
        self._tell = tell
        self._left: dict[int, Left] = {}  # by slot
        self._waiting: dict[int, list[ActOnSlot]] = {}  # until the slot's request ends
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="slots")

    def leave(self, slot: int, left: Left) -> None:
        """A slot's request has ended."""
        self._left[slot] = left
        for action in self._waiting.pop(slot, ()):
            self.act(action, busy=False)

    def act(self, action: ActOnSlot, *, busy: bool) -> None:
        """Do it, or when the request that uses the slot ends. Answered with `SlotActed`."""
        if busy:
            self._waiting.setdefault(action.slot, []).append(action)
        elif action.action == "erase":
            self._erase(action)
        elif action.action == "save":
            self._save(action)
        else:
            self._restore(action)

    def _own(self, action: ActOnSlot) -> Left | None:
        left = self._left.get(action.slot)
        return left if left is not None and left.tenant == action.tenant else None

    def _erase(self, action: ActOnSlot) -> None:
        left = self._own(action)
        n = self._sequences.erase(left.tokens, left.root) if left is not None else 0
        if left is not None:
            del self._left[action.slot]
        self._done(action, {"n_erased": n})

    def _save(self, action: ActOnSlot) -> None:
        began, left = time.perf_counter(), self._own(action)
        state = self._sequences.export(left.tokens, left.root) if left is not None else None
        if state is None:
            self._failed(action, "the slot holds nothing that could be saved")
            return

        def write() -> None:
            path = Path(action.path)
            try:
                n_bytes = write_slot(path, self._model_key(path.parent), state)
            except OSError as error:
                reason = f"it can't be written: {error.strerror or error}"
                self._post(lambda: self._failed(action, reason))
                return
            values = {
                "filename": path.name,
                "n_saved": state.n_tokens,
                "n_written": n_bytes,
                "timings": {"save_ms": (time.perf_counter() - began) * 1e3},
            }
            self._post(lambda: self._done(action, values))

        self._pool.submit(write)

    def _restore(self, action: ActOnSlot) -> None:
        began = time.perf_counter()
        root, limit = root_of(action.salt), self._sequences.room_bytes

        def read() -> None:
            path = Path(action.path)
            try:
                state, n_bytes = read_slot(path, self._model_key(path.parent), limit)
            except (OSError, SlotFileError, MemoryError) as error:
                reason = getattr(error, "strerror", None) or str(error) or "no memory"
                self._post(lambda: self._failed(action, reason))
                return
            self._post(lambda: take(state, n_bytes))

        def take(state: SlotState, n_bytes: int) -> None:
            try:
                tokens = self._sequences.import_(state, root)
            except SlotFileError as error:
                self._failed(action, str(error))
                return
            self._left[action.slot] = Left(action.tenant, root, tokens)
            values = {
                "filename": Path(action.path).name,
                "n_restored": len(tokens),
                "n_read": n_bytes,
                "timings": {"restore_ms": (time.perf_counter() - began) * 1e3},
            }
            self._done(action, values)

        self._pool.submit(read)

    def _done(self, action: ActOnSlot, values: dict[str, Any]) -> None:
        self._tell(SlotActed(action.query_id, {"id_slot": action.slot, **values}))

    def _failed(self, action: ActOnSlot, reason: str) -> None:
        log.warning("slot %d: %s %s: %s", action.slot, action.action, action.path, reason)
        self._tell(SlotActed(action.query_id, {}, reason))

    def close(self) -> None:
        """Wait for what is being written."""
        self._pool.shutdown(wait=True, cancel_futures=True)
