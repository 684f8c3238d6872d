"""The hash of a model's content: by content, once per file, and read again when that may differ."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from strata_plugin.checkpoints import model_hash as module
from strata_plugin.checkpoints.model_hash import model_files, model_hash


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files whose content is read, as that happens."""
    seen: list[str] = []
    real = module._digest

    def digest(file: Path) -> str:
        seen.append(file.name)
        return real(file)

    monkeypatch.setattr(module, "_digest", digest)
    return seen


def test_a_file_is_read_once_and_again_when_it_changed(tmp_path: Path, reads: list[str]) -> None:
    model, kept = tmp_path / "m.gguf", tmp_path / "deep" / "models.json"
    model.write_bytes(b"weights" * 1000)
    first = model_hash(model, kept)
    assert model_hash(model, kept) == first and reads == ["m.gguf"]
    times = model.stat()
    model.write_bytes(b"weighty" * 1000)  # as long, and said to be as old
    os.utime(model, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert model_hash(model, kept) != first and len(reads) == 2
    other = tmp_path / "other.gguf"
    other.write_bytes(b"weights" * 1000)
    os.replace(other, model)  # another file under the same name
    assert model_hash(model, kept) == first


def test_equal_content_has_one_hash_under_any_name(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"weights")
    kept = tmp_path / "models.json"
    assert model_hash(tmp_path / "a.gguf", kept) == model_hash(tmp_path / "b.gguf", kept)


def test_all_parts_of_a_split_model_count(tmp_path: Path, reads: list[str]) -> None:
    parts = [tmp_path / f"big-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    for n, part in enumerate(parts):
        part.write_bytes(b"part %d" % n)
    assert model_files(parts[0]) == parts
    kept = tmp_path / "models.json"
    first = model_hash(parts[0], kept)
    parts[2].write_bytes(b"another")
    assert model_hash(parts[0], kept) != first
    assert sorted(reads)[2:] == [parts[2].name] * 2
    parts[1].unlink()
    with pytest.raises(OSError, match="00002-of"):
        model_hash(parts[0], kept)


@pytest.mark.parametrize("damage", [b"", b"{", b"[1]", b'{"a": 5}', b'{"1:2": "zz"}', b"\xff\xfe"])
def test_what_is_kept_and_damaged_is_computed_again(tmp_path: Path, damage: bytes) -> None:
    model, kept = tmp_path / "m.gguf", tmp_path / "models.json"
    model.write_bytes(b"weights")
    first = model_hash(model, kept)
    kept.write_bytes(damage)
    assert model_hash(model, kept) == first
    assert b"{" in kept.read_bytes()


def test_a_digest_that_cannot_be_kept_is_still_one(tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"weights")
    (tmp_path / "file").write_text("")
    nowhere = tmp_path / "file" / "models.json"
    assert model_hash(model, nowhere) == model_hash(model, tmp_path / "models.json")
