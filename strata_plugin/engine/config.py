"""What an engine process is started with: one frozen value, sent to it as MessagePack."""

from __future__ import annotations

from typing import Any

import msgspec

from strata_plugin.runtime.config import ContextConfig, EmbeddingConfig, ModelConfig
from strata_plugin.scheduling.config import SchedulingConfig

__all__ = [
    "ContextConfig",
    "DiskConfig",
    "EmbeddingConfig",
    "EngineConfig",
    "ModelConfig",
    "SchedulingConfig",
    "decode",
    "encode",
]


class DiskConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The disk tier of the prefix cache."""

    folder: str = ""  # "": there is none
    limit_bytes: int = 0


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. `frontend` is the JSON object for strata_frontend_new (sampling defaults and the
    like).
    """

    model: ModelConfig
    context: ContextConfig = ContextConfig()
    frontend: dict[str, Any] = msgspec.field(default_factory=dict)
    scheduling: SchedulingConfig = SchedulingConfig()
    park_bytes: int = 8192 << 20  # RAM for states outside the KV cache; 0: recompute instead
    block_tokens: int = 256  # of a block of states
    checkpoint_every: int = 4096  # tokens between checkpoints of states that can't be cut
    checkpoint_root: int = 2048  # the same, for the beginning of a prompt
    max_checkpoints: int = 32  # of a conversation; 0: only where a request ends
    disk: DiskConfig = DiskConfig()
    verbosity: int = 3  # llama.cpp's log threshold as in --verbosity
    debug: bool = False  # check_integrity after each step
    wait_disk_s: float = 0.0  # how long requests are kept waiting for the disk tier to open
    embedding: EmbeddingConfig | None = None  # None: it generates


def encode(config: EngineConfig) -> bytes:
    """MessagePack form of `config`."""
    return msgspec.msgpack.encode(config)


def decode(data: bytes) -> EngineConfig:
    """Inverse of `encode`; raises `msgspec.DecodeError` or `msgspec.ValidationError`."""
    return msgspec.msgpack.decode(data, type=EngineConfig)
