"""Builds llama-server's own page from the pinned archive with npm; needs Node.js and its registry.

Nothing else needs it: without it the server has a small page of its own.
"""

import os
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

from . import sdist
from .cache import BuildCache, touch
from .errors import BuildError
from .progress import Progress, run_logged
from .source import source_tree
from .toolchain import output_of

# Grows when the way of building changes so that the same source gives another page.
RECIPE = 1
NODE = (20, 19)  # the oldest that the page's build tool, Vite 7, runs on
KEY = f"ui-{sdist.VERSION}-{sdist.SHA256[:12]}-{RECIPE}"
SOURCE = Path("vendor/llama.cpp/tools/ui")

# Packages get to run no scripts of theirs when they are installed: the build needs none.
_STEPS = (
    ("installing what it is built with", ("ci", "--ignore-scripts", "--no-audit", "--no-fund")),
    ("building", ("run", "build")),
)


def built_ui(cache: BuildCache | None = None) -> Path | None:
    """Returns the folder of the built page, None when it has not been built."""
    folder = (cache or BuildCache()).root / "ui" / KEY
    return folder if (folder / "index.html").is_file() else None


def ensure_ui(cache: BuildCache) -> Path:
    """Returns the folder of the built page; builds it when the cache has none.

    Raises BuildError when Node.js is missing or too old, or a step fails.
    """
    with cache.lock():
        folder = built_ui(cache)
        if folder is None:
            npm = _find_npm()
            _build(cache, npm, source_tree(patched=False, cache=cache) / SOURCE)
            folder = built_ui(cache)
            if folder is None:
                raise BuildError(f"npm built no index.html; log: {_log(cache)}")
        touch(folder)
        cache.prune("ui")
    return folder


def _find_npm() -> str:
    wanted = ".".join(map(str, NODE))
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        missing = "node" if node is None else "npm"
        raise BuildError(
            f"{missing} not found; llama-server's page is built with Node.js {wanted} or newer. "
            "Without it the server has its own small page."
        )
    version = output_of([node, "--version"]) or ""
    found = re.match(r"v(\d+)\.(\d+)", version)
    if found is None or (int(found[1]), int(found[2])) < NODE:
        raise BuildError(f"{node} is {version.strip()}; Node.js {wanted} or newer is needed")
    return npm


def _build(cache: BuildCache, npm: str, source: Path) -> None:
    started = time.monotonic()
    log = _log(cache)
    log.unlink(missing_ok=True)
    print(f"building llama-server's page, 700 MB on disk meanwhile, log {log}", flush=True)
    # Made beside the other build trees, which are cleaned of what a killed build left behind.
    with (
        tempfile.TemporaryDirectory(prefix=".tmp-ui-", dir=cache.folder("work")) as work,
        cache.publishing("ui", KEY) as folder,
    ):
        tree = Path(work) / "ui"
        shutil.copytree(source, tree)
        env = {**os.environ, "LLAMA_UI_OUT_DIR": str(folder), "LLAMA_BUILD_NUMBER": "0"}
        for label, args in _STEPS:
            print(label, flush=True)
            progress = Progress(f"npm {args[0]}", sys.stdout)
            run_logged([npm, *args], cwd=tree, env=env, log=log, progress=progress)
    print(f"built in {time.monotonic() - started:.0f} s", flush=True)


def _log(cache: BuildCache) -> Path:
    return cache.folder("logs") / f"{KEY}.log"
