"""Environment variables as axes, in forked ranks: seen before torch was loaded, or the trial fails."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.running import line_sweep, run

pytestmark = pytest.mark.distributed
CAPABILITY = "env.ATEN_CPU_CAPABILITY"
BEST = torch.backends.cpu.get_cpu_capability()


@pytest.mark.nightly
@pytest.mark.skipif(BEST not in ("AVX2", "AVX512"), reason="torch has one set of kernels here")
def test_each_value_is_seen_and_takes_effect(tmp_path: Path) -> None:
    values = ["default", BEST.lower()]
    sweep = line_sweep(tmp_path, {"line": {}}, length={"steps": 4}, matrix={CAPABILITY: values})
    capabilities = []
    for record, value in zip(run(sweep), values, strict=True):
        environment = record.environment
        assert environment is not None, record.failure
        assert environment.variables["ATEN_CPU_CAPABILITY"] == value
        assert environment.settings is not None
        capabilities.append(environment.settings.cpu_capability)
    assert capabilities[0] in ("DEFAULT", "NO AVX")
    assert capabilities[1] == BEST
