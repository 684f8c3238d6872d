"""How to load a model and make a context; names and defaults follow llama-server's flags."""

from __future__ import annotations

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
    kv_overrides: tuple[str, ...] = ()  # KEY=TYPE:VALUE
    tensor_overrides: tuple[tuple[str, str], ...] = ()  # (regex, buffer type), as CPU experts are
    adapters: tuple[str, ...] = ()  # files of LoRA adapters
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
    op_offload: bool = True
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


class EmbeddingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a server embeds texts or ranks them instead of generating; names as llama-server's."""

    pooling: str = ""  # none | mean | cls | last | rank; "": the model's own
    micro_batch_given: bool = False  # else it grows to the inputs that it has to hold
