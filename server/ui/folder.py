"""A folder of static files: the one of `--path`, or llama-server's own page where it was built."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from ..errors import NOT_FOUND
from ..failure import error_response

INDEX = "index.html"
_HEADERS = {"x-content-type-options": "nosniff", "cache-control": "no-cache"}
# llama-server's, for its page: isolated from other windows; what has a hash in its name never
# changes. The last two are ours.
_ISOLATED = {
    "cross-origin-embedder-policy": "require-corp",
    "cross-origin-opener-policy": "same-origin",
    "content-security-policy": "frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
}
_FOREVER = {"cache-control": "public, max-age=31536000, immutable"}


class Folder(StaticFiles):
    """The files of a folder, with ETag and ranges, below `prefix`; a folder's `index.html` stands
    for it.

    What lies outside stays there, whatever the path and wherever a link points; so does what has a
    name with a dot in front, or can't be read.
    """

    def __init__(self, directory: str, prefix: str = ""):
        super().__init__(directory=directory)
        self._prefix = prefix
        self._root = os.path.realpath(directory)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry point; what is not there is answered as an unknown route is."""
        try:
            await super().__call__({**scope, "root_path": self._prefix}, receive, send)
        except HTTPException:
            await error_response(NOT_FOUND)(scope, receive, send)

    def holds(self, scope: Scope) -> bool:
        """Whether a GET of this path gets a file, or the way to one."""
        try:
            path = self.get_path({**scope, "root_path": self._prefix})
            return _is_file(self.lookup_path(path)[1]) or _is_file(self._index(path))
        except ValueError:  # a path that no file system has
            return False

    async def get_response(self, path: str, scope: Scope) -> Response:
        """The reply; raises `HTTPException`."""
        if _is_file(self._index(path)):
            if not scope["path"].endswith("/"):
                # relative: no proxy in between gets it wrong
                return RedirectResponse(f"./{quote(os.path.basename(path))}/")
            path = os.path.join(path, INDEX)
        return await super().get_response(path, scope)

    def lookup_path(self, path: str) -> tuple[str, os.stat_result | None]:
        """Where the file is, and what `os.stat` says of it; ("", None): there is none for us."""
        if any(part.startswith(".") for part in path.split(os.sep) if part != os.curdir):
            return "", None
        try:
            found, status = super().lookup_path(path)
        except OSError:  # a name too long, links in a circle, a folder that is closed to us
            return "", None
        return (found, status) if status and os.access(found, os.R_OK) else ("", None)

    def file_response(
        self,
        full_path: str | os.PathLike[str],
        stat_result: os.stat_result,
        scope: Scope,
        status_code: int = 200,
    ) -> Response:
        """The reply with a file."""
        reply = super().file_response(full_path, stat_result, scope, status_code)
        reply.headers.update(self.headers(os.path.relpath(full_path, self._root)))
        return reply

    def headers(self, name: str) -> Mapping[str, str]:
        """Headers of the reply with the file of this name, relative to the folder."""
        return _HEADERS

    def _index(self, path: str) -> os.stat_result | None:
        return self.lookup_path(os.path.join(path, INDEX))[1]


class BuiltPage(Folder):
    """llama-server's own page, with the headers that llama-server gives it."""

    def headers(self, name: str) -> Mapping[str, str]:
        """See `Folder.headers`."""
        if name == INDEX:
            return {**_HEADERS, **_ISOLATED}
        hashed = name.startswith(os.path.join("_app", "immutable"))
        return {**_HEADERS, **_FOREVER} if hashed else _HEADERS


def _is_file(status: os.stat_result | None) -> bool:
    return status is not None and stat.S_ISREG(status.st_mode)
