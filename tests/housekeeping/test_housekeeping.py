"""`harness results`: sweeps are listed, renamed, merged, pruned, archived and restored."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.cli.completion import complete_recorded_sweeps
from harness.core.errors import BadInput
from harness.core.locks import lock_file
from harness.core.paths import Results
from harness.housekeeping import archive, sweeps
from harness.housekeeping.merge import merge
from harness.interface import logs
from harness.preflight.rates import RateSearch, read_search, write_search
from harness.preflight.report import Preflight, read_preflight, write_preflight
from harness.records.record import Record
from harness.records.settings import run_settings
from harness.records.store import lock, read_recorded_sweep, read_spec_content, write_spec
from harness.slurm import submission as submissions
from harness.slurm.packing import Packing
from harness.spec.cluster import Profile, load_profile
from harness.spec.sweep import Sweep
from harness.tracking import Tracker
from tests.factories import make_cell, make_record, write_trial
from tests.support.commands import CommandResult
from tests.support.commands import harness as command
from tests.support.permissions import checked_permissions
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
        if path.is_file() and path.name not in ("lock", "comparison.key"):
            files[str(path.relative_to(folder))] = path.read_bytes()
    return files


def refused(*arguments: str) -> str:
    """Return the error of a command that is bad input."""
    ended = command("results", *arguments)
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    return ended.err


def run(*arguments: str) -> CommandResult:
    """Return how a command ended that does what it is told."""
    ended = command("results", *arguments)
    assert (ended.code, ended.err) == (0, "")
    return ended


def test_sweeps_are_listed_with_trials_size_and_age(results: Results) -> None:
    assert run("list").out == "no sweep has run here\n"
    record_sweep(results, "old", seeds=[0, 1])
    record_sweep(results, "new")
    for path in results.sweep_folder("old").path.rglob("*"):
        os.utime(path, (1e9, 1e9))
    results.sweep_folder("broken").path.mkdir()
    results.sweep_folder("broken").spec_path.write_text("{", encoding="utf-8")
    with lock(results.sweep_folder("new")):
        lines = [" ".join(line.split()) for line in run("list").out.splitlines()]
        listed = json.loads(run("list", "--json").out)
    assert {line.split()[0] for line in lines if line} >= {"new", "broken", "old", "3"}
    assert any(line.startswith("new 1 ") and line.endswith("ago running") for line in lines)
    assert any(line.startswith("broken 0 ") and "can't be read" in line for line in lines)
    assert listed[-1]["name"] == "old"
    assert listed[-1]["bytes"] == sum(
        path.stat().st_size
        for path in results.sweep_folder("old").path.rglob("*")
        if path.is_file()
    )
    assert (listed[-1]["trials"], listed[-1]["planned"]) == (2, 2)


def test_a_renamed_sweep_has_the_same_records(results: Results) -> None:
    sweep = record_sweep(results, "nightly", seeds=[0, 1])
    before = tree(results.sweep_folder("nightly").path)
    dry = run("rename", "nightly", "before upgrade", "--dry-run").out
    assert dry.startswith("would rename results/runs/nightly to results/runs/before-upgrade-")
    run("rename", "nightly", "before upgrade")
    after = tree(results.sweep_folder("before upgrade").path)
    assert {name for name in before if before[name] != after[name]} == {"sweep.json"}
    recorded = read_recorded_sweep(results, "before upgrade")
    assert [record.trial.id for record in recorded.records] == [t.id for t in sweep.trials()]
    assert "no records of such a sweep" in refused("rename", "nightly", "x")
    record_sweep(results, "nightly")
    for flags in ([], ["--dry-run"]):
        taken = refused("rename", "nightly", "before upgrade", *flags)
        assert "exists; allowed: a name that no sweep has" in taken
        assert "new name: found an empty name" in refused("rename", "nightly", " ", *flags)
    # A path could lead out of the results folder.
    for arguments in (["rename", "results/runs/nightly", "x"], ["prune", "results/runs/nightly"]):
        assert "no records of such a sweep" in refused(*arguments)


def test_a_renaming_that_was_cut_off_is_completed(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_sweep(results, "nightly")
    with monkeypatch.context() as patched:
        patched.setattr(sweeps, "_replace_value", lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            sweeps.rename(results, "nightly", "weekly")
    run("rename", "nightly", "weekly")
    assert len(read_recorded_sweep(results, "weekly").records) == 1


def test_what_is_kept_of_a_sweep_elsewhere_is_renamed_too(results: Results) -> None:
    record_sweep(results, "nightly")
    write_search(results.sweep_folder("nightly"), RateSearch(sweep="nightly", at=1.0, cells=[]))
    preflight = Preflight(sweep="nightly", at=1.0, workloads=[])
    write_preflight(results.sweep_folder("nightly").preflight_path, preflight)
    write_preflight(results.sweep_folder("taken").preflight_path, preflight)
    assert "taken.json exists; allowed: a name that no sweep has" in refused(
        "rename", "nightly", "taken"
    )
    run("rename", "nightly", "weekly")
    search = read_search(results.sweep_folder("weekly"))
    assert search is not None
    assert search.sweep == "weekly"
    assert read_preflight(results.sweep_folder("weekly").preflight_path) == replace(
        preflight, sweep="weekly"
    )
    # A new seal would hide that a file was changed, so nothing is renamed.
    path = results.sweep_folder("weekly").rates_path
    path.write_text(path.read_text(encoding="utf-8").replace("1.0", "2.0"), encoding="utf-8")
    assert f"{path}: seal: found " in refused("rename", "weekly", "monthly")
    assert results.sweep_folder("weekly").path.exists()
    run("prune", "weekly", "--whole", "--yes")
    left = [path.name for path in results.path.rglob("*") if path.is_file()]
    assert left == ["taken.json"]


def test_a_sweep_that_is_running_is_left_alone(results: Results) -> None:
    record_sweep(results, "nightly")
    before = tree(results.path)
    with lock(results.sweep_folder("nightly")):
        for arguments in (
            ["rename", "nightly", "weekly"],
            ["prune", "nightly", "--whole", "--yes"],
            ["merge", "nightly", "--into", "weekly"],
            ["archive", "nightly"],
        ):
            assert "is running this sweep; wait until it ends" in refused(*arguments)
    assert tree(results.path) == before
    assert [path.name for path in Path().glob("*.gz")] == []


def test_merged_sweeps_ask_for_all_cells_and_seeds(results: Results, tmp_path: Path) -> None:
    record_sweep(results, "node1", seeds=[0, 1])
    other = Results(tmp_path / "other")
    (tmp_path / "other").mkdir()
    record_sweep(other, "node2", seeds=[1, 2], axes={"precision": "bf16"})
    sources = ["node1", str(other.sweep_folder("node2").path)]
    dry = run("merge", *sources, "--into", "both", "--dry-run").out
    assert dry == "would add 4 trials to results/runs/both\n"
    assert not results.sweep_folder("both").path.exists()
    assert run("merge", *sources, "--into", "both").out.startswith("4 trials added to")
    assert run("merge", *sources, "--into", "both", "--dry-run").out.startswith("would add 0 ")
    assert run("merge", *sources, "--into", "both").out.startswith("0 trials added to")
    recorded = read_recorded_sweep(results, "both")
    kept = {(r.trial.cell.axes.precision, r.trial.seed) for r in recorded.records}
    assert kept == {("fp32", 0), ("fp32", 1), ("bf16", 1), ("bf16", 2)}
    assert list(recorded.sweep.all_seeds) == [0, 1, 2]
    assert len(read_recorded_sweep(results, "node1").records) == 2
    assert list(results.sweep_folder("both").path.glob(".*")) == []


def test_merged_cells_with_two_labels_have_the_seeds_of_both(results: Results) -> None:
    record_sweep(results, "node1", seeds=[0])
    base = {"base": {"uses": "mlp", "data": {"source": "digits"}}}
    record_sweep(results, "node2", workloads=base, seeds=[1, 2])
    run("merge", "node1", "node2", "--into", "both")
    merged = read_recorded_sweep(results, "both").sweep
    (cell,) = merged.cells
    assert list(merged.seeds_of(cell)) == [0, 1, 2]


def test_a_sweep_that_is_named_by_two_paths_is_merged_with_itself(results: Results) -> None:
    record_sweep(results, "node1", seeds=[0])
    path = results.sweep_folder("node1").path.resolve()
    run("merge", str(path), "node1", "--into", "node1")
    assert len(read_recorded_sweep(results, "node1").records) == 1


def test_sweeps_of_long_names_are_merged_and_named_by_their_folders(results: Results) -> None:
    long = "a-name-of-a-sweep-that-says-all-about-what-it-compares-and-why-it-does"
    record_sweep(results, long)
    record_sweep(results, "node2", seeds=[5])
    folder = results.sweep_folder(long).path.name
    assert folder != long
    assert folder in complete_recorded_sweeps("a-name")
    assert results.sweep_folder(folder) == results.sweep_folder(long)
    assert read_recorded_sweep(results, folder).sweep.name == long
    merged = run("merge", folder, "node2", "--into", "both $x").out
    assert "harness results collect 'both $x'" in merged
    assert run("merge", "node2", "--into", folder).out.startswith("1 trial added to")
    assert read_recorded_sweep(results, folder).sweep.name == long

    elsewhere = results.runs / f"{folder[:-8]}01234567"
    shutil.copytree(results.sweep_folder(long).path, elsewhere)
    assert "allowed: that of the folder it is in" in refused("merge", elsewhere.name, "--into", "x")
    shutil.rmtree(elsewhere)
    path = results.sweep_folder(long).preflight_path
    write_preflight(path, Preflight(sweep=long, at=1.0, workloads=[]))
    assert f"would remove {path} " in run("prune", folder, "--whole", "--dry-run").out


@pytest.mark.parametrize("name", ["", " ", "a\nb"])
def test_a_merged_sweep_has_a_name(results: Results, name: str) -> None:
    record_sweep(results, "node1")
    assert "--into: found " in refused("merge", "node1", "--into", name)
    assert "no records of such a sweep" in refused("prune", name, "--whole", "--dry-run")
    assert [path.name for path in results.runs.iterdir()] == ["node1"]


def test_sweeps_of_another_user_are_merged_and_what_cannot_be_written_is_named(
    results: Results, tmp_path: Path
) -> None:
    record_sweep(results, "mine", seeds=[0])
    other = Results(tmp_path / "other")
    other.path.mkdir()
    record_sweep(other, "theirs", seeds=[1])
    source = other.sweep_folder("theirs")
    with lock(source):  # as it ran
        pass
    for path in (*other.path.rglob("*"), other.path):
        path.chmod(path.stat().st_mode & ~0o222)
    with checked_permissions():
        run("merge", "mine", str(source.path), "--into", "both")
        of_theirs = ["theirs", "--results", str(other.path)]
        allowed = "Permission denied; allowed: files and folders that you may read and write"
        assert f"{source.report_path}: {allowed}" in refused("report", *of_theirs)
        assert f"{other.database}.lock: {allowed}" in refused("collect", *of_theirs)
    assert len(read_recorded_sweep(results, "both").records) == 2
    with source.lock_path.open("rb") as file, checked_permissions():
        assert lock_file(file, timeout=0)
        error = refused("merge", "mine", str(source.path), "--into", "all")
    assert f"{source.path}: is running; wait until it ends" in error


def test_sweeps_that_contradict_each_other_are_not_merged(results: Results) -> None:
    record_sweep(results, "node1", seeds=[0, 1])
    record_sweep(results, "node2", seeds=[1], change=lambda record: replace(record, attempt=2))
    error = refused("merge", "node1", "node2", "--into", "both")
    assert "found 1 trial with different records: results/runs/node1/mlp-" in error

    def with_variable(record: Record) -> Record:
        profile = replace(load_profile("local"), environment={"NCCL_ALGO": "Tree"})
        return replace(record, settings=run_settings(sweep, profile))

    def with_defaults(record: Record) -> Record:
        return replace(record, settings=run_settings(sweep, load_profile("local")))

    sweep = record_sweep(results, "node3")
    record_sweep(results, "node3", change=with_defaults)
    record_sweep(results, "node4", seeds=[5], change=with_variable)
    error = refused("merge", "node3", "node4", "--into", "both")
    assert "ran with another profile: environment.NCCL_ALGO: found 'Tree'" in error
    assert not results.sweep_folder("both").path.exists()


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


def test_nothing_is_removed_unless_somebody_says_yes(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_sweep(results, "nightly")
    # Refused before the archive is written: with it there, the same command could not be repeated.
    assert "--yes: needed to remove files" in refused("archive", "nightly", "--remove")
    assert not Path("nightly.tar.gz").exists()
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)

    def press_ctrl_d(prompt: str) -> str:
        raise EOFError

    for answer in (press_ctrl_d, lambda prompt: "", lambda prompt: "no"):
        monkeypatch.setattr("builtins.input", answer)
        ended = command("results", "prune", "nightly", "--whole")
        assert (ended.code, ended.err) == (1, "harness: nothing was removed\n")
    assert results.sweep_folder("nightly").path.exists()
    monkeypatch.setattr("builtins.input", lambda prompt: "y")
    run("archive", "nightly", "--remove")
    assert not results.sweep_folder("nightly").path.exists()


def test_an_archive_is_restored_to_the_byte(results: Results, tmp_path: Path) -> None:
    record_sweep(results, "my sweep", seeds=[0, 1])
    folder = results.sweep_folder("my sweep")
    before = tree(folder.path)
    path = tmp_path / "sweep.tar.gz"
    assert run("archive", "my sweep", "--output", str(path), "--dry-run").out.startswith(
        "would arch"
    )
    assert not path.exists()
    run("archive", "my sweep", "--output", str(path), "--remove", "--yes")
    assert not folder.path.exists()
    with tarfile.open(path) as tar:
        assert tar.getnames() == ["MANIFEST.json", *sorted(before)]
    assert run("restore", str(path), "--dry-run").out.startswith("would restore")
    assert not folder.path.exists()
    run("restore", str(path))
    assert tree(folder.path) == before
    for flags in ([], ["--dry-run"]):
        assert "exists in results/runs/my-sweep-" in refused("restore", str(path), *flags)
        assert f"{path}: exists" in refused("archive", "my sweep", "--output", str(path), *flags)
        inside = str(folder.path / "a.tar.gz")
        error = refused("archive", "my sweep", "--output", inside, *flags)
        assert "found in the folder of the sweep" in error
    assert list(results.path.glob(".restore*")) == []


def test_files_that_are_one_on_the_disk_are_restored_each(results: Results, tmp_path: Path) -> None:
    """As where equal files share their content, or a script links its last checkpoint."""
    (trial,) = record_sweep(results, "nightly").trials()
    folder = results.sweep_folder("nightly")
    last = folder.trial_folder(trial.id).path / "last.ckpt"
    last.write_bytes(b"state")
    last.with_name("step-9.ckpt").hardlink_to(last)
    before = tree(folder.path)
    path = tmp_path / "nightly.tar.gz"
    run("archive", "nightly", "--output", str(path), "--remove", "--yes")
    run("restore", str(path))
    assert tree(folder.path) == before


def test_an_archive_has_no_secrets_of_the_profile(
    results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeps, "refuse_live_jobs", lambda folder: None)  # asks Slurm
    sweep = record_sweep(results, "nightly")
    folder = results.sweep_folder("nightly")
    profile = replace(Profile(), environment={"MY_PASSWORD": "hunter2swordfish"})
    submission = submissions.new(sweep, profile, Packing(arrays=[], remarks=[]), {})
    submissions.write(folder, submission)
    (folder.jobs_path / submission.id / "81_0.log").write_text("hunter2swordfish\n")
    path = tmp_path / "sweep.tar.gz"
    archive.archive(folder, path)
    with tarfile.open(path) as tar:
        assert [name for name in tar.getnames() if name.startswith("jobs")] == []
        texts = [tar.extractfile(member) for member in tar]
        assert [text for text in texts if text and b"hunter2swordfish" in text.read()] == []
    assert path.stat().st_mode & 0o777 == 0o644
    elsewhere = Results(tmp_path / "elsewhere")
    run("restore", str(path), "--results", str(elsewhere.path))
    assert len(read_recorded_sweep(elsewhere, "nightly").records) == 1
    assert submissions.read_all(elsewhere.sweep_folder("nightly")) == []


def test_private_files_stay_private_in_and_out_of_an_archive(
    results: Results, tmp_path: Path
) -> None:
    sweep = record_sweep(results, "nightly")
    name = sweep.trials()[0].id
    log = results.sweep_folder("nightly").trial_folder(name).rank_log(0)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("a line\n", encoding="utf-8")
    log.chmod(0o600)
    path = tmp_path / "sweep.tar.gz"
    archive.archive(results.sweep_folder("nightly"), path)
    assert path.stat().st_mode & 0o777 == 0o600
    elsewhere = Results(tmp_path / "elsewhere")
    archive.restore(elsewhere, path)
    restored = elsewhere.sweep_folder("nightly").trial_folder(name)
    assert restored.rank_log(0).stat().st_mode & 0o777 == 0o600
    assert restored.record_path.stat().st_mode & 0o777 == 0o644


def test_compiled_code_is_not_archived(results: Results, tmp_path: Path) -> None:
    """Ranks run it, so that nobody should get it from somebody else."""
    record_sweep(results, "nightly")
    folder = results.sweep_folder("nightly")
    folder.compiled_path.mkdir()
    (folder.compiled_path / "mlp-0123456789-cpu.zip").write_bytes(b"code")
    path = tmp_path / "nightly.tar.gz"
    archive.archive(folder, path)
    with tarfile.open(path) as tar:
        assert [name for name in tar.getnames() if name.startswith("compiled")] == []


@pytest.mark.parametrize(
    "change", ["cut", "bit", "extra", "escape", "code", "missing", "content", "text", "time"]
)
def test_an_archive_that_was_changed_is_refused(
    results: Results, tmp_path: Path, change: str
) -> None:
    record_sweep(results, "nightly")
    path = tmp_path / "nightly.tar.gz"
    archive.archive(results.sweep_folder("nightly"), path)
    members = []
    with tarfile.open(path) as tar:
        for member in tar:
            content = tar.extractfile(member)
            assert content is not None
            members.append((member, content.read()))
    if change == "extra":
        members.append((tarfile.TarInfo("more.txt"), b"x"))
    if change == "missing":
        members.pop()
    if change == "content":
        members[-1] = (members[-1][0], members[-1][1][:-1] + b"!")
    if change == "time":
        members[-1][0].pax_headers = {"mtime": "1e300"}
    if change == "escape":
        members[0] = (members[0][0], members[0][1].replace(b'"sweep.json"', b'"../weep.json"'))
    if change == "code":
        manifest = members[0][1].replace(b'"sweep.json"', b'"compiled/sweep.json"')
        members[0] = (members[0][0], manifest)
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        for member, text in members:
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))
    packed = bytearray(gzip.compress(plain.getvalue()))
    if change == "cut":
        packed = packed[: len(packed) // 2]
    if change == "bit":
        packed[len(packed) // 2] ^= 1
    path.write_bytes(b"no archive" if change == "text" else packed)
    error = refused("restore", str(path), "--results", "elsewhere")
    assert error.startswith(f"harness: {path}: ")
    assert "harness results archive writes one" in error
    assert tree(Path("elsewhere")) == {}


def test_merging_keeps_what_is_there_when_it_is_cut_off(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_sweep(results, "a", seeds=[0])
    record_sweep(results, "b", seeds=[1])
    sources = [results.sweep_folder("a"), results.sweep_folder("b")]
    with monkeypatch.context() as patched:
        patched.setattr("harness.housekeeping.merge.write_spec", lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            merge(results, sources, "both")
    assert [stored.name for stored in sweeps.list_sweeps(results)] == ["b", "a"]
    merge(results, sources, "both")
    assert len(read_recorded_sweep(results, "both").records) == 2


def test_an_archive_has_hidden_files_and_nothing_goes_that_it_has_not(
    results: Results, tmp_path: Path
) -> None:
    """A script may write what it likes into its trial's folder."""
    (trial,) = record_sweep(results, "nightly").trials()
    folder = results.sweep_folder("nightly")
    hidden = folder.trial_folder(trial.id).path / ".hydra" / "config.yaml"
    hidden.parent.mkdir()
    hidden.write_text("lr: 0.1", encoding="utf-8")
    link = folder.trial_folder(trial.id).path / "last.ckpt"
    link.symlink_to(hidden)
    path = str(tmp_path / "nightly.tar.gz")
    assert f"--remove: found links, which no archive holds: {link}" in refused(
        "archive", "nightly", "--output", path, "--remove", "--yes"
    )
    assert hidden.exists()
    link.unlink()
    before = tree(folder.path)
    run("archive", "nightly", "--output", path, "--remove", "--yes")
    run("restore", path)
    assert tree(folder.path) == before
    inside = str(folder.path / "nightly.tar.gz")
    assert f"{inside}: found in the folder of the sweep" in refused(
        "archive", "nightly", "--output", inside
    )


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


def test_a_folder_that_has_only_a_lock_takes_no_name(results: Results, tmp_path: Path) -> None:
    """As of a run that was refused after it had locked its sweep."""
    record_sweep(results, "nightly")
    path = str(tmp_path / "nightly.tar.gz")
    run("archive", "nightly", "--output", path)
    leftover = results.sweep_folder("weekly")
    with lock(leftover):
        assert "is running this sweep; wait until it ends" in refused("rename", "nightly", "weekly")
    run("rename", "nightly", "weekly")
    with lock(results.sweep_folder("nightly")):
        pass
    run("restore", path)
    for name in ("nightly", "weekly"):
        assert len(read_recorded_sweep(results, name).records) == 1


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


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        (["restore", "nightly.tar.gz", "--results", "elsewhere"], "elsewhere/.restore-"),
        (["merge", "nightly", "--into", "both"], "results/runs/both/.merge-"),
    ],
)
def test_a_full_disk_is_named_and_not_taken_for_a_bad_file(
    results: Results, arguments: list[str], place: str
) -> None:
    record_sweep(results, "nightly")
    run("archive", "nightly")
    ended = on_a_full_disk(*arguments)
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    assert place in ended.stderr
    assert ": File too large; free: " in ended.stderr


def test_an_archive_is_verified_on_a_full_disk(results: Results) -> None:
    record_sweep(results, "nightly")
    run("archive", "nightly")
    ended = on_a_full_disk("restore", "nightly.tar.gz", "--dry-run", "--results", "elsewhere")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("would restore ")


def test_a_file_that_can_not_be_copied_is_named(results: Results) -> None:
    (trial,) = record_sweep(results, "nightly").trials()
    pipe = results.sweep_folder("nightly").trial_folder(trial.id).path / "pipe"
    os.mkfifo(pipe)
    assert f"{pipe}: can't be copied: " in refused("merge", "nightly", "--into", "both")


def test_trials_are_over_that_were_restored(results: Results, tmp_path: Path) -> None:
    """By the times of its files, `harness status logs --follow` knows that a trial has ended."""
    (trial,) = record_sweep(results, "nightly").trials()
    ended = results.sweep_folder("nightly").trial_folder(trial.id)
    ended.assignment_path.write_text("{}", encoding="utf-8")
    os.utime(ended.assignment_path, (1e9, 1e9))
    os.utime(ended.record_path, (1e9 + 0.25, 1e9 + 0.25))
    path = tmp_path / "nightly.tar.gz"
    archive.archive(results.sweep_folder("nightly"), path)
    elsewhere = Results(tmp_path / "elsewhere")
    archive.restore(elsewhere, path)
    restored = elsewhere.sweep_folder("nightly").trial_folder(trial.id)
    assert restored.record_path.stat().st_mtime == 1e9 + 0.25
    restored.launch_log.parent.mkdir(exist_ok=True)
    restored.launch_log.write_text("a line\n", encoding="utf-8")
    logs.show(restored, None, follow=True)


def test_a_renaming_that_mlflow_did_not_take_is_completed(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_sweep(results, "my sweep")
    with monkeypatch.context() as patched:
        patched.setattr(Tracker, "rename", lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            command("results", "rename", "my sweep", "weekly")
    asked: list[tuple[str, str]] = []

    def rename(_: Tracker, old: str, new: str) -> bool:
        asked.append((old, new))
        return True

    monkeypatch.setattr(Tracker, "rename", rename)
    assert run("rename", "my sweep", "weekly").out == "MLflow: my sweep is now weekly\n"
    record_sweep(results, "my sweep")
    run("rename", results.sweep_folder("my sweep").path.name, "other")  # as shells complete it
    assert asked == [("my sweep", "weekly"), ("my sweep", "other")]
    monkeypatch.setattr(Tracker, "rename", lambda *arguments: False)
    assert "no records of such a sweep" in refused("rename", "mistyped", "weekly")
