"""Flags about the model and where its weights go."""

from __future__ import annotations

import re
from typing import Any

from .flag import Flag, Reader, choice, flag, integer, names, quoted_names, switch

CPU_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
CPU_DENSE = r"\.ffn_(up|down|gate)\."
KV_KINDS = ("int", "float", "bool", "str")


def gpu_layers(value: str) -> int:
    """Layers on the GPU; -1: auto, -2: all."""
    if value in ("auto", "all"):
        return -1 if value == "auto" else -2
    return int(integer(-2)(value))


def proportions(value: str) -> tuple[float, ...]:
    """Comma-separated, non-negative numbers."""
    try:
        found = tuple(float(part) for part in re.split("[,/]+", value))
    except ValueError:
        raise ValueError(f"expected numbers like 3,1, got '{value}'") from None
    if any(part < 0 for part in found) or not any(found):
        raise ValueError("expected proportions of at least 0, one of them above 0")
    return found


def overrides(value: str) -> tuple[tuple[str, str], ...]:
    """Pairs of tensor name pattern and buffer type."""
    pairs: list[tuple[str, str]] = []
    for item in value.split(","):
        pattern, equals, buffer = item.partition("=")
        if not equals or not pattern or not buffer:
            raise ValueError(f"expected <tensor name pattern>=<buffer type>, got '{item}'")
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"bad pattern '{pattern}': {error}") from None
        pairs.append((pattern, buffer))
    return tuple(pairs)


def first_layers(pattern: str) -> Reader:
    """The tensors matching `pattern` in the first N layers, kept on the CPU."""

    def read(value: str) -> tuple[tuple[str, str], ...]:
        count = integer(0, 100_000)(value)
        return tuple((rf"blk\.{layer}{pattern}", "CPU") for layer in range(count))

    return read


def kv_overrides(value: str) -> tuple[str, ...]:
    """KEY=TYPE:VALUE items."""
    items = quoted_names(value)
    for item in items:
        key, _, rest = item.partition("=")
        kind, colon, found = rest.partition(":")
        if not key or not colon or kind not in KV_KINDS:
            raise ValueError(f"expected KEY=TYPE:VALUE with TYPE of {'|'.join(KV_KINDS)}: '{item}'")
        _check_kv(kind, found, item)
    return items


def _check_kv(kind: str, found: str, item: str) -> None:
    tests: dict[str, Any] = {"int": int, "float": float}
    try:
        if kind == "bool" and found not in ("true", "false"):
            raise ValueError
        if kind in tests:
            tests[kind](found)
    except ValueError:
        raise ValueError(f"'{found}' is no {kind} in '{item}'") from None


def repository(value: str) -> str:
    """USER/MODEL[:QUANT]."""
    name = r"\w+([.-]\w+)*"
    if not re.fullmatch(rf"{name}/{name}(:[\w.-]+)?", value, re.ASCII):
        raise ValueError(f"expected <user>/<model>[:quant], got '{value}'")
    return value


def docker_reference(value: str) -> str:
    """[OWNER/]MODEL[:TAG]."""
    name = r"[a-z0-9]+([._-]+[a-z0-9]+)*"
    if not re.fullmatch(rf"{name}(/{name})*(:\w[\w.-]*)?", value, re.ASCII):
        raise ValueError(f"expected [<repo>/]<model>[:quant], got '{value}'")
    return value


def file_url(value: str) -> str:
    """http or https, with a file's name."""
    if not re.match(r"https?://[^/?#\s]+/[^?#\s]*[^/?#\s]", value):
        raise ValueError(f"expected http[s]://<host>/.../<file>, got '{value}'")
    return value


MODEL: tuple[Flag, ...] = (
    flag(
        "-m --model",
        "GGUF file to serve; for a split model, its first part",
        metavar="FNAME",
        env="LLAMA_ARG_MODEL",
        shown="the small model that comes with Strata",
    ),
    flag(
        "-hf -hfr --hf-repo",
        "model of a Hugging Face repository, downloaded into the local cache, and again when there "
        "is a newer one; without a quant Q4_K_M, Q8_0 or the first there is",
        repository,
        metavar="<user>/<model>[:quant]",
        env="LLAMA_ARG_HF_REPO",
    ),
    flag(
        "-hff --hf-file",
        "which file of the repository, whatever its quant",
        metavar="FILE",
        env="LLAMA_ARG_HF_FILE",
    ),
    flag(
        "-hft --hf-token",
        "access token for Hugging Face",
        metavar="TOKEN",
        env="HF_TOKEN",
        shown="that of `hf auth login`",
    ),
    flag(
        "-mu --model-url",
        "download the model from a URL, to the file of -m where that is given",
        file_url,
        metavar="MODEL_URL",
        env="LLAMA_ARG_MODEL_URL",
    ),
    flag(
        "-dr --docker-repo",
        "model of a Docker Hub repository, by default one of `ai`; without a quant, latest",
        docker_reference,
        metavar="[<repo>/]<model>[:quant]",
        env="LLAMA_ARG_DOCKER_REPO",
    ),
    switch(
        "--offline",
        "never use the network: serve what has been downloaded before",
        env="LLAMA_ARG_OFFLINE",
    ),
    flag(
        "-a --alias",
        "names of the model in the API, comma-separated",
        names,
        metavar="STRING",
        env="LLAMA_ARG_ALIAS",
        many=True,
        default=(),
        shown="the model's path or repository",
    ),
    flag(
        "--tags",
        "tags of the model in /v1/models, comma-separated",
        names,
        metavar="STRING",
        env="LLAMA_ARG_TAGS",
        many=True,
        default=(),
    ),
    flag(
        "-ngl --gpu-layers --n-gpu-layers",
        "layers to keep on the GPU: a number, auto or all",
        gpu_layers,
        metavar="N",
        env="LLAMA_ARG_N_GPU_LAYERS",
        default=-1,
        shown="auto",
    ),
    flag(
        "-dev --device",
        "devices to offload to, comma-separated; none: keep all on the CPU",
        names,
        metavar="<dev1,dev2,..>",
        env="LLAMA_ARG_DEVICE",
        shown="all that are found",
    ),
    flag(
        "-sm --split-mode",
        "how several GPUs share a model: none, layer, row or tensor",
        choice("none", "layer", "row", "tensor"),
        metavar="MODE",
        env="LLAMA_ARG_SPLIT_MODE",
        default="layer",
    ),
    flag(
        "-ts --tensor-split",
        "each GPU's share of the model, for example 3,1",
        proportions,
        metavar="N0,N1,..",
        env="LLAMA_ARG_TENSOR_SPLIT",
        default=(),
    ),
    flag(
        "-mg --main-gpu",
        "GPU for the whole model (split mode none) or for intermediate results and KV (row)",
        integer(0),
        metavar="INDEX",
        env="LLAMA_ARG_MAIN_GPU",
        default=0,
    ),
    flag(
        "-ot --override-tensor",
        "put tensors whose names match a pattern into a buffer type, such as CPU",
        overrides,
        metavar="<pattern>=<buffer type>,..",
        env="LLAMA_ARG_OVERRIDE_TENSOR",
        many=True,
        default=(),
    ),
    switch(
        "-cmoe --cpu-moe",
        "keep the weights of all experts (MoE) on the CPU",
        env="LLAMA_ARG_CPU_MOE",
    ),
    flag(
        "-ncmoe --n-cpu-moe",
        "keep the weights of the experts of the first N layers on the CPU",
        first_layers(CPU_EXPERTS),
        metavar="N",
        env="LLAMA_ARG_N_CPU_MOE",
        default=(),
    ),
    flag(
        "-ncffn --n-cpu-ffn",
        "keep the dense feed-forward weights of the first N layers on the CPU",
        first_layers(CPU_DENSE),
        metavar="N",
        env="LLAMA_ARG_N_CPU_FFN",
        default=(),
    ),
    flag(
        "-lm --load-mode",
        "how to read the weights: auto, none, mmap, mlock, mmap+mlock or dio",
        choice("auto", "none", "mmap", "mlock", "mmap+mlock", "dio"),
        metavar="MODE",
        env="LLAMA_ARG_LOAD_MODE",
        default="auto",
    ),
    flag(
        "--numa",
        "spread over NUMA nodes: distribute, isolate or numactl",
        lambda value: choice("distribute", "isolate", "numactl")(value or "distribute"),
        metavar="TYPE",
        env="LLAMA_ARG_NUMA",
        default="",
    ),
    switch(
        "--repack",
        "lay weights out for the CPU's instructions while loading",
        "-nr --no-repack",
        env="LLAMA_ARG_REPACK",
        default=True,
    ),
    switch(
        "--no-host",
        "do not use host buffers, so that extra buffer types can be used",
        env="LLAMA_ARG_NO_HOST",
    ),
    switch("--check-tensors", "look for invalid values in the weights while loading"),
    switch(
        "--op-offload",
        "let the GPU compute operations on weights that lie in host memory",
        "--no-op-offload",
        default=True,
    ),
    flag(
        "--override-kv",
        "replace model metadata; TYPE is int, float, bool or str",
        kv_overrides,
        metavar="KEY=TYPE:VALUE,..",
        many=True,
        default=(),
    ),
    switch("-cl --cache-list", "list the models in the local cache and exit"),
    switch("--list-devices", "list the devices that --device knows and exit"),
)
