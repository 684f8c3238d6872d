"""A prompt's states in one file that a person names: what POST /slots saves and restores.

Raw bytes with checksums, like the disk tier's; nothing that is read is executed. A file belongs to
one model, build and set of settings, whose namespace is in its head; it is there once it is
complete.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np

from .keys import KEY_BYTES, Key
from .raw_bytes import checksum, private, read_exactly
from .tokens import Tokens

NO_ROOM = "there is no room for it (--cache-ram)"

_MAGIC = b"strata\0s"
FORMAT = 1
_NO_REST = (1 << 64) - 1
# magic, format, namespace, whole state?, tokens, parts, checksum of all that
_HEAD = struct.Struct(f"<8sI{KEY_BYTES}sIIII")
_PART = struct.Struct("<IQQI")  # tokens, bytes, bytes of the end, checksum of all three
_MOST_TOKENS = 1 << 28


class SlotFileError(Exception):
    """The file can't be used; the message is one line for a person."""


@dataclass(frozen=True)
class Part:
    """The state of some tokens after those of the parts before; see `blocks.Block`."""

    tokens: Tokens
    data: bytearray = field(repr=False)
    rest: bytearray | None = field(default=None, repr=False)


@dataclass(frozen=True)
class SlotState:
    """A prompt and its states. Its are the first `n_tokens` of the parts' tokens, of which the last
    one may hold more. `whole`: one state of all tokens instead of blocks.
    """

    parts: tuple[Part, ...]
    n_tokens: int
    whole: bool = False


def write_slot(path: Path, model: Key, state: SlotState) -> int:
    """Write a file, in place of one that is there; its bytes. Raises OSError."""
    unfinished = path.with_name(f".{path.name[:200]}.{os.getpid()}.part")
    try:
        with open(unfinished, "wb", opener=private) as file:
            fields = (_MAGIC, FORMAT, model, state.whole, state.n_tokens, len(state.parts))
            file.write(_HEAD.pack(*fields, checksum((_HEAD.pack(*fields, 0),))))
            for part in state.parts:
                tokens = part.tokens.astype("<i4", copy=False).tobytes()
                pieces = (tokens, part.data, part.rest or b"")
                n_rest = _NO_REST if part.rest is None else len(part.rest)
                head = (len(part.tokens), len(part.data), n_rest, checksum(pieces))
                file.write(_PART.pack(*head))
                file.writelines(pieces)
            n_bytes = file.tell()
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    return n_bytes


def read_slot(path: Path, model: Key, most_bytes: int) -> tuple[SlotState, int]:
    """The state in a file, and its bytes. Raises OSError, `SlotFileError` and MemoryError.

    More than `most_bytes` are not read, since there would be no room for them.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > most_bytes:
            raise SlotFileError(NO_ROOM)
        try:
            *fields, sum_of_head = _HEAD.unpack(file.read(_HEAD.size))
            magic, version, own, whole, n_tokens, n_parts = fields
            if magic != _MAGIC or version != FORMAT:
                raise SlotFileError("it is no slot file of this version")
            if sum_of_head != checksum((_HEAD.pack(*fields, 0),)):
                raise SlotFileError("it is damaged")
            if own != model:
                raise SlotFileError("it was saved with another model, build or setting")
            parts = tuple(_read_part(file, size) for _ in range(n_parts))
        except (struct.error, EOFError) as error:
            raise SlotFileError("it is cut off") from error
        if not 0 < n_tokens <= sum(len(part.tokens) for part in parts) or file.read(1):
            raise SlotFileError("its length is wrong")
    return SlotState(parts, n_tokens, bool(whole)), size


def _read_part(file: BinaryIO, size: int) -> Part:
    n_tokens, n_data, n_rest, sum_of_all = _PART.unpack(file.read(_PART.size))
    has_rest = n_rest != _NO_REST
    if n_tokens > _MOST_TOKENS or n_data > size or (has_rest and n_rest > size):
        raise SlotFileError("it is damaged")
    tokens = read_exactly(file, 4 * n_tokens)
    data, rest = read_exactly(file, n_data), read_exactly(file, n_rest if has_rest else 0)
    if checksum((tokens, data, rest)) != sum_of_all:
        raise SlotFileError("a checksum is wrong")
    ids = np.frombuffer(bytes(tokens), "<i4").astype(np.int32)
    return Part(ids, data, rest if has_rest else None)
