"""What a browser is shown: open to all, also while the model loads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from starlette.types import ASGIApp, Scope

from ..settings import ServerSettings
from .folder import BuiltPage, Folder
from .page import CHAT, LIVE, WORKER, OwnFile


class Pages:
    """Our pages, and the folder that may take the place of the one to chat.

    `built` is the folder of llama-server's own page, None where it was not built; `is_route` says
    whether the API has a route for a request.
    """

    def __init__(
        self, settings: ServerSettings, built: Path | None, is_route: Callable[[Scope], bool]
    ):
        self._prefix = prefix = settings.api_prefix
        self._is_route = is_route
        self._folder: Folder | None = None
        names = LIVE if settings.ui else {}
        if settings.ui and settings.static_path:
            self._folder = Folder(settings.static_path, prefix)
        elif settings.ui and built:
            self._folder = BuiltPage(str(built), prefix)
        elif settings.ui:
            names = LIVE | CHAT
        self._own = {prefix + path: OwnFile(name) for path, name in names.items()}
        self._rest = {prefix + path: OwnFile(name) for path, name in WORKER.items()}

    def find(self, scope: Scope) -> ASGIApp | None:
        """What answers this request, None where it is the API's. A folder's files never hide a
        route.
        """
        path: str = scope["path"]
        if scope["method"] not in ("GET", "HEAD"):
            return None
        if own := self._own.get(path):
            return own
        if self._folder and path.startswith(self._prefix + "/"):
            is_root = path == self._prefix + "/"
            if is_root or (self._folder.holds(scope) and not self._is_route(scope)):
                return self._folder
        return self._rest.get(path)
