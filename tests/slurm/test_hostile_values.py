"""Names of sweeps, paths and values of a profile reach Slurm and the ranks unchanged, and no shell
expands them. Variables of the submitter's shell change neither a job nor its steps.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.core.paths import SweepFolder
from harness.slurm.submission import JobArray, Submission
from harness.slurm.submit import array_executor, call_sbatch
from harness.sweep.cluster import Profile, SlurmOptions
from tests.slurm.cluster import Slurm
from tests.slurm.sweeps import read_records, trial_rows
from tests.support.commands import harness
from tests.support.running import line_sweep, wait_until
from tests.support.sweeps import load

pytestmark = pytest.mark.slurm

HOSTILE = """it's; $(touch made) `touch made` "é" #SBATCH & | > made *"""
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


def test_values_that_a_shell_would_expand(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A comment of sbatch, a folder, and a prefix, for a job that runs a single command."""
    monkeypatch.chdir(tmp_path)
    folder = SweepFolder(tmp_path / HOSTILE)
    array = JobArray(nodes=1, ranks_per_node=1, trial_ids=[[]])
    prefix = ("env", f"A={HOSTILE} \\ ")
    options = SlurmOptions(sbatch={"comment": HOSTILE, "exclusive": False}, prefix=prefix)
    submission = Submission(
        sweep=load(tmp_path, name="hostile"),
        profile=Profile(launcher="slurm", device="cpu", slurm=options),
        arrays=[array],
    )
    executor = array_executor(folder, submission, 0)
    call_sbatch(executor, "exec touch proof")
    assert slurm.run("squeue", "--noheader", "--format=%k") == HOSTILE
    wait_until((tmp_path / "proof").exists)
    wait_until(lambda: not slurm.run("squeue", "-h"))
    assert not (tmp_path / "made").exists()


@pytest.mark.nightly
@pytest.mark.distributed
def test_a_sweep_whose_names_are_all_hostile_from_a_shell_with_options_of_its_own(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names of the folder of a sweep, an account, an environment variable.

    The job also writes records as the user's umask has it, although its own files are private.
    """
    monkeypatch.chdir(tmp_path)
    for variable, value in SHELL.items():
        monkeypatch.setenv(variable, value)
    folder = tmp_path / HOSTILE
    folder.mkdir()
    sweep = line_sweep(folder, {"line": {}}, length={"steps": 4})
    profile = folder / "p.yaml"
    content: dict[str, Any] = {
        "launcher": "slurm",
        "device": "cpu",
        "environment": {"CUDA_CACHE_PATH": HOSTILE},
        "slurm": {
            "setup": ["# it's", "scontrol show job $SLURM_JOB_ID"],
            "prefix": ["env", f"A={HOSTILE}"],
            "sbatch": {"account": HOSTILE, "time": "10", "exclusive": False},
        },
    }
    profile.write_text(yaml.safe_dump(content), encoding="utf-8")
    results = folder / "results"
    submission = ["submit", str(sweep), "--cluster", str(profile), "--results", str(results)]
    previous_umask = os.umask(0o027)
    try:
        ended = harness(*submission)
    finally:
        os.umask(previous_umask)
    assert (ended.code, ended.err) == (0, "")
    # Slurm spells accounts in lower case.
    assert slurm.run("squeue", "--noheader", "--format=%a") == HOSTILE.lower()
    wait_until(lambda: trial_rows(results)[0]["state"] not in ("queued", "running"))
    ((trial_id, record),) = read_records(results).items()
    assert record.status == "done"
    assert record.environment is not None
    variables = record.environment.variables
    assert variables["CUDA_CACHE_PATH"] == HOSTILE
    assert SHELL.keys() & variables.keys() <= {"SLURM_NTASKS", "SLURM_DISTRIBUTION"}
    (job_log,) = results.glob("runs/*/jobs/*/*.log")
    job = job_log.read_text(encoding="utf-8")
    assert "TimeLimit=00:10:00" in job
    assert "Requeue=1" in job
    (trial_logs,) = results.glob(f"runs/*/{trial_id}/attempt-1/logs")
    assert stat.S_IMODE(trial_logs.stat().st_mode) == 0o750
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
