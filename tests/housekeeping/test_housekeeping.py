"""Recorded sweeps are listed and pruned."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import BadInput
from harness.core.paths import Results
from harness.housekeeping import sweeps
from harness.records.record import Record
from harness.records.store import lock, read_spec_content, write_spec
from harness.sweep.sweep import Sweep
from tests.factories import make_cell, make_record, write_trial
from tests.support.commands import CommandResult
from tests.support.commands import harness as command
from tests.support.sweeps import load


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Results:
    """The results folder below the working directory, without MLflow's database."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HARNESS_RESULTS", raising=False)
    return Results(Path("results"))


def record_sweep(
    results: Results, name: str, *, change: Callable[[Record], Record] | None = None, **keys: Any
) -> Sweep:
    """Record all trials of a sweep of one MLP."""
    sweep = load(results.path.absolute().parent, sets=[f"name={name}"], **keys)
    for trial in sweep.trials():
        record = make_record(trial.cell, seed=trial.seed, sweep=name)
        write_trial(results.sweep_folder(name), change(record) if change else record)
    write_spec(sweep, results.sweep_folder(name))
    return sweep


def tree(folder: Path) -> dict[str, bytes]:
    """Return the files below a folder with their content, without the lock and the key."""
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name not in ("lock",):
            files[str(path.relative_to(folder))] = path.read_bytes()
    return files


def refused(*arguments: str) -> str:
    """Return the error of a command that is bad input."""
    ended = command(*arguments)
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    return ended.err


def run(*arguments: str) -> CommandResult:
    """Return how a command ended that does what it is told."""
    ended = command(*arguments)
    assert (ended.code, ended.err) == (0, "")
    return ended


def test_sweeps_are_listed_with_trials_size_and_age(results: Results) -> None:
    assert run("show").out == "no sweep has run here\n"
    record_sweep(results, "old", seeds=[0, 1])
    record_sweep(results, "new")
    for path in results.sweep_folder("old").path.rglob("*"):
        os.utime(path, (1e9, 1e9))
    results.sweep_folder("broken").path.mkdir()
    results.sweep_folder("broken").spec_path.write_text("{", encoding="utf-8")
    with lock(results.sweep_folder("new")):
        lines = [" ".join(line.split()) for line in run("show").out.splitlines()]
    assert {line.split()[0] for line in lines if line} >= {"new", "broken", "old", "3"}
    assert any(line.startswith("new 1 ") and line.endswith("ago running") for line in lines)
    assert any(line.startswith("broken 0 ") and "can't be read" in line for line in lines)


def test_pruning_names_what_it_removes(results: Results) -> None:
    sweep = record_sweep(results, "nightly", seeds=[0, 1])
    folder = results.sweep_folder("nightly")
    earlier = make_record(make_cell(steps=7), sweep="nightly")
    failed = make_record(sweep.cells[0], seed=9, status="failed", sweep="nightly")
    write_trial(folder, earlier)
    write_trial(folder, failed)
    write_spec(sweep, folder)
    assert failed.trial.id in read_spec_content(folder.spec_path)["trials"]
    os.utime(folder.spec_path, (1.0, 1.0))
    assert "--yes: needed to remove files" in refused("prune", "nightly")
    listed = run("prune", "nightly", "--failed", "--dry-run").out
    assert f"would remove {folder.path / earlier.trial.id} (" in listed
    assert ", of no cell of the sweep)" in listed
    assert f"would remove {folder.path / failed.trial.id} (" in listed
    assert len(folder.record_paths()) == 4
    run("prune", "nightly", "--yes")
    assert not (folder.path / earlier.trial.id).exists()
    assert len(folder.record_paths()) == 3
    run("prune", "nightly", "--failed", "--yes")
    assert len(folder.record_paths()) == 2
    # Nor is it waited for; when the sweep was asked for stays as it was.
    assert read_spec_content(folder.spec_path)["trials"] == [t.id for t in sweep.trials()]
    assert folder.spec_path.stat().st_mtime == 1.0
    assert run("prune", "nightly", "--failed").out == "nothing to remove\n"
    run("prune", "nightly", "--whole", "--yes")
    assert not folder.path.exists()


def test_what_changes_after_it_was_listed_is_not_removed(results: Results) -> None:
    """As the trials that a run ends while somebody is asked whether to remove."""
    record_sweep(results, "nightly")
    folder = results.sweep_folder("nightly")
    listed = sweeps.removals(results, "nightly", whole=True)
    write_trial(folder, make_record(seed=5, sweep="nightly"))
    with pytest.raises(BadInput, match="has changed since it was listed; nothing is removed"):
        sweeps.remove(folder, listed)
    assert len(folder.record_paths()) == 2


def test_a_sweep_that_a_link_leads_to_is_removed_with_the_link(
    results: Results, tmp_path: Path
) -> None:
    record_sweep(results, "nightly")
    folder = results.sweep_folder("nightly").path
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    shutil.move(folder, scratch / "nightly")
    folder.symlink_to("../../scratch/nightly")
    run("prune", "nightly", "--whole", "--yes")
    assert [*scratch.iterdir(), *results.runs.iterdir()] == []


def test_a_sweep_is_removed_from_nfs(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is open when it is removed stays there under another name."""
    record_sweep(results, "nightly")
    unlink = os.unlink

    def unlink_on_nfs(path: str | Path, *, dir_fd: int | None = None) -> None:
        handles = [Path(handle) for handle in Path("/proc/self/fd").iterdir()]
        opened = [handle.readlink().name for handle in handles if handle.is_symlink()]
        if Path(path).name == "lock" and "lock" in opened:
            os.rename(path, ".nfs0001", src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
        else:
            unlink(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", unlink_on_nfs)
    run("prune", "nightly", "--whole", "--yes")
    assert list(results.runs.iterdir()) == []


def test_what_a_removal_that_was_cut_off_has_left_goes_with_the_next(results: Results) -> None:
    record_sweep(results, "nightly")
    leftover = results.runs / ".removed-1a2b" / "weekly"
    leftover.mkdir(parents=True)
    run("prune", "nightly", "--whole", "--yes")
    assert list(results.runs.iterdir()) == []


def on_a_full_disk(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Return how `harness results` ends where files can't grow: as on a disk that is full."""
    limited = ["bash", "-c", 'ulimit -f 2; exec "$@"', "bash"]
    program = [sys.executable, "-m", "harness.cli", "results", *arguments]
    return subprocess.run(
        [*limited, *program],
        # Python 3.11 would keep the half of a compiled module that it could write.
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
