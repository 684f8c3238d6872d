"""Puts a built wheel into the running Python's environment, when another one is there."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

from .errors import BuildError
from .info import library_folder, read_build_info

# Loads every library the way the dynamic loader resolves it, with nothing from outside the folder.
_LOAD_ALL = """
import ctypes, pathlib, sys
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.so")):
    ctypes.CDLL(str(path))
"""


def installed_key() -> str | None:
    """Returns the key of the installed build, None when there is none of ours."""
    importlib.invalidate_caches()
    folder = library_folder({})
    info = read_build_info(folder) if folder else None
    return info.key if info else None


def install(wheel: Path, key: str) -> None:
    """Installs the wheel and checks that its libraries load; raises BuildError if not."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    command += ["--force-reinstall", "--root-user-action=ignore", str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"pip could not install {wheel.name}:\n{done.stderr.strip()}")
    if installed_key() != key:
        raise BuildError(f"{wheel.name} was installed, but another llama_cpp is found before it")
    folder = library_folder({})
    assert folder is not None
    env = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    loaded = subprocess.run(
        [sys.executable, "-c", _LOAD_ALL, str(folder)],
        capture_output=True,
        text=True,
        env=env,
        check=False,
    )
    if loaded.returncode != 0:
        raise BuildError(f"the built libraries do not load: {loaded.stderr.strip()}")
