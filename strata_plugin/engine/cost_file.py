"""What was learnt about a model, with these flags, on this machine, on disk: the cost model of its
steps, and how long attention takes in the two ways of computing it."""

from __future__ import annotations

import json
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from strata_plugin.runtime.attention import Times
from strata_plugin.scheduling.cost import LearnedCost

MOST_BYTES = 1 << 20  # a longer file is none of ours

log = logging.getLogger(__name__)


class CostFile:
    """Reads the file when made, writes it with `save`. `path` "": nothing is kept.

    What is damaged is rebuilt, never trusted, with a warning.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path) if path else None
        self._steps: Any = None
        self._model: LearnedCost | None = None
        self.attention: Times | None = None  # set it once measured
        if self._path is None:
            return
        try:
            with self._path.open("rb") as file:
                data = file.read(MOST_BYTES + 1)
            if len(data) > MOST_BYTES:
                raise ValueError(f"more than {MOST_BYTES} bytes")
            kept = json.loads(data)
            self.attention = _times(kept["attention"])
            self._steps = kept["steps"]
        except FileNotFoundError:
            pass  # the first start
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            self._warn(error)

    def cost_model(self, n_ubatch: int) -> LearnedCost:
        """The cost model for micro-batches of `n_ubatch` tokens; `save` keeps what it learns."""
        self._model = LearnedCost(n_ubatch)
        if self._steps is not None:
            try:
                self._model.load(self._steps)
            except ValueError as error:
                self._warn(error)
        return self._model

    def save(self) -> None:
        """Write it, whole or not at all; a disk that refuses costs a warning."""
        times, model = self.attention, self._model
        learnt = model is not None and model.n_shapes > 0
        if self._path is None or not (times or learnt):
            return
        kept = {
            "attention": [times.flash, times.plain] if times else None,
            "steps": model.saved() if model and learnt else None,
        }
        new = self._path.with_name(f"{self._path.name}.{os.getpid()}.new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            new.write_text(json.dumps(kept))
            os.replace(new, self._path)
        except OSError as error:
            log.warning("the cost model was not kept: %s", error)
            with suppress(OSError):
                new.unlink(missing_ok=True)

    def _warn(self, error: Exception) -> None:
        log.warning("the cost model %s is not used and will be rebuilt: %s", self._path, error)


def _times(kept: Any) -> Times | None:
    if kept is None:
        return None
    flash, plain = kept
    if not (type(flash) is type(plain) is float and 0 < flash < 1e9 and 0 < plain < 1e9):
        raise ValueError(f"times of attention that cannot be: {kept}")
    return Times(flash=flash, plain=plain)
