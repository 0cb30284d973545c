"""The state of trials, from records, progress and recorded output of squeue."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.cli import jobs
from harness.core.errors import BadInput
from harness.core.paths import Results, SweepFolder, TrialFolder, write_atomically
from harness.records.record import Failure
from harness.records.store import lock
from harness.slurm import queue as queues
from harness.slurm import submission as submissions
from harness.slurm.status import State, SweepStatus, TrialState, read_statuses, sweep_status
from harness.slurm.submission import JobArray, Submission
from harness.sweep.cluster import Profile
from tests.factories import make_record, write_trial
from tests.support.commands import harness
from tests.support.reports import write_run
from tests.support.sweeps import load

# The output of squeue of Slurm 22.05 with --array, --noheader and FIELDS. The last line is what it
# prints when a controller is slow.
SQUEUE = """\
5_3|PENDING||other|Resources
9|RUNNING|n1|somebody-elses|None
7_0|RUNNING|n[1-2]|NAME|None
7_1|COMPLETING|n[1-2]|NAME|None
7_2|PENDING||NAME|JobArrayTaskLimit
7_3|PENDING||NAME|JobArrayTaskLimit
7_4|PENDING||NAME|(Nodes required for job are DOWN, DRAINED or reserved | see sinfo)
7_5|PENDING||NAME|JobArrayTaskLimit
slurm_load_jobs: Socket timed out on send/recv operation
"""
PREEMPTED = Failure(kind="Interrupted", message="preempted")
PROGRESS: dict[str, Any] = {
    "phase": "train",
    "step": 30,
    "steps": 100,
    "rate": 512.5,
    "unit": "steps/s",
}


class Submitted:
    """Seven jobs of a trial each, in one array that sbatch called 7, and the folder of their sweep."""

    def __init__(self, path: Path) -> None:
        self.sweep = load(path, seeds=list(range(7)))
        trial_ids = [[trial.id] for trial in self.sweep.trials()]
        array = JobArray(nodes=2, ranks_per_node=1, trial_ids=trial_ids)
        profile = Profile(launcher="slurm")
        self.submission = Submission(sweep=self.sweep, profile=profile, arrays=[array])
        self.folder = Results(path / "results").sweep_folder("demo")
        self.trials = [self.folder.trial_folder(trial.id) for trial in self.sweep.trials()]

    def leave(self, seed: int, previous: Sequence[Failure] = (), **changes: Any) -> None:
        """Leave the record of a trial that has ended since it was submitted."""
        changes = {"started": self.submission.created_at + 1, **changes}
        record = make_record(self.sweep.trials()[seed].cell, seed=seed, **changes)
        write_trial(self.folder, replace(record, previous_failures=tuple(previous)))

    def rows(self, squeue: str | None = SQUEUE) -> list[TrialState]:
        """Return the states of the trials; NAME in squeue's text is that of the jobs."""
        queue = None
        if squeue is not None:
            queue = queues.parse_squeue(squeue.replace("NAME", self.submission.job_name(0)))
        return list(sweep_status(self.sweep, self.folder, [self.submission], queue).trials)

    def states(self, squeue: str | None = SQUEUE) -> list[State]:
        """Return the state of each trial."""
        return names(self.rows(squeue))

    def cancel(self) -> None:
        """Do what `harness cancel` leaves."""
        self.submission = replace(self.submission, is_cancelled=True)


@pytest.fixture
def submitted(tmp_path: Path) -> Submitted:
    return Submitted(tmp_path)


def begin(trial_folder: TrialFolder, **progress: Any) -> None:
    """Leave what a trial leaves that runs, with its last report of progress if there is one."""
    write_atomically(trial_folder.assignment_path, "{}")
    if progress:
        write_atomically(trial_folder.progress_path, json.dumps(progress))


def names(rows: Sequence[TrialState]) -> list[State]:
    """Return the state of each row."""
    return [row.state for row in rows]


class TestQueue:
    def test_has_the_jobs_and_skips_lines_that_show_none(self) -> None:
        queue = {job.id: job for job in queues.parse_squeue(SQUEUE)}
        assert list(queue) == ["5_3", "9", "7_0", "7_1", "7_2", "7_3", "7_4", "7_5"]
        assert (queue["7_0"].nodes, queue["7_0"].is_running) == ("n[1-2]", True)
        assert (queue["7_2"].reason, queue["7_2"].is_running) == ("JobArrayTaskLimit", False)
        assert queue["7_4"].reason.endswith("reserved | see sinfo)")

    @pytest.mark.parametrize("line", ["7_0|RUNNING|n1", "7_0x|RUNNING|n1|NAME|None"])
    def test_that_shows_a_job_in_part_is_an_error(self, line: str) -> None:
        """A job that is passed over would count as ended, and its trials would run twice."""
        with pytest.raises(queues.SlurmDown, match="which is no whole job"):
            queues.parse_squeue(line)

    @pytest.mark.parametrize(
        ("program", "message"),
        [
            ("", "No such file"),
            ("#!/bin/sh\necho 'Unable to contact' >&2; exit 1\n", "Unable to contact"),
        ],
    )
    def test_that_does_not_answer_is_an_error(
        self,
        program: str,
        message: str,
        submitted: Submitted,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        if program:
            (tmp_path / "squeue").write_text(program, encoding="utf-8")
            (tmp_path / "squeue").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(queues.SlurmDown, match=message):
            queues.query([submitted.submission])


class TestOfSubmittedTrials:
    def test_the_folder_comes_first_and_slurm_second(self, submitted: Submitted) -> None:
        """Job 7_1 is completing and 7_6 has ended; the records count, whatever Slurm says of the
        jobs.
        """
        begin(submitted.trials[0], **PROGRESS, at=time.time())
        submitted.leave(1)
        submitted.leave(6, status="failed")
        rows = submitted.rows()
        assert names(rows) == ["running", "done", "queued", "queued", "queued", "queued", "failed"]
        running = rows[0]
        assert (running.job, running.nodes) == ("7_0", "n[1-2]")
        assert (running.step, running.steps, running.throughput) == (30, 100, 512.5)
        assert running.throughput_unit == "steps/s"
        assert rows[2].detail == "JobArrayTaskLimit"
        assert "no such thing" in rows[6].detail
        assert rows[6].log == f"{submitted.trials[6].path}/logs/rank0.log"

    def test_starting_as_soon_as_the_next_attempt_has_begun(self, submitted: Submitted) -> None:
        """Where the job is in the queue again, an attempt is one that ended with an earlier start."""
        for seed in range(3):
            submitted.leave(seed, status="interrupted", failure=PREEMPTED)
            begin(replace(submitted.trials[seed], attempt=2))
        rows = submitted.rows()
        assert names(rows)[:3] == ["running", "queued", "queued"]
        assert (rows[0].detail, rows[2].detail) == ("starting", "JobArrayTaskLimit")

    def test_lost_with_a_job_that_left_no_record(self, submitted: Submitted) -> None:
        begin(submitted.trials[5], **PROGRESS, at=time.time())
        rows = submitted.rows(squeue="")
        assert set(names(rows)) == {"lost"}
        log = f"{submitted.folder.path}/jobs/{submitted.submission.id}/0-0.log"
        assert rows[0].detail == (
            f"its job ended without a record of it; last line of its log: none; log: {log}"
        )
        # Slurm's ids come back after a while: a job with another name is somebody else's.
        squeue = SQUEUE.replace("NAME", "another-job-of-mine")
        assert set(submitted.states(squeue)) == {"lost"}

    def test_cancelled_is_not_lost(self, submitted: Submitted) -> None:
        submitted.leave(0)
        submitted.leave(1, status="interrupted", failure=PREEMPTED)
        submitted.cancel()
        assert submitted.states(squeue="") == ["done", *["cancelled"] * 6]
        assert "queued" not in submitted.states()

    @pytest.mark.parametrize(
        ("status", "ended"), [("interrupted", "lost"), ("invalid", "invalid"), ("failed", "failed")]
    )
    def test_what_its_job_may_run_again_is_queued(
        self, submitted: Submitted, status: str, ended: State
    ) -> None:
        """Seed 6 has no job any more. The record of an earlier submission does not count."""
        earlier: dict[str, Any] = {}
        if status == "failed":
            earlier["started"] = submitted.submission.created_at - 9
        failure = PREEMPTED if status == "interrupted" else None
        submitted.leave(2, status=status, failure=failure, **earlier)
        submitted.leave(6, status=status, failure=failure)
        states = submitted.states()
        assert (states[2], states[6]) == ("queued", ended)

    @pytest.mark.parametrize(("count", "state"), [(1, "queued"), (2, "queued"), (3, "failed")])
    def test_lost_with_a_node_it_runs_again_while_its_job_exists(
        self, submitted: Submitted, count: int, state: str
    ) -> None:
        """Up to the number of retries, and if Slurm is silent too."""
        failure = Failure(kind="NodeFailure", message="n2 died", host="n2")
        began_at = submitted.submission.created_at + 1
        earlier = [replace(failure, attempt=1, began_at=began_at)] * (count - 1)
        submitted.leave(2, earlier, status="failed", attempt=count, failure=failure)
        row = submitted.rows()[2]
        assert row.state == state
        assert (row.detail == "to run again: NodeFailure: n2 died") is (state == "queued")
        assert submitted.states(squeue="")[2] == "failed"
        assert submitted.states(squeue=None)[2] == state

    def test_a_silent_slurm_makes_nothing_lost(self, submitted: Submitted) -> None:
        """Where nobody knows whether a job exists, its trial counts as queued, unless it was
        cancelled.
        """
        begin(submitted.trials[0], **PROGRESS, at=time.time())
        submitted.leave(1)
        submitted.leave(2, status="interrupted", failure=PREEMPTED)
        assert submitted.states(squeue=None) == ["running", "done", *["queued"] * 5]
        submitted.cancel()
        assert submitted.states(squeue=None) == ["cancelled", "done", *["cancelled"] * 5]

    def test_silent_have_no_rate(self, submitted: Submitted) -> None:
        """The rate of the last report is no longer true."""
        begin(submitted.trials[0], **PROGRESS, at=time.time() - 60)
        row = submitted.rows()[0]
        assert (row.state, row.step, row.throughput) == ("running", 30, None)
        assert row.detail.startswith("no report for 60 s")


class TestOfTrialsThatWereNotSubmitted:
    def test_what_has_no_record_is_missing(self, submitted: Submitted) -> None:
        begin(submitted.trials[0], **PROGRESS, at=time.time())
        submitted.leave(1)
        status = sweep_status(submitted.sweep, submitted.folder, [], [])
        assert names(status.trials)[:3] == ["missing", "done", "missing"]

    def test_a_local_run_will_get_to_what_remains(self, submitted: Submitted) -> None:
        """It takes over what was submitted and has no job any more: that is seed 6."""
        submitted.leave(1)
        submitted.leave(2, status="interrupted", failure=PREEMPTED)
        with lock(submitted.folder):
            begin(submitted.trials[6], **PROGRESS, at=time.time())
            status = sweep_status(submitted.sweep, submitted.folder, [], [])
            rows = submitted.rows()
            ended = submitted.states(squeue="")
        assert names(status.trials) == ["queued", "done", *["queued"] * 4, "running"]
        assert (rows[0].job, rows[6].state) == ("7_0", "running")
        assert ended == names(status.trials)

    def test_only_what_the_local_run_has_begun_is_running(self, tmp_path: Path) -> None:
        """A report that is older than the run was left by one that was killed."""
        sweep = load(tmp_path, seeds=[0, 1, 2])
        folder = SweepFolder(tmp_path / "sweep")
        killed, begun, waiting = (folder.trial_folder(trial.id) for trial in sweep.trials())
        begin(killed, **PROGRESS, at=1.0)
        begin(begun)
        for path in (killed.assignment_path, killed.progress_path):
            os.utime(path, (1.0, 1.0))
        (status,) = read_statuses([(sweep, folder)])
        assert names(status.trials) == ["missing"] * 3
        with lock(folder):
            os.utime(folder.lock_path, (2.0, 2.0))
            (status,) = read_statuses([(sweep, folder)])
        assert names(status.trials) == ["queued", "running", "queued"]
        assert status.trials[1].detail == "starting"
        assert not status.is_over
        assert not waiting.path.exists()


def test_watching_a_sweep_that_is_over_prints_it_once_with_its_results(tmp_path: Path) -> None:
    results = Results(tmp_path / "results")
    sweep = load(tmp_path)
    write_run(
        results, sweep, [make_record(trial.cell, sweep=sweep.name) for trial in sweep.trials()]
    )
    ended = harness("status", "--watch", "--results", str(results.path))
    assert ended.code == 0
    assert ended.out.splitlines()[0] == "demo: 1 trial: 1 done"
    assert "accuracy" in ended.out


def test_the_log_of_a_failed_trial_is_named_below_the_table(tmp_path: Path) -> None:
    results = Results(tmp_path / "results")
    sweep = load(tmp_path)
    (trial,) = sweep.trials()
    write_run(results, sweep, [make_record(trial.cell, sweep=sweep.name, status="failed")])
    ended = harness("status", "demo", "--results", str(results.path))
    log = results.sweep_folder("demo").trial_folder(trial.id).path / "logs" / "rank0.log"
    assert ended.out.splitlines()[-2:] == [f"log: {log}", "demo: 1 trial: 1 failed"]


@pytest.mark.parametrize("flags", [(), ("--watch",)])
def test_without_a_sweep_says_where_it_has_looked(tmp_path: Path, flags: tuple[str, ...]) -> None:
    ended = harness("status", *flags, "--results", str(tmp_path))
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith(f"no sweeps in {tmp_path}/runs; set --results or HARNESS_RESULTS")


def test_all_sweeps_that_can_be_read_are_watched(
    submitted: Submitted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where another user has submitted one of them."""
    results = Results(tmp_path / "results")
    for name in ("mine", "theirs"):
        sweep = load(tmp_path, sets=[f"name={name}"])
        write_run(results, sweep, [make_record(trial.cell, sweep=name) for trial in sweep.trials()])
    submissions.write(results.sweep_folder("theirs"), submitted.submission)

    def refuse(path: Path) -> Submission:
        raise BadInput(f"{path}: only bob, who submitted it, may read it")

    monkeypatch.setattr(submissions, "read", refuse)
    ended = harness("status", "--watch", "--results", str(results.path))
    assert ended.code == 2
    assert ended.out.splitlines()[0] == "mine: 1 trial: 1 done"
    assert ended.err.endswith("only bob, who submitted it, may read it\n")


def test_of_all_sweeps_those_are_delivered_that_are_not_over(
    submitted: Submitted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[list[State]] = [["running", "running"], ["done", "running"], ["done", "done"]]
    sweeps = [replace(submitted.sweep, name=name) for name in ("over", "first", "second")]
    row = submitted.rows()[0]
    readings = []
    for reading in states:
        statuses = []
        for sweep, state in zip(sweeps, ["done", *reading], strict=True):
            statuses.append(SweepStatus(sweep=sweep, trials=[replace(row, state=state)]))
        readings.append(statuses)
    delivered: list[str] = []

    def follow(_: object, folders: list[SweepFolder], uri: object) -> object:
        """Note the sweeps in the place of `Follower`."""
        delivered.extend(followed.path.name for followed in folders)
        return nullcontext(SimpleNamespace(trouble="MLflow is down"))

    remaining = iter([readings[0], *readings])
    monkeypatch.setattr(jobs, "WATCH_SECONDS", 0.0)
    monkeypatch.setattr(jobs, "read_recorded_specs", lambda _: (sweeps, []))
    monkeypatch.setattr(jobs, "read_statuses", lambda *_: next(remaining))
    monkeypatch.setattr(jobs, "Follower", follow)
    ended = harness("status", "--watch", "--results", str(tmp_path))
    assert (ended.code, ended.out.splitlines()[-1]) == (0, "second: 1 trial: 1 done")
    assert delivered == ["first", "second"]
