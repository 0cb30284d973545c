"""What a sweep's folder holds after commands with different seeds, and with records that are broken."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from harness.core.errors import StorageError
from harness.core.paths import Results, SweepFolder
from harness.launch.sweep import plan
from harness.records.format import sealed_text
from harness.records.store import (
    lock,
    read_recorded_sweep,
    recorded_sweep_names,
    recorded_trials,
    write_spec,
)
from harness.sweep.cell import Trial
from harness.sweep.sweep import Sweep
from tests.factories import make_record, write_sweep, write_trial
from tests.support.commands import CommandResult, harness
from tests.support.sweeps import load

OLD_SCHEMA = '{"schema": "2.0"}'


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path / "results")


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    """A sweep of one cell with the seed 1, whose folder has records of the seeds 0, 1 and 2."""
    sweep = load(tmp_path, seeds=[1])
    folder = Results(tmp_path / "results").sweep_folder("demo")
    for seed in (0, 1, 2):
        write_trial(folder, make_record(sweep.cells[0], seed=seed))
    write_spec(sweep, folder)
    return sweep


def record_path(results: Results, sweep: Sweep, seed: int) -> Path:
    trial = Trial(cell=sweep.cells[0], seed=seed)
    return results.sweep_folder("demo").trial_folder(trial.id).record_path


def show(results: Results, *options: str) -> CommandResult:
    return harness("show", "demo", "--results", str(results.path), *options)


def test_trials_of_earlier_commands_are_shown(results: Results, sweep: Sweep) -> None:
    recorded = read_recorded_sweep(results, "demo")
    assert [record.trial.seed for record in recorded.records] == [1, 0, 2]
    # The tracker's list has them too.
    content = json.loads(results.sweep_folder("demo").spec_path.read_text(encoding="utf-8"))
    assert [trial.rpartition("-s")[2] for trial in content["trials"]] == ["1-r0", "0-r0", "2-r0"]
    ended = harness("status", "demo", "--results", str(results.path))
    assert "3 trials: 3 done" in ended.out


def test_an_invalid_cell_is_named_where_it_is(results: Results, sweep: Sweep) -> None:
    path = record_path(results, sweep, 0)
    content = json.loads(path.read_text(encoding="utf-8"))
    content["trial"]["cell"]["axes"]["batch_size"] = "many"
    path.write_text(sealed_text(content), encoding="utf-8")
    (problem,) = read_recorded_sweep(results, sweep.name).unreadable
    assert "got `str` - at `$.axes.batch_size`" in problem


def test_folders_that_are_no_trials_of_the_cells_are_passed_over(tmp_path: Path) -> None:
    sweep = load(tmp_path, seeds=[0])
    folder = SweepFolder(tmp_path / "runs" / "demo")
    cell_id = sweep.cells[0].id
    names = (f"{cell_id}-s007-r0", f"{cell_id}-s1", "other-0123456789-s1-r0", "notes")
    for name in (f"{cell_id}-s3-r2", *names):
        (folder.path / name).mkdir(parents=True)
        (folder.path / name / "record.json").touch()
    (trial,) = recorded_trials(folder.recorded_ids(), sweep.cells)
    assert (trial.seed, trial.repeat) == (3, 2)


@pytest.mark.parametrize("content", [OLD_SCHEMA, "", '{"schema": "5.0", "swe', "[]"])
def test_record_that_cannot_be_read_is_named_and_the_rest_goes_on(
    results: Results, sweep: Sweep, content: str
) -> None:
    path = record_path(results, sweep, seed=0)
    path.write_text(content, encoding="utf-8")
    shown = show(results)
    assert shown.code == 0
    first, last = shown.err.splitlines()
    assert str(path) in first
    assert "move it away and run the sweep again" in first
    assert last == "1 record left out, because of the above"
    page = results.path / "report.html"
    command = ["report", "demo", "--results", str(results.path), "--output", str(page)]
    assert str(path) in harness(*command).err
    text = page.read_text(encoding="utf-8")
    assert "1 unreadable" in text
    compared = harness("compare", "demo", "demo", "--results", str(results.path))
    assert (compared.code, compared.err.count("\n")) == (2, 1)  # a judgment is of all or of none


def test_trial_with_an_unreadable_record_does_not_run_again(results: Results, sweep: Sweep) -> None:
    """Its record may be whole, and only of another version; `--force` replaces it."""
    folder = results.sweep_folder("demo")
    wider = replace(sweep, seeds=[0, 1, 5])
    path = record_path(results, sweep, seed=0)
    path.write_text(OLD_SCHEMA, encoding="utf-8")
    todo = plan(wider, folder, "failed")
    assert [trial.seed for trial in todo.pending] == [5]
    assert [record.trial.seed for record in todo.finished] == [1]
    (unreadable,) = todo.unreadable
    assert unreadable.startswith(f"{path}: ")
    assert len(plan(wider, folder, "all").pending) == 3


def test_broken_record_holds_up_no_delivery(results: Results, sweep: Sweep) -> None:
    record_path(results, sweep, seed=0).write_text(OLD_SCHEMA, encoding="utf-8")
    collected = harness("collect", "demo", "--results", str(results.path))
    assert (collected.code, collected.out) == (0, "2 trials delivered, 0 were there already\n")
    assert "1 record left out" in collected.err


def test_a_full_disk_is_named_by_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    folder = Results(tmp_path).sweep_folder("demo")
    monkeypatch.setattr(os, "write", refuse)
    with (
        pytest.raises(StorageError, match=f"^{folder.lock_path}: No space left on device; free: "),
        lock(folder),
    ):
        pytest.fail("it ran")


@pytest.fixture
def two_sweeps(tmp_path: Path) -> Results:
    """The results of two sweeps."""
    results = Results(tmp_path)
    for name in ("first", "second"):
        (results.runs / name).mkdir(parents=True)
        write_sweep(results.sweep_folder(name), [make_record(sweep=name)])
    return results


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "{}", "[" * 9999, '{"schema": "1.0", "name": 3}', '{"schema": "1.1"}'],
    ids=["empty", "cut", "list", "no-keys", "deep", "name", "unsealed"],
)
def test_status_goes_on_after_a_broken_sweep(two_sweeps: Results, content: str) -> None:
    path = two_sweeps.sweep_folder("first").spec_path
    path.write_text(content, encoding="utf-8")
    assert recorded_sweep_names(two_sweeps) == ["first", "second"]
    ended = harness("status", "--results", str(two_sweeps.path))
    assert ended.code == 2
    assert ended.out.startswith("second: ")
    assert ended.err.startswith(f"harness: {path}: ")
    assert ended.err.count("\n") == 1


def test_status_goes_on_after_a_sweep_with_a_broken_record(two_sweeps: Results) -> None:
    (path,) = two_sweeps.sweep_folder("first").record_paths()
    path.write_text("{}", encoding="utf-8")
    for arguments in ((), ("--watch",), ("first",), ("first", "--watch")):
        ended = harness("status", *arguments, "--results", str(two_sweeps.path))
        assert ended.code == 2
        assert ended.out.startswith("first: 1 trial: 1 unreadable") or "first" in arguments
        assert ("second: " in ended.out) == ("first" not in arguments)
        assert ended.err.startswith(f"harness: {path}: schema: found null")
