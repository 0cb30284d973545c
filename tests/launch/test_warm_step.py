"""Steps that stay for several trials: the real tasks, which an srun starts that is a script."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from harness.core.import_path import ROOT
from harness.core.paths import TrialFolder
from harness.launch import warm_step
from harness.launch.srun import Srun, parse_failures
from harness.launch.warm_step import TASK_MODULE, StepTrial, WarmSteps
from harness.spec.cell import Trial
from tests.support.running import wait_until
from tests.support.slurm import FakeSlurm, install_fake_slurm
from tests.support.sweeps import load

# Runs two tasks that get its input and its signals, until one of them has failed or both have ended.
# Like Slurm, it passes on what they print line by line.
SRUN = f"""#!{sys.executable}
import os, signal, subprocess, sys, threading
command = [word for word in sys.argv[1:] if not word.startswith("--")]
def print_lines(output):
    for line in output:
        os.write(1, line)
tasks = {{}}
for rank in range(2):
    environment = {{**os.environ, "SLURM_PROCID": str(rank)}}
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    task = subprocess.Popen(command, env=environment, process_group=0, **pipes)
    tasks[task.pid] = (rank, task)
    threading.Thread(target=print_lines, args=[task.stdout], daemon=True).start()
def cancel(*_):
    print("slurmstepd: error: *** STEP 71.4 ON n0 CANCELLED AT 2026-11-21T13:01:37 ***", flush=True)
    os._exit(1)
signal.signal(signal.SIGTERM, cancel)
signal.signal(signal.SIGUSR2, lambda *_: [os.killpg(pid, signal.SIGUSR2) for pid in tasks])
def broadcast():
    for line in sys.stdin.buffer:
        for _, task in list(tasks.values()):
            task.stdin.write(line)
            task.stdin.flush()
    for _, task in list(tasks.values()):
        task.stdin.close()
threading.Thread(target=broadcast, daemon=True).start()
while tasks:
    pid, status = os.wait()
    rank, _ = tasks.pop(pid)
    code = os.waitstatus_to_exitcode(status)
    if code:
        how = f"Exited with exit code {{code}}" if code > 0 else signal.strsignal(-code)
        print(f"srun: error: n{{rank}}: task {{rank}}: {{how}}", file=sys.stderr, flush=True)
        for other in tasks:
            os.killpg(other, signal.SIGKILL)
        os._exit(1)
"""
# What a rank does. Of those that fail, rank 1 does, while rank 0 waits to be ended.
RANK = """
import os, signal, subprocess, sys, time
def main(arguments):
    action, rank = arguments[0], int(os.environ["SLURM_PROCID"])
    if action == "report":
        found = [sys.stdin.read(), *arguments[1:], os.environ["MASTER_PORT"], os.getcwd()]
        print(f"rank {rank} of {found}", file=sys.stderr, end="")
    if action == "leave":
        child = subprocess.Popen(["sleep", "60"], start_new_session=True)
        print(child.pid)
    if action == "wait":
        print("waits", flush=True)
        return 75 if signal.sigtimedwait({signal.SIGUSR2}, 30) else 1
    if action not in ("exit", "kill"):
        return 0
    if rank == 0:
        time.sleep(60)
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    return 3
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """The programs of Slurm, of which srun runs tasks that load nothing before their ranks do."""
    monkeypatch.setattr(warm_step, "MODULES", ())
    monkeypatch.setenv("SLURM_JOB_ID", "71")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    slurm = install_fake_slurm(tmp_path / "bin", monkeypatch.setenv)
    (slurm.folder / "srun").write_text(SRUN, encoding="utf-8")
    (tmp_path / "acts.py").write_text(RANK, encoding="utf-8")
    return slurm


class Job:
    """A job of two ranks, all of whose trials run in warm steps."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "launch.log"
        self.port = 0
        trials = load(folder, seeds=[0, 1]).trials()
        self.trial = trials[0]
        self.steps = WarmSteps()
        self.steps.plan(trials)
        self.launcher = Srun(
            environment={},
            ranks_per_node=1,
            cpus_per_rank=1,
            python=sys.executable,
            prefix=(),
            address="n1",
            free_port=self.next_port,
            warm_steps=self.steps,
        )

    def next_port(self) -> int:
        """Return another port for each trial."""
        self.port += 1
        return self.port

    def start(self, action: str) -> StepTrial:
        """Start ranks that do something."""
        command = self.launcher.command("acts", TrialFolder(self.folder / self.trial.id), 2)
        command[-1:] = [action, *command[-1:]]
        trial = self.launcher.start(command, self.launcher.variables(1, {}), self.log)
        assert isinstance(trial, StepTrial)
        return trial

    def run(self, action: str) -> StepTrial:
        """Have ranks do something, and return their trial when they have ended."""
        trial = self.start(action)
        trial.wait(30)
        self.launcher.end(trial, TrialFolder(self.folder / self.trial.id))
        return trial


@pytest.fixture
def job(tmp_path: Path, slurm: FakeSlurm) -> Iterator[Job]:
    """A job whose steps end with the test."""
    job = Job(tmp_path)
    yield job
    job.steps.close()


def test_trials_follow_each_other_in_a_step(job: Job) -> None:
    """Each rank has its trial's variables, no input, and ends with all that it has started. What it
    prints goes to the log of its trial, with an end to a line that has none.
    """
    trials = [job.run("report"), job.run("leave"), job.run("report")]
    assert [trial.poll() for trial in trials] == [0, 0, 0]
    assert len({trial.pid for trial in trials}) == 1
    folder = str(job.folder / job.trial.id)
    expected = []
    for port in ("1", "3"):
        for rank in (0, 1):
            expected.append(f"rank {rank} of {['', folder, port, str(Path.cwd())]}")
    printed = job.log.read_text().splitlines()
    children = [int(line) for line in printed if line.isdigit()]
    assert sorted(set(printed) - set(map(str, children))) == sorted(expected)
    assert len(children) == 2
    assert not any(psutil.pid_exists(child) for child in children)

    process = trials[0].step.process
    job.steps.close()
    assert process.returncode == 0, "all tasks end with their input"


@pytest.mark.parametrize(
    ("action", "kind"), [("exit", "Exited"), ("kill", "Killed")], ids=["exit", "kill"]
)
def test_a_rank_that_fails_ends_its_step_by_name_and_no_other_trial(
    action: str, kind: str, job: Job
) -> None:
    first, failed, last = job.run("none"), job.run(action), job.run("none")
    assert [trial.poll() for trial in (first, failed, last)] == [0, 1, 0]
    assert first.pid == failed.pid != last.pid
    (failure,) = parse_failures(job.log.read_text(), at=1.0)
    assert (failure.kind, failure.rank, failure.host) == (kind, 1, "n1")


def test_a_signal_reaches_ranks_and_leaves_the_tasks_alone(job: Job) -> None:
    trial = job.start("wait")
    wait_until(lambda: trial.poll() is None and job.log.read_text().count("waits") == 2, 30)
    job.launcher.interrupt(trial)
    assert trial.wait(30) == 1
    job.launcher.end(trial, TrialFolder(job.folder))
    (failure,) = parse_failures(job.log.read_text(), at=1.0)[:1]
    assert failure.message == "with code 75"


@pytest.mark.parametrize("is_killed", [False, True], ids=["silent", "killed"])
def test_a_step_that_is_not_ready_is_ended_and_another_takes_its_place(
    is_killed: bool, job: Job, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tasks are silent where a node's slurmstepd was stopped: a trial would wait for its
    time-out. What srun says of the end is not taken for that of the trial.
    """
    trial = job.run("none")
    log = job.log
    job.log = log.with_suffix(".next")
    slurm.set_queue(f"71.4|{trial.step.name}\n71.batch|batch\n")
    if is_killed:
        trial.step.process.kill()
        trial.step.process.wait()
    else:
        trial.step.ranks = trial.step.answers = 3  # one of which never answers
        monkeypatch.setattr(warm_step, "ANSWER_TIMEOUT", 0.1)
    following = job.run("none")
    assert following.poll() == 0
    assert following.step is not trial.step
    assert slurm.calls("scancel") == ["--signal=KILL 71.4"], "ranks outlive an srun that is killed"
    assert job.log.read_text() == ""
    assert ("CANCELLED" in log.read_text()) is not is_killed


class TestPlan:
    """Which trials run in warm steps."""

    def planned(self, trials: list[Trial]) -> set[str]:
        """Return the labels of the cells of the trials that do."""
        steps = WarmSteps()
        steps.plan(trials)
        return {trial.cell.label for trial in trials if steps.serve(trial.id)}

    def test_leaves_out_what_no_other_trial_shares_a_step_with(self, tmp_path: Path) -> None:
        axes = {"lr": [0.1, 0.2, 0.3], "strategy": ["single", "single", "ddp"]}
        zipped = {**axes, "world_size": [1, 1, 2]}
        shared = self.planned(list(load(tmp_path, zip=[zipped], seeds=[0]).trials()))
        assert ["single" in label for label in shared] == [True, True]
        with_variable = {**zipped, "env.OWN": ["a", "b", "b"]}
        assert self.planned(list(load(tmp_path, zip=[with_variable], seeds=[0]).trials())) == set()

    def test_prefers_kinds_with_many_ranks_where_there_are_too_many(self, tmp_path: Path) -> None:
        sizes = {"strategy": ["ddp"] * 4, "world_size": [2, 4, 8, 16], "batch_size": [64] * 4}
        trials = list(load(tmp_path, zip=[sizes], seeds=[0, 1]).trials())
        assert {"×2" in label for label in self.planned(trials)} == {False}
        assert len(self.planned(trials)) == warm_step.MOST_STEPS


def test_ranks_in_a_container_have_a_step_for_each_trial(job: Job) -> None:
    """Between a task and the ranks that it forks there would be another process."""
    contained = Srun(**{**vars(job.launcher), "prefix": ("apptainer", "exec", "an.sif")})
    command = contained.command("acts", TrialFolder(job.folder / job.trial.id), 2)
    assert TASK_MODULE not in command
    assert "--unbuffered" in command
