"""`harness doctor`: a trial on the normal path, on this machine and on a real cluster."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.slurm import doctor as doctor_room
from tests.slurm.cluster import Slurm
from tests.support.commands import harness
from tests.support.tree import TOP


@pytest.fixture(autouse=True)
def this_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness of this tree runs on the nodes too."""
    monkeypatch.setenv("PYTHONPATH", str(TOP))


@dataclass(frozen=True)
class Diagnosis:
    """What `harness doctor` has found: its exit code, and the detail of each check by name."""

    code: int
    problems: dict[str, str]
    passed: dict[str, str]


def doctor(folder: Path, *arguments: str, results: Path | None = None, **slurm: Any) -> Diagnosis:
    """Run `harness doctor` with a profile that has these keys in its section `slurm`."""
    profile = folder / "profile.yaml"
    section = {"nodes": 2, "sbatch": {"exclusive": False}} | slurm
    content = {"launcher": "slurm", "device": "cpu", "slurm": section}
    profile.write_text(yaml.safe_dump(content), encoding="utf-8")
    results = results or folder / "results"
    where = ["--cluster", str(profile), "--results", str(results)]
    return diagnosed(*where, *arguments)


def diagnosed(*arguments: str) -> Diagnosis:
    """Run `harness doctor` and read its answer."""
    ended = harness("doctor", "--json", *arguments)
    problems: dict[str, str] = {}
    passed: dict[str, str] = {}
    for check in json.loads(ended.out)["checks"]:
        details = passed if check["passed"] else problems
        details[check["name"]] = check["detail"]
    return Diagnosis(ended.code, problems, passed)


@pytest.mark.distributed
def test_this_machine_trains_and_nothing_stays(tmp_path: Path) -> None:
    results = tmp_path / "results"
    diagnosis = diagnosed("--results", str(results))
    assert (diagnosis.code, diagnosis.problems) == (0, {})
    assert diagnosis.passed["trial"].startswith("2 ranks (ddp), ")
    assert list(results.iterdir()) == []


@pytest.mark.nightly
@pytest.mark.slurm
def test_all_nodes_compute_the_same_bits(slurm: Slurm, tmp_path: Path) -> None:
    results = tmp_path / 'it\'s; $HOME "é"'
    diagnosis = doctor(tmp_path, "--all-nodes", results=results)
    assert (diagnosis.code, diagnosis.problems) == (0, {})
    assert diagnosis.passed["n1"].startswith("1 ranks (single), ")
    assert diagnosis.passed["bits"] == "the same on 2 nodes"
    assert list(results.iterdir()) == []


@pytest.mark.nightly
@pytest.mark.slurm
def test_a_python_that_no_node_has_is_named_and_the_logs_stay(slurm: Slurm, tmp_path: Path) -> None:
    diagnosis = doctor(tmp_path, python="/no/such/python")
    assert diagnosis.code == 1
    assert "/no/such/python: No such file or directory" in diagnosis.problems["trial"]
    assert Path(diagnosis.problems["logs"].removesuffix(" has them")).is_dir()


@pytest.mark.slurm
def test_a_job_that_does_not_start_is_cancelled(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_room, "PATIENCE_SECONDS", 1.0)
    slurm.run("scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=test")
    diagnosis = doctor(tmp_path)
    assert diagnosis.code == 1
    assert "queued" in diagnosis.problems["trial"]
    assert slurm.run("squeue", "-h", "--states=PENDING,RUNNING") == ""


@pytest.mark.slurm
def test_what_slurm_refuses_is_named(slurm: Slurm, tmp_path: Path) -> None:
    diagnosis = doctor(tmp_path, sbatch={"constraint": "h100"})
    assert diagnosis.code == 1
    assert "Invalid feature specification" in diagnosis.problems["job"]
