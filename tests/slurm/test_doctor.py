"""`harness doctor` on a real cluster: without problems, and with each that can be made on one
machine.
"""

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

from harness.slurm.doctor import cluster
from tests.slurm.cluster import Slurm
from tests.slurm.conftest import skip_if
from tests.slurm.daemons import missing, running
from tests.support.commands import harness
from tests.support.tree import TOP

pytestmark = pytest.mark.slurm

CAP_SYS_ADMIN = 1 << 21  # man capabilities: mount namespaces need it


@pytest.fixture(autouse=True)
def doctor_without_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    """No file system lags on this machine; and the harness of this tree runs on the nodes too."""
    monkeypatch.setattr(cluster, "LAG_SECONDS", 1.0)
    monkeypatch.setattr(cluster, "POLL_SECONDS", 0.1)
    monkeypatch.setenv("PYTHONPATH", str(TOP))


@dataclass(frozen=True)
class BrokenCluster:
    """A cluster whose node n2 sees an empty folder in place of `private`, and whose third node has
    no address.
    """

    slurm: Slurm
    private: Path


@pytest.fixture(scope="module")
def running_broken_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokenCluster]:
    skip_if(missing())
    process_status = Path("/proc/self/status").read_text(encoding="utf-8")
    effective = re.search(r"CapEff:\s*(\w+)", process_status)
    if effective is None or not int(effective[1], 16) & CAP_SYS_ADMIN:
        # In CI too: whoever starts the container grants it, no package does.
        pytest.skip("no right to let a node see another folder")
    private = tmp_path_factory.mktemp("private")
    nodes = ("n1", "n2", "nowhere-at-all")
    folder = tmp_path_factory.mktemp("broken")
    with running(folder, nodes=nodes, private={"n2": private}) as slurm:
        yield BrokenCluster(slurm, private)


@pytest.fixture
def broken_cluster(
    running_broken_cluster: BrokenCluster, monkeypatch: pytest.MonkeyPatch
) -> BrokenCluster:
    """The broken cluster, for clients of Slurm in this process."""
    for name, value in running_broken_cluster.slurm.environment.items():
        monkeypatch.setenv(name, value)
    return running_broken_cluster


@dataclass(frozen=True)
class Diagnosis:
    """What `harness doctor` has found: its exit code, and the detail of each check by name."""

    code: int
    problems: dict[str, str]
    passed: dict[str, str]


def doctor(folder: Path, *arguments: str, results: Path | None = None, **slurm: Any) -> Diagnosis:
    """Run `harness doctor` with a profile that has these keys in its section `slurm`."""
    profile = folder / "profile.yaml"
    section = {"nodes": 2, "exclusive": False} | slurm
    content = {"launcher": "slurm", "device": "cpu", "slurm": section}
    profile.write_text(yaml.safe_dump(content), encoding="utf-8")
    results = results or folder / "results"
    ended = harness(
        "doctor",
        "--cluster",
        str(profile),
        "--results",
        str(results),
        "--json",
        *arguments,
    )
    problems: dict[str, str] = {}
    passed: dict[str, str] = {}
    for check in json.loads(ended.out)["checks"]:
        details = passed if check["passed"] else problems
        details[check["name"]] = check["detail"]
    return Diagnosis(ended.code, problems, passed)


def write_python(path: Path, *lines: str) -> str:
    """Write a program that runs some lines of shell and then this Python, and return its path."""
    script = ["#!/bin/sh", *lines, f'exec {sys.executable} "$@"', ""]
    path.write_text("\n".join(script))
    path.chmod(0o755)
    return str(path)


def test_a_cluster_without_problems_passes(slurm: Slurm, tmp_path: Path) -> None:
    results = tmp_path / 'it\'s; $HOME "é"'
    prefix = ["env", "A=b c;d"]
    diagnosis = doctor(
        tmp_path,
        "--all-nodes",
        results=results,
        nodes=1,
        interface="lo",
        prefix=prefix,
    )
    assert (diagnosis.code, diagnosis.problems) == (0, {})
    assert diagnosis.passed["nodes"] == "n1, n2"
    assert diagnosis.passed["all-reduce"].startswith("gloo over 2 ranks in ")
    assert list(results.iterdir()) == []


@pytest.mark.nightly
def test_problems_of_single_nodes_and_of_setup_are_all_named(
    broken_cluster: BrokenCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Node n2 does not see the folder, and has a tree of its own, with one more file in it. The name
    of another node can't be looked up.

    The job goes on after lines of setup that fail, one that spans several lines succeeds, and the
    other checks pass.
    """
    monkeypatch.chdir(tmp_path)  # `python -m` looks first in the folder in which a job starts
    other_tree = tmp_path / "other"
    without_caches = shutil.ignore_patterns("__pycache__")
    for package in ("harness", "workloads", "clusters"):
        shutil.copytree(TOP / package, other_tree / package, ignore=without_caches)
    (other_tree / "harness" / "newer.py").touch()
    choose_tree = f'[ "$SLURMD_NODENAME" = n2 ] && export PYTHONPATH={other_tree}'
    python = write_python(tmp_path / "python", choose_tree)
    setup = ["export A=b", "source /no/such/env.sh", "cd /nowhere; cd /"]
    setup += ["if true; then", "export A=b", "fi"]
    results = broken_cluster.private / "results"
    diagnosis = doctor(tmp_path, results=results, nodes=3, python=python, setup=setup)
    assert diagnosis.code == 1
    assert sorted(diagnosis.problems) == ["folder", "harness", "names", "setup"]
    folder = diagnosis.problems["folder"]
    assert folder.startswith(f"n2: {results}/doctor-")
    assert folder.endswith(": No such file or directory; is it shared with this node?")
    assert diagnosis.problems["harness"].startswith("n2 has 0.1.0 (")
    assert "n1 can't look up nowhere-at-all (" in diagnosis.problems["names"]
    assert (
        diagnosis.problems["setup"]
        == "exit code 1: source /no/such/env.sh; exit code 1: cd /nowhere"
    )
    assert diagnosis.passed["all-reduce"].startswith("gloo over 3 ranks in ")


def test_a_folder_that_the_first_node_does_not_see(
    broken_cluster: BrokenCluster, tmp_path: Path
) -> None:
    """The job can't even write its log there, so that its absence is all there is to see."""
    results = broken_cluster.private / "results"
    diagnosis = doctor(tmp_path, results=results, nodes=1, options={"nodelist": "n2"})
    assert diagnosis.code == 1
    assert list(diagnosis.problems) == ["job"]
    detail = diagnosis.problems["job"]
    assert "on n2 ended without a report (FAILED); it wrote nothing to" in detail
    assert "does n2 see this folder?" in detail


def test_a_python_that_a_node_does_not_have(broken_cluster: BrokenCluster, tmp_path: Path) -> None:
    python = write_python(broken_cluster.private / "python")
    diagnosis = doctor(tmp_path, python=python, options={"nodelist": "n1,n2"})
    assert diagnosis.code == 1
    assert diagnosis.problems["nodes"].startswith("n2 did not report: ")
    assert f"{python}: No such file or directory" in diagnosis.problems["nodes"]
    assert diagnosis.problems["all-reduce"] == "not tried"


def test_a_python_that_no_node_has(slurm: Slurm, tmp_path: Path) -> None:
    """The leader itself fails, and its log says why."""
    diagnosis = doctor(tmp_path, python="/no/such/python")
    assert diagnosis.code == 1
    assert list(diagnosis.problems) == ["job"]
    assert "/no/such/python: No such file or directory; log: " in diagnosis.problems["job"]


def test_an_interface_that_does_not_exist(slurm: Slurm, tmp_path: Path) -> None:
    diagnosis = doctor(tmp_path, interface="ib7")
    assert diagnosis.code == 1
    assert diagnosis.problems["interface"].startswith("n1 has no ib7; allowed: ")
    assert diagnosis.problems["all-reduce"] == "not tried"


def test_a_setup_that_ends_the_job(slurm: Slurm, tmp_path: Path) -> None:
    diagnosis = doctor(tmp_path, nodes=1, setup=["exit 3"])
    assert diagnosis.code == 1
    assert ("the last line of its log is: setup: exit code 3: exit 3; log: ") in diagnosis.problems[
        "job"
    ]


def test_a_job_that_does_not_start(slurm: Slurm, tmp_path: Path) -> None:
    """It is cancelled, so that it does not run when nobody waits for it any more."""
    slurm.run("scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=test")
    diagnosis = doctor(tmp_path, "--timeout", "1s")
    assert diagnosis.code == 1
    assert "was pending for 1 s (" in diagnosis.problems["job"]
    assert slurm.run("squeue", "-h") == ""


def test_a_job_that_slurm_refuses(slurm: Slurm, tmp_path: Path) -> None:
    diagnosis = doctor(tmp_path, constraint="h100")
    assert diagnosis.code == 1
    assert diagnosis.problems["job"].startswith("sbatch: ")
    assert "Invalid feature specification" in diagnosis.problems["job"]
