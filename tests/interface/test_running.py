"""Which trials `harness run --until` runs, and which it leaves as they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import pytest

from harness.analysis.adaptive import Goal
from harness.core.paths import Results
from harness.interface import running
from harness.launch.runner import Runner
from harness.launch.sweep import Redo
from harness.records.record import Record
from harness.render.console import TerminalConsole
from harness.spec.cell import Trial
from harness.spec.cluster import Profile
from harness.spec.validity import ValidityRules
from tests.factories import make_record, write_trial
from tests.support.running import RecordCollector
from tests.support.sweeps import load


class UndeliveredRun(RecordCollector):
    """A running sweep that is neither shown nor delivered."""

    trouble = None
    disk_failed = False

    def __init__(self, *_: object) -> None:
        super().__init__()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


def test_each_repeat_is_redone_once_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = load(tmp_path, length={"steps": 60}, warmup=2)
    results = Results(tmp_path / "results")
    folder = results.sweep_folder(sweep.name)

    def run(runner: Runner, trials: Sequence[Trial], *, fresh: bool) -> Iterator[Record]:
        for trial in trials:
            ran.append(trial.repeat)
            # An even repeat and an odd one differ by 0.1%.
            seconds = 0.01 + 1e-5 * (trial.repeat % 2)
            record = make_record(trial.cell, repeat=trial.repeat, step_seconds=seconds)
            write_trial(folder, record)
            yield record

    def run_until(redo: Redo) -> list[int]:
        """Return the repeats that ran, in order."""
        ran.clear()
        running.run_sweep(
            sweep,
            Profile(device="cpu", validity=ValidityRules(contention=None)),
            results,
            None,
            console=TerminalConsole(quiet=True),
            redo=redo,
            fail_fast=False,
            goal=Goal(half_width=0.02),
        )
        return list(ran)

    ran: list[int] = []
    monkeypatch.setattr(Runner, "run", run)
    monkeypatch.setattr(running, "DeliveredRun", UndeliveredRun)
    repeats = run_until("failed")
    assert repeats == list(range(len(repeats)))
    assert len(repeats) >= 3
    assert run_until("all") == repeats
    assert run_until("failed") == []
    write_trial(folder, make_record(sweep.cells[0], repeat=1, status="failed"))
    assert run_until("missing") == []
    assert run_until("failed") == [1]
