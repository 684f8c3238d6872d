"""Flags of llama-server that we do not have yet, and those that llama-server itself has removed.

A row is: names | environment name | names that turn it off | values that ask for what we do anyway
(of a switch: on or off, and off where nothing is said). A switch has no `=` after its names; a flag
with a value has one `=`, with two values two.
"""

from __future__ import annotations

from .flag import Flag, Status, text

_ABSENT = """
--completion-bash
-C --cpu-mask =
-Cr --cpu-range =
--cpu-strict = |||0
--prio = |||0
--poll = |||50
-Cb --cpu-mask-batch =
-Crb --cpu-range-batch =
--cpu-strict-batch = |||0
--prio-batch = |||0
--poll-batch = |||50 1
-cb --cont-batching | LLAMA_ARG_CONT_BATCHING | -nocb --no-cont-batching | on
--rpc = | LLAMA_ARG_RPC
-lzm --lazy-mode = | LLAMA_ARG_LAZY_MODE ||auto
-fit --fit = | LLAMA_ARG_FIT ||off disabled false 0
-fitt --fit-target = | LLAMA_ARG_FIT_TARGET
-fitc --fit-ctx = | LLAMA_ARG_FIT_CTX
--control-vector =
--control-vector-scaled =
--control-vector-layer-range ==
-mm --mmproj = | LLAMA_ARG_MMPROJ
-mmu --mmproj-url = | LLAMA_ARG_MMPROJ_URL
--mmproj-auto | LLAMA_ARG_MMPROJ_AUTO | --no-mmproj --no-mmproj-auto
--mmproj-offload | LLAMA_ARG_MMPROJ_OFFLOAD | --no-mmproj-offload
-mmdev --mmproj-device = | MTMD_BACKEND_DEVICE
--image-min-tokens = | LLAMA_ARG_IMAGE_MIN_TOKENS
--image-max-tokens = | LLAMA_ARG_IMAGE_MAX_TOKENS
--mtmd-batch-max-tokens = | LLAMA_ARG_MTMD_BATCH_MAX_TOKENS
--video-fps = | LLAMA_ARG_VIDEO_FPS
--video-timestamp-interval = | LLAMA_ARG_VIDEO_TIMESTAMP_INTERVAL
--video-ffmpeg-dir = | LLAMA_ARG_VIDEO_FFMPEG_DIR
--embd-gemma-default
--fim-qwen-1.5b-default
--fim-qwen-3b-default
--fim-qwen-7b-default
--fim-qwen-7b-spec
--fim-qwen-14b-spec
--fim-qwen-30b-default
--gpt-oss-20b-default
--gpt-oss-120b-default
--vision-gemma-4b-default
--vision-gemma-12b-default
--context-shift | LLAMA_ARG_CONTEXT_SHIFT | --no-context-shift
-bs --backend-sampling | LLAMA_ARG_BACKEND_SAMPLING
--cache-reuse = | LLAMA_ARG_CACHE_REUSE ||0
--media-path =
--sleep-idle-seconds = |||-1
--log-prompts-dir =
--ui-mcp-proxy --webui-mcp-proxy | LLAMA_ARG_UI_MCP_PROXY | --no-ui-mcp-proxy --no-webui-mcp-proxy
--tools = | LLAMA_ARG_TOOLS
--tools-runtime = | LLAMA_ARG_TOOLS_RUNTIME
--mcp-servers-config = | LLAMA_ARG_MCP_SERVERS_CONFIG
--mcp-servers-json = | LLAMA_ARG_MCP_SERVERS_JSON
-ag --agent | LLAMA_ARG_AGENT | -no-ag --no-agent
--models-dir = | LLAMA_ARG_MODELS_DIR
--models-preset = | LLAMA_ARG_MODELS_PRESET
--models-max = | LLAMA_ARG_MODELS_MAX
--models-autoload | LLAMA_ARG_MODELS_AUTOLOAD | --no-models-autoload
--spec-draft-hf -hfd -hfrd --hf-repo-draft = | LLAMA_ARG_SPEC_DRAFT_HF_REPO
--spec-draft-threads -td --threads-draft =
--spec-draft-threads-batch -tbd --threads-batch-draft =
--spec-draft-cpu-mask -Cd --cpu-mask-draft =
--spec-draft-cpu-range -Crd --cpu-range-draft =
--spec-draft-cpu-strict --cpu-strict-draft =
--spec-draft-prio --prio-draft =
--spec-draft-poll --poll-draft =
--spec-draft-cpu-mask-batch -Cbd --cpu-mask-batch-draft =
--spec-draft-cpu-strict-batch --cpu-strict-batch-draft =
--spec-draft-prio-batch --prio-batch-draft =
--spec-draft-poll-batch --poll-batch-draft =
--spec-draft-override-tensor -otd --override-tensor-draft =
--spec-draft-cpu-moe -cmoed --cpu-moe-draft | LLAMA_ARG_SPEC_DRAFT_CPU_MOE
--spec-draft-n-cpu-moe --spec-draft-ncmoe -ncmoed --n-cpu-moe-draft = \
| LLAMA_ARG_SPEC_DRAFT_N_CPU_MOE
--spec-draft-n-max = | LLAMA_ARG_SPEC_DRAFT_N_MAX
--spec-draft-n-min = | LLAMA_ARG_SPEC_DRAFT_N_MIN
--spec-synth-len = | LLAMA_ARG_SPEC_SYNTH_LEN
--spec-synth-rates = | LLAMA_ARG_SPEC_SYNTH_RATES
--spec-draft-p-split --draft-p-split = | LLAMA_ARG_SPEC_DRAFT_P_SPLIT
--spec-draft-p-min --draft-p-min = | LLAMA_ARG_SPEC_DRAFT_P_MIN
--spec-draft-backend-sampling | LLAMA_ARG_SPEC_DRAFT_BACKEND_SAMPLING \
| --no-spec-draft-backend-sampling
--spec-draft-device -devd --device-draft =
--spec-draft-ngl -ngld --gpu-layers-draft --n-gpu-layers-draft = | LLAMA_ARG_N_GPU_LAYERS_DRAFT
--spec-draft-model -md --model-draft = | LLAMA_ARG_SPEC_DRAFT_MODEL
--spec-draft-type-k -ctkd --cache-type-k-draft = | LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_K
--spec-draft-type-v -ctvd --cache-type-v-draft = | LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_V
--spec-type = | LLAMA_ARG_SPEC_TYPE || none
--spec-default
--spec-ngram-mod-n-min =
--spec-ngram-mod-n-max =
--spec-ngram-mod-n-match =
--spec-ngram-simple-size-n =
--spec-ngram-simple-size-m =
--spec-ngram-simple-min-hits =
--spec-ngram-map-k-size-n =
--spec-ngram-map-k-size-m =
--spec-ngram-map-k-min-hits =
--spec-ngram-map-k4v-size-n =
--spec-ngram-map-k4v-size-m =
--spec-ngram-map-k4v-min-hits =
-lcs --lookup-cache-static =
-lcd --lookup-cache-dynamic =
"""

_REMOVED = """
--draft --draft-n --draft-max = | LLAMA_ARG_DRAFT_MAX | --spec-draft-n-max or --spec-ngram-mod-n-max
--draft-min --draft-n-min = | LLAMA_ARG_DRAFT_MIN | --spec-draft-n-min or --spec-ngram-mod-n-min
--spec-ngram-size-n = || the respective --spec-ngram-*-size-n or --spec-ngram-mod-n-match
--spec-ngram-size-m = || the respective --spec-ngram-*-size-m
--spec-ngram-min-hits = || the respective --spec-ngram-*-min-hits
--mlock || --load-mode mlock
--mmap || --load-mode mmap
--no-mmap || --load-mode none
-dio --direct-io || --load-mode dio
"""


def _row(line: str) -> tuple[list[str], list[str]]:
    cells = [cell.strip() for cell in line.split("|")]
    return cells[0].split(), cells + [""] * (4 - len(cells))


def _absent(line: str) -> Flag:
    words, cells = _row(line)
    n_values = len(words[-1]) if words[-1].startswith("=") else 0
    return Flag(
        tuple(words[:-1] if n_values else words),
        read=text if n_values else None,
        env=cells[1],
        off=tuple(cells[2].split()),
        harmless=tuple((cells[3] or "off").split()) if not n_values else tuple(cells[3].split()),
        n_values=n_values,
        status=Status.ABSENT,
    )


def _removed(line: str) -> Flag:
    words, cells = _row(line)
    takes = words[-1] == "="
    return Flag(
        tuple(words[:-1] if takes else words),
        read=text if takes else None,
        env=cells[1],
        note=f"use {cells[2]}",
        status=Status.REMOVED,
    )


def _lines(table: str) -> list[str]:
    return table.replace("\\\n", "").strip().splitlines()


ABSENT: tuple[Flag, ...] = tuple(_absent(line) for line in _lines(_ABSENT))
REMOVED: tuple[Flag, ...] = tuple(_removed(line) for line in _lines(_REMOVED))
