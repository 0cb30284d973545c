"""Every file that is read back: changed in its bytes, in its JSON, and sealed again after that.

A sealed file that was changed is read as it was before, where only its spaces have changed, or is
refused in one line. One that was sealed again may be read, if nothing is wrong with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given

from harness.analysis import baseline
from harness.analysis.parity import read_parity, write_parity
from harness.analysis.result import aggregate
from harness.core.paths import Results, SweepFolder, TrialFolder
from harness.hardware import certificate, machine
from harness.launch.torchrun import Torchrun
from harness.records.assignment import Assignment, read_assignment, write_assignment
from harness.records.files import read_rank_result, read_record, write_record
from harness.records.running import read_failed_ranks, read_progress_file
from harness.records.seal import sealed_text
from harness.records.store import read_recorded_spec
from harness.render.parity import rule_lines, to_json
from harness.slurm import submission
from harness.slurm.packing import JobArray
from harness.spec.cluster import Profile
from harness.tracking.contents import trial_contents
from tests.factories import make_cell, make_machine, make_record, write_sweep
from tests.fuzz.changes import SEEDS, changed_bytes, changed_content
from tests.fuzz.outcome import assert_read_or_refused
from tests.hardware.test_certificate import made
from tests.support.parity import make_parity
from tests.support.results import make_result

RECORD = make_record(make_cell(strategy="ddp", world_size=2, steps=30))
PROGRESS = {"phase": "train", "step": 3, "steps": 10, "at": 1.7e9, "rate": 5.0, "loss": 1.0}
FAILED = {"0": {"exitcode": -9, "at": 1.7e9, "pid": 7}, "1": {"exitcode": 1, "at": 1.8e9, "pid": 8}}


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of file: how one is written into a folder of results, and how it is read."""

    write: Callable[[Results], Path]
    read: Callable[[Path], Any]


def results_of(path: Path) -> Results:
    """Return the results folder that a file was written into."""
    (results,) = (parent for parent in path.parents if (parent / "results").is_file())
    return Results(results)


def write_one_record(results: Results) -> Path:
    path = results.sweep_folder("demo").trial_folder(RECORD.trial.id).record_path
    write_record(path, RECORD)
    return path


def write_columns(results: Results) -> Path:
    (path,) = write_one_record(results).parent.glob("*.npz")
    return path


def write_rank(results: Results) -> Path:
    path = results.path / "rank0.json"
    write_record(path, RECORD.ranks[0])
    return path


def write_one_assignment(results: Results) -> Path:
    path = results.path / "trial.json"
    write_assignment(path, Assignment(trial=RECORD.trial, base_folder="."))
    return path


def write_spec(results: Results) -> Path:
    folder = results.sweep_folder("demo")
    folder.path.mkdir(parents=True)
    write_sweep(folder, [RECORD])
    return folder.spec_path


def write_submission(results: Results) -> Path:
    sweep = read_recorded_spec(results, write_spec(results).parent.name)
    submitted = submission.Submission(
        id="20260101-000000-abcd",
        created_at=1.7e9,
        host="node1",
        user="me",
        profile=Profile(),
        sweep=sweep,
        arrays=[
            JobArray(
                nodes=1,
                ranks_per_node=2,
                trial_ids=[[RECORD.trial.id]],
                slurm_id="7",
            )
        ],
        first_attempts={RECORD.trial.id: 1},
    )
    submission.write(results.sweep_folder("demo"), submitted)
    return submission.folder_of(results.sweep_folder("demo"), submitted.id).file


def write_baseline(results: Results) -> Path:
    return baseline.save(results, [make_result([1000.0, 1001.0])])[0].path


def read_certificate(path: Path) -> Any:
    read = certificate.read(results_of(path), path.stem)
    assert read is not None
    return read, read.description


def read_spec(path: Path) -> Any:
    sweep = read_recorded_spec(results_of(path), "demo")
    return sweep, [cell.label for cell in sweep.cells]


def write_one_parity(results: Results) -> Path:
    folder = results.sweep_folder("demo")
    write_parity(folder, make_parity())
    return folder.parity_path


def read_whole_parity(path: Path) -> Any:
    """Read a parity and compute what the terminal and the report show of it."""
    parity = read_parity(SweepFolder(path.parent))
    assert parity is not None
    return to_json(parity), rule_lines(parity)


def read_whole_record(path: Path) -> Any:
    """Read a record and compute what the commands and MLflow show of it."""
    record = read_record(path)
    aggregate([record])
    trial_contents(record, repeats=1)
    return asdict(record)


def read_whole_columns(path: Path) -> Any:
    record = read_record(path.with_name("record.json"))
    assert record.loss is not None
    return list(record.ranks), record.loss.unpack().tobytes()


KINDS = {
    "record": Kind(write=write_one_record, read=read_whole_record),
    "columns": Kind(write=write_columns, read=read_whole_columns),
    "rank": Kind(write=write_rank, read=lambda path: asdict(read_rank_result(path))),
    "assignment": Kind(write=write_one_assignment, read=read_assignment),
    "sweep": Kind(write=write_spec, read=read_spec),
    "submission": Kind(write=write_submission, read=submission.read),
    "peaks": Kind(
        write=lambda results: machine.write(results.peaks, make_machine()), read=machine.read
    ),
    "certificate": Kind(
        write=lambda results: certificate.write(results, made(1, 5)), read=read_certificate
    ),
    "baseline": Kind(write=write_baseline, read=baseline.read),
    "parity": Kind(write=write_one_parity, read=read_whole_parity),
}
JSON_KINDS = [name for name in KINDS if name != "columns"]


class Sample:
    """A file that was written well, and what is read from it.

    No dataclass, because hypothesis would print all of it.
    """

    def __init__(self, path: Path, read: Any) -> None:
        self.path = path
        self.content = path.read_bytes()
        self.read = read


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Sample]:
    """A file of each kind, in a results folder of its own."""
    made_samples = {}
    for name, kind in KINDS.items():
        folder = tmp_path_factory.mktemp(name)
        (folder / "results").touch()  # marks the results folder
        path = kind.write(Results(folder))
        made_samples[name] = Sample(path, kind.read(path))
    return made_samples


@pytest.fixture(scope="module")
def trial_folder(tmp_path_factory: pytest.TempPathFactory) -> TrialFolder:
    """The folder of a running trial, the same for all inputs."""
    return TrialFolder(tmp_path_factory.mktemp("running"))


def check_refused_or_equal(kind: str, original: Sample, content: bytes) -> None:
    """Check that a changed file is refused in a line that names it, or read as before."""
    original.path.write_bytes(content)
    read: list[Any] = []
    message = assert_read_or_refused(lambda: read.append(KINDS[kind].read(original.path)))
    if message is None:
        assert read == [original.read]
    else:
        assert str(original.path) in message


@pytest.mark.parametrize("kind", KINDS)
@given(seed=SEEDS)
def test_file_with_changed_bytes(samples: dict[str, Sample], kind: str, seed: int) -> None:
    original = samples[kind]
    check_refused_or_equal(kind, original, changed_bytes(original.content, seed))


@pytest.mark.parametrize("kind", JSON_KINDS)
@given(seed=SEEDS)
def test_file_with_changed_values(samples: dict[str, Sample], kind: str, seed: int) -> None:
    original = samples[kind]
    content = changed_content(json.loads(original.content), seed)
    check_refused_or_equal(kind, original, json.dumps(content).encode())


@pytest.mark.parametrize("kind", JSON_KINDS)
@given(seed=SEEDS)
def test_file_that_was_sealed_after_the_change(
    samples: dict[str, Sample], kind: str, seed: int
) -> None:
    """It is read or refused, whatever is in it; the seal is no excuse for a traceback."""
    original = samples[kind]
    content = changed_content(json.loads(original.content), seed)
    assume(isinstance(content, dict) and _is_json(content))
    original.path.write_text(sealed_text(content), encoding="utf-8")
    assert_read_or_refused(lambda: KINDS[kind].read(original.path))


def _is_json(content: Any) -> bool:
    """Return whether JSON can hold a value, and so a seal can be put on it: not with NaN in it."""
    try:
        json.dumps(content, allow_nan=False)
    except ValueError:
        return False
    return True


@given(seed=SEEDS)
def test_progress(trial_folder: TrialFolder, seed: int) -> None:
    """It only shows how far a trial is: what can't be used is as good as none."""
    for content in (
        changed_bytes(json.dumps(PROGRESS).encode(), seed),
        json.dumps(changed_content(PROGRESS, seed)).encode(),
    ):
        trial_folder.progress_path.write_bytes(content)
        progress = read_progress_file(trial_folder.progress_path)
        assert progress == {} or type(progress["step"]) is int


@given(seed=SEEDS)
def test_failed_ranks(trial_folder: TrialFolder, seed: int) -> None:
    for content in (
        changed_bytes(json.dumps(FAILED).encode(), seed),
        json.dumps(changed_content(FAILED, seed)).encode(),
    ):
        trial_folder.failures_path.write_bytes(content)
        assert_read_or_refused(lambda: read_failed_ranks(trial_folder.failures_path))
        Torchrun(environment={}).observed_failures(trial_folder, "")


def test_unchanged_files_are_read(samples: dict[str, Sample]) -> None:
    for name, original in samples.items():
        original.path.write_bytes(original.content)
        assert KINDS[name].read(original.path) == original.read
