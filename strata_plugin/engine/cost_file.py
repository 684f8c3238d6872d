"""The cost model on disk: what was learnt about this model, these flags and this machine."""

from __future__ import annotations

import json
import logging
import os
from contextlib import suppress
from pathlib import Path

from strata_plugin.scheduling.cost import LearnedCost

MOST_BYTES = 1 << 20  # a longer file is none of ours

log = logging.getLogger(__name__)


class CostFile:
    """Loads a cost model when made, and keeps it with `save`. `path` "": it is not kept."""

    def __init__(self, path: str, n_ubatch: int) -> None:
        self.model = LearnedCost(n_ubatch)
        self._path = Path(path) if path else None
        if self._path is None:
            return
        try:
            with self._path.open("rb") as file:
                data = file.read(MOST_BYTES + 1)
            if len(data) > MOST_BYTES:
                raise ValueError(f"more than {MOST_BYTES} bytes")
            self.model.load(json.loads(data))
        except FileNotFoundError:
            pass  # the first start
        except (OSError, ValueError, RecursionError) as error:
            log.warning("the cost model %s is not used and will be rebuilt: %s", path, error)
            self.model = LearnedCost(n_ubatch)

    def save(self) -> None:
        """Write it, whole or not at all; a disk that refuses costs a warning."""
        if self._path is None or not self.model.n_shapes:
            return
        new = self._path.with_name(f"{self._path.name}.{os.getpid()}.new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            new.write_text(json.dumps(self.model.saved()))
            os.replace(new, self._path)
        except OSError as error:
            log.warning("the cost model was not kept: %s", error)
            with suppress(OSError):
                new.unlink(missing_ok=True)
