"""The Slurm that tests run against comes up whole and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slurm.cluster import Slurm, listens
from tests.slurm.conftest import refuse
from tests.slurm.daemons import missing, running
from tests.support.running import processes_below, wait_until
from tests.support.tree import TOP

pytestmark = pytest.mark.slurm

HOLD = """\
import sys, time
from pathlib import Path
from tests.slurm.daemons import running
from tests.support.tree import TOP
with running(Path(sys.argv[1])) as slurm:
    slurm.ask("sbatch", "--nodes=2", "--output=/dev/null", "--wrap", f"srun sleep 300 # {sys.argv[1]}")
    while "RUNNING" not in slurm.ask("squeue", "-h", "-o", "%T"):
        time.sleep(0.1)
    print("up", flush=True)
    time.sleep(300)
"""


def test_a_job_runs_on_both_nodes(slurm: Slurm) -> None:
    said = slurm.ask("srun", "--nodes=2", "--label", "printenv", "SLURMD_NODENAME")
    assert sorted(said.splitlines()) == ["0: n1", "1: n2"]


def test_a_job_of_higher_priority_preempts_and_the_other_comes_back_soon(
    slurm: Slurm, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    warned = f"echo warned >>{log}; scontrol requeue $SLURM_JOB_ID"
    script = f"trap '{warned}' USR2; echo start $SLURM_RESTART_COUNT >>{log}; sleep 300 & wait; wait; wait"
    asked = [
        "--nodes=2",
        "--exclusive",
        "--requeue",
        "--signal=B:USR2@30",
        "--output=/dev/null",
        f"--wrap={script}",
    ]
    slurm.ask("sbatch", *asked)
    wait_until(log.exists)
    slurm.ask("srun", "--partition=urgent", "--nodes=2", "--exclusive", "true")
    wait_until(lambda: len(log.read_text().splitlines()) > 2, 30.0)
    assert log.read_text().splitlines() == ["start", "warned", "start 1"]


def test_daemons_can_be_ended_and_started_again(slurm: Slurm) -> None:
    slurm.stop("slurmctld")  # killed, it would take jobs that have just ended for running ones
    assert not listens(slurm.configuration.ports.controller)
    slurm.start("slurmctld")
    wait_until(lambda: listens(slurm.configuration.ports.controller))
    slurm.stop("slurmd-n2", signal.SIGKILL)
    assert not listens(slurm.configuration.ports.nodes[1])
    slurm.start("slurmd-n2")
    wait_until(lambda: listens(slurm.configuration.ports.nodes[1]))
    assert sorted(slurm.ask("srun", "--nodes=2", "printenv", "SLURMD_NODENAME").split()) == [
        "n1",
        "n2",
    ]


def test_nothing_is_left_after_the_block(short: Path) -> None:
    refuse(missing())
    with running(short / "slurm") as own:
        own.ask("sbatch", "--nodes=2", "--output=/dev/null", "--wrap", f"srun sleep 300 # {short}")
        wait_until(lambda: own.ask("squeue", "-h", "-o", "%T") == "RUNNING")
        assert len(processes_below(short)) >= 5
    assert processes_below(short) == []


def test_nothing_is_left_when_the_tests_are_killed(short: Path) -> None:
    refuse(missing())
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(short / "slurm")], cwd=TOP, stdout=subprocess.PIPE
    ) as held:
        assert held.stdout is not None
        assert held.stdout.readline() == b"up\n"
        os.kill(held.pid, signal.SIGKILL)
    wait_until(lambda: processes_below(short) == [], 10.0)


def test_two_side_by_side_and_one_keeps_accounts(slurm: Slurm, short: Path) -> None:
    refuse(missing(accounting=True))
    with running(short / "slurm", accounting=True) as other:
        other.ask("srun", "true")
        wait_until(
            lambda: other.ask("sacct", "-n", "-X", "-P", "-o", "JobName,State") == "true|COMPLETED"
        )
        assert slurm.states() == other.states() == {"n1": "idle", "n2": "idle"}
