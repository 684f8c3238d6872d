"""Where the cost model is kept: one file for each model file, set of flags, machine and build of
llama.cpp, since a step takes its own time with each of them."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from strata_plugin.build.info import build_info
from strata_plugin.cache_folder import cache_folder

from .flags import Parsed

# flags that change how long a step takes
SPEED = (
    "batch_size",
    "ubatch_size",
    "threads",
    "threads_batch",
    "flash_attn",
    "cache_type_k",
    "cache_type_v",
    "kv_offload",
    "op_offload",
    "swa_full",
    "gpu_layers",
    "device",
    "split_mode",
    "main_gpu",
    "tensor_split",
    "override_tensor",
    "cpu_moe",
    "n_cpu_moe",
    "n_cpu_ffn",
    "override_kv",
    "load_mode",
    "repack",
    "no_host",
    "numa",
)
# environment names that hide devices from llama.cpp
DEVICE_FILTERS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GGML_VK_VISIBLE_DEVICES")
PCI_DISPLAY = "0x03"  # class of graphics cards


def cost_file(parsed: Parsed, model_path: str, environ: Mapping[str, str]) -> str:
    """Path of the file, whose folder may not exist yet; what --cost-model says wins."""
    if "cost_model" in parsed.given:
        return str(parsed["cost_model"])
    flags = [(key, parsed[key]) for key in SPEED]
    filters = [(name, environ.get(name)) for name in DEVICE_FILTERS]
    parts = (model_identity(model_path), flags, machine(), filters, build_info().key)
    digest = sha256(repr(parts).encode()).hexdigest()
    return str(cache_folder("cost", environ) / (digest[:32] + ".cost"))


def model_identity(path: str) -> tuple[str, int, int]:
    """Path, bytes and time of change (ns) of a file; zeros when it can't be read."""
    real = os.path.realpath(path)
    try:
        found = os.stat(real)
    except OSError:
        return real, 0, 0
    return real, found.st_size, found.st_mtime_ns


def machine() -> tuple[str, int, int, str]:
    """CPU, its cores, those that we may use, and the graphics cards. Asks no driver: the engine is
    to start soon.
    """
    cores = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
    return cpu_model(), cores, usable, ",".join(graphics_cards())


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """What /proc/cpuinfo says about the first core, else what Python knows."""
    told: list[str] = []
    try:
        with cpuinfo.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if not line.strip() and told:
                    break
                if name.strip() in ("model name", "CPU implementer", "CPU part"):
                    told.append(value.strip())
    except OSError:  # not Linux
        told.append(platform.processor())
    return " ".join([platform.machine(), *told])


def graphics_cards(devices: Path = Path("/sys/bus/pci/devices")) -> list[str]:
    """vendor:device of each graphics card on the PCI bus, sorted."""
    cards: list[str] = []
    for device in sorted(devices.glob("*")):
        try:
            if (device / "class").read_text().startswith(PCI_DISPLAY):
                ids = [(device / name).read_text().strip() for name in ("vendor", "device")]
                cards.append(":".join(ids))
        except OSError:  # taken out meanwhile, or hidden
            continue
    return sorted(cards)
