"""Finding a model: a path, the local hub cache, or the one that comes with Strata."""

from __future__ import annotations

import struct
from importlib.util import find_spec
from pathlib import Path

import pytest

from strata_server.flags import UsageError, parse
from strata_server.hub_cache import NotCached, cache_directory, find_model, list_models
from strata_server.model_file import DEFAULT_PACKAGE, ModelFileError, check_gguf, choose_model

COMMIT = "0" * 39 + "1"
HEADER = b"GGUF" + struct.pack("<IQQ", 3, 1, 1)


def gguf(path: Path, content: bytes = HEADER) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def repository(cache: Path, name: str, *files: str, commit: str = COMMIT) -> Path:
    folder = cache / ("models--" + name.replace("/", "--"))
    (folder / "refs").mkdir(parents=True)
    (folder / "refs/main").write_text(commit)
    for file in files:
        gguf(folder / "snapshots" / commit / file)
    return folder


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"LLAMA_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ({"HUGGINGFACE_HUB_CACHE": "/a"}, "/a"),
        ({"HF_HOME": "/b"}, "/b/hub"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
        ({"HOME": "/h"}, "/h/.cache/huggingface/hub"),
    ],
)
def test_where_the_cache_is(environ: dict[str, str], folder: str) -> None:
    assert cache_directory(environ) == Path(folder)


def test_a_quant_picks_its_file_whatever_the_case(tmp_path: Path) -> None:
    repository(tmp_path, "o/m", "m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-IQ2_XXS.gguf")
    assert find_model(tmp_path, "o/m:iq2_xxs").name == "m-IQ2_XXS.gguf"
    assert find_model(tmp_path, "o/m").name == "m-Q4_K_M.gguf"


def test_without_a_preferred_quant_the_first_file_is_served(tmp_path: Path) -> None:
    repository(tmp_path, "o/m", "mmproj-F16.gguf", "m-Q6_K.gguf", "m.imatrix.gguf")
    assert find_model(tmp_path, "o/m").name == "m-Q6_K.gguf"


def test_of_a_split_model_the_first_part_is_served(tmp_path: Path) -> None:
    names = [f"Q4_K_M/m-Q4_K_M-0000{i}-of-00002.gguf" for i in (2, 1)]
    repository(tmp_path, "o/m", *names)
    assert find_model(tmp_path, "o/m").name == "m-Q4_K_M-00001-of-00002.gguf"


def test_a_named_file(tmp_path: Path) -> None:
    repository(tmp_path, "o/m", "sub/x.gguf", "y-Q4_K_M.gguf")
    assert find_model(tmp_path, "o/m", "sub/x.gguf").name == "x.gguf"


def test_what_is_missing_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(NotCached, match=r"o/m is not in the cache .*hf download o/m --include"):
        find_model(tmp_path, "o/m:Q4_K_M")
    repository(tmp_path, "o/m", "m-Q8_0.gguf")
    with pytest.raises(NotCached, match=r"no file for 'Q3_K' .*there: m-Q8_0\.gguf.*hf download"):
        find_model(tmp_path, "o/m:Q3_K")


def test_a_reference_to_a_snapshot_that_is_gone_counts_as_missing(tmp_path: Path) -> None:
    folder = repository(tmp_path, "o/m", "m-Q8_0.gguf")
    (folder / "refs/main").write_text("f" * 40)
    with pytest.raises(NotCached, match="is not in the cache"):
        find_model(tmp_path, "o/m")


def test_the_list_of_cached_models(tmp_path: Path) -> None:
    repository(tmp_path, "o/m", "m-Q8_0.gguf", "m-Q4_K_M-00001-of-00002.gguf")
    repository(tmp_path, "a/b", "plain.gguf")
    assert list_models(tmp_path) == ["a/b", "o/m:Q4_K_M", "o/m:Q8_0"]
    assert list_models(tmp_path / "nowhere") == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a GGUF file"),
        (b"GGML" + HEADER[4:], "is not a GGUF file"),
        (HEADER[:10], "is not a GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 77, 1, 1), "GGUF version 77 is not supported"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1), "holds no model"),
    ],
)
def test_damaged_files(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        check_gguf(str(gguf(tmp_path / "x.gguf", content)))


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"cannot read model .*: No such file"):
        choose_model(parse(["-m", str(tmp_path / "x.gguf")], {}), {})
    with pytest.raises(ModelFileError, match=r"cannot read model .*: Is a directory"):
        choose_model(parse(["-m", str(tmp_path)], {}), {})


def test_a_path_is_its_own_name_and_wins_over_a_repository(tmp_path: Path) -> None:
    path = str(gguf(tmp_path / "x.gguf"))
    chosen = choose_model(parse(["-m", path, "-hf", "o/m"], {}), {})
    assert (chosen.path, chosen.name) == (path, path)


def test_a_repository_gives_the_name(tmp_path: Path) -> None:
    repository(tmp_path, "o/m", "m-Q8_0.gguf")
    chosen = choose_model(parse(["-hf", "o/m:Q8_0"], {}), {"LLAMA_CACHE": str(tmp_path)})
    assert chosen.name == "o/m:Q8_0"
    assert chosen.path.endswith("m-Q8_0.gguf")


def test_a_file_without_a_repository_is_a_mistake() -> None:
    with pytest.raises(UsageError, match="--hf-file: needs --hf-repo"):
        choose_model(parse(["-hff", "x.gguf"], {}), {})


def test_without_a_model_the_one_that_comes_with_strata_is_served() -> None:
    if find_spec(DEFAULT_PACKAGE) is None:
        pytest.skip("the package of the default model is not installed")
    chosen = choose_model(parse([], {}), {})
    assert chosen.name == Path(chosen.path).stem
    assert Path(chosen.path).read_bytes()[:4] == b"GGUF"
