"""From parsed flags to the two configurations: the engine's and the HTTP server's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from strata_plugin.engine.config import EngineConfig, SchedulingConfig
from strata_plugin.runtime.config import ContextConfig, EmbeddingConfig, ModelConfig

from .cost_file import cost_file
from .disk_cache import disk_config
from .flags import Parsed, UsageError
from .flags_model import CPU_EXPERTS
from .flags_sampling import FIELDS
from .model_file import ModelFile
from .settings import PriorityLimits, ServerSettings

AUTO_SLOTS = 4
CELL_UNIT = 256  # llama.cpp makes contexts a multiple of this
NO_LIMIT = 1 << 62
EVERYTHING = 1 << 30  # verbosity of -v


def engine_config(
    parsed: Parsed,
    model: ModelFile,
    settings: ServerSettings,
    environ: Mapping[str, str] = os.environ,
) -> EngineConfig:
    """What the engine process is started with."""
    cache_ram = parsed["cache_ram"]
    return EngineConfig(
        model=_model_config(parsed, model),
        context=context_config(parsed),
        frontend=frontend_config(parsed, settings),
        scheduling=scheduling_config(parsed, model, environ),
        park_bytes=NO_LIMIT if cache_ram < 0 else cache_ram << 20,
        block_tokens=parsed["block_tokens"],
        checkpoint_every=max(1, parsed["checkpoint_every"]),
        checkpoint_root=max(1, parsed["checkpoint_root"]),
        max_checkpoints=parsed["ctx_checkpoints"],
        disk=disk_config(parsed, environ),
        verbosity=0 if settings.log_disable else settings.verbosity,
        embedding=embedding_config(parsed),
    )


def embedding_config(parsed: Parsed) -> EmbeddingConfig | None:
    """How a server embeds or ranks; None where it generates."""
    if not (parsed["embedding"] or parsed["rerank"]):
        return None
    return EmbeddingConfig(
        pooling="rank" if parsed["rerank"] else parsed["pooling"],
        micro_batch_given="ubatch_size" in parsed.given,
    )


def scheduling_config(
    parsed: Parsed, model: ModelFile, environ: Mapping[str, str]
) -> SchedulingConfig:
    """The scheduling flags; without --cost-model the file is one in the user's cache."""
    return SchedulingConfig(
        policy=parsed["scheduler"],
        itl_slo_ms=parsed["itl_slo_ms"],
        prefill_quantum_ms=parsed["prefill_quantum_ms"],
        prefill_min_share=parsed["prefill_min_share"],
        prefill_budget=parsed["prefill_budget"],
        short_read=parsed["short_read"],
        yield_chunks=parsed["prefill_yield_chunks"],
        yield_steps=parsed["prefill_steps"],
        max_queue=parsed["max_queue"],
        cost_model_path=cost_file(parsed, model.path, environ),
    )


def _model_config(parsed: Parsed, model: ModelFile) -> ModelConfig:
    tensor_overrides = list(parsed["override_tensor"])
    if parsed["cpu_moe"]:
        tensor_overrides.append((CPU_EXPERTS, "CPU"))
    tensor_overrides += parsed["n_cpu_moe"]
    tensor_overrides += parsed["n_cpu_ffn"]
    return ModelConfig(
        path=model.path,
        n_gpu_layers=parsed["gpu_layers"],
        split_mode=parsed["split_mode"],
        main_gpu=parsed["main_gpu"],
        tensor_split=parsed["tensor_split"],
        devices=parsed["device"],
        load_mode=parsed["load_mode"],
        check_tensors=parsed["check_tensors"],
        repack=parsed["repack"],
        no_host=parsed["no_host"],
        kv_overrides=parsed["override_kv"],
        adapters=tuple(path for path, _ in _adapters(parsed)),
        tensor_overrides=tuple(tensor_overrides),
        numa=parsed["numa"],
    )


def _adapters(parsed: Parsed) -> list[tuple[str, float]]:
    return [*((path, 1.0) for path in parsed["lora"]), *parsed["lora_scaled"]]


def lora_scales(parsed: Parsed) -> tuple[float, ...]:
    """Scale of each adapter where a request says nothing."""
    if parsed["lora_init_without_apply"]:
        return tuple(0.0 for _ in _adapters(parsed))
    return tuple(scale for _, scale in _adapters(parsed))


def context_config(parsed: Parsed) -> ContextConfig:
    """Sizes of the context and of one slot, as llama-server works them out."""
    n_parallel, n_ctx, n_ctx_slot = context_sizes(parsed)
    freq_scale = parsed["rope_freq_scale"]
    if parsed["rope_scale"] is not None:
        freq_scale = 1.0 / parsed["rope_scale"]
    return ContextConfig(
        n_ctx=n_ctx,
        n_batch=parsed["batch_size"],
        n_ubatch=parsed["ubatch_size"],
        n_parallel=n_parallel,
        n_ctx_slot=n_ctx_slot,
        threads=_threads(parsed["threads"]),
        threads_batch=_threads(parsed["threads_batch"]),
        flash_attn=parsed["flash_attn"],
        type_k=parsed["cache_type_k"],
        type_v=parsed["cache_type_v"],
        offload_kqv=parsed["kv_offload"],
        op_offload=parsed["op_offload"],
        swa_full=parsed["swa_full"],
        rope_scaling=parsed["rope_scaling"],
        rope_freq_base=parsed["rope_freq_base"],
        rope_freq_scale=freq_scale,
        yarn_orig_ctx=parsed["yarn_orig_ctx"],
        yarn_ext_factor=parsed["yarn_ext_factor"],
        yarn_attn_factor=parsed["yarn_attn_factor"],
        yarn_beta_fast=parsed["yarn_beta_fast"],
        yarn_beta_slow=parsed["yarn_beta_slow"],
        warmup=parsed["warmup"],
    )


def context_sizes(parsed: Parsed) -> tuple[int, int, int]:
    """Slots, tokens in all (0: the model's) and most tokens of one slot (0: all).

    Without -np there are 4 slots and each may use the whole context. An explicit -np divides the
    context unless -kvu is given; the part is rounded up as llama.cpp does.
    """
    n_ctx, per_slot = parsed["ctx_size"], parsed["kv_unified_per_slot"]
    explicit = parsed["parallel"] > 0
    n_parallel = parsed["parallel"] if explicit else AUTO_SLOTS
    if per_slot and not n_ctx and "ctx_size" not in parsed.given:
        n_ctx = n_parallel * per_slot
    n_ctx = _rounded(n_ctx)
    if explicit and n_ctx and not parsed["kv_unified"]:
        part = _rounded(n_ctx // n_parallel)
        return n_parallel, part * n_parallel, min(part, per_slot) if per_slot else part
    return n_parallel, n_ctx, per_slot


def _rounded(n_tokens: int) -> int:
    return -(-n_tokens // CELL_UNIT) * CELL_UNIT


def _threads(given: int | None) -> int:
    if given is None:
        return -1
    return given if given > 0 else (os.cpu_count() or 1)


def frontend_config(parsed: Parsed, settings: ServerSettings) -> dict[str, Any]:
    """The JSON object for `strata_frontend_new`; `n_ctx_slot` is added when the engine is ready."""
    escape = _unescaped if parsed["escape"] else str
    kwargs = dict(parsed["chat_template_kwargs"])
    kwargs.setdefault("preserve_reasoning", parsed["reasoning_preserve"])
    if parsed["reasoning"] >= 0:
        kwargs["enable_thinking"] = bool(parsed["reasoning"])
    if parsed["reasoning_effort"] != "default":
        kwargs["reasoning_effort"] = parsed["reasoning_effort"]
    formats = "reasoning_format" in parsed.given  # llama.cpp's own default is not one of the names
    return {
        "model_name": settings.model_name,
        "n_parallel": context_sizes(parsed)[0],
        "n_batch": parsed["batch_size"],
        "n_predict": parsed["predict"],
        "n_keep": parsed["keep"],
        "cache_prompt": parsed["cache_prompt"],
        "antiprompt": [escape(item) for item in parsed["reverse_prompt"]],
        "sse_ping_interval": parsed["sse_ping_interval"],
        "special": parsed["special"],
        "spm_infill": parsed["spm_infill"],
        "verbosity": settings.verbosity,
        "sampling": _sampling(parsed),
        "chat_template": _chat_template(parsed),
        "use_jinja": parsed["jinja"],
        "prefill_assistant": parsed["prefill_assistant"],
        **({"reasoning_format": parsed["reasoning_format"]} if formats else {}),
        "reasoning": parsed["reasoning"],
        "reasoning_budget": parsed["reasoning_budget"],
        "reasoning_budget_message": parsed["reasoning_budget_message"],
        "chat_template_kwargs": kwargs,
        "skip_chat_parsing": parsed["skip_chat_parsing"],
    }


def _chat_template(parsed: Parsed) -> str:
    return str(_one_of(parsed, "chat_template", "chat_template_file") or "")


def _sampling(parsed: Parsed) -> dict[str, Any]:
    """Request fields for the sampling flags that were given."""
    fields = {field: parsed[key] for key, field in FIELDS.items() if key in parsed.given}
    if fields.get("dry_base", 1.0) < 1.0:
        del fields["dry_base"]
    for key in ("sampler_seq", "samplers"):  # names win over letters
        if key in parsed.given:
            fields["samplers"] = list(parsed[key])
    if parsed["dry_sequence_breaker"]:
        escape = _unescaped if parsed["escape"] else str
        given = [b for b in parsed["dry_sequence_breaker"] if b != "none"]
        fields["dry_sequence_breakers"] = [escape(item) for item in given]
    if parsed["logit_bias"]:
        fields["logit_bias"] = [list(pair) for pair in parsed["logit_bias"]]
    constraints = ("grammar", "grammar_file", "json_schema", "json_schema_file")
    given = [key for key in constraints if key in parsed.given]
    if len(given) > 1:
        names = " and ".join("--" + key.replace("_", "-") for key in given)
        raise UsageError(f"{names} exclude each other")
    for key in given:
        fields[key.removesuffix("_file")] = parsed[key]
    return fields


def _unescaped(value: str) -> str:
    r"""`value` with \n, \r, \t, \', \", \\ and \xHH replaced."""
    import re

    plain = {"n": "\n", "r": "\r", "t": "\t", "'": "'", '"': '"', "\\": "\\"}

    def one(match: re.Match[str]) -> str:
        code = match[1]
        return plain[code] if code in plain else chr(int(code[1:], 16))

    return re.sub(r"\\(x[0-9a-fA-F]{2}|[nrt'\"\\])", one, value)


def _max_priority(limits: PriorityLimits, n_keys: int) -> PriorityLimits:
    for name in limits.of_key:
        if int(name.removeprefix("key-")) > n_keys:
            raise UsageError(f"--max-priority: there is no {name}, only {n_keys} API keys")
    return limits


def _one_of(parsed: Parsed, *keys: str) -> Any:
    """The value of the flag that was given; `UsageError` when several were."""
    given = [key for key in keys if key in parsed.given]
    if len(given) > 1:
        names = " and ".join("--" + key.replace("_", "-") for key in given)
        raise UsageError(f"{names} exclude each other")
    return parsed[(given or keys)[0]]


def _check_tls_files(parsed: Parsed) -> None:
    names = ("ssl_key_file", "ssl_cert_file")
    missing = [key for key in names if not parsed[key]]
    if len(missing) == 1:
        raise UsageError(f"HTTPS needs --{missing[0].replace('_', '-')}, too")


def server_settings(parsed: Parsed, model: ModelFile) -> ServerSettings:
    """What the HTTP process works with."""
    _check_tls_files(parsed)
    aliases = tuple(sorted(set(parsed["alias"]))) or (model.name,)
    api_keys = (*parsed["api_key"], *parsed["api_key_file"])
    return ServerSettings(
        model_path=model.path,
        model_name=aliases[0],
        aliases=aliases,
        tags=tuple(sorted(set(parsed["tags"]))),
        hosts=parsed["host"],
        port=parsed["port"],
        reuse_port=parsed["reuse_port"],
        api_keys=api_keys,
        api_prefix=parsed["api_prefix"],
        ssl_cert_file=parsed["ssl_cert_file"],
        ssl_key_file=parsed["ssl_key_file"],
        cors_origins=parsed["cors_origins"],
        cors_methods=parsed["cors_methods"],
        cors_headers=parsed["cors_headers"],
        cors_credentials=parsed["cors_credentials"],
        timeout=parsed["timeout"],
        drain_s=parsed["drain_s"],
        max_prompt_tokens=parsed["max_prompt_tokens"],
        max_priority=_max_priority(parsed["max_priority"], len(api_keys)),
        cache_shared=parsed["cache_shared"],
        normalise=parsed["normalise"],
        lora_scales=lora_scales(parsed),
        embeddings=embedding_config(parsed) is not None,
        embd_normalize=parsed["embd_normalize"],
        ui=parsed["ui"],
        static_path=parsed["path"],
        ui_settings=_one_of(parsed, "ui_config", "ui_config_file"),
        use_jinja=parsed["jinja"],
        endpoint_slots=parsed["slots"],
        slot_save_path=parsed["slot_save_path"],
        endpoint_metrics=parsed["metrics"],
        endpoint_props=parsed["props"],
        verbosity=EVERYTHING if parsed["verbose"] else parsed["verbosity"],
        log_file=parsed["log_file"],
        log_jsonl=parsed["log_jsonl"],
        log_colors=parsed["log_colors"],
        log_prefix=parsed["log_prefix"],
        log_timestamps=parsed["log_timestamps"],
        log_disable=parsed["log_disable"],
    )
