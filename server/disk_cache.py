"""Where the disk tier of the prefix cache lies and how much it may take."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from strata_plugin.cache_folder import cache_folder
from strata_plugin.engine.config import DiskConfig

from .flags import Parsed

AUTO = -1
AUTO_SHARE = 0.1  # of the disk that is free, or taken by the cache already
AUTO_MOST = 32 << 30  # bytes


def disk_config(parsed: Parsed, environ: Mapping[str, str]) -> DiskConfig:
    """What --cache-disk and --cache-dir say; off where states have no RAM to pass through."""
    mebibytes = parsed["cache_disk"]
    if not mebibytes or not parsed["cache_ram"]:
        return DiskConfig()
    folder = Path(parsed["cache_dir"] or cache_folder("prompts", environ))
    limit = auto_limit(folder) if mebibytes == AUTO else mebibytes << 20
    return DiskConfig(folder=str(folder), limit_bytes=limit)


def auto_limit(folder: Path) -> int:
    """Bytes that a cache in `folder`, which may not exist yet, takes by itself; 0 where that can't
    be told.
    """
    there = folder.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        free = shutil.disk_usage(there).free
    except OSError:
        return 0
    return min(AUTO_MOST, int(AUTO_SHARE * (free + _taken(folder))))


def _taken(folder: Path) -> int:
    taken = 0
    for path, _, files in os.walk(folder):
        for name in files:
            try:
                taken += os.stat(os.path.join(path, name)).st_size
            except OSError:
                continue  # it went meanwhile
    return taken
