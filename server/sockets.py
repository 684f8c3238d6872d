"""Listening sockets, bound before anything is started: a port in use is told at once."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Sequence
from dataclasses import dataclass

BACKLOG = 2048


class AddressError(Exception):
    """An address cannot be listened on; one line for a person."""


@dataclass(frozen=True)
class Listener:
    """A bound socket and the URL that clients reach it by."""

    socket: socket.socket
    url: str
    path: str = ""  # of a UNIX socket

    def close(self) -> None:
        """Stop listening; a UNIX socket's file goes, too."""
        self.socket.close()
        if self.path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)


def bind_all(
    hosts: Sequence[str], port: int, reuse_port: bool, scheme: str = "http"
) -> list[Listener]:
    """One listener per address of `hosts`; their URLs begin with `scheme`, but for UNIX sockets.
    Raises `AddressError`; then none stays open.
    """
    tcp = [host for host in hosts if not host.endswith(".sock")]
    if port == 0 and len(tcp) > 1:
        raise AddressError("--port 0 does not go with several addresses")
    listeners: list[Listener] = []
    try:
        for host in hosts:
            if host.endswith(".sock"):
                listeners.append(_bind_unix(host))
            else:
                bound, where = _bind_tcp(host, port, reuse_port, only_v6=len(tcp) > 1)
                listeners.append(Listener(bound, f"{scheme}://{where}"))
    except BaseException:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def _bind_tcp(
    host: str, port: int, reuse_port: bool, only_v6: bool
) -> tuple[socket.socket, str]:
    """The socket, and where it is reached: HOST:PORT as URLs have it."""
    flags = socket.AI_PASSIVE
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
        family, kind, protocol, _, address = found[0]
    except socket.gaierror as error:
        raise AddressError(f"unknown address '{host}': {error.strerror}") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(only_v6))
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise AddressError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    name = f"[{host}]" if ":" in host else host
    return listener, f"{name}:{listener.getsockname()[1]}"


def _bind_unix(path: str) -> Listener:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        listener.bind(path)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise AddressError(f"cannot listen on {path}: {error.strerror}") from None
    return Listener(listener, f"unix://{path}", path)


def _remove_stale(path: str) -> None:
    """Remove the socket file of a server that is gone."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
