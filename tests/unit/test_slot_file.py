"""Slot files: written whole, read with care."""

from __future__ import annotations

import os
import pickle
import random
from pathlib import Path

import numpy as np
import pytest

from strata_plugin.checkpoints.keys import namespace
from strata_plugin.checkpoints.slot_file import (
    Part,
    SlotFileError,
    SlotState,
    read_slot,
    write_slot,
)

MODEL, OTHER = namespace({"model": "a"}), namespace({"model": "b"})
PLENTY = 1 << 30


def state(whole: bool = False) -> SlotState:
    rng = random.Random(1)

    def part(start: int, n: int, rest: bytearray | None = None) -> Part:
        tokens = np.arange(start, start + n, dtype=np.int32)
        return Part(tokens, bytearray(rng.randbytes(100 * n)), rest)

    if whole:
        return SlotState((part(0, 40),), 40, whole=True)
    return SlotState((part(0, 16), part(16, 16), part(32, 0, bytearray(b"the end"))), 32)


@pytest.mark.parametrize("whole", [False, True])
def test_a_state_comes_back_as_it_was(tmp_path: Path, whole: bool) -> None:
    path, saved = tmp_path / "slot.bin", state(whole)
    n_bytes = write_slot(path, MODEL, saved)
    assert n_bytes == path.stat().st_size and os.listdir(tmp_path) == ["slot.bin"]
    assert path.stat().st_mode & 0o777 == 0o600
    found, n_read = read_slot(path, MODEL, PLENTY)
    assert n_read == n_bytes and found.whole == whole and found.n_tokens == saved.n_tokens
    for ours, theirs in zip(found.parts, saved.parts, strict=True):
        assert ours.tokens.tolist() == theirs.tokens.tolist()
        assert (ours.data, ours.rest) == (theirs.data, theirs.rest)
    write_slot(path, MODEL, saved)  # again, over the first
    with pytest.raises(SlotFileError, match="another model"):
        read_slot(path, OTHER, PLENTY)
    with pytest.raises(SlotFileError, match="--cache-ram"):
        read_slot(path, MODEL, n_bytes - 1)


def test_wherever_a_file_is_damaged_it_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "slot.bin"
    write_slot(path, MODEL, state())
    sound, rng = path.read_bytes(), random.Random(2)
    places = [*range(70), *(rng.randrange(len(sound)) for _ in range(100))]
    for place in places:
        raw = bytearray(sound)
        raw[place] ^= 1 << rng.randrange(8)
        path.write_bytes(raw)
        with pytest.raises((SlotFileError, MemoryError)):
            read_slot(path, MODEL, PLENTY)
    for n in (0, 10, 60, len(sound) // 2, len(sound) - 1):
        path.write_bytes(sound[:n])
        with pytest.raises(SlotFileError):
            read_slot(path, MODEL, PLENTY)
    path.write_bytes(sound + b"x")
    with pytest.raises(SlotFileError, match="length"):
        read_slot(path, MODEL, PLENTY)


def test_a_pickle_is_no_slot_file(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.system, ("touch boom",)

    path = tmp_path / "slot.bin"
    path.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(SlotFileError):
        read_slot(path, MODEL, PLENTY)


def test_what_can_not_be_written_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "slot.bin"
    write_slot(path, MODEL, state())
    before = path.read_bytes()

    class Full(bytearray):
        def __len__(self) -> int:
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_slot(path, MODEL, SlotState((Part(np.zeros(3, np.int32), Full()),), 3))
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["slot.bin"]
