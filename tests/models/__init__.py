"""Tiny, deterministic models, one for each kind of memory in llama.cpp.

`tiny_model("swa")` is the path of a GGUF, written on first use into a cache folder under a key over
everything that goes in. Weights are random but scaled so that the next token depends on the whole
context, near and far: equal outputs then mean equal states.
"""

from __future__ import annotations

import functools
import hashlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from strata_plugin.cache_folder import cache_folder

from . import attention, blockwise, encoder, latent, recurrent
from .writer import ModelFile

__all__ = ["SPECIAL", "TINY_MODELS", "TinyModel", "tiny_model", "write_model"]


@dataclass(frozen=True)
class TinyModel:
    """What a tiny model is made of and which of llama.cpp's memory classes it runs on."""

    arch: str
    memory_class: str
    build: Callable[[ModelFile], None]
    n_swa: int = 0


TINY_MODELS: dict[str, TinyModel] = {
    "dense": TinyModel("llama", "llama_kv_cache", attention.dense),
    "moe": TinyModel("qwen3moe", "llama_kv_cache", attention.moe),
    "swa": TinyModel(
        "gemma3", "llama_kv_cache_iswa", attention.sliding_window, n_swa=attention.WINDOW
    ),
    "mla": TinyModel("deepseek2", "llama_kv_cache", latent.mla),
    "dsa": TinyModel("deepseek32", "llama_kv_cache_dsa", latent.dsa),
    "dsa-swa": TinyModel(
        "dots3note", "llama_kv_cache_dsa_iswa", latent.dsa_sliding_window, n_swa=latent.WINDOW
    ),
    "msa": TinyModel("minimax-m3", "llama_kv_cache_msa", blockwise.msa),
    "dsv4": TinyModel(
        "deepseek4", "llama_kv_cache_dsv4", blockwise.compressed, n_swa=latent.WINDOW
    ),
    "recurrent": TinyModel("mamba2", "llama_memory_recurrent", recurrent.recurrent),
    "hybrid": TinyModel("granitehybrid", "llama_memory_hybrid", recurrent.hybrid),
    "hybrid-rollback": TinyModel("lfm2", "llama_memory_hybrid", recurrent.hybrid_rollback),
    "hybrid-swa": TinyModel(
        "lfm2", "llama_memory_hybrid_iswa", recurrent.hybrid_sliding_window, n_swa=attention.WINDOW
    ),
    "hybrid-blocks": TinyModel(
        "qwen4exp", "llama_memory_hybrid_idx", blockwise.hybrid_block_indexer
    ),
    "hybrid-blocks-sparse": TinyModel(
        "qwen4exp", "llama_memory_hybrid_idx", blockwise.hybrid_sparse_block_indexer
    ),
    "hybrid-pools": TinyModel(
        "glm5-next", "llama_memory_hybrid_idx", blockwise.hybrid_pool_indexer
    ),
}


SPECIAL: dict[str, TinyModel] = {  # not for tests of what all models do
    "encoder": TinyModel("bert", "", encoder.encoder),
    "ranker": TinyModel("bert", "", encoder.ranker),
    "infill": TinyModel("llama", "llama_kv_cache", attention.infill),
}


def write_model(name: str, path: Path) -> None:
    """Writes the tiny model `name` to `path`; KeyError for an unknown name."""
    model = (TINY_MODELS | SPECIAL)[name]
    file = ModelFile(name, model.arch)
    model.build(file)
    file.write(path)


def tiny_model(name: str) -> Path:
    """Path of the tiny model `name`, written first if not cached; KeyError for an unknown name."""
    path = cache_folder("tiny-models") / f"{name}-{_content_key()}.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        # two test runs may write at once
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            unfinished = Path(folder) / path.name
            write_model(name, unfinished)
            unfinished.replace(path)
    return path


@functools.cache
def _content_key() -> str:
    """Hash over these sources and the writer's version: a change in either makes new files."""
    digest = hashlib.sha256(version("gguf").encode())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]
