"""Names of sweeps, paths and values of a profile reach Slurm and the ranks as they are, and no shell."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from harness.slurm.submission import JobArray, SubmissionFolder
from harness.slurm.submit import batch
from harness.spec.slurm import SlurmOptions as Options
from tests.slurm.cluster import Slurm
from tests.slurm.sweeps import by_trial, rows
from tests.support.commands import harness
from tests.support.running import line_sweep, wait_until

pytestmark = pytest.mark.slurm

HOSTILE = """it's; $(touch made) `touch made` "é" #SBATCH & | > made *"""


def test_text_that_a_shell_would_run(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place = SubmissionFolder(path=tmp_path / HOSTILE)
    place.path.mkdir()
    array = JobArray(nodes=1, ranks_per_node=1, loads=[[]], seconds=[None])
    asked = Options(
        options={"comment": HOSTILE}, prefix=("env", f"A={HOSTILE} \\ "), exclusive=False
    )
    job = batch(place, asked, array, "hostile").submit(Path("proof").write_text, "ran")
    assert slurm.ask("squeue", "--noheader", "--jobs", job.job_id, "--format=%k") == HOSTILE
    wait_until((tmp_path / "proof").exists)
    wait_until(lambda: not slurm.ask("squeue", "-h"))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["proof", place.path.name])


@pytest.mark.distributed
def test_a_sweep_whose_every_name_is_hostile(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place, name = tmp_path / f"{HOSTILE}\n", f"{HOSTILE}\n$(touch made)"
    place.mkdir()
    sweep = line_sweep(place, {HOSTILE: {}}, name=name, length={"steps": 4})
    keys = {
        "account": HOSTILE,
        "setup": ["# it's"],
        "prefix": ["env", f"A={HOSTILE}"],
        "exclusive": False,
    }
    content = {
        "launcher": "slurm",
        "device": "cpu",
        "environment": {"HARNESS_TOLD": HOSTILE},
        "slurm": keys,
    }
    (place / "p.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    results = place / "results"
    ended = harness(
        "submit", str(sweep), "--cluster", str(place / "p.yaml"), "--results", str(results)
    )
    assert (ended.code, ended.err) == (0, "")
    assert slurm.ask("squeue", "--noheader", "--format=%a") == HOSTILE.lower(), (
        "Slurm's accounts are"
    )
    wait_until(lambda: rows(results, name)[0]["state"] not in ("queued", "running"))
    (found,) = by_trial(results, name).values()
    assert (found.status, found.sweep) == ("done", name)
    assert found.rank0 is not None
    assert found.rank0.environment["variables"]["HARNESS_TOLD"] == HOSTILE
    assert harness("logs", found.trial.id, "--rank", "0", "--results", str(results)).code == 0
    assert [path.name for path in tmp_path.iterdir()] == [place.name]
