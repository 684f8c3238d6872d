"""Where this user's caches lie."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def cache_folder(name: str, environ: Mapping[str, str] = os.environ) -> Path:
    """$XDG_CACHE_HOME/strata/`name`, else ~/.cache/strata/`name`; it may not exist yet."""
    xdg = environ.get("XDG_CACHE_HOME")
    base = Path(xdg).absolute() if xdg else Path.home() / ".cache"
    return base / "strata" / name
