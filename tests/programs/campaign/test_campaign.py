"""The oracle notices every kind of harm, the shim hits the call that it is told, and a short campaign."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from harness.core.paths import Results
from harness.records.across import in_memory_ranks
from harness.records.files import remove_unused_columns, write_record
from harness.records.record import Record, Saves
from tests.factories import make_record
from tests.programs.campaign import shim
from tests.programs.campaign.calls import CallFault, all_faults
from tests.programs.campaign.oracle import (
    Finding,
    Snapshot,
    check_end,
    check_report,
    compare,
    take_snapshot,
)
from tests.programs.campaign.shim import Call, Control
from tests.programs.campaign.warm import Ended
from tests.support.tree import TOP

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")

FIRST, SECOND = make_record(seed=0), make_record(seed=1)
# The tables of MLflow that the oracle reads.
MLFLOW_TABLES = """create table runs (run_uuid text, lifecycle_stage text);
                   create table tags (key text, value text, run_uuid text);"""


def add_mlflow_run(work: Path, record: Record) -> None:
    """Add a run of a trial to the store."""
    with closing(sqlite3.connect(work / "results" / "mlflow.db")) as database:
        (count,) = database.execute("select count(*) from runs").fetchone()
        database.execute("insert into runs values (?, 'active')", (str(count),))
        row = ("harness.trial", record.trial.id, str(count))
        database.execute("insert into tags values (?, ?, ?)", row)
        database.commit()


def record_path(work: Path, record: Record) -> Path:
    folder = Results(work / "results").sweep_folder(record.sweep)
    return folder.trial_folder(record.trial.id).record_path


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """Return the folder of a sweep of two trials that are done, and in MLflow."""
    (tmp_path / "results").mkdir()
    (tmp_path / "tmp").mkdir()
    with closing(sqlite3.connect(tmp_path / "results" / "mlflow.db")) as database:
        database.executescript(MLFLOW_TABLES)
    for record in (FIRST, SECOND):
        write_record(record_path(tmp_path, record), record)
        add_mlflow_run(tmp_path, record)
    return tmp_path


@pytest.fixture
def expected(work: Path) -> Snapshot:
    return take_snapshot(work)


def finding_kinds(expected: Snapshot, work: Path) -> list[str]:
    return [finding.kind for finding in compare(expected, take_snapshot(work))]


def test_nothing_is_found_where_nothing_has_happened(expected: Snapshot, work: Path) -> None:
    assert len(expected.bits) == 2
    assert expected.is_complete
    assert finding_kinds(expected, work) == []


def test_a_lost_trial_is_found(expected: Snapshot, work: Path) -> None:
    record_path(work, SECOND).unlink()
    assert finding_kinds(expected, work) == ["lost", "left"]  # its columns, which no record names


def test_a_trial_that_failed_for_good_is_found(expected: Snapshot, work: Path) -> None:
    path = record_path(work, SECOND)
    write_record(path, make_record(seed=1, status="failed"))
    remove_unused_columns(path.parent)
    assert finding_kinds(expected, work) == ["lost"]


def test_a_broken_record_is_found(expected: Snapshot, work: Path) -> None:
    path = record_path(work, SECOND)
    path.write_text(path.read_text(encoding="utf-8")[:-10], encoding="utf-8")
    # The record, with it the trial, and columns that can't be told from those of another record.
    assert finding_kinds(expected, work) == ["lost", "lost", "left"]


def test_a_trial_that_mlflow_does_not_have_is_found(expected: Snapshot, work: Path) -> None:
    with closing(sqlite3.connect(work / "results" / "mlflow.db")) as database:
        database.execute("delete from runs where run_uuid = '1'")
        database.commit()
    assert finding_kinds(expected, work) == ["lost"]


def test_a_doubled_record_is_found(expected: Snapshot, work: Path) -> None:
    other = Results(work / "results").sweep_folder("copy").trial_folder(SECOND.trial.id)
    write_record(other.record_path, SECOND)
    assert set(finding_kinds(expected, work)) == {"doubled", "left"}


def test_a_doubled_run_in_mlflow_is_found(expected: Snapshot, work: Path) -> None:
    add_mlflow_run(work, SECOND)
    assert finding_kinds(expected, work) == ["doubled"]


def test_different_parameters_are_found(expected: Snapshot, work: Path) -> None:
    assert SECOND.rank0 is not None
    changed = replace(SECOND, rank0=replace(SECOND.rank0, parameter_digest="0" * 32))
    write_record(record_path(work, SECOND), changed)
    assert finding_kinds(expected, work) == ["differing"]


def test_a_different_order_is_found(expected: Snapshot, work: Path) -> None:
    write_record(record_path(work, SECOND), replace(SECOND, order_digest="0" * 32))
    assert finding_kinds(expected, work) == ["differing"]


def test_another_checkpoint_is_found_unless_the_record_says_that_none_was_taken(
    expected: Snapshot, work: Path
) -> None:
    path = record_path(work, SECOND)
    kept = {**expected.checkpoints, SECOND.trial.id: "best/step-000000020"}
    expected = replace(expected, checkpoints=kept)
    assert finding_kinds(expected, work) == ["differing"]
    saves = Saves(failed=["the best model, step 20, was not saved: the disk is full"])
    ranks = in_memory_ranks([replace(rank, saves=saves) for rank in SECOND.ranks])
    write_record(path, replace(SECOND, ranks=ranks))
    remove_unused_columns(path.parent)
    assert "differing" not in finding_kinds(expected, work)


@pytest.mark.parametrize("name", ["tmp/tmpabcdefgh", "results/runs/demo/.record.json.abcdefgh"])
def test_a_temporary_file_is_found(expected: Snapshot, work: Path, name: str) -> None:
    (work / name).write_text("", encoding="utf-8")
    assert finding_kinds(expected, work) == ["left"]


def test_shared_memory_that_nobody_has_mapped_is_found(expected: Snapshot) -> None:
    actual = replace(expected, shared_memory=frozenset({"/dev/shm/torch_1_2_3"}))
    assert compare(expected, actual) == [Finding("left", "shared memory /dev/shm/torch_1_2_3")]


def ended(output: str, exit_code: int | None = 0, left: dict[int, str] | None = None) -> Ended:
    return Ended(exit_code=exit_code, output=output, seconds=1.0, left_behind=left or {})


@pytest.mark.parametrize(
    ("end", "kind"),
    [
        (ended("", None), "hung"),
        (ended("Traceback (most recent call last):\nOSError: 5", 1), "misreported"),
        (ended("", left={123: "sleeping"}), "left"),
    ],
)
def test_a_bad_end_is_found(end: Ended, kind: str) -> None:
    assert [finding.kind for finding in check_end(end, {123: "rank0"}, "run")] == [kind]


def test_a_success_without_a_record_is_found(expected: Snapshot, work: Path) -> None:
    record_path(work, SECOND).unlink()
    actual = take_snapshot(work)
    end = ended("harness: all is well")
    assert [finding.kind for finding in check_report(end, expected, actual, "run")] == [
        "misreported"
    ]


def test_a_failure_without_a_line_is_found(expected: Snapshot, work: Path) -> None:
    for output, kinds in (("", ["misreported"]), ("harness: the disk is full", [])):
        findings = check_report(ended(output, 1), expected, take_snapshot(work), "run")
        assert [finding.kind for finding in findings] == kinds


LEAVE_A_CHILD = """
import os, subprocess, sys
from pathlib import Path
from tests.programs.campaign import warm
warm.adopt_orphans()
warm.GRACE = 0.2
output = Path(sys.argv[1])
output.touch()
pid = os.fork()
if not pid:
    child = subprocess.Popen(["sleep", "60"], start_new_session=True)
    print(child.pid, flush=True)
    os._exit(0)
(ended,) = warm.wait([pid], outputs=[output], deadline=10)
print(*ended.left_behind)
"""


def test_a_process_that_is_left_behind_is_found_and_ended(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LEAVE_A_CHILD, str(tmp_path / "output")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=TOP)
    child, left = printed.stdout.split()
    assert child == left
    assert not Path(f"/proc/{child}").exists()


WRITE_TWO_FILES = """
import os, sys
from pathlib import Path
from tests.programs.campaign import shim
shim.enter("harness")
for name in ("a", "b"):
    try:
        with open(name, "wb", buffering=0) as file:
            file.write(name.encode())
    except OSError as error:
        print(name, error.errno)
Path(sys.argv[1]).write_text("not below the root")
"""


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Control:
    """Return the control page of processes that have the shim."""
    shim.create_page(tmp_path / "control")
    (tmp_path / "root").mkdir()
    monkeypatch.setenv(shim.PRELOAD_VARIABLE, str(shim.compile_shim(tmp_path)))
    monkeypatch.setenv(shim.CONTROL_VARIABLE, str(tmp_path / "control"))
    monkeypatch.setenv("PYTHONPATH", str(TOP))
    control = Control(tmp_path / "control")
    control.watch(tmp_path / "root", tmp_path / "log")
    return control


def write_two_files(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program that writes `a` and `b` below the root, with the shim."""
    command = [sys.executable, "-c", WRITE_TWO_FILES, str(folder / "elsewhere")]
    root = folder / "root"
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=root)


@needs_gcc
def test_calls_below_the_root_are_recorded(tmp_path: Path, control: Control) -> None:
    assert write_two_files(tmp_path).returncode == 0
    calls = [call for call in shim.read_calls(tmp_path / "log") if call.role == "harness"]
    names = [(call.name, call.path) for call in calls]
    assert names == [("create", "a"), ("write", "a"), ("create", "b"), ("write", "b")]
    assert len(control.process_ids("harness")) == 1


@needs_gcc
@pytest.mark.parametrize(
    ("action", "number", "exit_code", "printed", "contents"),
    [
        ("kill-before", 1, -9, "", {"a": ""}),
        ("kill-after", 2, -9, "", {"a": "a", "b": "b"}),
        ("EIO", 1, 0, "a 5\n", {"a": "", "b": "b"}),
        ("full-disk", 1, 0, "a 28\nb 28\n", {"a": ""}),
        ("EIO", 3, 0, "", {"a": "a", "b": "b"}),
    ],
)
def test_the_call_that_an_address_names_is_hit(
    tmp_path: Path,
    control: Control,
    action: str,
    number: int,
    exit_code: int,
    printed: str,
    contents: dict[str, str],
) -> None:
    control.arm(role="harness", call="write", pattern="?", number=number, action=action)
    process = write_two_files(tmp_path)
    assert (process.returncode, process.stdout) == (exit_code, printed), process.stderr
    root = tmp_path / "root"
    assert {path.name: path.read_text(encoding="utf-8") for path in root.iterdir()} == contents
    assert control.has_fired == (number < 3)


def test_an_address_leads_back_to_its_fault() -> None:
    calls = [Call("rank0", "write", "results/.record.json.abcdefgh"), Call("agent", "fork", "")]
    faults = list(all_faults(calls))
    assert [CallFault.parse(fault.address) for fault in faults] == faults
    assert faults[0].address == "calls/rank0/write/1/kill-before/results/.record.json.*"


# One, as each kind runs the sweep several times before its first fault.
ADDRESS = "calls/harness/rename/1/kill-before/results/runs/campaign/*-s1-r0/record.json"


@pytest.mark.nightly
@pytest.mark.distributed
@needs_gcc
def test_a_short_campaign(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "tests.programs.campaign",
        "--output",
        str(tmp_path),
        "--workers",
        "1",
        "--repeat",
        ADDRESS,
    ]
    process = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=TOP, env=dict(os.environ)
    )
    assert process.returncode == 0, process.stdout + process.stderr
    lines = (tmp_path / "outcomes-0.jsonl").read_text(encoding="utf-8").splitlines()
    outcomes = [json.loads(line) for line in lines]
    assert [outcome["address"] for outcome in outcomes] == [ADDRESS]
    assert [outcome["address"] for outcome in outcomes if not outcome["was_reached"]] == []
