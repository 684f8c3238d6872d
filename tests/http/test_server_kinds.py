"""Servers of other kinds, live: embeddings, ranks, LoRA adapters, filling in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.models import tiny_model
from tests.models.adapter import write_adapter

from .server_process import ServerProcess, need_native_library, run_to_end

pytestmark = pytest.mark.usefixtures("native")


@pytest.fixture(scope="module")
def native() -> None:
    need_native_library()


def test_an_embedding_server_embeds_and_generates_nothing() -> None:
    with ServerProcess("--embeddings", "--pooling", "mean") as server, server.client() as client:
        body = {"input": ["Hello", "world, how are you? " * 100], "model": "mine"}
        reply = client.post("/v1/embeddings", json=body).json()
        assert reply["model"] == "mine" and reply["usage"]["prompt_tokens"] > 600
        vectors = [np.array(item["embedding"]) for item in reply["data"]]
        assert [v.shape for v in vectors] == [(576,)] * 2
        assert np.linalg.norm(vectors[1]) == pytest.approx(1, abs=1e-5)
        short = client.post("/v1/embeddings", json={**body, "dimensions": 100}).json()["data"][0]
        assert np.linalg.norm(short["embedding"]) == pytest.approx(1, abs=1e-5)
        direction = vectors[0][:100] / np.linalg.norm(vectors[0][:100])
        np.testing.assert_allclose(short["embedding"], direction, atol=1e-4)
        native = client.post("/embedding", json={"content": "Hello"}).json()
        np.testing.assert_allclose(native[0]["embedding"][0], vectors[0], atol=1e-4)
        for path, ask in (("/completion", {"prompt": "x"}), ("/v1/rerank", {"query": "x"})):
            assert client.post(path, json=ask).status_code == 501
        for path in ("/health", "/v1/models", "/props", "/slots", "/queue", "/cache"):
            assert client.get(path).status_code == 200
        for bad in ({"input": ""}, {"input": []}, {}, {"input": "a", "encoding_format": "x"},
                    {"input": "a", "dimensions": 577}, {"input": [1, 10**9]}):  # fmt: skip
            assert client.post("/v1/embeddings", json=bad).status_code == 400, bad


def test_vectors_of_single_tokens_come_in_llama_servers_form_alone() -> None:
    with ServerProcess("--embeddings", "--pooling", "none") as server, server.client() as client:
        native = client.post("/embedding", json={"content": "Hello there"}).json()
        assert len(native[0]["embedding"]) == 2
        refused = client.post("/v1/embeddings", json={"input": "a"})
        assert refused.status_code == 400 and "OAI compatible" in refused.text


def test_a_reranking_server_ranks_in_both_forms() -> None:
    ranker = str(tiny_model("ranker"))
    with ServerProcess("-m", ranker, "--reranking") as server, server.client() as client:
        texts = ["hello world", "the thing", "x"]
        jina = client.post("/v1/rerank", json={"query": "hello", "documents": texts}).json()
        scores = [result["relevance_score"] for result in jina["results"]]
        assert scores == sorted(scores, reverse=True) and len(scores) == 3
        ask = {"query": "hello", "texts": texts, "return_text": True}
        tei = client.post("/rerank", json=ask).json()
        assert [r["index"] for r in tei] == [r["index"] for r in jina["results"]]
        assert all(r["text"] == texts[r["index"]] for r in tei)
        one = client.post("/rerank", json={"query": "a", "documents": texts, "top_n": 1}).json()
        assert len(one["results"]) == 1
        for bad in ({"query": "a"}, {"documents": ["a"]}, {"query": 1, "documents": ["a"]},
                    {"query": "a", "documents": [1]}):  # fmt: skip
            assert client.post("/rerank", json=bad).status_code == 400, bad


def test_each_request_says_which_adapters_it_wants(tmp_path: Path) -> None:
    paths = [tmp_path / "one.gguf", tmp_path / "two.gguf"]
    for seed, path in enumerate(paths):
        write_adapter(path, seed, strength=2.0)
    flags = ("-m", str(tiny_model("dense")), "--lora", ",".join(map(str, paths)),
             "--lora-init-without-apply")  # fmt: skip
    with ServerProcess(*flags) as server, server.client() as client:
        base = {"prompt": "hello world how are you", "n_predict": 12, "temperature": 0}

        def text(**more: object) -> str:
            return str(client.post("/completion", json={**base, **more}).json()["content"])

        plain, first = text(), text(lora=[{"id": 0, "scale": 1.0}])
        second = text(lora=[{"id": 1, "scale": 1.0}])
        assert len({plain, first, second}) == 3
        assert client.post("/lora-adapters", json=[{"id": 0, "scale": 1.0}]).status_code == 200
        assert text() == first
        assert text(lora=[{"id": 0, "scale": 0.0}]) == plain
        refused = client.post("/completion", json={**base, "lora": [{"id": 2, "scale": 1}]})
        assert refused.status_code == 400 and "no adapter 2" in refused.text


def test_a_missing_adapter_stops_the_start_with_one_line(tmp_path: Path) -> None:
    code, _, err = run_to_end("--lora", str(tmp_path / "no.gguf"), "--port", "0")
    assert code == 1
    assert "no.gguf" in err.splitlines()[-1] and "Traceback" not in err


def test_a_gap_is_filled_in_whole_and_streamed() -> None:
    infill = str(tiny_model("infill"))
    with ServerProcess("-m", infill) as server, server.client() as client:
        ask = {
            "input_prefix": "def f(x):",
            "input_suffix": "return x",
            "input_extra": [{"filename": "a.py", "text": "y = 1"}],
            "n_predict": 8,
            "temperature": 0,
        }
        whole = client.post("/infill", json=ask).json()
        assert whole["tokens_predicted"] == 8
        streamed = client.post("/infill", json={**ask, "stream": True}).text
        assert streamed.count("data: ") == 9 and "[DONE]" not in streamed
        for bad in ({"input_prefix": "a"}, {**ask, "input_extra": [1]}, {**ask, "prompt": 5}):
            assert client.post("/infill", json=bad).status_code == 400, bad


def test_filling_in_is_refused_by_a_model_without_the_tokens_for_it() -> None:
    with ServerProcess() as server, server.client() as client:
        ask = {"input_prefix": "def f(", "input_suffix": "return x"}
        assert client.post("/infill", json=ask).status_code == 501
