"""The state of trials, from records, progress and recorded output of squeue."""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from harness.core.errors import BadInput
from harness.core.paths import Results, SweepFolder, write_atomically
from harness.interface import watching
from harness.interface.delivery import JobDelivery
from harness.records.record import Failure
from harness.records.store import lock
from harness.render.status import panel
from harness.slurm import queue as queues
from harness.slurm import submission as submissions
from harness.slurm.packing import JobArray
from harness.slurm.status import (
    RecordHeader,
    State,
    SweepStatus,
    TrialFiles,
    TrialState,
    read_statuses,
    read_trial_files,
    trial_states,
)
from harness.slurm.submission import Submission
from harness.spec.cluster import Profile
from tests.factories import make_record
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
NO_FOLDER = SweepFolder(Path("no such sweep"))  # for which no log is read
PROGRESS = {"phase": "train", "step": 30, "steps": 100, "rate": 512.5, "loss": 0.1, "at": 0.0}
RUNNING = TrialFiles(progress=PROGRESS, begun_at=1.0)


@pytest.fixture
def submission(tmp_path: Path) -> Submission:
    """Seven jobs of a trial each, in one array that sbatch called 7."""
    sweep = load(tmp_path, seeds=list(range(7)))
    trials = sweep.trials()
    array = JobArray(
        nodes=2,
        ranks_per_node=1,
        trial_ids=[[trial.id] for trial in trials],
    )
    arrays = [array]
    first_attempts = {trial.id: 1 for trial in trials}
    profile = Profile(launcher="slurm")
    return Submission(sweep=sweep, profile=profile, arrays=arrays, first_attempts=first_attempts)


def recorded(status: Any = "done", attempt: int = 1, detail: str = "") -> TrialFiles:
    """Return what lies in the folder of a trial whose last attempt has ended like this."""
    return TrialFiles(record=RecordHeader(status=status, attempt=attempt, detail=detail))


def states_by(
    submission: Submission,
    files_by_seed: Mapping[int, TrialFiles] | None = None,
    squeue: str | None = SQUEUE,
) -> list[TrialState]:
    """Return the states of a submission's trials; NAME in squeue's text is that of its jobs."""
    trials = submission.sweep.trials()
    files = {trials[seed].id: trial_files for seed, trial_files in (files_by_seed or {}).items()}
    queue = None
    if squeue is not None:
        queue = queues.parse_squeue(squeue.replace("NAME", submission.job_name(0)))
    return trial_states(trials, NO_FOLDER, [submission], files, queue)


def local_states(
    submission: Submission, files_by_seed: Mapping[int, TrialFiles], *, runs_locally: bool
) -> list[TrialState]:
    """Return the states of the same trials if they were never submitted."""
    trials = submission.sweep.trials()
    files = {trials[seed].id: trial_files for seed, trial_files in files_by_seed.items()}
    run_since = 0.0 if runs_locally else None
    return trial_states(trials, NO_FOLDER, [], files, [], local_run_since=run_since)


def names(rows: Sequence[TrialState]) -> list[State]:
    """Return the state of each row."""
    return [row.state for row in rows]


def status_of(
    submission: Submission, rows: Sequence[TrialState], slurm_error: str | None = None
) -> SweepStatus:
    """Return the status of a sweep with these rows."""
    return SweepStatus(sweep=submission.sweep, trials=rows, slurm_error=slurm_error)


class TestQueue:
    def test_has_the_jobs_and_skips_lines_that_show_none(self) -> None:
        queue = {job.id: job for job in queues.parse_squeue(SQUEUE)}
        assert list(queue) == ["5_3", "9", "7_0", "7_1", "7_2", "7_3", "7_4", "7_5"]
        assert (queue["7_0"].nodes, queue["7_0"].is_running) == ("n[1-2]", True)
        assert (queue["7_2"].reason, queue["7_2"].is_running) == ("JobArrayTaskLimit", False)
        assert queue["7_4"].reason.endswith("reserved | see sinfo)")

    def test_may_show_pending_jobs_of_an_array_in_one_line(self, submission: Submission) -> None:
        name = submission.job_name(0)
        queue = queues.parse_squeue(
            f"7_0|RUNNING|n1|{name}|None\n7_[1-4,6%2]|PENDING||{name}|Priority\n"
        )
        states = [job.state for job in queues.live_jobs([submission], queue).values()]
        assert states == ["RUNNING", *["PENDING"] * 6]

    @pytest.mark.parametrize("line", ["7_0|RUNNING|n1", "7_0x|RUNNING|n1|NAME|None"])
    def test_that_shows_a_job_in_part_is_an_error(self, line: str) -> None:
        """A job that is passed over would count as ended, and its trials would run twice."""
        with pytest.raises(queues.SlurmDown, match="which is no whole job"):
            queues.parse_squeue(line)

    @pytest.mark.parametrize(
        ("program", "message"),
        [
            ("", "No such file"),
            (
                "#!/bin/sh\necho 'slurm_load_jobs: Unable to contact' >&2; exit 1\n",
                "Unable to contact",
            ),
        ],
    )
    def test_that_does_not_answer_is_an_error(
        self,
        program: str,
        message: str,
        submission: Submission,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        if program:
            (tmp_path / "squeue").write_text(program, encoding="utf-8")
            (tmp_path / "squeue").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(queues.SlurmDown, match=message):
            queues.query([submission])

    def test_is_not_asked_about_nobody(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", "")
        assert queues.query([]) == []


class TestOfSubmittedTrials:
    def test_the_folder_comes_first_and_slurm_second(self, submission: Submission) -> None:
        """Job 7_1 is completing and 7_6 has ended; the records count, whatever Slurm says of the
        jobs.
        """
        failed = recorded("failed", detail="ValueError: no")
        rows = states_by(submission, {0: RUNNING, 1: recorded(), 6: failed})
        assert names(rows) == ["running", "done", "queued", "queued", "queued", "queued", "failed"]
        running = rows[0]
        assert (running.job, running.nodes) == ("7_0", "n[1-2]")
        assert (running.step, running.steps, running.throughput) == (30, 100, 512.5)
        assert [rows[seed].detail for seed in (2, 3)] == ["JobArrayTaskLimit"] * 2
        assert rows[6].detail == "ValueError: no"

    def test_starting_as_soon_as_the_next_attempt_has_begun(self, submission: Submission) -> None:
        interrupted = recorded("interrupted", detail="Interrupted: SIGUSR2")
        begun = replace(interrupted, begun_at=1.0)
        rows = states_by(submission, {0: begun, 1: begun, 2: begun})
        assert names(rows)[:3] == ["running", "interrupted", "interrupted"]
        assert rows[0].detail == "starting"

    def test_lost_with_a_job_that_left_no_record(self, submission: Submission) -> None:
        rows = states_by(submission, {5: RUNNING}, squeue="")
        assert set(names(rows)) == {"lost"}
        log = f"{NO_FOLDER.path}/jobs/{submission.id}/0-0.log"
        assert rows[0].detail == (
            f"its job ended without a record of it; last line of its log: none; log: {log}"
        )

    def test_cancelled_is_not_lost(self, submission: Submission) -> None:
        cancelled = replace(submission, is_cancelled=True)
        rows = states_by(cancelled, {0: recorded()}, squeue="")
        assert set(names(rows)) == {"done", "cancelled"}

    def test_interrupted_waits_for_its_job_or_is_lost_with_it(self, submission: Submission) -> None:
        interrupted = recorded("interrupted", detail="Interrupted: SIGUSR2")
        rows = states_by(submission, {2: interrupted, 6: interrupted})
        assert (rows[2].state, rows[2].is_live) == ("interrupted", True)
        assert (rows[6].state, rows[6].is_live) == ("lost", False)

    def test_a_job_with_another_name_is_somebody_elses(self, submission: Submission) -> None:
        """Slurm's ids come back after a while."""
        squeue = SQUEUE.replace("NAME", "another-job-of-mine")
        assert queues.live_jobs([submission], queues.parse_squeue(squeue)) == {}
        assert set(names(states_by(submission, squeue=squeue))) == {"lost"}

    def test_invalid_is_not_final_while_its_job_may_run_it_again(
        self, submission: Submission
    ) -> None:
        rows = states_by(submission, {1: recorded("invalid"), 6: recorded("invalid")})
        assert (rows[1].is_live, rows[1].is_final) == (True, False)
        assert (rows[6].is_live, rows[6].is_final) == (False, True)

    def test_lost_with_a_node_it_runs_again_while_its_job_exists(
        self, submission: Submission
    ) -> None:
        """Up to the number of retries, and if Slurm is silent too."""
        failure = Failure(kind="NodeFailure", message="n2 died", host="n2")
        for count, state in ((1, "queued"), (2, "queued"), (3, "failed")):
            header = RecordHeader(
                status="failed",
                attempt=count,
                detail=str(failure),
                failures=[replace(failure, attempt=1)] * count,
            )
            files = {2: TrialFiles(record=header)}
            row = states_by(submission, files)[2]
            assert row.state == state
            assert (row.detail == "to run again: NodeFailure: n2 died") is (state == "queued")
            assert states_by(submission, files, squeue="")[2].state == "failed"
            assert states_by(submission, files, squeue=None)[2].state == state

    def test_a_silent_slurm_makes_nothing_lost(self, submission: Submission) -> None:
        """Where nobody knows whether a job exists, its trial counts as queued, unless it was
        cancelled.
        """
        files = {0: RUNNING, 1: recorded(), 2: recorded("interrupted")}
        rows = states_by(submission, files, squeue=None)
        assert names(rows) == ["running", "done", "interrupted", *["queued"] * 4]
        cancelled = replace(submission, is_cancelled=True)
        rows = states_by(cancelled, {2: recorded("interrupted")}, squeue=None)
        assert set(names(rows)) == {"cancelled"}

    def test_a_record_of_an_earlier_submission_does_not_count(self, submission: Submission) -> None:
        second = replace(submission, first_attempts=dict.fromkeys(submission.first_attempts, 2))
        files = {2: recorded("failed", attempt=1), 1: recorded("failed", attempt=2)}
        assert names(states_by(second, files))[1:3] == ["failed", "queued"]


class TestOfTrialsThatWereNotSubmitted:
    def test_what_has_no_record_is_missing(self, submission: Submission) -> None:
        rows = local_states(submission, {0: RUNNING, 1: recorded()}, runs_locally=False)
        assert names(rows)[:3] == ["missing", "done", "missing"]

    def test_a_local_run_will_get_to_what_remains(self, submission: Submission) -> None:
        files = {0: RUNNING, 1: recorded(), 2: recorded("interrupted")}
        rows = local_states(submission, files, runs_locally=True)
        assert names(rows)[:4] == ["running", "done", "interrupted", "queued"]
        assert [row.is_live for row in rows][:4] == [True, False, True, True]

    def test_a_local_run_takes_over_what_was_submitted_and_has_no_job(
        self, submission: Submission
    ) -> None:
        """Of seven jobs, those of seeds 0 to 5 still exist."""
        trials = submission.sweep.trials()
        queue = queues.parse_squeue(SQUEUE.replace("NAME", submission.job_name(0)))
        files = {trials[6].id: RUNNING}
        rows = trial_states(trials, NO_FOLDER, [submission], files, queue, local_run_since=0.0)
        assert (rows[6].state, rows[6].is_live) == ("running", True)
        assert rows[0].job == "7_0"
        ended = trial_states(trials, NO_FOLDER, [submission], files, [], local_run_since=0.0)
        assert names(ended) == ["queued"] * 6 + ["running"]
        assert names(trial_states(trials, NO_FOLDER, [submission], files, [])) == ["lost"] * 7

    def test_only_what_the_local_run_has_begun_is_running(self, tmp_path: Path) -> None:
        """A report that is older than the run was left by one that was killed."""
        sweep = load(tmp_path, seeds=[0, 1, 2])
        folder = SweepFolder(tmp_path / "sweep")
        killed, begun, waiting = (folder.trial_folder(trial.id) for trial in sweep.trials())
        for trial_folder in (killed, begun):
            trial_folder.path.mkdir(parents=True)
            trial_folder.assignment_path.touch()
        killed.progress_path.write_text(json.dumps(PROGRESS), encoding="utf-8")
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


def test_a_trial_that_is_silent_has_no_rate_and_names_the_rank_that_others_wait_for(
    submission: Submission, tmp_path: Path
) -> None:
    """The rate of its last report is no longer true."""
    trial = submission.sweep.trials()[0]
    folder = SweepFolder(tmp_path / "sweep")
    trial_folder = folder.trial_folder(trial.id)
    minute_ago = time.time() - 60
    write_atomically(trial_folder.assignment_path, "{}")
    write_atomically(trial_folder.progress_path, json.dumps(PROGRESS | {"at": minute_ago}))
    position = "torch.autograd.graph.run:1"
    beat = {"pid": 7, "created": 1.0, "step": 30, "in_step": True, "position": position}
    for rank, at in ((0, minute_ago + 60), (1, minute_ago)):
        content = json.dumps(beat | {"rank": rank, "host": f"n{rank + 1}", "at": at})
        write_atomically(trial_folder.heartbeat_path(rank), content)
    row = states_by(submission, {0: read_trial_files(trial_folder, trial)})[0]
    assert (row.state, row.step) == ("running", 30)
    assert row.throughput is None
    assert row.detail.startswith("no report for 60 s; rank 1 on n2 is in torch.autograd.graph.run")


def test_a_sweep_is_not_over_while_slurm_is_silent(submission: Submission) -> None:
    rows = states_by(submission, squeue=None)
    assert not status_of(submission, rows, "squeue: timed out").is_over
    failed = [replace(row, state="failed") for row in rows]
    assert status_of(submission, failed, "squeue: timed out").is_over


def test_watching_a_sweep_that_is_over_prints_it_once_with_its_results(tmp_path: Path) -> None:
    results = Results(tmp_path / "results")
    sweep = load(tmp_path)
    write_run(
        results, sweep, [make_record(trial.cell, sweep=sweep.name) for trial in sweep.trials()]
    )
    ended = harness("status", "--watch", "--results", str(results.path))
    assert ended.code == 0
    assert ended.out.splitlines()[0] == "demo: 1 trial: 1 done"
    assert "samples/s" in ended.out


@pytest.mark.parametrize("flags", [(), ("--watch",)])
def test_without_a_sweep_says_where_it_has_looked(tmp_path: Path, flags: tuple[str, ...]) -> None:
    ended = harness("status", *flags, "--results", str(tmp_path))
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith(f"no sweeps in {tmp_path}/runs; set --results or HARNESS_RESULTS")


def test_all_sweeps_that_can_be_read_are_watched(
    submission: Submission, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where another user has submitted one of them."""
    results = Results(tmp_path / "results")
    for name in ("mine", "theirs"):
        sweep = load(tmp_path, sets=[f"name={name}"])
        write_run(results, sweep, [make_record(trial.cell, sweep=name) for trial in sweep.trials()])
    submissions.write(results.sweep_folder("theirs"), submission)

    def refuse(path: Path) -> Submission:
        raise BadInput(f"{path}: only bob, who submitted it, may read it")

    monkeypatch.setattr(submissions, "read", refuse)
    ended = harness("status", "--watch", "--results", str(results.path))
    assert ended.code == 2
    assert ended.out.splitlines()[0] == "mine: 1 trial: 1 done"
    assert ended.err.endswith("only bob, who submitted it, may read it\n")


def test_watching_all_sweeps_delivers_what_came_with_the_end_of_one(
    submission: Submission, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last record appeared, and its job left the queue, between two readings. A sweep that was
    over from the start is not delivered.
    """
    states: list[list[State]] = [["running", "running"], ["done", "running"], ["done", "done"]]
    sweeps = [replace(submission.sweep, name=name) for name in ("over", "first", "second")]
    (row, *_) = states_by(submission)
    readings = []
    for reading in states:
        statuses = []
        for sweep, state in zip(sweeps, ["done", *reading], strict=True):
            rows = [replace(row, state=state, is_live=state == "running")]
            statuses.append(replace(status_of(submission, rows), sweep=sweep))
        readings.append(statuses)
    delivered: list[str] = []

    def deliver(delivery: JobDelivery, status: SweepStatus) -> None:
        """Note the sweep if a trial of it is done."""
        if status.trials[0].is_final:
            delivered.append(status.sweep.name)

    remaining = iter(readings)
    monkeypatch.setattr(watching, "WATCH_SECONDS", 0.0)
    monkeypatch.setattr(watching, "sweep_statuses", lambda *_: next(remaining))
    monkeypatch.setattr(JobDelivery, "deliver", deliver)
    statuses, error = watching.watch(sweeps, Results(tmp_path), None, lambda *_: None)
    assert (statuses, error) == (readings[-1], None)
    assert set(delivered) == {"first", "second"}


def test_a_narrow_terminal_cuts_names_before_states_and_numbers(submission: Submission) -> None:
    failed = recorded("failed", detail="a long story of what went wrong " * 9)
    rows = local_states(submission, {0: RUNNING, 1: failed}, runs_locally=True)
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(panel(status_of(submission, rows), 3))
    lines = console.export_text().splitlines()
    assert len(lines) == 1 + 3 + 2
    assert "running" in lines[1]
    assert "30/100" in lines[1]
    assert "failed" in lines[2]
    assert lines[-1].endswith("1/7")


def test_a_submission_is_read_as_it_was_written(submission: Submission, tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path / "sweep")
    submissions.write(folder, submission)
    (restored,) = submissions.read_all(folder)
    assert list(restored.jobs()) == list(submission.jobs())
    assert restored.profile == submission.profile
    assert [trial.id for trial in restored.sweep.trials()] == [
        trial.id for trial in submission.sweep.trials()
    ]


def test_json_is_not_refreshed() -> None:
    ended = harness("status", "--watch", "--json")
    assert (ended.code, ended.err) == (
        2,
        "harness: status: found --json with --watch; allowed: one of them\n",
    )
