"""Stubs of the hosts that models come from, on 127.0.0.1: a hub, a registry, files behind URLs."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

Answer = Callable[["_Handler"], None]


@dataclass
class Asked:
    """A request that the stub got."""

    method: str
    path: str
    headers: dict[str, str]


@dataclass
class Host:
    """A server whose `routes` tests change while it runs. `cuts`: bytes after which it hangs up."""

    url: str = ""
    routes: dict[str, Answer] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)
    ranges: bool = True

    def bodies(self) -> list[Asked]:
        """The requests for files, no questions about them."""
        apart = ("/api/", "/token", "/v2/ai/tiny/manifests")
        return [a for a in self.asked if a.method == "GET" and not a.path.startswith(apart)]

    def file(self, path: str, content: bytes, etag: str = "") -> str:
        """Serve `content` at `path`; returns its URL."""
        tag = etag or f'"{hashlib.md5(content).hexdigest()}"'
        self.routes[path] = lambda handler: handler.send_file(content, tag)
        return self.url + path

    def json(self, path: str, value: Any) -> None:
        """Answer with `value` at `path`."""
        self.routes[path] = lambda handler: handler.send(200, json.dumps(value).encode())

    def refuse(self, path: str, status: int, **headers: str) -> None:
        """Answer with an error at `path`."""
        self.routes[path] = lambda handler: handler.send(status, b"{}", headers)

    def repository(self, name: str, commit: str, files: dict[str, bytes]) -> None:
        """A hub's repository whose newest commit is `commit`."""
        branch = {"name": "main", "ref": "refs/heads/main", "targetCommit": commit}
        self.json(f"/api/models/{name}/refs", {"branches": [branch], "converts": [], "tags": []})
        listed = []
        for path, content in files.items():
            digest = hashlib.sha256(content).hexdigest()
            lfs = {"sha256": digest, "size": len(content), "pointerSize": 130}
            listed.append({"rfilename": path, "size": 130, "blobId": "b" * 40, "lfs": lfs})
            self.file(f"/{name}/resolve/{commit}/{path}", content, f'"{digest}"')
        self.json(f"/api/models/{name}", {"id": name, "sha": commit, "siblings": listed})

    def only_for(self, token: str, path: str, status: int = 401, **headers: str) -> None:
        """Refuse what is at `path`, or below it, to all who do not show `token`."""
        for route, answer in list(self.routes.items()):
            if route.startswith(path):
                self.routes[route] = _guarded(answer, token, status, headers)


def _guarded(answer: Answer, token: str, status: int, headers: dict[str, str]) -> Answer:
    def guarded(handler: _Handler) -> None:
        if handler.headers.get("Authorization") == f"Bearer {token}":
            answer(handler)
        else:
            handler.send(status, b"{}", headers)

    return guarded


class _Handler(BaseHTTPRequestHandler):
    host: Host
    protocol_version = "HTTP/1.1"

    def handle(self) -> None:
        """Until the client closes the connection, or breaks it off."""
        with suppress(ConnectionError):
            super().handle()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.host.asked.append(Asked(self.command, path, dict(self.headers)))
        self.host.routes.get(path, lambda handler: handler.send(404, b"{}"))(self)

    do_HEAD = do_GET

    def send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        """A whole answer; of a header's name, _ is a dash."""
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def send_file(self, content: bytes, etag: str) -> None:
        """All of `content` or a range of it; the connection is cut where the host's `cuts` say."""
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        fresh = self.headers.get("If-Range", etag) != etag
        headers = {"ETag": etag, "Accept-Ranges": "bytes"}
        status, part = 200, content
        if span and self.host.ranges and not fresh:
            start, end = int(span[1]), min(int(span[2] or len(content)), len(content) - 1)
            if start >= len(content):
                self.send(416, b"", {"Content_Range": f"bytes */{len(content)}"})
                return
            status, part = 206, content[start : end + 1]
            headers["Content-Range"] = f"bytes {start}-{end}/{len(content)}"
        cut = self.host.cuts.pop(0) if self.host.cuts and self.command == "GET" else None
        if cut is None or cut >= len(part):
            self.send(status, part, headers)
            return
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part[:cut])
        self.wfile.flush()
        self.close_connection = True
        with suppress(OSError):  # the client may be gone first
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing on stderr, which tests read."""


@contextmanager
def model_host() -> Iterator[Host]:
    """A running stub."""
    host = Host()
    handler = type("Handler", (_Handler,), {"host": host})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    host.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield host
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
