"""Jobs that are preempted, cancelled or reach their time limit, controllers and nodes that fail: each trial
runs once, to the undisturbed bits.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from harness.core.paths import Results
from harness.records.assignment import read_heartbeats
from tests.slurm.cluster import Slurm
from tests.slurm.conftest import slurm_in
from tests.slurm.sweeps import (
    STEP_SECONDS,
    Undisturbed,
    hurry_up,
    is_over,
    random_sweep,
    read_records,
    slow_down,
    submit,
    trial_folder,
    trial_rows,
    trial_states,
    wait_for_records,
    wait_for_step,
)
from tests.support.commands import harness
from tests.support.running import line_sweep, wait_until
from tests.support.stacks import container

pytestmark = [pytest.mark.slurm, pytest.mark.distributed, pytest.mark.timeout(2400)]


def preempt(slurm: Slurm) -> None:
    """Run a job of higher priority on all nodes; returns when it has ended."""
    slurm.run("srun", "--partition=urgent", "--nodes=2", "--exclusive", "true")


@pytest.mark.nightly
def test_a_trial_continues_after_a_preemption(
    slurm: Slurm, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """From a sharded checkpoint; the other tests have whole ones.

    The ranks are in a container, whose own command Slurm signals too.
    """
    in_container = {"prefix": container(), "python": sys.executable}
    sweep = random_sweep(tmp_path, strategies=["fsdp2"], stack=in_container)
    results = tmp_path / "results"
    submit(sweep, results, exclusive=True)
    wait_for_step(results, 0, 5)
    preempt(slurm)
    hurry_up(tmp_path)
    (record,) = wait_for_records(results, undisturbed).values()
    assert record.attempt == 2
    assert [failure.kind for failure in record.previous_failures] == ["Interrupted"]
    interruptions = record.ranks[0].interruptions
    assert [interruption.signal for interruption in interruptions] == ["SIGUSR2"]


def submit_with_a_time_limit_that_is_too_short(folder: Path) -> Path:
    """Submit a slow trial and return its results folder.

    The shortest limit that Slurm has is a minute. Slurm looks at limits every 30 s, and sends a
    warning that falls due until the next look: the trial gets this one when the job has run for 10
    to 40 s. Should it come before the first step, the next start of the job has another chance.
    """
    folder.mkdir()
    sweep = random_sweep(folder, strategies=["single"], step_seconds=1.0)
    submit(sweep, folder / "results", time="1", warning=20, requeues=30)
    return folder / "results"


@pytest.mark.nightly
def test_time_limits_that_are_too_short_cancelled_jobs_and_a_killed_leader(
    slurm: Slurm, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """One trial waits for its time limit beside a job of two, which is cancelled in the meantime while one
    runs. They are submitted again; a job whose leader is killed comes back by itself.
    """
    limited = submit_with_a_time_limit_that_is_too_short(tmp_path / "limited")
    folder = tmp_path / "cancelled"
    folder.mkdir()
    sweep = random_sweep(folder, strategies=["single"], seeds=[0, 1])
    results = folder / "results"
    submit(sweep, results, array_parallelism=1)
    wait_for_step(results, 0, 5)
    assert "1 job cancelled" in harness("cancel", "line", "--results", str(results)).out
    wait_until(lambda: "running" not in trial_states(results))
    assert trial_states(results) == ["cancelled", "cancelled"]
    wait_until(lambda: len(slurm.run("squeue", "-h").splitlines()) == 1)

    submit(sweep, results, array_parallelism=1)
    wait_for_step(results, 0, 1)
    os.kill(leader_pid(results), signal.SIGKILL)
    hurry_up(folder)
    records = wait_for_records(results, undisturbed)
    running, waiting = (records[row["trial"]] for row in trial_rows(results))
    assert [failure.kind for failure in running.previous_failures] == ["Interrupted"] * 2
    assert waiting.previous_failures == ()

    checkpoints = trial_folder(limited, 0).resume_checkpoints
    wait_until(lambda: any(checkpoints.glob("*")))
    hurry_up(limited.parent)
    (record,) = wait_for_records(limited, undisturbed).values()
    assert record.attempt > 1
    assert {failure.kind for failure in record.previous_failures} == {"Interrupted"}


@pytest.mark.nightly
def test_the_last_task_of_an_array_disturbs_no_other(slurm: Slurm, tmp_path: Path) -> None:
    """Slurm gives that task the array's own id, by which clients end and requeue all tasks.

    Its srun is killed, so that its step is cancelled, and then its leader, so that it is requeued.
    """
    slowly = {"step_seconds": STEP_SECONDS, "hurry": str(tmp_path / "hurry")}
    variants = {"one": {"options": slowly}, "two": {"options": {**slowly, "samples": 128}}}
    sweep = line_sweep(tmp_path, variants, length={"steps": 400}, seeds=[0, 1])
    results = tmp_path / "results"
    submit(sweep, results, nodes=1)
    rows = trial_rows(results)
    jobs = [row["job"] for row in rows]
    assert jobs[0] == jobs[1] != jobs[2] == jobs[3], "each block is a job"
    wait_for_step(results, 0, 5)
    wait_for_step(results, 2, 5)

    task = {"SLURM_ARRAY_TASK_ID": "1"}
    os.kill(pid_of(f"--job-name={rows[2]['trial']}", **task), signal.SIGKILL)
    wait_for_step(results, 3, 5)  # the lost trial runs again after the others of its block
    os.kill(pid_of("lead", **task), signal.SIGKILL)
    wait_until(lambda: trial_folder(results, 3).attempt > 1)
    hurry_up(tmp_path)
    wait_until(lambda: is_over(results), every=1.0)
    records = read_records(results)
    ends = []
    for row in trial_rows(results):
        ends.append((row["seed"], row["state"], records[row["trial"]].attempt))
    assert sorted(ends) == [(0, "done", 1), (0, "done", 1), (1, "done", 2), (1, "done", 2)]


@pytest.mark.nightly
def test_a_killed_rank_and_a_killed_leader_cost_the_steps_since_the_last_save(
    slurm: Slurm, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """The rank is tried again in its job, and the job comes back."""
    sweep = random_sweep(tmp_path, strategies=["fsdp2"], checkpoint={"every": "4 steps"})
    results = tmp_path / "results"
    submit(sweep, results)
    checkpoints = trial_folder(results, 0).resume_checkpoints
    wait_until(lambda: newest_step(checkpoints) > 4)  # the first is whole
    os.kill(rank_pid(results), signal.SIGKILL)
    record_path = trial_folder(results, 0).record_path
    wait_until(record_path.exists)
    before = newest_step(checkpoints)
    wait_until(lambda: newest_step(checkpoints) > before + 4)
    os.kill(leader_pid(results), signal.SIGKILL)
    wait_until(lambda: trial_folder(results, 0).attempt > 2)
    hurry_up(tmp_path)
    (record,) = wait_for_records(results, undisturbed).values()
    assert [failure.kind for failure in record.previous_failures] == ["Killed", "Interrupted"]
    first, second = record.ranks[0].interruptions
    assert 0 < first.step < second.step
    assert (first.signal, second.signal) == (None, None)


@pytest.fixture
def slurm_with_spare_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """One node more than a job needs, which is drained."""
    nodes = ("n1", "n2", "spare")
    with slurm_in(tmp_path_factory.mktemp("spare"), nodes=nodes) as slurm:
        slurm.set_node("spare", "DRAIN")
        yield slurm


@pytest.mark.nightly
def test_a_controller_that_restarts_a_node_that_is_drained_and_one_that_dies(
    slurm_with_spare_node: Slurm, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """Three faults, one after the other, while two trials run; each hits at most one of them.

    The job whose node has died runs again on two others, although that node is back.
    """
    slurm = slurm_with_spare_node
    sweep = random_sweep(tmp_path, strategies=["ddp"], seeds=[0, 1])
    results = tmp_path / "results"
    submit(sweep, results, exclusive=True)

    wait_for_step(results, 0, 5)
    slurm.stop("slurmctld", signal.SIGKILL)
    assert trial_states(results) == ["running", "queued"], "the folder tells, without Slurm"
    slurm.start("slurmctld")
    slurm.wait_for_controller()
    # A node that is drained before the controller has found its job again counts as idle.
    wait_until(lambda: slurm.node_states()["n2"] == "allocated")

    slurm.set_node("n2", "DRAIN")
    wait_until(lambda: slurm.node_states()["n2"] == "draining")
    hurry_up(tmp_path)
    wait_until(lambda: slurm.node_states()["n2"] == "drained")
    assert trial_states(results) == ["done", "queued"], "the running trial ends, no other starts"
    slow_down(tmp_path)
    slurm.set_node("n2", "RESUME")

    wait_for_step(results, 1, 5)
    slurm.set_node("spare", "RESUME")
    slurm.stop("slurmd-n2", signal.SIGKILL)
    slurm.set_node("n2", "DOWN")  # at once, rather than when Slurm has missed it for long enough
    wait_until(lambda: trial_folder(results, 1).attempt > 1, every=0.5)
    slurm.set_node("n2", "RESUME")  # which Slurm refuses for a node whose daemon has reported
    slurm.start("slurmd-n2")
    hurry_up(tmp_path)

    records = wait_for_records(results, undisturbed)
    drained, lost = (records[row["trial"]] for row in trial_rows(results))
    assert (drained.attempt, drained.previous_failures) == (1, ())
    (failure,) = lost.previous_failures
    assert (lost.attempt, failure.kind, failure.host) == (2, "NodeFailure", "n2")
    assert lost.environment is not None
    assert lost.environment.variables["SLURM_JOB_NODELIST"] == "n1,spare"


def newest_step(checkpoints: Path) -> int:
    """Return the step of the newest checkpoint in a folder, 0 for none."""
    steps = [int(path.name.removeprefix("step-")) for path in checkpoints.glob("step-*")]
    return max(steps, default=0)


def rank_pid(results: Path) -> int:
    """Return the process id of the last rank of the only trial of these results."""
    return read_heartbeats(trial_folder(results, 0).heartbeat_folder)[-1].pid


def pid_of(*arguments: str, **variables: str) -> int:
    """Return the id of the oldest process of this Slurm with these arguments and variables."""
    variables["SLURM_CONF"] = os.environ["SLURM_CONF"]
    for process in psutil.process_iter(["cmdline", "environ"]):
        has_variables = variables.items() <= (process.info["environ"] or {}).items()
        if has_variables and set(arguments) <= set(process.info["cmdline"]):
            pid: int = process.pid
            return pid
    raise AssertionError(f"no process has {arguments}")


def leader_pid(results: Path) -> int:
    """Return the process id of the only leader that runs trials of these results."""
    sweep_folder = Results(results).sweep_folder("line").path
    return pid_of("harness.slurm.leader", "lead", str(sweep_folder))
