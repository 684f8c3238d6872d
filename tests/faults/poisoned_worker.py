"""An engine process that dies, or hangs, when it has to compute a certain token.

Run as the real one; tests name it as the worker of an `EngineClient`.
"""

from __future__ import annotations

import os
import time
from typing import Any

from strata_plugin.engine import worker
from strata_plugin.runtime.context import Batch, Context

DEADLY, SLEEPY = 10, 11  # tokens that the tiny models do not say

_decode = Context.decode


def decode(self: Context, batch: Batch) -> int:
    """As the real one, but for two tokens."""
    tokens: Any = batch._tokens[: batch.n_tokens]
    if (tokens == DEADLY).any():
        os.abort()
    if (tokens == SLEEPY).any():
        time.sleep(600)
    return _decode(self, batch)


if __name__ == "__main__":
    Context.decode = decode  # type: ignore[method-assign]
    worker.main()
