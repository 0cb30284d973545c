"""A trial of the self-test that another program disturbed is tried again, a wrong measurement not
for ever.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.core.paths import Results
from harness.launch import selftest
from harness.launch import sweep as runner
from harness.measure.selftest import QuantityCheck
from harness.records.record import Record, Status
from harness.records.store import read_recorded_spec
from harness.spec.cluster import Profile
from harness.spec.sweep import Sweep
from tests.factories import make_record
from tests.support.running import RecordCollector


class Machine:
    """One whose tries at 2 ranks come back or don't, as told; its records do not depend on any
    trial having run.
    """

    def __init__(self, tries: list[bool], status: Status = "done") -> None:
        self.tries, self.status, self.ran = tries, status, list[list[int]]()

    def run(self, sweep: Sweep, *arguments: object, **more: object) -> list[Record]:
        self.ran.append([cell.axes.world_size for cell in sweep.cells])
        return [make_record(cell, status=self.status, repeat=len(self.ran)) for cell in sweep.cells]

    def check(self, record: Record) -> list[QuantityCheck]:
        ranks = record.trial.cell.axes.world_size
        back = ranks != 2 or self.tries.pop(0)
        return [
            QuantityCheck(
                ranks=ranks, quantity="median step (s)", expected=1.0, measured=1.0 if back else 1.1
            )
        ]


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path)


def run(machine: Machine, results: Results, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The try of every world size whose record was returned."""
    monkeypatch.setattr(runner, "run", machine.run)
    monkeypatch.setattr(selftest, "check_record", machine.check)
    results.sweep_folder("selftest").path.mkdir(parents=True)
    records = selftest.run(results, Profile(device="cpu"), [1, 2, 4], RecordCollector())
    return [(record.trial.cell.axes.world_size, record.trial.repeat) for record in records]


def test_what_was_off_alone_is_tried_again(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine([False, False, True])
    assert run(machine, results, monkeypatch) == [(1, 1), (2, 3), (4, 1)]
    assert machine.ran == [[1, 2, 4], [2], [2]]
    assert len(read_recorded_spec(results, "selftest").cells) == 3


def test_what_is_off_each_time_stays_so(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine([False] * selftest.MAX_ATTEMPTS)
    assert run(machine, results, monkeypatch) == [(1, 1), (2, selftest.MAX_ATTEMPTS), (4, 1)]


def test_a_trial_that_failed_is_not_tried_again(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine([], status="failed")
    assert run(machine, results, monkeypatch) == [(1, 1), (2, 1), (4, 1)]
