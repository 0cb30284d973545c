"""Environment variables as axes, in forked ranks: seen before torch was loaded, or the trial fails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from harness.launch import torchrun
from harness.launch.launcher import RankProgram, rank_environment
from tests.support.running import line_sweep, run

pytestmark = pytest.mark.distributed
CAPABILITY = "env.ATEN_CPU_CAPABILITY"
BEST = torch.backends.cpu.get_cpu_capability()


@pytest.mark.nightly
@pytest.mark.skipif(BEST not in ("AVX2", "AVX512"), reason="torch has one set of kernels here")
def test_each_value_is_seen_and_takes_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second run is a mutant: its launcher passes nothing on."""
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

    def pass_nothing_on(
        inherited: Mapping[str, str], profile: Mapping[str, str], program: RankProgram
    ) -> dict[str, str]:
        return rank_environment(inherited, profile, replace(program, variables={}))

    monkeypatch.setattr(torchrun, "rank_environment", pass_nothing_on)
    for record, value in zip(run(sweep, redo="all"), values, strict=True):
        assert record.failure is not None
        assert record.failure.kind == "NotApplied"
        assert record.failure.message.startswith(f"{CAPABILITY}={value} was not passed on: ")
