"""Sweeps handed to a Slurm that writes down what it is asked."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from harness.core.paths import Results
from harness.records.record import Failure
from harness.slurm import submission
from harness.spec import partitions
from tests.factories import make_record, write_trial
from tests.support.commands import CommandResult, harness
from tests.support.slurm import Recorded, recorded_slurm
from tests.support.sweeps import load, write

HOSTILE = "a b'c\"d;e$(touch pwned)`touch pwned`ü"
STRATEGIES = [{"strategy": ["single", "ddp"], "world_size": [1, 2]}]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    return recorded_slurm(tmp_path / "bin", monkeypatch.setenv)


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path / "results")


def submit(sweep: Path, results: Results, *more: str, **slurm: object) -> CommandResult:
    profile = sweep.parent / "profile.yaml"
    keys = {"nodes": 2, **slurm}
    profile.write_text(
        yaml.safe_dump({"launcher": "slurm", "device": "cpu", "slurm": keys}), encoding="utf-8"
    )
    return harness(
        "submit", str(sweep), "--cluster", str(profile), "--results", str(results.path), *more
    )


def squeue(results: Results, sweep: str, state: str = "PENDING") -> str:
    """As if every job of the sweep were in the queue."""
    lines = []
    for one in submission.read_all(results.sweep_folder(sweep)):
        for number, element, _ in one.elements():
            job = one.arrays[number].job_id(element) or f"99_{element}"
            lines.append(f"{job}|{state}|N/A||{one.name(number)}|Priority\n")
    return "".join(lines)


def test_a_thousand_trials_are_a_few_calls(
    slurm: Recorded, results: Results, tmp_path: Path
) -> None:
    sweep = write(tmp_path, zip=STRATEGIES, seeds=list(range(500)))
    ended = submit(sweep, results)
    assert (ended.code, ended.err) == (0, "")
    assert "1000 trials" in ended.out
    (script,) = slurm.scripts()
    assert "#SBATCH --array=0-499%16" in script
    (one,) = submission.read_all(results.sweep_folder("demo"))
    assert [array.job for array in one.arrays] == ["1"]
    assert (
        len(
            list(
                submission.folder_of(results.sweep_folder("demo"), one.id).submitit.glob(
                    "1_*_submitted.pkl"
                )
            )
        )
        == 500
    )


def test_submitting_twice_runs_nothing_twice(
    slurm: Recorded, results: Results, tmp_path: Path
) -> None:
    sweep = write(tmp_path, seeds=[0, 1, 2])
    submit(sweep, results)
    slurm.queue(squeue(results, "demo"))
    assert "0 trials; 3 are in the queue already" in submit(sweep, results).out
    more = submit(sweep, results, "--set", "seeds=0,1,2,3")
    assert "1 trial; 3 are in the queue already" in more.out
    assert len(slurm.scripts()) == 2
    slurm.queue("")  # all have ended without a record
    assert "4 trials" in submit(sweep, results, "--set", "seeds=0,1,2,3").out


def test_what_is_done_is_not_submitted_and_what_failed_may_be(
    slurm: Recorded, results: Results, tmp_path: Path
) -> None:
    (cell,) = load(tmp_path).cells
    for seed, status in enumerate(("done", "failed", "invalid")):
        write_trial(results.sweep_folder("demo"), make_record(cell, seed=seed, status=status))  # type: ignore[arg-type]
    sweep = write(tmp_path, seeds=[0, 1, 2, 3])
    assert "2 trials; 2 are done" not in submit(sweep, results, "--dry-run").out
    assert "3 trials; 1 are done" in submit(sweep, results, "--dry-run").out
    assert "1 trial; 3 are done" in submit(sweep, results, "--dry-run", "--skip-failed").out
    submit(sweep, results)
    (one,) = submission.read_all(results.sweep_folder("demo"))
    assert sorted(one.attempts.values()) == [1, 2, 2]


def test_dry_run_shows_the_script_and_submits_nothing(
    slurm: Recorded, results: Results, tmp_path: Path
) -> None:
    ended = submit(
        write(tmp_path, seeds=[0, 1]), results, "--dry-run", time="45", account="physics"
    )
    assert ended.code == 0
    assert "#SBATCH --account=physics" in ended.out
    assert "#SBATCH --time=45" in ended.out
    assert "#SBATCH --signal=B:USR2@90" in ended.out
    assert slurm.scripts() == []
    assert not results.sweep_folder("demo").spec_path.exists()
    submit(write(tmp_path, seeds=[0, 1]), results, time="45", account="physics")
    (one,) = submission.read_all(results.sweep_folder("demo"))
    shown = ended.out[ended.out.index("#!/bin/bash") :].strip()
    given = slurm.scripts()[0].strip()
    assert [line for line in shown.splitlines() if one.id[:8] not in line] == [
        line for line in given.splitlines() if one.id[:8] not in line
    ]


def test_hostile_names_reach_no_shell(slurm: Recorded, tmp_path: Path) -> None:
    results = Results(tmp_path / f"{HOSTILE}\nx")
    sweep = write(tmp_path)
    sweep.write_text(
        sweep.read_text().replace("demo", "'" + HOSTILE.replace("'", "''") + "'"), encoding="utf-8"
    )
    ended = submit(
        sweep,
        results,
        account=HOSTILE,
        options={"comment": HOSTILE, "contiguous": None},
        prefix=[HOSTILE],
    )
    assert (ended.code, ended.err) == (0, "")
    (script,) = slurm.scripts()
    directives = [
        shlex.split(line)[1] for line in script.splitlines() if line.startswith("#SBATCH")
    ]
    assert {f"--account={HOSTILE}", f"--comment={HOSTILE}", "--contiguous"} <= set(directives)
    command = shlex.split(script[script.rindex("\nexec ") :])
    place = submission.folder_of(
        results.sweep_folder(HOSTILE), submission.read_all(results.sweep_folder(HOSTILE))[0].id
    )
    assert command[:2] == ["exec", sys.executable]  # what leads the job stays out of a container
    assert command[-1] == str(place.submitit)


def test_a_submission_that_died_half_way_is_known_again(
    slurm: Recorded, results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The array was handed over; its id was never written down."""
    sweep = write(
        tmp_path,
        zip=STRATEGIES,
        seeds=list(range(2)),
        exclude=[{"world_size": 2, "strategy": "ddp"}],
    )
    submit(sweep, results)
    (one,) = submission.read_all(results.sweep_folder("demo"))
    slurm.queue(squeue(results, "demo", "RUNNING"))
    array = one.arrays[0]
    submission.write(results.sweep_folder("demo"), replace(one, arrays=[replace(array, job=None)]))
    assert "0 trials; 2 are in the queue already" in submit(sweep, results).out
    assert "2 running" not in harness("status", "demo", "--results", str(results.path)).out
    assert "2 queued" in harness("status", "demo", "--results", str(results.path)).out


def test_what_sbatch_refuses_is_said_in_its_words(
    slurm: Recorded, results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SBATCH_MOST", "0")
    ended = submit(write(tmp_path), results)
    assert ended.code == 1
    assert "QOSMaxSubmitJobPerUserLimit" in ended.err
    assert ended.err.count("\n") == 1
    assert "1 lost" in harness("status", "demo", "--results", str(results.path)).out
    monkeypatch.delenv("SBATCH_MOST")
    assert "1 trial" in submit(write(tmp_path), results).out


def test_status_asks_slurm_once(slurm: Recorded, results: Results, tmp_path: Path) -> None:
    submit(write(tmp_path, seeds=list(range(40))), results)
    before = len(slurm.asked("squeue"))
    slurm.queue(squeue(results, "demo"))
    ended = harness("status", "demo", "--results", str(results.path))
    assert "40 queued" in ended.out
    assert len(slurm.asked("squeue")) == before + 1


def test_status_of_all_sweeps_is_a_line_each_and_asks_slurm_once(
    slurm: Recorded, results: Results, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        submit(write(tmp_path / name, name=name), results)
    before = len(slurm.asked("squeue"))
    ended = harness("status", "--results", str(results.path))
    assert (ended.code, len(ended.out.splitlines())) == (1, 2)
    assert "two: 1 trial: 1 lost" in ended.out
    assert len(slurm.asked("squeue")) == before + 1
    assert "found no SWEEP" in harness("status", "--all", "--results", str(results.path)).err


def test_cancel_is_one_call_and_makes_nothing_lost(
    slurm: Recorded, results: Results, tmp_path: Path
) -> None:
    submit(write(tmp_path, seeds=list(range(3))), results)
    slurm.queue(squeue(results, "demo"))
    ended = harness("cancel", "demo", "--results", str(results.path))
    assert "3 jobs cancelled: 1_0, 1_1, 1_2" in ended.out
    assert slurm.asked("scancel") == ["1_0 1_1 1_2"]
    slurm.queue("")
    ended = harness("status", "demo", "--results", str(results.path))
    assert (ended.code, "3 cancelled" in ended.out) == (0, True)
    assert "0 jobs cancelled" in harness("cancel", "demo", "--results", str(results.path)).out


def test_a_local_run_does_not_touch_a_sweep_that_jobs_have(
    slurm: Recorded, results: Results, tmp_path: Path
) -> None:
    sweep = write(tmp_path)
    submit(sweep, results)
    slurm.queue(squeue(results, "demo"))
    ended = harness("run", str(sweep), "--results", str(results.path))
    assert ended.code == 2
    assert "jobs 1 are at work on this sweep" in ended.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["submit", "SWEEP", "--cluster", "local"],
            "--cluster local: launcher: found 'torchrun'; allowed: slurm",
        ),
        (["run", "SWEEP", "--cluster", "PROFILE"], "launcher: found 'slurm'; allowed: torchrun"),
        (
            ["submit", "SWEEP", "--cluster", "PROFILE", "--results", "100%j"],
            "allowed: for jobs, a path without %",
        ),
        (["status", "nothing"], "nothing: no records of such a sweep"),
        (["cancel", "nothing"], "nothing: no records of such a sweep"),
        (["logs", "nothing-s0-r0"], "nothing-s0-r0: no such trial in results/runs"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], said: str, slurm: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    profile = tmp_path / "profile.yaml"
    profile.write_text("{launcher: slurm, device: cpu}", encoding="utf-8")
    given = {"SWEEP": str(write(tmp_path)), "PROFILE": str(profile)}
    ended = harness(*(given.get(word, word) for word in words))
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert said in ended.err
    assert slurm.scripts() == []


def test_a_large_sweep_is_shown_by_cell(slurm: Recorded, results: Results, tmp_path: Path) -> None:
    sweep = write(tmp_path, zip=STRATEGIES, seeds=list(range(60)))
    submit(sweep, results)
    slurm.queue(squeue(results, "demo"))
    (cell, _) = load(tmp_path, zip=STRATEGIES).cells
    write_trial(results.sweep_folder("demo"), make_record(cell, seed=3, status="failed"))
    place = ["demo", "--results", str(results.path)]
    lines = harness("status", *place).out.splitlines()
    assert len(lines) < 10
    assert [word for word in lines[1].split() if word.isdecimal()][-2:] == ["1", "59"]
    assert any(f"{cell.id}-s3-r0" in line and "no such thing" in line for line in lines)
    assert len(harness("status", *place, "--all").out.splitlines()) > 120


def test_a_node_that_a_trial_was_lost_with_is_left_out(
    slurm: Recorded, results: Results, tmp_path: Path
) -> None:
    (cell,) = load(tmp_path).cells
    lost = Failure(kind="NodeFailure", message="NODE n2 FAILURE", host="n2")
    later = Failure(kind="ValueError", message="no")
    found = make_record(cell, status="failed", attempt=2, failure=later)
    write_trial(results.sweep_folder("demo"), replace(found, previous_failures=[lost]))
    ended = submit(write(tmp_path), results)
    assert "node n2 is left out: a trial was lost with it" in ended.out
    assert "#SBATCH --exclude=n2" in slurm.scripts()[0]
    assert (
        "bad node n2: 1 attempt lost with it"
        in harness("status", "demo", "--results", str(results.path)).out
    )


def test_unless_there_would_be_too_few(
    slurm: Recorded, results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cell,) = load(tmp_path).cells
    lost = Failure(kind="NodeFailure", message="NODE n2 FAILURE", host="n2")
    write_trial(results.sweep_folder("demo"), make_record(cell, status="failed", failure=lost))
    monkeypatch.setattr(
        partitions, "ask", lambda: partitions.parse_sinfo("gpu*|1:00:00|2|4|8000|(null)\n")
    )
    ended = submit(write(tmp_path), results)
    assert (
        "a trial was lost with n2; without, there are too few nodes, so nothing is left out"
        in ended.out
    )
    assert "--exclude" not in slurm.scripts()[0]


def test_nodes_that_the_profile_excludes_stay_so(
    slurm: Recorded, results: Results, tmp_path: Path
) -> None:
    (cell,) = load(tmp_path).cells
    lost = Failure(kind="NodeFailure", message="NODE n2 FAILURE", host="n2")
    write_trial(results.sweep_folder("demo"), make_record(cell, status="failed", failure=lost))
    submit(write(tmp_path), results, options={"exclude": "n9"})
    assert [line for line in slurm.scripts()[0].splitlines() if "exclude" in line] == [
        "#SBATCH --exclude=n9,n2"
    ]
