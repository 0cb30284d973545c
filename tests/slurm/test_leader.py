"""What the leader of a job does, without Slurm: which trials are pending, what a signal means, when
it requeues.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import BadInput, HarnessError
from harness.core.paths import SweepFolder
from harness.launch import srun, watch
from harness.launch.runner import Runner
from harness.records.files import write_rank_result
from harness.records.record import Failure, RankResult, Record
from harness.slurm import leader, submission
from harness.slurm.leader import Job, JobIsOver, JobListener
from harness.slurm.submission import JobArray, Submission
from harness.sweep.cell import Trial
from harness.sweep.cluster import Profile, SlurmOptions, ValidityRules
from harness.sweep.sweep import Sweep
from harness.training.progress import SIGNAL
from tests.factories import BEGUN, make_record, write_trial
from tests.support.slurm import FakeSlurm, install_fake_slurm
from tests.support.sweeps import load

PROFILE = Profile(launcher="slurm", device="cpu")


@pytest.fixture
def listener() -> JobListener:
    return JobListener()


def make_job(folder: Path, trials: Sequence[Trial], sweep: Sweep, **slurm: int) -> Job:
    """Return the only job of a submission, which has these trials of the sweep."""
    array = JobArray(nodes=1, ranks_per_node=1, trial_ids=[[trial.id for trial in trials]])
    profile = replace(PROFILE, slurm=SlurmOptions(**slurm))  # type: ignore[arg-type]
    submitted = Submission(sweep=sweep, profile=profile, arrays=[array])
    return Job(sweep_folder=SweepFolder(folder / "sweep"), submission=submitted, array=0, index=0)


def make_runner(folder: Path, sweep: Sweep, listener: JobListener) -> Runner:
    """Return the runner of a job that has every trial of the sweep."""
    runner = make_job(folder, sweep.trials(), sweep).runner(listener)
    return replace(runner, since=BEGUN)


@pytest.fixture
def runner(tmp_path: Path, listener: JobListener) -> Runner:
    """A runner of five trials."""
    return make_runner(tmp_path, load(tmp_path, seeds=[0, 1, 2, 3, 4]), listener)


def leave_record(runner: Runner, seed: int, **changes: Any) -> None:
    """Leave the record of a trial of the sweep, with these changes."""
    trial = runner.sweep.trials()[seed]
    write_trial(runner.folder, make_record(trial.cell, seed=seed, **changes))


def pending_seeds(runner: Runner) -> list[int]:
    """Return the seeds of the pending trials, which identify them."""
    return [trial.seed for trial in leader.pending_trials(runner, runner.sweep.trials())]


def test_pending_are_trials_without_a_record_of_this_submission_and_those_that_run_again(
    runner: Runner,
) -> None:
    """A failed trial stays failed, unless an earlier submission has left its record."""
    leave_record(runner, 0)
    leave_record(runner, 1, status="failed")
    leave_record(runner, 4, status="failed", attempt=1, started=BEGUN - 1)
    assert pending_seeds(runner) == [2, 3, 4]
    leave_record(runner, 4, status="failed", attempt=2)
    preempted = Failure(kind="Interrupted", message="preempted")
    leave_record(runner, 2, status="interrupted", failure=preempted)
    leave_record(runner, 3, status="failed", failure=Failure(kind="NodeFailure", message="n2"))
    assert pending_seeds(runner) == [2, 3]
    leave_record(runner, 0, status="invalid", attempt=2, invalid=["steal"])
    for reruns, pending in ((1, [0, 2, 3]), (0, [2, 3])):
        profile = replace(PROFILE, validity=ValidityRules(reruns=reruns))
        assert pending_seeds(replace(runner, profile=profile)) == pending


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (None, 0),
        (JobIsOver("the sweep's jobs were cancelled"), leader.DECIDED),
        (HarnessError("job 71 can't be requeued"), leader.CRASHED),
        (OSError("Stale file handle"), leader.CRASHED),
    ],
)
def test_the_exit_code_tells_the_batch_script_whether_the_leader_meant_to_end(
    error: Exception | None, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted = make_job(tmp_path, [], load(tmp_path)).submission

    def lead(job: Job) -> None:
        assert (job.array, job.index) == (1, 7)
        if error is not None:
            raise error

    monkeypatch.setattr(submission, "read", lambda folder: submitted)
    monkeypatch.setattr(leader, "lead", lead)
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "7")
    assert leader.main(["lead", "/sweep", "id", "1"]) == code


@pytest.mark.parametrize(
    ("signals", "reason"),
    [([SIGNAL, signal.SIGTERM], "time limit or preemption"), ([signal.SIGTERM], "SIGTERM")],
)
def test_the_first_signal_says_why_trials_are_to_stop(
    listener: JobListener, signals: list[int], reason: str
) -> None:
    assert listener.stop.reason() is None
    for number in signals:
        listener.on_signal(number, None)
    assert listener.stop.reason() == reason


class TestLead:
    """`lead` itself, in a job in which no trial gets to run, and which fails the test if it is requeued."""

    @pytest.fixture
    def submitted(
        self, runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[Submission]:
        """The submission of the job."""
        monkeypatch.setenv("SLURM_JOB_ID", "71")
        monkeypatch.setenv("SLURM_JOB_NODELIST", "n1")
        monkeypatch.setenv("SLURMD_NODENAME", "n1")
        monkeypatch.setattr(Job, "requeue", lambda _: pytest.fail("the job was requeued"))
        submitted = make_job(tmp_path, runner.sweep.trials(), runner.sweep).submission
        submission.write(runner.folder, submitted)
        yield submitted
        for number in (SIGNAL, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)

    def lead(self, runner: Runner, submitted: Submission) -> None:
        """Lead the submission's only job."""
        read = submission.read(submission.folder_of(runner.folder, submitted.id))
        leader.lead(Job(sweep_folder=runner.folder, submission=read, array=0, index=0))

    def test_with_an_interface_that_has_no_address_is_over_at_once(
        self, runner: Runner, submitted: Submission
    ) -> None:
        """The interface will have none when the job is back either."""
        profile = replace(submitted.profile, environment={"GLOO_SOCKET_IFNAME": "ib7"})
        submission.write(runner.folder, replace(submitted, profile=profile))
        with pytest.raises(BadInput, match=r"GLOO_SOCKET_IFNAME: found 'ib7' without an address"):
            self.lead(runner, submitted)

    def test_leaves_out_what_was_submitted_again(
        self,
        runner: Runner,
        submitted: Submission,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Slurm has received a call of sbatch that it did not answer, after the next one."""
        ran: list[Trial] = []

        def run(running: Runner, pending: Sequence[Trial]) -> Iterator[Record]:
            ran.extend(pending)
            return iter(())

        monkeypatch.setattr(Runner, "run", run)
        later = make_job(tmp_path, runner.sweep.trials()[1:], runner.sweep).submission
        submission.write(runner.folder, replace(later, id="20991231-000000-0000"))
        with pytest.raises(JobIsOver, match="left undone: 1 trial"):
            self.lead(runner, submitted)
        assert [trial.seed for trial in ran] == [0]

    @pytest.mark.parametrize(
        ("events", "message"),
        [
            # scancel sends SIGTERM while the trial saves after a preemption.
            ([SIGNAL, "cancelled", signal.SIGTERM], "were cancelled"),
            # Slurm cancels the job, or requeues it itself.
            ([signal.SIGTERM], "left undone: 5 trials"),
        ],
    )
    def test_of_a_job_that_is_ended_does_not_requeue(
        self,
        runner: Runner,
        submitted: Submission,
        monkeypatch: pytest.MonkeyPatch,
        events: list[Any],
        message: str,
    ) -> None:
        def run(running: Runner, pending: Sequence[Trial]) -> Iterator[Record]:
            for event in events:
                if event == "cancelled":
                    self.cancel(runner, submitted)
                else:
                    signal.raise_signal(event)
            return iter(())

        monkeypatch.setattr(Runner, "run", run)
        with pytest.raises(JobIsOver, match=message):
            self.lead(runner, submitted)

    def cancel(self, runner: Runner, submitted: Submission) -> None:
        """Do what `harness cancel` does before it calls scancel."""
        (submission.folder_of(runner.folder, submitted.id) / submission.CANCELLED).touch()

    def test_starts_nothing_in_a_job_that_was_cancelled_or_is_restarted_too_often(
        self, runner: Runner, submitted: Submission, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Runner, "run", lambda running, pending: pytest.fail("a trial ran"))
        monkeypatch.setenv("SLURM_RESTART_COUNT", "6")
        with pytest.raises(
            JobIsOver, match=r"job 71 was started again 6 times without .*; slurm.requeues: 5"
        ):
            self.lead(runner, submitted)
        self.cancel(runner, submitted)
        with pytest.raises(JobIsOver, match="were cancelled"):
            self.lead(runner, submitted)


CONNECTION_LOST = Failure(kind="ConnectionLost", message="reset by peer", rank=0, host="n1")


def plant_step(slurm: FakeSlurm, srun: str) -> None:
    """Let `srun` run steps, next to the result of a rank 0 that has lost its connection."""
    (slurm.folder / "srun").write_text(srun, encoding="utf-8")
    rank0 = RankResult(rank=0, host="n1", entered_at=1.0, failure=CONNECTION_LOST)
    write_rank_result(slurm.folder / "rank0.json", rank0)


# Leaves the result of rank 0 that lies beside it, and hangs, as srun does whose slurmstepd is gone.
HANGING_SRUN = """#!/bin/bash
folder=${@: -2:1}
cp "${0%/*}"/rank0* "$folder/"
exec sleep 60
"""


def test_a_step_that_outlives_the_failure_of_a_rank_is_ended_and_runs_again(
    runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rank's own failure is kept. The step is cancelled: a killed srun leaves ranks behind."""
    monkeypatch.setattr(watch, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(watch, "LAUNCHER_SECONDS", 0.1)
    monkeypatch.setenv("SLURM_JOB_ID", "71")
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "71")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    slurm = install_fake_slurm(tmp_path / "bin", monkeypatch.setenv)
    trial = runner.sweep.trials()[0]
    slurm.set_queue(f"71_3.3|{trial.id}\n71_3.batch|batch\n")
    plant_step(slurm, HANGING_SRUN)

    records = list(replace(runner, poll_seconds=0.01).run([trial]))
    assert [record.attempt for record in records] == [1, 2, 3], "up to the number of retries"
    for record in records:
        assert str(record.failure) == "rank 0 on n1: ConnectionLost: reset by peer"
    assert slurm.calls("scancel") == ["--signal=KILL 71_3.3"] * 3
    assert "--jobs=71_3 " in slurm.calls("squeue")[0], "other tasks have steps of the same name"


# Says that rank 1 has crashed, leaves the result of rank 0 a moment later, and waits for it.
WAITING_SRUN = """#!/bin/bash
echo "srun: error: n2: task 1: Aborted (core dumped)" >&2
folder=${@: -2:1}
sleep 0.3
cp "${0%/*}"/rank0* "$folder/"
exec sleep 60
"""
# Rank 0 has lost its connection to rank 1, whose node Slurm misses only later.
DYING_NODE_SRUN = """#!/bin/bash
folder=${@: -2:1}
cp "${0%/*}"/rank0* "$folder/"
echo "srun: error: n1: task 0: Exited with exit code 1" >&2
sleep 1
echo "srun: error: Node failure on n2" >&2
exit 1
"""


@pytest.mark.parametrize(
    ("srun_script", "grace", "failure", "cancelled"),
    [
        (WAITING_SRUN, 3.0, ("Killed", 1, "n2"), ["--signal=KILL 71.3"]),
        # The node would not be left out if the lost connection were the cause.
        (DYING_NODE_SRUN, 0.1, ("NodeFailure", None, "n2"), []),
    ],
    ids=["crash", "node"],
)
def test_a_rank_that_fails_leaves_the_others_and_slurm_a_moment(
    tmp_path: Path,
    listener: JobListener,
    monkeypatch: pytest.MonkeyPatch,
    srun_script: str,
    grace: float,
    failure: tuple[str, int | None, str],
    cancelled: list[str],
) -> None:
    """In which they report their own errors; then the step is cancelled."""
    monkeypatch.setenv("SLURM_JOB_ID", "71")
    monkeypatch.setattr("harness.launch.ranks.GRACE_SECONDS", grace)
    slurm = install_fake_slurm(tmp_path / "bin", monkeypatch.setenv)
    plant_step(slurm, srun_script)
    sweep = load(tmp_path, matrix={"strategy": "ddp", "world_size": 2})
    (trial,) = sweep.trials()
    slurm.set_queue(f"71.3|{trial.id}\n71.batch|batch\n")
    runner = make_runner(tmp_path, sweep, listener)

    record = next(replace(runner, poll_seconds=0.01).run([trial]))
    assert record.failure is not None
    assert (record.failure.kind, record.failure.rank, record.failure.host) == failure
    assert [result.failure for result in record.ranks] == [CONNECTION_LOST]
    assert slurm.calls("scancel") == cancelled


# What clients of Slurm 22.05.8 print while no controller answers.
NO_CONTROLLER = "Unable to contact slurm controller (connect failure)"


class TestRequeue:
    """By a fake scontrol, which writes its arguments down."""

    @pytest.fixture(autouse=True)
    def scontrol_log(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """The arguments of every call. A call fails with the first line of a file `refusals`, which
        is struck out.
        """
        program = tmp_path / "scontrol"
        program.write_text(
            '#!/bin/sh\necho "$*" >>"$0.log"\ncd "${0%/*}" && [ -s refusals ] || exit 0\n'
            "head -n 1 refusals >&2; sed -i 1d refusals; exit 1\n"
        )
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        monkeypatch.setenv("SLURM_JOB_ID", "71")
        monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
        monkeypatch.setattr(srun, "FIRST_PAUSE", 0.01)
        return tmp_path / "scontrol.log"

    def test_names_a_task_of_an_array_by_its_index(
        self, scontrol_log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The SLURM_JOB_ID of its last task is the array's, by which Slurm would requeue all tasks."""
        monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "71")
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
        make_job(tmp_path, [], load(tmp_path)).requeue()
        assert scontrol_log.read_text() == "requeue 71_3\n"

    def test_is_limited_unless_a_trial_has_ended_meanwhile(
        self, scontrol_log: Path, tmp_path: Path
    ) -> None:
        job = make_job(tmp_path, [], load(tmp_path), requeues=2)
        with pytest.raises(JobIsOver, match=r"again 2 times without .*; slurm.requeues: 2"):
            job.requeue()
        assert not scontrol_log.exists()
        job.note_progress()
        assert job.fruitless_restarts() == 0
        job.requeue()
        assert scontrol_log.exists()

    def test_is_repeated_until_the_controller_answers(
        self, scontrol_log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        job = make_job(tmp_path, [], load(tmp_path))
        refusals = tmp_path / "refusals"
        refusals.write_text(f"{NO_CONTROLLER}\n" * 3)
        job.requeue()
        assert scontrol_log.read_text() == "requeue 71\n" * 4
        assert capsys.readouterr().out.count(NO_CONTROLLER) == 1
        refusals.write_text(f"{NO_CONTROLLER}\n" * 99)
        assert srun.call(["scontrol", "requeue", "71"], patience=0.1).returncode == 1
        refusals.write_text("Requested operation is presently disabled\n")
        with pytest.raises(HarnessError, match="job 71 can't be requeued: Requested operation"):
            job.requeue()


def test_a_trial_that_saves_gets_on_however_often_its_job_comes_back(
    runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial of seven hours finishes in jobs of one hour."""
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    trial = runner.sweep.trials()[0]
    job = make_job(tmp_path, [trial], runner.sweep)
    stopped = Failure(kind="Interrupted", message="time limit")
    checkpoint = runner.folder.trial_folder(trial.id).resume_checkpoints / "step-40"

    def run(running: Runner, pending: Sequence[Trial]) -> Iterator[Record]:
        started = checkpoint.stat().st_mtime if checkpoint.exists() else 1.0
        yield make_record(trial.cell, status="interrupted", failure=stopped, started=started)

    monkeypatch.setattr(Runner, "run", run)
    assert leader.run_until_interrupted(job, runner, [trial]) == "Interrupted: time limit"
    assert job.fruitless_restarts() == 2
    checkpoint.mkdir(parents=True)
    leader.run_until_interrupted(job, runner, [trial])
    assert job.fruitless_restarts() == 0
