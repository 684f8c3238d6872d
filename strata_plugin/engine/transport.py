"""Frames on a socket between the two processes: 4 bytes little-endian length, then MessagePack."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

_HEADER = struct.Struct("<I")
MAX_FRAME = 1 << 30  # bytes; a longer one means that the stream is out of step


class TransportError(Exception):
    """The peer sent something that is no frame."""


def frame(payload: bytes) -> bytes:
    """Header and payload."""
    if len(payload) > MAX_FRAME:
        raise TransportError(f"message of {len(payload)} bytes is too large")
    return _HEADER.pack(len(payload)) + payload


class FrameParser:
    """Cuts a byte stream into payloads."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Complete payloads, in order; the rest is kept for the next call."""
        if self._buffer:
            self._buffer += data
            data = bytes(self._buffer)
        start = 0
        while len(data) - start >= _HEADER.size:
            (length,) = _HEADER.unpack_from(data, start)
            if length > MAX_FRAME:
                raise TransportError(f"frame of {length} bytes announced")
            end = start + _HEADER.size + length
            if len(data) < end:
                break
            yield data[start + _HEADER.size : end]
            start = end
        self._buffer = bytearray(data[start:])


def receive(
    sock: socket.socket, parser: FrameParser, size: int = 1 << 20
) -> Iterator[bytes] | None:
    """Block for more bytes; the payloads they complete, or None when the peer is gone."""
    try:
        data = sock.recv(size)
    except ConnectionError:
        return None
    return parser.feed(data) if data else None
