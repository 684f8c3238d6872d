"""A model behind a URL (-mu): kept in llama.cpp's folder, with its ETag beside it."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from .gguf_names import split_parts
from .http_client import DownloadError, ask, file_name, host, in_time
from .progress import Say, say
from .resumable import Download, fetch, locked

CHECK_S = 5.0

Headers = Callable[[], dict[str, str]]


def download_folder(environ: Mapping[str, str]) -> Path:
    """Where llama.cpp keeps models that come from no hub."""
    if environ.get("LLAMA_CACHE"):
        return Path(environ["LLAMA_CACHE"])
    home = Path(environ.get("HOME") or os.path.expanduser("~"))
    if sys.platform == "darwin":
        return home / "Library/Caches/llama.cpp"
    return Path(environ.get("XDG_CACHE_HOME") or home / ".cache") / "llama.cpp"


def get_url(
    url: str, path: Path, headers: Headers = dict, offline: bool = False, tell: Say = say
) -> Path:
    """Get the file, or all parts of a split one, whose first one `path` is; returns the first.

    What is there is used while the server names the same ETag, or can't be asked, or has nothing
    newer that can be had. Raises `DownloadError`.
    """
    urls = part_urls(url)
    paths = [path]
    if len(urls) > 1:
        paths = [path.with_name(file_name(part)) for part in urls]
    for part, place in zip(urls, paths, strict=True):
        _get_one(part, place, headers, offline, tell)
    return paths[0]


def part_urls(url: str) -> list[str]:
    """The URLs of all parts where `url` is one of a split model, else `url`."""
    match = re.match(r"([^?#]*)(.*)", url, re.DOTALL)
    path, rest = (match[1], match[2]) if match else (url, "")
    return [part + rest for part in split_parts(path)]


def _get_one(url: str, path: Path, headers: Headers, offline: bool, tell: Say) -> None:
    if path.exists() and (offline or _is_current(url, path, headers, tell)):
        return
    if offline:
        raise DownloadError(f"{path} is not there, and nothing may be downloaded (offline)")
    try:
        with locked(path.with_name(path.name + ".lock"), path.name, tell):
            if path.exists() and _is_current(url, path, headers, tell):
                return  # another process has got it meanwhile
            etag = fetch(Download(url, path, headers), tell)
        _note(path, etag)
    except DownloadError as error:
        if not path.exists():
            raise
        tell(f"{error}; serving the older {path}")


def _is_current(url: str, path: Path, headers: Headers, tell: Say) -> bool:
    """Whether the server has the file that is at `path`, or nobody can tell."""
    try:
        answer = in_time(CHECK_S, host(url), lambda: ask(url, headers(), "HEAD"))
    except DownloadError as error:
        tell(f"no newer {path.name} was looked for: {error}")
        return True
    etag = answer.headers.get("ETag", "")
    if not etag:
        return True
    try:
        return _etag_file(path).read_text(encoding="utf-8").strip() == etag
    except OSError:  # got by other means: the same, as far as its size tells
        same = answer.headers.get("Content-Length") == str(path.stat().st_size)
        if same:
            _note(path, etag)
        return same


def _etag_file(path: Path) -> Path:
    return path.with_name(path.name + ".etag")


def _note(path: Path, etag: str) -> None:
    with contextlib.suppress(OSError):  # only costs a question more at the next start
        _etag_file(path).write_text(etag, encoding="utf-8")

