"""Flags about the context: sizes, threads, KV cache, position scaling, caching."""

from __future__ import annotations

from .flag import Flag, Status, choice, flag, integer, number, switch, tristate

KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
MOOT = Status.MOOT
BIG = 1 << 31


def slots(value: str) -> int:
    """Slots; a negative number: auto."""
    found: int = integer(None, 256)(value)
    if found == 0:
        raise ValueError("must be at least 1, or -1 for auto")
    return found


def scale(value: str) -> float:
    """A factor that we divide by."""
    found: float = number(0)(value)
    if found == 0:
        raise ValueError("must be above 0")
    return found


CONTEXT: tuple[Flag, ...] = (
    flag(
        "-c --ctx-size",
        "tokens of context, prompt and answer together, for all slots",
        integer(0, BIG),
        metavar="N",
        env="LLAMA_ARG_CTX_SIZE",
        default=0,
        shown="the model's training context",
    ),
    flag(
        "-np --parallel",
        "slots: how many requests generate at once (more wait in the queue). An explicit N divides "
        "the context among the slots unless -kvu is given",
        slots,
        metavar="N",
        env="LLAMA_ARG_N_PARALLEL",
        default=-1,
        shown="4 slots, each may use the whole context",
    ),
    switch(
        "-kvu --kv-unified",
        "with an explicit -np: let each slot use the whole context",
        "-no-kvu --no-kv-unified",
        env="LLAMA_ARG_KV_UNIFIED",
        shown="on if -np is not given",
    ),
    flag(
        "--kv-unified-per-slot",
        "most tokens that one slot may use; without -c the context holds N for each slot",
        integer(1, BIG),
        metavar="N",
        env="LLAMA_ARG_KV_UNIFIED_PER_SLOT",
        default=0,
        shown="the whole context",
    ),
    flag(
        "-b --batch-size",
        "prompt progress is reported every N tokens, and no step is longer",
        integer(1, BIG),
        metavar="N",
        env="LLAMA_ARG_BATCH",
        default=2048,
    ),
    flag(
        "-ub --ubatch-size",
        "tokens computed in one pass over the weights",
        integer(1, BIG),
        metavar="N",
        env="LLAMA_ARG_UBATCH",
        default=512,
    ),
    flag(
        "-t --threads",
        "CPU threads for generating",
        integer(-1, 512),
        metavar="N",
        env="LLAMA_ARG_THREADS",
        shown="the number of physical cores",
    ),
    flag(
        "-tb --threads-batch",
        "CPU threads for reading prompts",
        integer(-1, 512),
        metavar="N",
        shown="as --threads",
    ),
    flag(
        "-fa --flash-attn",
        "flash attention: on, off or auto (on a CPU: as measured at the first start)",
        tristate,
        metavar="[on|off|auto]",
        env="LLAMA_ARG_FLASH_ATTN",
        default="auto",
    ),
    flag(
        "-ctk --cache-type-k",
        f"type of the K cache: {', '.join(KV_TYPES)}",
        choice(*KV_TYPES),
        metavar="TYPE",
        env="LLAMA_ARG_CACHE_TYPE_K",
        default="f16",
    ),
    flag(
        "-ctv --cache-type-v",
        f"type of the V cache: {', '.join(KV_TYPES)}",
        choice(*KV_TYPES),
        metavar="TYPE",
        env="LLAMA_ARG_CACHE_TYPE_V",
        default="f16",
    ),
    switch(
        "-kvo --kv-offload",
        "keep the KV cache on the GPU",
        "-nkvo --no-kv-offload",
        env="LLAMA_ARG_KV_OFFLOAD",
        default=True,
    ),
    switch(
        "--swa-full",
        "give sliding window layers a full-size cache",
        env="LLAMA_ARG_SWA_FULL",
    ),
    switch("--warmup", "run the model once before serving", "--no-warmup", default=True),
    flag(
        "--rope-scaling",
        "position scaling: none, linear or yarn",
        choice("none", "linear", "yarn"),
        metavar="TYPE",
        env="LLAMA_ARG_ROPE_SCALING_TYPE",
        default="",
        shown="the model's",
    ),
    flag(
        "--rope-scale",
        "stretch the context by a factor of N",
        scale,
        metavar="N",
        env="LLAMA_ARG_ROPE_SCALE",
    ),
    flag(
        "--rope-freq-base",
        "base frequency of the positions",
        number(0),
        metavar="N",
        env="LLAMA_ARG_ROPE_FREQ_BASE",
        default=0.0,
        shown="the model's",
    ),
    flag(
        "--rope-freq-scale",
        "stretch the context by a factor of 1/N",
        number(0),
        metavar="N",
        env="LLAMA_ARG_ROPE_FREQ_SCALE",
        default=0.0,
        shown="the model's",
    ),
    flag(
        "--yarn-orig-ctx",
        "YaRN: context that the model was trained with",
        integer(0, BIG),
        metavar="N",
        env="LLAMA_ARG_YARN_ORIG_CTX",
        default=0,
        shown="the model's",
    ),
    *(
        flag(name, f"YaRN: {text}", number(), metavar="N", env=env, default=-1.0)
        for name, text, env in (
            ("--yarn-ext-factor", "mix of extrapolation", "LLAMA_ARG_YARN_EXT_FACTOR"),
            ("--yarn-attn-factor", "scale of the attention", "LLAMA_ARG_YARN_ATTN_FACTOR"),
            ("--yarn-beta-slow", "high correction dimension", "LLAMA_ARG_YARN_BETA_SLOW"),
            ("--yarn-beta-fast", "low correction dimension", "LLAMA_ARG_YARN_BETA_FAST"),
        )
    ),
    switch(
        "--cache-prompt",
        "compute no prompt token twice where a finished or running request has it",
        "--no-cache-prompt",
        env="LLAMA_ARG_CACHE_PROMPT",
        default=True,
    ),
    flag(
        "-cram --cache-ram --conversation-cache-mib",
        "MiB of RAM for states outside the KV cache: conversations that others pushed out, and "
        "parked requests, which go before; -1: no limit, 0: they are computed again",
        integer(-1, BIG),
        metavar="N",
        env="LLAMA_ARG_CACHE_RAM",
        default=8192,
    ),
    flag(
        "-cms --checkpoint-every --checkpoint-min-step --prompt-cache-every",
        "models whose state can't be cut (recurrent layers, sliding windows): tokens from one "
        "checkpoint of a prompt to the next, so most to be read again after an edit; rounded up "
        "to whole blocks",
        integer(0, BIG),
        metavar="N",
        env="LLAMA_ARG_CHECKPOINT_MIN_SPACING_NT",
        default=4096,
    ),
    flag(
        "--checkpoint-root --prompt-cache-root",
        "the same for the first 8192 tokens, where system prompts end",
        integer(0, BIG),
        metavar="N",
        env="STRATA_CHECKPOINT_ROOT",
        default=2048,
        status=Status.OURS,
    ),
    flag(
        "-ctxcp --ctx-checkpoints --swa-checkpoints --prompt-cache",
        "checkpoints kept of a conversation, those least missed go first; 0: only where a request "
        "ends",
        integer(0, BIG),
        metavar="N",
        env="LLAMA_ARG_CTX_CHECKPOINTS",
        default=32,
    ),
    flag(
        "-sps --slot-prompt-similarity",
        "not needed: each request uses the longest prefix there is, whichever slot computed it",
        number(0, 1),
        metavar="SIMILARITY",
        default=0.1,
        status=MOOT,
        note="the longest common prefix is used, whichever slot computed it",
    ),
    switch(
        "--cache-idle-slots",
        "not needed: finished requests stay in the KV cache until their cells are needed",
        "--no-cache-idle-slots",
        env="LLAMA_ARG_CACHE_IDLE_SLOTS",
        default=True,
        status=MOOT,
        note="finished requests stay in the KV cache until their cells are needed",
    ),
    switch(
        "--perf",
        "not needed: timings are always measured",
        "--no-perf",
        env="LLAMA_ARG_PERF",
        status=MOOT,
        note="timings are always measured",
    ),
    flag(
        "-dt --defrag-thold",
        "without effect in llama-server, too",
        metavar="N",
        env="LLAMA_ARG_DEFRAG_THOLD",
        status=MOOT,
        note="deprecated and without effect in llama-server, too",
    ),
)
