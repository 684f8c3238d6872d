"""The table of kernel switches says what the patches really have."""

from __future__ import annotations

import pytest

from strata_plugin.build.patches import PATCHES_DIR, read_series
from strata_plugin.kernels import KERNELS, Kernel, line, states


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_a_switch_is_read_by_its_patch_and_described_with_it(kernel: Kernel) -> None:
    text = {patch.title: patch.text for patch in read_series()}[kernel.patch]
    assert f'getenv("{kernel.env}")' in text
    readme = (PATCHES_DIR / "README.md").read_text(encoding="utf-8")
    section = readme.partition(f"## {kernel.patch}\n")[2].partition("\n## ")[0]
    assert kernel.env in section
    assert kernel.default in kernel.values


def test_every_switch_that_a_patch_reads_is_in_the_table() -> None:
    table = {kernel.env for kernel in KERNELS} | {"STRATA_STATE_STAGED"}  # one for tests, no kernel
    for patch in read_series():
        read = {part.partition('"')[0] for part in patch.text.split('getenv("STRATA_')[1:]}
        assert {f"STRATA_{name}" for name in read} <= table, patch.title


def test_a_state_tells_build_and_environment() -> None:
    found = states(["0001-build-native", "0007-cpu-multi-row"], {"STRATA_CPU_MULTI_ROW": "0"})
    expected = {"env": "STRATA_CPU_MULTI_ROW", "built": True, "value": "0"}
    assert found["cpu_multi_row"] == expected
    assert states([], {})["cpu_multi_row"] == {**expected, "built": False, "value": "1"}


def test_the_version_line_has_only_what_is_in_the_build() -> None:
    assert line(["0007-cpu-multi-row"], {}) == "STRATA_CPU_MULTI_ROW=1"
    assert line([], {}) == "none"
