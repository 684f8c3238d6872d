"""The kernels that our patches put into llama.cpp and can be switched: one table of them, and what
is in and on.

A switch is an environment variable that the patched code reads once, when it first needs to know.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Kernel:
    """One switch. `patch` is the file that brings it, without its ending."""

    name: str
    patch: str
    env: str
    values: tuple[str, ...]
    default: str
    about: str


# A new switch needs an entry here and a section in patches/README.md; the tests check both.
KERNELS = (
    Kernel(
        name="cpu_multi_row",
        patch="0007-cpu-multi-row",
        env="STRATA_CPU_MULTI_ROW",
        values=("0", "1"),
        default="1",
        about="on CPUs with AVX2, weights of IQ types and Q2_0 are decoded once for up to 8 rows",
    ),
)


def states(
    patches: Collection[str], environ: Mapping[str, str] = os.environ
) -> dict[str, dict[str, str | bool]]:
    """For `/props`: each kernel's variable, whether the build has it, and what it is set to.

    A value that the table does not have is shown as it is; the patched code decides what it means.
    """
    return {
        kernel.name: {
            "env": kernel.env,
            "built": kernel.patch in patches,
            "value": environ.get(kernel.env, kernel.default),
        }
        for kernel in KERNELS
    }


def line(patches: Collection[str], environ: Mapping[str, str] = os.environ) -> str:
    """For `--version`: the switches of the kernels that are in the build."""
    built = [kernel for kernel in KERNELS if kernel.patch in patches]
    return ", ".join(f"{k.env}={environ.get(k.env, k.default)}" for k in built) or "none"
