"""Which Chromium the tests of the pages drive; run as a program it says so, or how to get one."""

from __future__ import annotations

import os
import shutil
import sys

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
HOW = (
    "no Chromium found; on Debian: apt-get install chromium-headless-shell, "
    "elsewhere name one in $STRATA_CHROMIUM"
)


def chromium() -> str | None:
    """Path of the program, None when there is none."""
    own = os.environ.get("STRATA_CHROMIUM")
    return own or next(filter(None, map(shutil.which, NAMES)), None)


if __name__ == "__main__":
    found = chromium()
    print(f"Chromium: {found}" if found else HOW, file=sys.stdout if found else sys.stderr)
    sys.exit(0 if found else 1)
