"""Steps of a job: the command of a trial, and what srun's words tell of its end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from harness.core.paths import TrialFolder
from harness.launch.launcher import RankProgram
from harness.launch.srun import Srun, cancelled_by_user, parse_failures
from harness.records.record import Failure
from tests.support.running import wait_until
from tests.support.slurm import install_fake_slurm
from tests.support.tree import TOP

LAUNCHER = Srun(
    environment={"OWN": "a b"}, ranks_per_node=4, cpus_per_rank=8, python="/opt/python",
    prefix=("apptainer", "exec", "an image.sif"), address="node7",
)  # fmt: skip


def program(folder: Path, ranks: int = 1) -> RankProgram:
    return RankProgram(
        arguments=["--write-logs"], folder=TrialFolder(folder), world_size=ranks, num_threads=3
    )


def test_the_command_of_a_step_is_a_list_of_words_that_no_shell_reads() -> None:
    folder = Path('/shared/it\'s; "$(here)"\n/mlp-0-s0-r0')
    command = LAUNCHER.command(program(folder), {})
    assert command[-9:] == [
        "apptainer", "exec", "an image.sif", "/opt/python", "-P", "-m", "harness.training.worker", str(folder),
        "--write-logs",
    ]  # fmt: skip
    assert command[0] == "srun"


@pytest.mark.parametrize(("ranks", "nodes", "each"), [(1, 1, 1), (3, 1, 3), (4, 1, 4), (8, 2, 4)])
def test_a_step_fills_nodes_from_the_first_on(ranks: int, nodes: int, each: int) -> None:
    command = LAUNCHER.command(program(Path("t"), ranks), {})
    options = {f"--nodes={nodes}", f"--ntasks={ranks}", f"--ntasks-per-node={each}", "--relative=0"}
    assert options <= set(command)
    assert "--overlap" in command  # a step whose slurmstepd died must not block the next
    assert "--kill-on-bad-exit=0" in command, "a site may have another default"
    assert "--cpus-per-task=8" in command  # srun does not take it from sbatch since 22.05


# What Slurm 22.05.8 said of steps with a task on n1 and one on n2.
RECORDED = {
    "a rank raised": ("""\
srun: error: n2: task 1: Exited with exit code 1
srun: launch/slurm: _step_signal: Terminating StepId=1.0
slurmstepd-n1: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-11-21T13:01:37 ***
srun: error: n1: task 0: Terminated
srun: Force Terminated StepId=1.0
""", ("Exited", 1, "n2")),
    "a rank was killed": ("""\
srun: error: n2: task 1: Killed
srun: launch/slurm: _step_signal: Terminating StepId=3.0
slurmstepd-n1: error: *** STEP 3.0 ON n1 CANCELLED AT 2026-11-21T13:01:41 ***
srun: error: n1: task 0: Terminated
srun: Force Terminated StepId=3.0
""", ("Killed", 1, "n2")),
    "signal before a rank holds it back": ("""\
srun: error: n2: task 1: User defined signal 2
srun: launch/slurm: _step_signal: Terminating StepId=4.0
slurmstepd-n1: error: *** STEP 4.0 ON n1 CANCELLED AT 2026-11-21T13:01:43 ***
srun: error: n1: task 0: Terminated
srun: Force Terminated StepId=4.0
""", ("Interrupted", 1, "n2")),
    "no such Python": ("""\
slurmstepd-n1: error: execve(): /no/such/python: No such file or directory
srun: error: n1: task 0: Exited with exit code 2
srun: launch/slurm: _step_signal: Terminating StepId=9.0
slurmstepd-n2: error: execve(): /no/such/python: No such file or directory
srun: error: n2: task 1: Exited with exit code 2
""", ("Exited", 0, "n1")),
    "scancel": ("""\
srun: got SIGCONT
slurmstepd-n1: error: *** STEP 13.0 ON n1 CANCELLED AT 2026-11-21T13:01:58 ***
srun: Job step aborted: Waiting up to 7 seconds for job step to finish.
srun: forcing job termination
srun: error: n1: task 0: Terminated
srun: launch/slurm: _step_signal: Terminating StepId=13.0
srun: error: n2: task 1: Terminated
""", ("Interrupted", None, None)),
    "time limit": ("""\
slurmstepd-n1: error: *** STEP 17.0 ON n1 CANCELLED AT 2026-11-21T13:03:34 DUE TO TIME LIMIT ***
srun: Job step aborted: Waiting up to 7 seconds for job step to finish.
srun: error: n2: task 1: Terminated
srun: launch/slurm: _step_signal: Terminating StepId=17.0
srun: got SIGCONT
srun: error: n1: task 0: Terminated
""", ("Interrupted", None, None)),
    "a node that died": ("""\
srun: error: Node failure on n2
srun: Job step aborted: Waiting up to 7 seconds for job step to finish.
slurmstepd-n1: error: *** STEP 2.0 ON n1 CANCELLED AT 2026-11-21T13:15:39 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***
srun: got SIGCONT
srun: forcing job termination
srun: error: n1: task 0: Terminated
srun: launch/slurm: _step_signal: Terminating StepId=2.0
""", ("NodeFailure", None, "n2")),
    "memory, by task/cgroup": ("""\
slurmstepd-n2: error: Detected 1 oom-kill event(s) in StepId=1.0. Some of your processes may have been killed by the cgroup out-of-memory handler.
srun: error: n2: task 1: Out Of Memory
srun: launch/slurm: _step_signal: Terminating StepId=1.0
slurmstepd-n1: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-11-21T13:15:58 ***
srun: error: n1: task 0: Terminated
srun: Force Terminated StepId=1.0
""", ("OutOfMemory", 1, "n2")),
    "memory, by OverMemoryKill": ("""\
slurmstepd-n2: error: StepId=1.0 exceeded memory limit (147255296 > 104857600), being killed
srun: Job step aborted: Waiting up to 7 seconds for job step to finish.
slurmstepd-n1: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-11-21T13:16:10 ***
srun: error: n1: task 0: Killed
srun: launch/slurm: _step_signal: Terminating StepId=1.0
srun: error: n2: task 1: Killed
""", ("OutOfMemory", None, None)),
    "no step": ("""\
srun: error: Unable to create step for job 11: More processors requested than permitted
""", ("NotStarted", None, None)),
    "no controller": ("""\
srun: error: Unable to confirm allocation for job 71: Unable to contact slurm controller (connect failure)
srun: Check SLURM_JOB_ID environment variable. Expired or invalid job 71
""", ("ControllerDown", None, None)),
    "warning": ("""\
srun: Warning: can't run 1 processes on 2 nodes, setting nnodes to 1
""", None),
}  # fmt: skip


def parsed(output: str) -> list[Failure]:
    return parse_failures(output, TrialFolder(Path("t")))


@pytest.mark.parametrize("name", RECORDED)
def test_the_end_of_a_step_is_named(name: str) -> None:
    output, expected = RECORDED[name]
    causes = [(cause.kind, cause.rank, cause.host) for cause in parsed(output)]
    assert causes[:1] == ([] if expected is None else [expected])


@pytest.mark.parametrize("how", ["Segmentation fault", "Segmentation fault (core dumped)"])
def test_a_rank_that_crashed_is_named_with_the_signal(how: str) -> None:
    (failure,) = parsed(f"srun: error: n2: task 1: {how}\n")
    assert str(failure) == "rank 1 on n2: Killed: ended by SIGSEGV"


def test_only_scancel_is_somebodys_wish() -> None:
    wished = {
        name
        for name, (output, _) in RECORDED.items()
        if any(cancelled_by_user(cause.message) for cause in parsed(output))
    }
    assert wished == {"scancel"}


# Starts a step as a leader does, whose srun prints its id and stays.
LEADER = """
import sys, time
from pathlib import Path
from harness.core.paths import TrialFolder
from harness.launch.launcher import RankProgram
from harness.launch.srun import Srun
program = RankProgram(folder=TrialFolder(Path(sys.argv[1])), world_size=1, num_threads=1)
Srun(environment={}, ranks_per_node=1, cpus_per_rank=1, python="", prefix=(), address="").start(program)
time.sleep(60)
"""
STAYING_SRUN = (
    '#!/bin/sh\necho $$ >"${0%/*}/pid.new"; mv "${0%/*}/pid.new" "${0%/*}/pid"; exec sleep 60\n'
)


def test_srun_ends_with_the_leader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Slurm has lost the job's processes, nobody else would end it."""
    slurm = install_fake_slurm(tmp_path / "bin", monkeypatch.setenv)
    (slurm.folder / "srun").write_text(STAYING_SRUN, encoding="utf-8")
    command = [sys.executable, "-c", LEADER, str(tmp_path)]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(TOP)}) as leader:
        wait_until((slurm.folder / "pid").exists)
        srun = psutil.Process(int((slurm.folder / "pid").read_text(encoding="ascii")))
        leader.kill()
    _, alive = psutil.wait_procs([srun], timeout=10)
    assert all(process.status() == psutil.STATUS_ZOMBIE for process in alive)
