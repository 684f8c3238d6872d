"""What an engine process is started with: one frozen value, sent to it as MessagePack."""

from __future__ import annotations

from typing import Any

import msgspec


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How to load the weights; names and defaults follow llama-server's flags."""

    path: str
    n_gpu_layers: int = -1  # -1: auto (all that llama.cpp places on the device)
    split_mode: str = "layer"  # none | layer | row | tensor
    main_gpu: int = 0
    tensor_split: tuple[float, ...] = ()
    devices: tuple[str, ...] | None = None  # None: llama.cpp's choice; ("none",): no offloading
    load_mode: str = "auto"  # auto | none | mmap | mlock | mmap+mlock | dio
    check_tensors: bool = False
    repack: bool = True
    no_host: bool = False
    op_offload: bool = True
    kv_overrides: tuple[str, ...] = ()  # KEY=TYPE:VALUE
    tensor_overrides: tuple[tuple[str, str], ...] = ()  # (regex, buffer type); CPU experts become such pairs
    numa: str = ""  # "" | distribute | isolate | numactl


class ContextConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How to make the llama context."""

    n_ctx: int = 0  # tokens, 0: the model's training context
    n_batch: int = 2048
    n_ubatch: int = 512
    n_parallel: int = 4  # rows that decode at once (llama-server's slots)
    n_ctx_slot: int = 0  # tokens per request, 0: n_ctx
    threads: int = -1  # -1: as many as llama-server would use
    threads_batch: int = -1  # -1: same as threads
    flash_attn: str = "auto"  # on | off | auto
    type_k: str = "f16"
    type_v: str = "f16"
    offload_kqv: bool = True
    swa_full: bool = False
    rope_scaling: str = ""  # "" | none | linear | yarn
    rope_freq_base: float = 0.0
    rope_freq_scale: float = 0.0
    yarn_orig_ctx: int = 0
    yarn_ext_factor: float = -1.0
    yarn_attn_factor: float = -1.0
    yarn_beta_fast: float = -1.0
    yarn_beta_slow: float = -1.0
    warmup: bool = True


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. `frontend` is the JSON object for strata_frontend_new (sampling defaults and the like)."""

    model: ModelConfig
    context: ContextConfig = ContextConfig()
    frontend: dict[str, Any] = msgspec.field(default_factory=dict)
    prefill_quantum_ms: float = 500.0
    park_bytes: int = 8192 << 20  # bound of the RAM that parked sequences may take; 0: recompute instead
    cache_prompt: bool = True
    verbosity: int = 3  # llama.cpp's log threshold as in --verbosity
    debug: bool = False  # check_integrity after each step


def encode(config: EngineConfig) -> bytes:
    """MessagePack form of `config`."""
    return msgspec.msgpack.encode(config)


def decode(data: bytes) -> EngineConfig:
    """Inverse of `encode`; raises `msgspec.DecodeError` or `msgspec.ValidationError`."""
    return msgspec.msgpack.decode(data, type=EngineConfig)
