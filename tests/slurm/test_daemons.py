"""The Slurm that tests run against works, can be broken and repaired, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slurm.cluster import Slurm, is_listening
from tests.slurm.conftest import skip_if
from tests.slurm.daemons import missing, running
from tests.support.running import processes_below, wait_until
from tests.support.tree import TOP

pytestmark = pytest.mark.slurm

# A process that runs a Slurm, and a job on it, and waits to be killed.
RUN_A_JOB = """\
import sys, time
from pathlib import Path
from tests.slurm.daemons import running
from tests.support.tree import TOP
with running(Path(sys.argv[1])) as slurm:
    job = f"srun sleep 300 # {sys.argv[1]}"
    slurm.run("sbatch", "--nodes=2", "--output=/dev/null", "--wrap", job)
    while "RUNNING" not in slurm.run("squeue", "-h", "-o", "%T"):
        time.sleep(0.1)
    print("up", flush=True)
    time.sleep(300)
"""


def test_a_job_runs_on_both_nodes(slurm: Slurm) -> None:
    output = slurm.run("srun", "--nodes=2", "--label", "printenv", "SLURMD_NODENAME")
    assert sorted(output.splitlines()) == ["0: n1", "1: n2"]


@pytest.mark.nightly
def test_a_job_of_higher_priority_preempts_and_the_other_soon_runs_again(
    slurm: Slurm, tmp_path: Path
) -> None:
    """This is what tests of preemptions build on: a warning, a requeue, and a short wait."""
    log = tmp_path / "log"
    on_warning = f"echo warned >>{log}; scontrol requeue $SLURM_JOB_ID"
    script = (
        f"trap '{on_warning}' USR2; echo start $SLURM_RESTART_COUNT >>{log};"
        " sleep 300 & wait; wait; wait"
    )
    slurm.run(
        "sbatch",
        "--nodes=2",
        "--exclusive",
        "--requeue",
        "--signal=B:USR2@30",
        "--output=/dev/null",
        f"--wrap={script}",
    )
    wait_until(log.exists)
    slurm.run("srun", "--partition=urgent", "--nodes=2", "--exclusive", "true")
    wait_until(lambda: len(log.read_text().splitlines()) > 2, 30.0)
    assert log.read_text().splitlines() == ["start", "warned", "start 1"]


@pytest.mark.nightly
def test_daemons_can_be_stopped_and_started_again(slurm: Slurm) -> None:
    """This is what tests of nodes and controllers that die build on."""
    ports = slurm.configuration.ports
    # Not SIGKILL: the controller would take jobs that have just ended for running ones.
    slurm.stop("slurmctld")
    assert not is_listening(ports.controller)
    slurm.start("slurmctld")
    slurm.wait_for_controller()
    slurm.stop("slurmd-n2", signal.SIGKILL)
    assert not is_listening(ports.nodes[1])
    slurm.start("slurmd-n2")
    wait_until(lambda: is_listening(ports.nodes[1]))
    names = slurm.run("srun", "--nodes=2", "printenv", "SLURMD_NODENAME").split()
    assert sorted(names) == ["n1", "n2"]


@pytest.mark.nightly
def test_nothing_is_left_after_the_block(short_folder: Path) -> None:
    skip_if(missing())
    job = f"srun sleep 300 # {short_folder}"
    with running(short_folder / "slurm") as slurm:
        slurm.run("sbatch", "--nodes=2", "--output=/dev/null", "--wrap", job)
        wait_until(lambda: slurm.run("squeue", "-h", "-o", "%T") == "RUNNING")
        assert len(processes_below(short_folder)) >= 5
    assert processes_below(short_folder) == []


@pytest.mark.nightly
def test_nothing_is_left_when_the_tests_are_killed(short_folder: Path) -> None:
    """The kernel tells the supervisor, which ends daemons and jobs."""
    skip_if(missing())
    command = [sys.executable, "-c", RUN_A_JOB, str(short_folder / "slurm")]
    with subprocess.Popen(command, cwd=TOP, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: processes_below(short_folder) == [], 10.0)


@pytest.mark.nightly
def test_two_run_side_by_side_and_one_keeps_accounts(slurm: Slurm, short_folder: Path) -> None:
    """Neither sees the nodes of the other."""
    skip_if(missing(accounting=True))
    with running(short_folder / "slurm", accounting=True) as other:
        other.run("srun", "true")
        sacct = ("sacct", "-n", "-X", "-P", "-o", "JobName,State")
        wait_until(lambda: other.run(*sacct) == "true|COMPLETED")
        assert slurm.node_states() == other.node_states() == {"n1": "idle", "n2": "idle"}
