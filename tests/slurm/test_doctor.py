"""`harness doctor` against a real cluster: well, and with each harm that can be done to one on one machine."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.slurm.doctor import job
from tests.slurm.cluster import Slurm
from tests.slurm.conftest import refuse
from tests.slurm.daemons import missing, running
from tests.support.commands import harness
from tests.support.tree import TOP

pytestmark = pytest.mark.slurm

CAP_SYS_ADMIN = 1 << 21  # man capabilities: mount namespaces need it


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No file system here lags."""
    monkeypatch.setattr(job, "LAG", 1.0)
    monkeypatch.setattr(job, "POLL", 0.1)
    monkeypatch.setenv("PYTHONPATH", str(TOP))  # on the nodes too


@dataclass(frozen=True)
class Harmed:
    """A cluster whose node n2 sees only an empty folder where `private` is, and whose third node has no address."""

    slurm: Slurm
    private: Path


@pytest.fixture(scope="module")
def harmed_slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harmed]:
    refuse(missing())
    effective = re.search(r"CapEff:\s*(\w+)", Path("/proc/self/status").read_text(encoding="utf-8"))
    if effective is None or not int(effective[1], 16) & CAP_SYS_ADMIN:
        pytest.skip(
            "no right to let a node see another folder"
        )  # in CI too: a container gives it, no package does
    private = tmp_path_factory.mktemp("private")
    nodes = ("n1", "n2", "nowhere-at-all")
    with running(tmp_path_factory.mktemp("harmed"), nodes=nodes, private={"n2": private}) as found:
        yield Harmed(found, private)


@pytest.fixture
def harmed(harmed_slurm: Harmed, monkeypatch: pytest.MonkeyPatch) -> Harmed:
    for name, value in harmed_slurm.slurm.environment.items():
        monkeypatch.setenv(name, value)
    return harmed_slurm


def doctor(
    folder: Path, results: Path | None = None, *more: str, **keys: Any
) -> tuple[int, dict[str, str], dict[str, str]]:
    """Exit code, what failed and what is well of `harness doctor` for a profile with these keys."""
    profile = folder / "profile.yaml"
    section = {"nodes": 2, "exclusive": False} | keys
    profile.write_text(
        yaml.safe_dump({"launcher": "slurm", "device": "cpu", "slurm": section}), encoding="utf-8"
    )
    given = [
        "--cluster",
        str(profile),
        "--results",
        str(results or folder / "results"),
        "--json",
        *more,
    ]
    ended = harness("doctor", *given)
    checks = json.loads(ended.out)["checks"]
    failed = {check["what"]: check["found"] for check in checks if not check["passed"]}
    return (
        ended.code,
        failed,
        {check["what"]: check["found"] for check in checks if check["passed"]},
    )


def test_a_cluster_that_is_well(slurm: Slurm, tmp_path: Path) -> None:
    results = tmp_path / 'it\'s; $HOME "é"'
    code, failed, well = doctor(
        tmp_path, results, ranks_per_node=2, interface="lo", prefix=["env", "A=b c;d"]
    )
    assert (code, failed) == (0, {})
    assert well["nodes"] == "n1, n2"
    assert well["all-reduce"].startswith("gloo over 4 ranks in ")
    assert list(results.iterdir()) == []


def test_a_folder_that_one_node_does_not_see(harmed: Harmed, tmp_path: Path) -> None:
    code, failed, _ = doctor(tmp_path, harmed.private / "results", options={"nodelist": "n1,n2"})
    assert code == 1
    assert list(failed) == ["folder"]
    assert failed["folder"].startswith(f"n2: {harmed.private}/results/doctor-")
    assert failed["folder"].endswith(": No such file or directory; is it shared with this node?")


def test_a_folder_that_the_first_node_does_not_see(harmed: Harmed, tmp_path: Path) -> None:
    code, failed, _ = doctor(
        tmp_path, harmed.private / "results", nodes=1, options={"nodelist": "n2"}
    )
    assert code == 1
    assert list(failed) == ["job"]
    assert "on n2 ended without a report (FAILED); it left no word in" in failed["job"]
    assert "does n2 see this folder?" in failed["job"]


def test_a_python_that_one_node_does_not_have(harmed: Harmed, tmp_path: Path) -> None:
    python = harmed.private / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    code, failed, _ = doctor(tmp_path, python=str(python), options={"nodelist": "n1,n2"})
    assert code == 1
    assert failed["nodes"].startswith("n2 did not report: ")
    assert f"{python}: No such file or directory" in failed["nodes"]
    assert failed["all-reduce"] == "not tried"


def test_a_python_that_no_node_has(slurm: Slurm, tmp_path: Path) -> None:
    code, failed, _ = doctor(tmp_path, python="/no/such/python")
    assert code == 1
    assert list(failed) == ["job"]
    assert "/no/such/python: No such file or directory; log: " in failed["job"]


def test_a_harness_that_is_another_on_one_node(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where a job starts is where `python -m` looks first
    other = tmp_path / "other"
    for package in ("harness", "workloads", "clusters"):
        shutil.copytree(
            TOP / package, other / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    (other / "harness" / "newer.py").touch()
    python = tmp_path / "python"
    choice = f'[ "$SLURMD_NODENAME" = n2 ] && export PYTHONPATH={other}'
    python.write_text(f'#!/bin/sh\n{choice}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    code, failed, _ = doctor(tmp_path, python=str(python))
    assert code == 1
    assert list(failed) == ["harness"]
    assert failed["harness"].startswith("n2 has 0.1.0 (")


def test_a_node_whose_name_is_not_known(harmed: Harmed, tmp_path: Path) -> None:
    code, failed, _ = doctor(tmp_path, options={"nodelist": "n1,nowhere-at-all"})
    assert code == 1
    assert "n1 can't look up nowhere-at-all (" in failed["names"]


def test_an_interface_that_is_not_there(slurm: Slurm, tmp_path: Path) -> None:
    code, failed, _ = doctor(tmp_path, interface="ib7")
    assert code == 1
    assert failed["interface"].startswith("n1 has no ib7; allowed: ")
    assert failed["all-reduce"] == "not tried"


def test_a_line_of_setup_that_fails(slurm: Slurm, tmp_path: Path) -> None:
    code, failed, well = doctor(
        tmp_path, setup=["export A=b", "source /no/such/env.sh", "cd /nowhere; cd /"]
    )
    assert code == 1
    assert failed == {"setup": "exit code 1: source /no/such/env.sh; exit code 1: cd /nowhere"}
    assert "all-reduce" in well
    assert (
        doctor(tmp_path, setup=["if true; then", "export A=b", "fi"])[2]["setup"]
        == "every line ran"
    )


def test_a_setup_that_ends_the_job(slurm: Slurm, tmp_path: Path) -> None:
    code, failed, _ = doctor(tmp_path, setup=["exit 3"])
    assert code == 1
    assert "its last words: setup: exit code 3: exit 3; log: " in failed["job"]


def test_a_job_that_does_not_start(slurm: Slurm, tmp_path: Path) -> None:
    slurm.ask("scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=test")
    code, failed, _ = doctor(tmp_path, None, "--patience", "1")
    assert code == 1
    assert "waited 1 s in the queue (" in failed["job"]
    assert slurm.ask("squeue", "-h") == ""


def test_a_job_that_slurm_refuses(slurm: Slurm, tmp_path: Path) -> None:
    code, failed, _ = doctor(tmp_path, constraint="h100")
    assert code == 1
    assert failed["job"].startswith("sbatch: ")
    assert "Invalid feature specification" in failed["job"]
