"""Variables of the submitter's shell, on a real Slurm: they change neither a job nor its steps."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests.slurm.cluster import Slurm
from tests.slurm.sweeps import read_records, submit
from tests.support.commands import harness
from tests.support.running import line_sweep

pytestmark = [pytest.mark.slurm, pytest.mark.distributed]

SHELL = {
    "SBATCH_PARTITION": "no-such-partition",
    "SBATCH_TIMELIMIT": "1",
    "SBATCH_NO_REQUEUE": "1",
    "SLURM_MEM_PER_CPU": "1",
    "SLURM_NTASKS": "17",
    "SLURM_DISTRIBUTION": "arbitrary",
    "SLURM_HINT": "compute_bound",
    "SRUN_CPUS_PER_TASK": "64",
}


def test_profile_alone_says_what_jobs_and_steps_ask_for(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job also writes records as the user's umask has it, although its own files are private."""
    for name, value in SHELL.items():
        monkeypatch.setenv(name, value)
    previous = os.umask(0o027)
    try:
        sweep = line_sweep(tmp_path, {"line": {}}, length={"steps": 4})
        submit(sweep, tmp_path / "results", setup=["scontrol show job $SLURM_JOB_ID"])
    finally:
        os.umask(previous)
    watched = harness("status", "line", "--watch", "--results", str(tmp_path / "results"))
    assert watched.code == 0, watched.out
    (log,) = (tmp_path / "results").glob("runs/line/jobs/*/*.log")
    ((trial_id, record),) = read_records(tmp_path / "results").items()
    assert record.status == "done", record.failure
    assert record.rank0 is not None
    variables = record.rank0.environment.variables
    assert SHELL.keys() & variables.keys() <= {"SLURM_NTASKS", "SLURM_DISTRIBUTION"}
    logs = tmp_path / "results" / "runs" / "line" / trial_id / "logs"
    assert stat.S_IMODE(logs.stat().st_mode) == 0o750
    text = log.read_text(encoding="utf-8")
    assert "TimeLimit=00:10:00" in text
    assert "Requeue=1" in text
