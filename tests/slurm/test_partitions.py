"""A profile is compared with what the real sinfo prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.slurm.cluster import Slurm
from tests.slurm.sweeps import random_sweep, slurm_profile
from tests.support.commands import harness

pytestmark = pytest.mark.slurm


def test_a_dry_run_names_what_only_sbatch_knows(slurm: Slurm, tmp_path: Path) -> None:
    """A constraint is no column of sinfo's; neither are accounts."""
    profile = slurm_profile(tmp_path, constraint="nvlink")
    sweep = random_sweep(tmp_path, strategies=["single"])
    results = tmp_path / "results"
    submission = ("submit", str(sweep), "--cluster", str(profile), "--results", str(results))
    ended = harness(*submission, "--dry-run")
    assert ended.code == 2
    assert "sbatch refuses what the profile asks for" in ended.err
    assert "Invalid feature specification" in ended.err


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("partition", "urgnt", "found 'urgnt'; did you mean 'urgent'? allowed: debug, urgent"),
        ("nodes", "3", "found 3; allowed: at most 2"),
        ("cpus_per_rank", "5", "found 5; allowed: at most 4"),
        ("time", "2:00:00", "found '2:00:00', 7200 s; allowed: at most 3600 s"),
        ("memory", "9G", "found '9G'; allowed: at most 8000 MiB"),
    ],
)
def test_what_the_cluster_can_not_satisfy_is_one_line(
    slurm: Slurm, tmp_path: Path, key: str, value: str, message: str
) -> None:
    profile = tmp_path / "p.yaml"
    profile.write_text(f"launcher: slurm\nslurm:\n  {key}: {value}\n", encoding="utf-8")
    ended = harness("plan", "quickstart", "--cluster", str(profile))
    assert ended.code == 2
    assert ended.err.startswith(f"harness: {profile}:3: slurm.{key}: {message}")
    assert ended.err.count("\n") == 1
