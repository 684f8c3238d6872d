"""The chat templates that come with llama.cpp, out of the source archive that a build leaves in its
cache, and a frontend for each on the default model's vocabulary.
"""

from __future__ import annotations

import contextlib
import functools
import tarfile
import tempfile
from pathlib import Path

import pytest

from strata_plugin.build import sdist
from strata_plugin.build.cache import cache_root
from strata_plugin.cache_folder import cache_folder
from strata_plugin.runtime.native import Frontend
from tests.engine.smollm2 import need_native_library, new_frontend

IN_ARCHIVE = "vendor/llama.cpp/models/templates/"


def need_templates() -> None:
    """Skip the calling module without the patched build or the archive that it was made from."""
    need_native_library()
    if not _folder().is_dir() and not _archive().is_file():
        pytest.skip(f"no {_archive()}: this build came without it", allow_module_level=True)


def template_names() -> list[str]:
    """Names of all templates, without `.jinja`."""
    return sorted(path.stem for path in _unpacked().glob("*.jinja"))


@functools.cache
def template_frontend(name: str) -> Frontend:
    """A frontend with this template. Assistant messages at the end are rendered, not continued."""
    source = (_unpacked() / f"{name}.jinja").read_text(encoding="utf-8")
    return new_frontend(chat_template=source, prefill_assistant=False)


def _archive() -> Path:
    return cache_root() / "sdist" / sdist.ARCHIVE


def _folder() -> Path:
    return cache_folder("chat-templates") / sdist.SHA256[:12]


@functools.cache
def _unpacked() -> Path:
    """The templates' folder, unpacked on first use (about a second)."""
    folder = _folder()
    if folder.is_dir():
        return folder
    sdist.check(_archive())
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        unfinished = Path(temporary) / folder.name
        unfinished.mkdir()
        with tarfile.open(_archive(), "r:gz") as tar:
            for member in tar:
                _, _, inner = member.name.partition("/")
                if inner.startswith(IN_ARCHIVE) and inner.endswith(".jinja"):
                    file = tar.extractfile(member)
                    assert file is not None
                    (unfinished / Path(inner).name).write_bytes(file.read())
        with contextlib.suppress(OSError):  # another test run was quicker
            unfinished.rename(folder)
    return folder
