"""Tasks of a real Slurm find themselves on the cores that their cell asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.core.cores import usable_cores
from tests.slurm.sweeps import read_records, slurm_profile
from tests.support.commands import harness
from tests.support.running import USER_SCRIPTS, by_label, line_sweep

pytestmark = [pytest.mark.slurm, pytest.mark.distributed, pytest.mark.timeout(1200)]


@pytest.mark.nightly
@pytest.mark.usefixtures("slurm")
@pytest.mark.skipif(len(usable_cores()) < 2, reason="one core is all that there is")
def test_tasks_of_a_node_have_separate_cores(tmp_path: Path) -> None:
    """Those of the harness's loop, and those of a user's script."""
    axes = {"world_size": 2, "binding": "exclusive"}
    script = {
        "uses": str(USER_SCRIPTS / "ddp.py"),
        "arguments": ["--batch-size", "{rank_batch_size}"],
        "axes": {**axes, "batch_size": 32},
        "target": "accuracy",
    }
    workloads: dict[str, dict[str, Any]] = {
        "line": {"axes": {**axes, "strategy": "ddp"}},
        "script": script,
    }
    sweep = line_sweep(tmp_path, workloads, length={"steps": 4})
    profile = slurm_profile(tmp_path, nodes=1, ranks_per_node=2)
    results = ["--results", str(tmp_path / "results")]
    submitted = harness("submit", str(sweep), "--cluster", str(profile), *results)
    assert (submitted.code, submitted.err) == (0, ""), submitted.out
    assert harness("status", "line", "--watch", *results).code == 0
    records = by_label(list(read_records(tmp_path / "results").values()))
    assert set(records) == set(workloads)
    for record in records.values():
        assert record.failure is None, record.failure
        first, second = [rank.binding for rank in record.ranks]
        assert first is not None
        assert second is not None
        assert first.cores
        assert second.cores
        assert not set(first.cores) & set(second.cores)
