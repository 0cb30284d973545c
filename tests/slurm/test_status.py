"""What has become of trials, by records, progress and recorded squeue output."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from harness.core.paths import Results, SweepFolder
from harness.launch.sweep import lock
from harness.records.record import Failure
from harness.render.terminal.status import panel
from harness.slurm import queue, submission
from harness.slurm.packing import Array, Load, Packing
from harness.slurm.status import Found, RecordHeader, State, Status, TrialState, look, states
from harness.slurm.submission import Submission
from harness.spec.cell import Trial
from harness.spec.cluster import Profile
from tests.factories import make_record
from tests.support.commands import harness
from tests.support.reports import write_run
from tests.support.sweeps import load

# squeue of Slurm 22.05 with --array --noheader and FIELDS; the last line is what it says when a controller is slow.
SQUEUE = """\
5_3|PENDING|N/A||other|Resources
9|RUNNING|2026-11-21T09:23:37|n1|somebody-elses|None
7_0|RUNNING|2026-11-21T09:23:37|n[1-2]|NAME|None
7_1|COMPLETING|2026-11-21T09:23:37|n[1-2]|NAME|None
7_2|PENDING|N/A||NAME|JobArrayTaskLimit
7_[3-5%2]|PENDING|N/A||NAME|(Nodes required for job are DOWN, DRAINED or reserved | see sinfo)
7_6|COMPLETED|2026-11-21T09:23:37|n1|NAME|None
slurm_load_jobs: Socket timed out on send/recv operation
"""
TOLD = {"phase": "train", "step": 30, "steps": 100, "rate": 512.5, "loss": 0.1, "at": 0.0}


@pytest.fixture
def submitted(tmp_path: Path) -> Submission:
    """Seven jobs of a trial each, in one array that sbatch called 7."""
    sweep = load(tmp_path, seeds=list(range(7)))
    loads = [Load(trials=[trial], seconds=None) for trial in sweep.trials()]
    packing = Packing(arrays=[Array(nodes=2, ranks_per_node=1, loads=loads)], remarks=[])
    attempts = {trial.id: 1 for trial in sweep.trials()}
    return submission.new(sweep, Profile(launcher="slurm"), packing, attempts).with_job(0, "7")


def outline(status: Any = "done", attempt: int = 1, why: str = "") -> Found:
    return Found(record=RecordHeader(status=status, attempt=attempt, why=why))


def asked(
    submitted: Sequence[Submission],
    found: Mapping[int, Found] | None = None,
    text: str | None = SQUEUE,
) -> list[TrialState]:
    """`found` is by seed; a job named NAME is the first submission's."""
    text = text and text.replace("NAME", submitted[0].name(0))
    trials = submitted[0].sweep.trials()
    by_trial = {trials[seed].id: one for seed, one in (found or {}).items()}
    return states(trials, submitted, by_trial, None if text is None else queue.parse(text))


def words(rows: Sequence[TrialState]) -> list[State]:
    return [row.state for row in rows]


class TestQueue:
    def test_reads_elements_of_arrays_and_passes_over_what_is_no_job(self) -> None:
        found = queue.parse(SQUEUE)
        assert list(found) == ["5_3", "9", "7_0", "7_1", "7_2", "7_3", "7_4", "7_5"]
        assert (found["7_0"].nodes, found["7_0"].waiting) == ("n[1-2]", False)
        assert (found["7_2"].reason, found["7_2"].waiting) == ("JobArrayTaskLimit", True)
        assert found["7_4"].reason.endswith("reserved | see sinfo)")

    def test_is_asked_once_for_all_jobs(self) -> None:
        words = queue.command(["eva", "adam", "eva"])
        assert words[:3] == ["squeue", "--user=adam,eva", "--all"]  # hidden partitions too
        assert not [word for word in words if "job" in word]

    @pytest.mark.parametrize(
        "program", ["", "#!/bin/sh\necho 'slurm_load_jobs: Unable to contact' >&2; exit 1\n"]
    )
    def test_that_does_not_answer_is_said(
        self, program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if program:
            (tmp_path / "squeue").write_text(program, encoding="utf-8")
            (tmp_path / "squeue").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(
            queue.SlurmDown, match="Unable to contact" if program else "No such file"
        ):
            queue.ask(["eva"])


class TestStates:
    def test_the_folder_comes_first_and_slurm_second(self, submitted: Submission) -> None:
        found = {0: Found(progress=TOLD), 1: outline(), 6: outline("failed", why="ValueError: no")}
        rows = asked([submitted], found)
        assert words(rows) == ["running", "done", "queued", "queued", "queued", "queued", "failed"]
        first = rows[0]
        assert (first.job, first.nodes, first.step, first.steps, first.rate) == (
            "7_0",
            "n[1-2]",
            30,
            100,
            512.5,
        )
        assert rows[2].detail == "JobArrayTaskLimit"
        assert rows[6].detail == "ValueError: no"

    def test_a_trial_whose_job_ended_without_a_record_is_lost(self, submitted: Submission) -> None:
        rows = asked([submitted], {5: Found(progress=TOLD)}, text="")
        assert set(words(rows)) == {"lost"}
        log = f"jobs/{submitted.id}/7_0.log"
        assert (
            rows[0].detail
            == f"job 7_0 ended without a record of it; its last words: none; log: {log}"
        )

    def test_one_that_was_cancelled_is_not_lost(self, submitted: Submission) -> None:
        assert set(words(asked([replace(submitted, cancelled=1.0)], {0: outline()}, text=""))) == {
            "done",
            "cancelled",
        }

    def test_an_interrupted_one_waits_for_its_job_or_is_lost_with_it(
        self, submitted: Submission
    ) -> None:
        found = {
            2: outline("interrupted", why="Interrupted: SIGUSR2"),
            6: outline("interrupted", why="SIGUSR2"),
        }
        rows = asked([submitted], found)
        assert (rows[2].state, rows[2].live) == ("interrupted", True)
        assert (rows[6].state, rows[6].live) == ("lost", False)

    def test_a_job_that_only_has_the_same_id_is_somebody_elses(self, submitted: Submission) -> None:
        other = queue.parse(SQUEUE.replace("NAME", "my-own-other-job"))
        assert queue.live([submitted], other) == {}
        assert set(words(asked([submitted], text=SQUEUE.replace("NAME", "my-own-other-job")))) == {
            "lost"
        }

    def test_a_sweep_is_not_over_while_slurm_is_silent(self, submitted: Submission) -> None:
        rows = asked([submitted], text=None)
        assert not Status(
            sweep=submitted.sweep, trials=rows, bad_nodes={}, trouble="squeue: timed out"
        ).over
        ended = [replace(row, state="failed") for row in rows]
        assert Status(
            sweep=submitted.sweep, trials=ended, bad_nodes={}, trouble="squeue: timed out"
        ).over

    def test_an_invalid_trial_is_not_over_while_its_job_may_run_it_again(
        self, submitted: Submission
    ) -> None:
        invalid = {1: outline("invalid"), 6: outline("invalid")}
        rows = asked([submitted], invalid)
        assert (rows[1].live, rows[1].over) == (True, False)
        assert (rows[6].live, rows[6].over) == (False, True)

    def test_one_that_was_lost_with_its_node_runs_again_while_its_job_is_there(
        self, submitted: Submission
    ) -> None:
        lost = Failure(kind="NodeFailure", message="n2 died", host="n2")
        for count, state in ((1, "queued"), (2, "queued"), (3, "failed")):
            known = RecordHeader(
                status="failed", attempt=count, why=str(lost), failures=[lost] * count
            )
            row = asked([submitted], {2: Found(record=known)})[2]
            assert row.state == state
            assert (row.detail == "to run again: NodeFailure: n2 died") is (state == "queued")
            assert asked([submitted], {2: Found(record=known)}, text="")[2].state == "failed"
            assert asked([submitted], {2: Found(record=known)}, text=None)[2].state == state

    def test_a_silent_slurm_makes_nothing_lost(self, submitted: Submission) -> None:
        found = {0: Found(progress=TOLD), 1: outline(), 2: outline("interrupted")}
        rows = asked([submitted], found, text=None)
        assert words(rows) == [
            "running",
            "done",
            "interrupted",
            "queued",
            "queued",
            "queued",
            "queued",
        ]
        cancelled = asked(
            [replace(submitted, cancelled=1.0)], {2: outline("interrupted")}, text=None
        )
        assert set(words(cancelled)) == {"cancelled"}

    def test_a_record_of_an_earlier_submission_does_not_count(self, submitted: Submission) -> None:
        again = replace(submitted, attempts=dict.fromkeys(submitted.attempts, 2))
        found = {2: outline("failed", attempt=1), 1: outline("failed", attempt=2)}
        assert words(asked([again], found))[1:3] == ["failed", "queued"]

    def test_jobs_whose_ids_were_never_written_down_are_known_by_name(
        self, submitted: Submission
    ) -> None:
        died = replace(submitted, arrays=[replace(submitted.arrays[0], job=None)])
        assert words(asked([died], text=SQUEUE.replace("NAME", "other")))[0] == "lost"
        assert asked([died])[2].job == "7_2"
        text = SQUEUE.replace("NAME", died.name(0))
        assert set(queue.live([died], queue.parse(text))) == {
            trial.id for trial in died.sweep.trials()[:6]
        }

    def test_without_a_submission(self, submitted: Submission) -> None:
        trials: list[Trial] = submitted.sweep.trials()
        found = {trials[0].id: Found(progress=TOLD), trials[1].id: outline()}
        assert words(states(trials, [], found, {}))[:3] == ["running", "done", "missing"]


class TestOfARunOnThisMachine:
    """What nobody submitted, while a `harness run` is at the sweep."""

    def test_what_is_left_is_queued_and_waited_for(self, submitted: Submission) -> None:
        trials = submitted.sweep.trials()
        found = {
            trials[0].id: Found(progress=TOLD),
            trials[1].id: outline(),
            trials[2].id: outline("interrupted"),
        }
        rows = states(trials, [], found, {}, here=True)
        assert words(rows)[:4] == ["running", "done", "interrupted", "queued"]
        assert [row.live for row in rows][:4] == [True, False, True, True]

    def test_only_what_it_has_begun_is_running(self, tmp_path: Path) -> None:
        sweep, folder = load(tmp_path, seeds=[0, 1, 2]), SweepFolder(tmp_path / "sweep")
        killed, begun, waiting = (folder.trial_folder(trial.id) for trial in sweep.trials())
        for place in (killed, begun):
            place.path.mkdir(parents=True)
            place.assignment_path.touch()
        killed.progress_path.write_text(json.dumps(TOLD), encoding="utf-8")
        for path in (killed.assignment_path, killed.progress_path):
            os.utime(path, (1.0, 1.0))
        assert words(look([(sweep, folder)])[0].trials) == ["missing"] * 3
        with lock(folder):
            os.utime(folder.lock_path, (2.0, 2.0))
            (found,) = look([(sweep, folder)])
        assert words(found.trials) == ["queued", "running", "queued"]
        assert found.trials[1].detail == "starting"
        assert not found.over
        assert not waiting.path.exists()

    def test_watching_one_that_is_over_says_so_once_and_shows_the_results(
        self, tmp_path: Path
    ) -> None:
        results, sweep = Results(tmp_path / "results"), load(tmp_path)
        write_run(
            results, sweep, [make_record(trial.cell, sweep=sweep.name) for trial in sweep.trials()]
        )
        ended = harness("status", "--watch", "--results", str(results.path))
        assert ended.code == 0
        assert ended.out.splitlines()[0] == "demo: 1 trial: 1 done"
        assert "samples/s" in ended.out


class TestTimeLeft:
    def test_is_what_is_left_of_those_at_work_and_the_usual_time_of_the_others(
        self, submitted: Submission
    ) -> None:
        trials = submitted.sweep.trials()
        done = Found(record=RecordHeader(status="done", attempt=1, why="", seconds=40.0))
        found = {trials[0].id: done, trials[1].id: Found(progress=TOLD)}
        rows = states(trials, [], found, {}, here=True)
        batch = trials[1].cell.axes.batch_size
        assert rows[1].left == pytest.approx(70 * batch / 512.5)
        status = Status(sweep=submitted.sweep, trials=rows, bad_nodes={}, trouble=None)
        assert status.left == pytest.approx(5 * 40.0 + 70 * batch / 512.5)

    def test_is_shared_by_those_that_run_at_once(self, submitted: Submission) -> None:
        trials = submitted.sweep.trials()[:3]
        done = Found(record=RecordHeader(status="done", attempt=1, why="", seconds=60.0))
        starting = Found(progress={"phase": "starting"})
        found = dict(zip((one.id for one in trials), (done, starting, starting), strict=True))
        rows = states(trials, [], found, {})
        assert Status(
            sweep=submitted.sweep, trials=rows, bad_nodes={}, trouble=None
        ).left == pytest.approx(60.0)

    def test_is_not_guessed_before_anything_is_done(self, submitted: Submission) -> None:
        rows = states(submitted.sweep.trials(), [], {}, {}, here=True)
        assert Status(sweep=submitted.sweep, trials=rows, bad_nodes={}, trouble=None).left is None


def test_a_narrow_terminal_cuts_names_before_states_and_numbers(submitted: Submission) -> None:
    trials = submitted.sweep.trials()
    failed = outline("failed", why="a long story of what went wrong " * 9)
    rows = states(
        trials, [], {trials[0].id: Found(progress=TOLD), trials[1].id: failed}, {}, here=True
    )
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(panel(Status(sweep=submitted.sweep, trials=rows, bad_nodes={}, trouble=None), 3))
    lines = console.export_text().splitlines()
    assert len(lines) == 1 + 3 + 2
    assert "running" in lines[1]
    assert "30/100" in lines[1]
    assert "failed" in lines[2]
    assert lines[-1].endswith("1/7")


def test_a_submission_is_read_as_it_was_written(submitted: Submission, tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path / "sweep")
    submission.write(folder, submitted)
    (read,) = submission.read_all(folder)
    assert [list(load) for _, _, load in read.elements()] == [
        list(load) for _, _, load in submitted.elements()
    ]
    assert read.profile == submitted.profile
    assert [trial.id for trial in read.sweep.trials()] == [
        trial.id for trial in submitted.sweep.trials()
    ]
