"""Finding a model: a path, the local hub cache, or the one that comes with Strata."""

from __future__ import annotations

import shutil
import struct
from importlib.util import find_spec
from pathlib import Path

import pytest

from strata_server.download.hub_cache import (
    NotCached,
    cache_directory,
    find_model,
    is_offline,
    list_models,
)
from strata_server.flags import UsageError, parse
from strata_server.model_file import DEFAULT_PACKAGE, ModelFileError, check_gguf, choose_model

from .model_host import model_host

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


def test_a_split_model_that_is_not_complete_counts_as_missing(tmp_path: Path) -> None:
    names = [f"m-Q4_K_M-0000{i}-of-00003.gguf" for i in (1, 3)]
    repository(tmp_path, "o/m", *names)
    for file in ("", names[0]):
        with pytest.raises(NotCached, match="o/m: nothing for "):
            find_model(tmp_path, "o/m", file)
    assert list_models(tmp_path) == []


def test_what_is_missing_says_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(NotCached, match=r"^o/m is not in the cache \(/.*\)$"):
        find_model(tmp_path, "o/m:Q4_K_M")
    repository(tmp_path, "o/m", "m-Q8_0.gguf")
    with pytest.raises(NotCached, match=r"nothing for 'Q3_K' in the cache \(there: Q8_0\)$"):
        find_model(tmp_path, "o/m:Q3_K")


def test_a_reference_to_a_snapshot_that_is_gone_counts_as_missing(tmp_path: Path) -> None:
    folder = repository(tmp_path, "o/m", "m-Q8_0.gguf")
    (folder / "refs/main").write_text("f" * 40)
    with pytest.raises(NotCached, match="is not in the cache"):
        find_model(tmp_path, "o/m")


def test_the_list_of_cached_models(tmp_path: Path) -> None:
    parts = [f"m-Q4_K_M-0000{i}-of-00002.gguf" for i in (1, 2)]
    repository(tmp_path, "o/m", "m-Q8_0.gguf", *parts)
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
    flags = parse(["-hf", "o/m:Q8_0", "--offline"], {})
    chosen = choose_model(flags, {"LLAMA_CACHE": str(tmp_path)})
    assert chosen.name == "o/m:Q8_0"
    assert chosen.path.endswith("m-Q8_0.gguf")


def test_a_file_without_a_repository_is_a_mistake() -> None:
    with pytest.raises(UsageError, match="--hf-file: needs --hf-repo"):
        choose_model(parse(["-hff", "x.gguf"], {}), {})


def test_a_repository_is_downloaded_from_the_hub_that_the_environment_names(
    tmp_path: Path,
) -> None:
    with model_host() as host:
        host.repository("o/m", COMMIT, {"m-Q8_0.gguf": HEADER})
        host.only_for("hf_good", "/o/m/resolve/")
        environ = {"LLAMA_CACHE": str(tmp_path), "HF_ENDPOINT": host.url, "HF_TOKEN": "hf_good"}
        chosen = choose_model(parse(["-hf", "o/m"], environ), environ)
        assert chosen.name == "o/m"
        assert Path(chosen.path).read_bytes() == HEADER
        bad = parse(["-hf", "o/m", "--hf-token", "hf_bad"], environ)
        shutil.rmtree(tmp_path / "models--o--m")
        with pytest.raises(ModelFileError, match="does not take this token for o/m"):
            choose_model(bad, environ)


def test_offline_the_cache_is_all_there_is(tmp_path: Path) -> None:
    repository(tmp_path, "o/m", "m-Q8_0.gguf")
    nobody = {"LLAMA_CACHE": str(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:9"}
    for argv, environ in ((["--offline"], {}), ([], {"HF_HUB_OFFLINE": "1"})):
        chosen = choose_model(parse(["-hf", "o/m", *argv], {}), {**nobody, **environ})
        assert chosen.path.endswith("m-Q8_0.gguf")
        with pytest.raises(ModelFileError, match=r"^o/m: nothing for 'Q3_K' .*\(offline\)$"):
            choose_model(parse(["-hf", "o/m:Q3_K", *argv], {}), {**nobody, **environ})
    assert not is_offline(False, {"HF_HUB_OFFLINE": "0"})


def test_a_url_goes_to_llama_cpps_folder_or_where_the_path_says(tmp_path: Path) -> None:
    with model_host() as host:
        url = host.file("/x/m.gguf", HEADER)
        environ = {"LLAMA_CACHE": str(tmp_path / "cache")}
        chosen = choose_model(parse(["-mu", url + "?v=2"], {}), environ)
        assert chosen.path == chosen.name == str(tmp_path / "cache/m.gguf")
        there = str(tmp_path / "mine.gguf")
        chosen = choose_model(parse(["-mu", url, "-m", there], {}), environ)
        assert (chosen.path, Path(there).read_bytes()) == (there, HEADER)


def test_the_hubs_token_is_shown_to_the_hub_alone(tmp_path: Path) -> None:
    with model_host() as host, model_host() as other:
        urls = [host.file("/m.gguf", HEADER), other.file("/n.gguf", HEADER)]
        environ = {"LLAMA_CACHE": str(tmp_path), "HF_ENDPOINT": host.url + "/"}
        for url in urls:
            choose_model(parse(["-mu", url, "-hft", "hf_good"], {}), environ)
        shown = [{k.lower(): v for k, v in h.asked[0].headers.items()} for h in (host, other)]
    assert shown[0]["authorization"] == "Bearer hf_good"
    assert "authorization" not in shown[1]


def test_an_image_that_is_there_is_served_offline_under_its_own_name(tmp_path: Path) -> None:
    gguf(tmp_path / "ai_gemma3_latest.gguf")
    chosen = choose_model(
        parse(["-dr", "gemma3", "--offline"], {}), {"LLAMA_CACHE": str(tmp_path)}
    )
    assert (Path(chosen.path).name, chosen.name) == ("ai_gemma3_latest.gguf", "gemma3")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["-hf", "o/m", "-dr", "m"], "--hf-repo and --docker-repo exclude each other"),
        (["-mu", "http://x/y.gguf", "-dr", "m"], "--model-url and --docker-repo exclude"),
        (["-hf", "../.."], "-hf: expected <user>/<model>"),
        (["-hf", "o"], "-hf: expected <user>/<model>"),
        (["-mu", "ftp://x/y.gguf"], "-mu: expected http"),
        (["-mu", "https://x/"], "-mu: expected http"),
        (["-dr", "../x"], "-dr: expected "),
        (["-dr", "m:a/b"], "-dr: expected "),
    ],
)
def test_what_cannot_be_meant_is_a_mistake(argv: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        choose_model(parse(argv, {}), {})


def test_without_a_model_the_one_that_comes_with_strata_is_served() -> None:
    if find_spec(DEFAULT_PACKAGE) is None:
        pytest.skip("the package of the default model is not installed")
    chosen = choose_model(parse([], {}), {})
    assert chosen.name == Path(chosen.path).stem
    assert Path(chosen.path).read_bytes()[:4] == b"GGUF"
