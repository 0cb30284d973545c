"""What an attempt leaves for the one after it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.core.paths import TrialFolder
from harness.launch.runner import _prepare_folder
from harness.records.assignment import Assignment, write_assignment
from harness.records.files import write_record
from tests.factories import make_record


@pytest.mark.parametrize(("begun", "stays"), [(1, False), (2, True)])
def test_the_best_model_of_a_lost_attempt_stays(tmp_path: Path, begun: int, stays: bool) -> None:
    """An invalid attempt has finished. One after it, which left no record, may be gone on with."""
    folder = TrialFolder(tmp_path)
    record = replace(make_record(), status="invalid", attempt=1, violations=("contention",))
    write_record(folder.record_path, record)
    assignment = Assignment(trial=record.trial, base_folder=".", attempt=begun)
    write_assignment(folder.assignment_path, assignment)
    (folder.best_checkpoints / "step-000000004").mkdir(parents=True)
    assert [failure.kind for failure in _prepare_folder(folder, fresh=False)] == ["Invalid"]
    assert folder.best_checkpoints.exists() is stays
