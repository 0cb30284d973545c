"""Trials that run side by side compute what they compute alone, and end as those do."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from harness.core.cores import usable_cores
from harness.records.record import Record
from harness.sweep.cell import Trial
from tests.support.running import RecordCollector, by_label, line_sweep, processes_below, run

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(len(usable_cores()) < 2, reason="two lanes need two cores"),
]

STEPS = {"length": {"steps": 40}, "evaluate": {"steps": 20}}
SLOW = {"dropout": 0.3, "noise": 0.1, "step_seconds": 0.03}


class Interrupter(RecordCollector):
    """Presses Ctrl-C, once, when two trials have trained at the same time."""

    def __init__(self) -> None:
        super().__init__()
        self.trained: set[str] = set()
        self.has_pressed = False

    def on_trial_progress(self, trial: Trial, progress: dict[str, Any]) -> None:
        if progress.get("step", 0) >= 2:
            self.trained.add(trial.id)
        if len(self.trained) == 2 and not self.has_pressed:
            self.has_pressed = True
            os.kill(os.getpid(), signal.SIGINT)


def digests(records: list[Record]) -> dict[str, str]:
    """Return what each trial has computed, by its id."""
    return {
        record.trial.id: record.rank0.parameter_digest
        for record in records
        if record.rank0 is not None
    }


@pytest.mark.nightly
def test_ctrl_c_saves_all_and_resumed_trials_end_with_the_bits_of_lone_ones(tmp_path: Path) -> None:
    variants = {"a": {"options": SLOW}, "b": {"options": {**SLOW, "dropout": 0.1}}}
    folders = [tmp_path / name for name in ("alone", "beside")]
    for folder in folders:
        folder.mkdir()
    alone, beside = [line_sweep(folder, variants, **STEPS) for folder in folders]

    interrupter = Interrupter()
    with pytest.raises(KeyboardInterrupt):
        run(beside, parallel="auto", listener=interrupter)
    first, second = interrupter.records
    assert {first.status, second.status} == {"interrupted"}
    assert first.failure is not None
    assert first.failure.message.startswith("Ctrl-C")
    assert processes_below(folders[1]) == []

    records = run(beside, parallel="auto")
    assert {record.status for record in records} == {"done"}
    assert [len(record.interruptions) for record in records] == [1, 1]
    lanes = set()
    for record in records:
        assert record.lane.count == 2
        lanes.add(tuple(record.lane.cores))
    assert lanes == {(core,) for core in usable_cores()[:2]}
    lone_records = run(alone)
    assert [record.lane.count for record in lone_records] == [1, 1]
    assert digests(records) == digests(lone_records)


@pytest.mark.nightly
def test_a_failure_ends_no_neighbor_unless_it_is_to_stop_the_sweep(tmp_path: Path) -> None:
    variants: dict[str, dict[str, Any]] = {
        "killed": {"options": {"kill_at": 3}},
        "slow": {"options": SLOW},
        "hung": {"options": {"hang_at": 3}},
    }
    sweep = line_sweep(tmp_path, variants, timeout=12, **STEPS)
    records = by_label(run(sweep, parallel="auto"))
    assert records["slow"].status == "done"
    kinds = [records[label].failure for label in ("killed", "hung")]
    assert [failure.kind for failure in kinds if failure] == ["Killed", "Timeout"]

    variants["hung"] = {"options": {**SLOW, "dropout": 0.1}}
    sweep = line_sweep(tmp_path, variants, **STEPS)
    (killed, beside) = run(sweep, parallel="auto", redo="all", fail_fast=True)
    assert (killed.status, beside.status) == ("failed", "interrupted")
    assert beside.failure is not None
    assert beside.failure.message.startswith("--fail-fast: killed ")
    assert processes_below(tmp_path) == []
