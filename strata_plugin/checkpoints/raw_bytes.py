"""What the disk tier and slot files share: reading whole pieces, checksums, files for one user."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import BinaryIO

from zlib_ng import zlib_ng

_CHUNK = 1 << 22


def read_exactly(file: BinaryIO, n: int) -> bytearray:
    """The next `n` bytes, of which who calls makes sure; EOFError where there are fewer."""
    data = bytearray(n)
    view, done = memoryview(data), 0
    while done < n:
        got = file.readinto(view[done : done + _CHUNK])  # type: ignore[attr-defined]
        if not got:
            raise EOFError("it is cut off")
        done += got
    return data


def checksum(pieces: Iterable[bytes | bytearray]) -> int:
    """CRC-32 of the pieces one after another."""
    value = 0
    for piece in pieces:
        value = zlib_ng.crc32(piece, value)
    return value


def private(path: str, flags: int) -> int:
    """An opener for files that only the user may read."""
    return os.open(path, flags, 0o600)
