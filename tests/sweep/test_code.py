"""A workload's code is part of its cells: edited, they are other cells, and nothing mixes the two."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.compare import Rules, compare
from harness.analysis.selection import select
from harness.analysis.sweep_result import SweepResult
from harness.core.errors import CodeChanged, HarnessError
from harness.core.paths import Results
from harness.launch.sweep import plan
from harness.records.files import write_record
from harness.records.store import read_recorded_sweep, write_spec
from harness.sweep.files import (
    MISSING,
    check_code,
    describe_code,
    describe_dynamic_files,
)
from harness.sweep.sweep import Sweep
from harness.view.run import left_out_lines
from tests.factories import make_record
from tests.support.sweeps import load
from workloads import importing
from workloads.catalog import find_source

SPIRAL = """
from layers import WIDTH
from workloads import Classifier

class Spiral(Classifier):
    def splits(self): ...
    def build_model(self): ...
    def optimizer(self, model): ...
    def flops_per_sample(self): return 1.0
"""


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    """A sweep of a user's workload in two files, planned."""
    (tmp_path / "spiral.py").write_text(SPIRAL, encoding="utf-8")
    (tmp_path / "layers.py").write_text("WIDTH = 32\n", encoding="utf-8")
    return planned(tmp_path)


KEYS: dict[str, Any] = {"length": {"steps": 20}, "warmup": 2}


def planned(folder: Path) -> Sweep:
    return load(folder, {"spiral": {"uses": "spiral.py:Spiral"}}, **KEYS)


def run(sweep: Sweep, results: Results) -> None:
    """Leave what running a sweep leaves."""
    folder = results.sweep_folder(sweep.name)
    for trial in sweep.trials():
        record = make_record(trial.cell, seed=trial.seed, sweep=sweep.name)
        write_record(folder.trial_folder(trial.id).record_path, record)
    write_spec(sweep, folder)


def test_an_edited_workload_runs_anew_and_is_not_mixed_with_what_it_was(
    sweep: Sweep, tmp_path: Path
) -> None:
    results = Results(tmp_path / "results")
    folder = results.sweep_folder(sweep.name)
    folder.path.mkdir(parents=True)
    run(sweep, results)
    assert not plan(sweep, folder, "missing").pending
    (tmp_path / "layers.py").write_text("WIDTH = 64\n", encoding="utf-8")
    edited = planned(tmp_path)
    (before,), (after,) = sweep.cells, edited.cells
    assert before.id != after.id
    assert before.settings_id == after.settings_id
    assert [trial.cell.id for trial in plan(edited, folder, "missing").pending] == [after.id]
    run(edited, results)
    recorded = read_recorded_sweep(results, sweep.name)
    assert [record.trial.cell.id for record in recorded.records] == [after.id]
    (result,) = SweepResult.of_records(recorded.sweep, recorded.records).cells
    assert len(result.trials) == 1
    (line,) = left_out_lines(recorded)
    assert line.startswith("1 recorded trial of other code or settings left out")
    # And that command compares the two, and says what differs.
    a, b = select(results, [before.id, after.id])
    comparison = compare(a, [b], Rules())
    (difference,) = comparison.differences
    assert difference.startswith("code.files.layers.py: ")


def test_code_that_was_edited_after_the_plan_is_refused_by_file(
    sweep: Sweep, tmp_path: Path
) -> None:
    reference = sweep.cells[0].workload
    check_code(reference, tmp_path)
    (tmp_path / "layers.py").write_text("WIDTH = 64\n", encoding="utf-8")
    with pytest.raises(CodeChanged, match=r"^layers\.py: found \w{12}; allowed: \w{12}: the"):
        check_code(reference, tmp_path)
    (tmp_path / "spiral.py").write_text(SPIRAL.replace("from layers", "from other"), "utf-8")
    (tmp_path / "other.py").write_text("WIDTH = 32\n", encoding="utf-8")
    with pytest.raises(CodeChanged, match=r"^layers\.py: found none; allowed: \w{12}: the"):
        check_code(reference, tmp_path)
    check_code(replace(reference, code=None), tmp_path)  # as a gate's arm has it


def test_a_file_that_was_imported_by_a_computed_name_is_described_even_if_it_is_gone_by_now(
    sweep: Sweep, tmp_path: Path
) -> None:
    reference = sweep.cells[0].workload
    late = tmp_path / "late.py"
    late.write_text("WIDTH = 32\n", encoding="utf-8")
    importing.make_importable(tmp_path)
    importing.import_module("late")
    digest = hashlib.sha256(late.read_bytes()).hexdigest()
    # Beside it there may be what the workloads of earlier tests have imported in this process.
    assert describe_dynamic_files(reference, tmp_path)["late.py"] == digest
    late.unlink()
    assert describe_dynamic_files(reference, tmp_path)["late.py"] == MISSING


def test_another_version_of_an_installed_workload_is_refused(sweep: Sweep) -> None:
    installed = describe_code(find_source("torch.nn:Linear", Path()))
    assert list(installed) == ["torch"]
    reference = replace(sweep.cells[0].workload, uses="torch.nn:Linear", code={"torch": "1.0"})
    with pytest.raises(CodeChanged, match=r"^torch: found 2.*; allowed: 1\.0: the workload"):
        check_code(reference, Path())


@pytest.mark.parametrize("uses", ["spiral:Spiral", "spiral.py", "./spiral.py:Spiral"])
def test_one_workload_has_one_id_however_it_is_named(
    sweep: Sweep, tmp_path: Path, uses: str
) -> None:
    (cell,) = load(tmp_path, {"mine": {"uses": uses}}, **KEYS).cells
    assert (cell.id, cell.settings_id) == (sweep.cells[0].id, sweep.cells[0].settings_id)


def test_a_sweep_may_move_without_another_id(sweep: Sweep, tmp_path: Path) -> None:
    below = tmp_path / "sweeps"
    below.mkdir()
    (cell,) = load(below, {"mine": {"uses": "../spiral.py:Spiral"}}, **KEYS).cells
    assert (cell.id, cell.settings_id) == (sweep.cells[0].id, sweep.cells[0].settings_id)


@pytest.mark.parametrize("text", ["# why", '"""What is read as `__doc__`."""'])
def test_comments_and_docstrings_are_code_as_code_can_read_them(
    sweep: Sweep, tmp_path: Path, text: str
) -> None:
    path = tmp_path / "layers.py"
    path.write_text(f"{text}\n{path.read_text(encoding='utf-8')}", encoding="utf-8")
    assert planned(tmp_path).cells[0].id != sweep.cells[0].id


def test_what_a_users_module_does_when_it_is_imported_changes_no_other_workload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    rude = "import os\nos.environ['ATEN_CPU_CAPABILITY'] = 'avx2'\nos.chdir('/')\nprint('hi')\n"
    (tmp_path / "spiral.py").write_text(rude + SPIRAL, encoding="utf-8")
    (tmp_path / "layers.py").write_text("WIDTH = 32\n", encoding="utf-8")
    assert len(load(tmp_path, {"spiral": {"uses": "spiral.py"}, "mlp": {}}).cells) == 2
    assert os.environ["ATEN_CPU_CAPABILITY"] == "default"
    assert Path.cwd() == tmp_path
    assert capfd.readouterr().out == ""


def test_a_users_module_that_ends_its_process_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "spiral.py").write_text("import os\nos._exit(3)\n", encoding="utf-8")
    with pytest.raises(HarnessError, match="ended the process that plans"):
        load(tmp_path, {"spiral": {"uses": "spiral.py:Spiral"}})
