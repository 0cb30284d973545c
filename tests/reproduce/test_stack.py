"""A trial of a stack is reproduced under that stack, as long as it has the packages that it had."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.core.errors import BadInput
from harness.core.paths import SweepFolder
from harness.reproduce import rerun
from harness.reproduce.rerun import Original, recorded_stack
from harness.sweep.cell import Stack
from tests.factories import make_cell, make_record
from tests.launch.test_stack import READY


def original(folder: Path, *, with_list: bool) -> Original:
    """A trial that ran under READY; the list of its packages may be gone."""
    record = make_record()
    assert record.environment is not None
    environment = replace(record.environment, installed=READY.installed)
    record = replace(record, environment=environment)
    sweep_folder = SweepFolder(folder)
    if with_list:
        sweep_folder.packages_path(READY.installed).parent.mkdir(parents=True, exist_ok=True)
        sweep_folder.packages_path(READY.installed).write_text(READY.pins)
    return Original(record=record, sweep_folder=sweep_folder)


@pytest.mark.parametrize(
    ("with_list", "message"),
    [
        (True, "stack old at /envs/old/bin/python: found torch==2.12.0; allowed: torch==2.11.0$"),
        (False, "found other packages; allowed: those that were recorded$"),
    ],
    ids=["listed", "list gone"],
)
def test_a_stack_with_other_packages_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, with_list: bool, message: str
) -> None:
    cell = replace(make_cell(), stack=Stack(python=READY.python))
    recorded = original(tmp_path, with_list=with_list)
    assert recorded_stack(recorded, make_cell(), tmp_path) is None
    monkeypatch.setattr(rerun, "ready_stack", lambda *_: READY)
    assert recorded_stack(recorded, cell, tmp_path) is READY
    upgraded = replace(READY, packages={**READY.packages, "torch": "2.12.0"})
    monkeypatch.setattr(rerun, "ready_stack", lambda *_: upgraded)
    with pytest.raises(BadInput, match=message):
        recorded_stack(recorded, cell, tmp_path)
