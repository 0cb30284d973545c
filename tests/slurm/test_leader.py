"""What a job's leader does on its node, without Slurm: which trials are left, what a signal means, going back."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from harness.core.errors import HarnessError
from harness.core.paths import SweepFolder, TrialFolder, write_atomically
from harness.launch.runner import Runner
from harness.records.record import Failure, Record, read_record
from harness.slurm import leader, submission
from harness.slurm.leader import JobListener
from harness.slurm.packing import Array, Load, Packing
from harness.slurm.submission import Submission
from harness.spec import partitions
from harness.spec.cell import Assignment, Trial
from harness.spec.cluster import Profile
from harness.spec.slurm import SlurmOptions
from harness.training.interruption import SIGNAL
from tests.factories import make_record, write_trial
from tests.support.sweeps import load


@pytest.fixture
def told() -> JobListener:
    return JobListener(time.time() + 3600)


@pytest.fixture
def runner(tmp_path: Path, told: JobListener) -> Runner:
    """Of five trials, the last of which had failed once before it was submitted."""
    sweep = load(tmp_path, seeds=[0, 1, 2, 3, 4])
    trials = sweep.trials()
    attempts = {trial.id: 1 for trial in trials} | {trials[4].id: 2}
    packing = Packing(
        arrays=[Array(nodes=1, ranks_per_node=1, loads=[Load(trials=trials, seconds=None)])],
        remarks=[],
    )
    submitted = submission.new(sweep, Profile(launcher="slurm", device="cpu"), packing, attempts)
    return leader.runner_of(SweepFolder(tmp_path / "sweep"), submitted, 1, told)


def keep(runner: Runner, seed: int, **changes: object) -> Record:
    trial = runner.sweep.trials()[seed]
    found = make_record(trial.cell, seed=seed, **changes)  # type: ignore[arg-type]
    write_trial(runner.folder, found)
    return found


def left(runner: Runner) -> list[int]:
    return [trial.seed for trial in leader.left(runner, runner.sweep.trials())]


def begin(runner: Runner, trial: Trial, attempt: int) -> TrialFolder:
    """As if an attempt had begun, and its job ended."""
    place = runner.folder.trial_folder(trial.id)
    assignment = Assignment(trial=trial, base_folder=".", attempt=attempt)
    write_atomically(place.assignment_path, json.dumps(asdict(assignment)))
    return place


class TestLeft:
    def test_what_has_no_record_of_this_submission(self, runner: Runner) -> None:
        keep(runner, 0)
        keep(runner, 1, status="failed")
        keep(runner, 4, status="failed", attempt=1)
        assert left(runner) == [2, 3, 4]
        keep(runner, 4, status="failed", attempt=2)
        assert left(runner) == [2, 3]

    def test_what_was_interrupted(self, runner: Runner) -> None:
        keep(
            runner,
            0,
            status="interrupted",
            failure=Failure(kind="Interrupted", message="preempted"),
        )
        assert 0 in left(runner)

    def test_what_failed_through_no_fault_of_its_own_a_few_times(self, runner: Runner) -> None:
        lost = Failure(kind="NodeFailure", message="n2")
        found = keep(runner, 0, status="failed", failure=lost)
        assert 0 in left(runner)
        for number in range(leader.RETRIES):
            assert 0 in left(runner)
            found = replace(
                found, attempt=number + 2, previous_failures=[*found.previous_failures, lost]
            )
            write_trial(runner.folder, found)
        assert 0 not in left(runner)

    def test_what_was_invalid_as_often_as_the_profile_says(self, runner: Runner) -> None:
        invalid = Failure(kind="Invalid", message="steal")
        found = keep(runner, 0, status="invalid", invalid=["steal"])
        for number in range(runner.profile.validity.reruns):
            assert 0 in left(runner)
            found = replace(
                found, attempt=number + 2, previous_failures=[*found.previous_failures, invalid]
            )
            write_trial(runner.folder, found)
        assert 0 not in left(runner)

    def test_bad_nodes_are_those_of_all_attempts(self, runner: Runner) -> None:
        lost = [Failure(kind="NodeFailure", message="", host=host) for host in ("n2", "n3", "n2")]
        found = keep(runner, 0, status="failed", failure=lost[0])
        write_trial(runner.folder, replace(found, previous_failures=lost[1:]))
        keep(runner, 1, status="failed", failure=Failure(kind="Killed", message="", host="n4"))
        assert leader.bad_nodes(runner, runner.sweep.trials()) == {"n2", "n3"}


class TestGivingUp:
    def test_an_attempt_that_ended_with_its_job_is_recorded_and_counts(
        self, runner: Runner
    ) -> None:
        trial = runner.sweep.trials()[2]
        place = begin(runner, trial, attempt=1)
        place.progress_path.touch()
        runner.record_interruption(trial, "job 7 was started again")
        found = read_record(place.record_path)
        assert (found.status, found.attempt) == ("interrupted", 1)
        assert str(found.failure) == "Interrupted: job 7 was started again"
        assert not place.progress_path.exists()
        assert 2 in left(runner)

    def test_what_has_a_record_or_never_began_is_left_alone(self, runner: Runner) -> None:
        done, fresh = runner.sweep.trials()[:2]
        begin(runner, done, attempt=1)
        keep(runner, 0)
        for trial in (done, fresh):
            runner.record_interruption(trial, "job 7 was started again")
        assert read_record(runner.folder.trial_folder(done.id).record_path).status == "done"
        assert not runner.folder.trial_folder(fresh.id).path.exists()


class TestSignals:
    def test_near_the_limit_it_is_the_time_limit_and_else_a_preemption(
        self, told: JobListener
    ) -> None:
        assert told.why() is None
        told.signalled(SIGNAL, None)
        assert told.why() == "preempted"
        late = JobListener(time.time() + leader.EARLY / 2)
        late.signalled(SIGNAL, None)
        assert late.why() == "time limit"

    def test_an_end_that_was_asked_for_is_no_interruption(self, told: JobListener) -> None:
        told.signalled(signal.SIGTERM, None)
        assert told.why() == "ended by Slurm"


class TestLead:
    """`lead` itself, in a job of which no trial gets to run."""

    @pytest.fixture
    def submitted(
        self, tmp_path: Path, runner: Runner, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[Submission]:
        for name, value in {
            "SLURM_JOB_ID": "71",
            "SLURM_JOB_NODELIST": "n1",
            "SLURMD_NODENAME": "n1",
        }.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(
            leader, "requeue", lambda slurm: pytest.fail("it went back into the queue")
        )
        trials = runner.sweep.trials()
        loads = [Load(trials=trials, seconds=None)]
        packing = Packing(arrays=[Array(nodes=1, ranks_per_node=1, loads=loads)], remarks=[])
        attempts = dict.fromkeys((trial.id for trial in trials), 1)
        made = submission.new(
            runner.sweep, Profile(launcher="slurm", device="cpu"), packing, attempts
        )
        submission.write(runner.folder, made)
        yield made
        for number in (SIGNAL, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)

    def lead(self, runner: Runner, submitted: Submission) -> None:
        leader.lead(str(runner.folder.path), submitted.id, 0, 0)

    def test_what_was_cancelled_begins_nothing(self, runner: Runner, submitted: Submission) -> None:
        submission.write(runner.folder, replace(submitted, cancelled=1.0))
        with pytest.raises(HarnessError, match="were cancelled"):
            self.lead(runner, submitted)

    def test_what_is_cancelled_while_it_saves_does_not_go_back(
        self, runner: Runner, submitted: Submission, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def run(own: Runner, pending: Sequence[Trial]) -> Iterator[Record]:
            signal.raise_signal(SIGNAL)
            submission.write(own.folder, replace(submitted, cancelled=1.0))
            signal.raise_signal(signal.SIGTERM)
            return iter(())

        monkeypatch.setattr(Runner, "run", run)
        with pytest.raises(HarnessError, match="were cancelled"):
            self.lead(runner, submitted)

    def test_what_slurm_starts_again_and_again_ends(
        self, runner: Runner, submitted: Submission, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Runner, "run", lambda own, pending: pytest.fail("it ran once more"))
        monkeypatch.setenv("SLURM_RESTART_COUNT", "6")
        begin(runner, runner.sweep.trials()[2], attempt=1)
        node = submission.folder_of(runner.folder, submitted.id).node("71")
        node.write_text("n2", encoding="utf-8")
        with pytest.raises(
            HarnessError, match=r"job 71 was started again 6 times; slurm.requeues: 5"
        ):
            self.lead(runner, submitted)
        failure = read_record(
            runner.folder.trial_folder(runner.sweep.trials()[2].id).record_path
        ).failure
        assert failure is not None
        assert (failure.host, failure.message) == (
            "n2",
            "job 71 ended on n2 and was started again by Slurm",
        )
        assert node.read_text(encoding="utf-8") == "n1"


class TestRequeue:
    @pytest.fixture(autouse=True)
    def scontrol(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        program = tmp_path / "scontrol"
        program.write_text(
            '#!/bin/sh\necho "$*" >>"$0.log"\n[ -z "$DOWN" ] || { echo "$DOWN" >&2; exit 1; }\n'
        )
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setenv("SLURM_JOB_ID", "71")
        monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
        return tmp_path / "scontrol.log"

    def test_is_by_the_jobs_own_id(self, scontrol: Path) -> None:
        leader.requeue(SlurmOptions(requeues=3))
        assert scontrol.read_text() == "requeue 71\n"

    def test_is_bounded(self, scontrol: Path) -> None:
        with pytest.raises(HarnessError, match=r"after 2 requeues; slurm.requeues: 2"):
            leader.requeue(SlurmOptions(requeues=2))
        assert not scontrol.exists()

    def test_that_slurm_refuses_is_said(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DOWN", "Requested operation is presently disabled")
        with pytest.raises(
            HarnessError, match="job 71 can't go back into the queue: Requested operation"
        ):
            leader.requeue(SlurmOptions(requeues=3))

    def test_is_on_other_nodes_if_there_are_enough(
        self, scontrol: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(
            partitions, "ask", lambda: partitions.parse_sinfo("gpu*|1-0|4|4|8000|(null)\n")
        )
        leader.leave_out(["n2", "n3"], SlurmOptions(nodes=3))
        assert not scontrol.exists()
        leader.leave_out(["n2", "n3"], SlurmOptions(nodes=2))
        assert scontrol.read_text() == "update JobId=71 ExcNodeList=n2,n3\n"
