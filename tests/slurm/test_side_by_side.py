"""Trials that run side by side in a job of a real Slurm, with a variable of the ranks as an axis."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.slurm.cluster import Slurm
from tests.slurm.sweeps import read_records, slurm_profile
from tests.support.commands import harness
from tests.support.running import line_sweep

pytestmark = [pytest.mark.slurm, pytest.mark.distributed, pytest.mark.timeout(1200)]


@pytest.mark.nightly
def test_trials_of_a_block_are_steps_of_one_job_at_the_same_time(
    slurm: Slurm, tmp_path: Path
) -> None:
    sweep = line_sweep(
        tmp_path,
        {"line": {"options": {"step_seconds": 0.3}}},
        matrix={"env.MALLOC_ARENA_MAX": ["1", "2"]},
        length={"steps": 30},
    )
    profile = slurm_profile(tmp_path, nodes=1, ranks_per_node=2)
    profile.write_text(f"{profile.read_text()}parallel: auto\n")
    results = ["--results", str(tmp_path / "results")]
    command = ["submit", str(sweep), "--cluster", str(profile), *results]
    submitted = harness(*command)
    assert (submitted.code, submitted.err) == (0, ""), submitted.out
    assert harness("status", "line", "--watch", *results).code == 0

    first, second = read_records(tmp_path / "results").values()
    steps, arenas = set(), set()
    for record, other in ((first, second), (second, first)):
        assert record.environment is not None
        variables = record.environment.variables
        steps.add((variables["SLURM_JOB_ID"], variables["SLURM_STEP_ID"]))
        arenas.add(variables["MALLOC_ARENA_MAX"])
        assert record.company is not None
        assert record.company.lane.count == 2
        assert record.company.beside[other.trial.id] > 0.1
    assert arenas == {"1", "2"}
    assert len(steps) == 2
    assert len({job for job, _ in steps}) == 1
