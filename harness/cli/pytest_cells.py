"""Turns the cells of a sweep into pytest items.

The recorded steps of a cell go to pytest-benchmark, and the verdict on them decides whether its
test passes.

`harness.cli.pytest_plugin` imports this module once a sweep is to be collected. All trials have
ended by the time the first test starts: a test only reads what they measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from harness.analysis import baseline
from harness.analysis.compare import CellComparison, Rules, Side, compare
from harness.analysis.result import CellResult, aggregate, cell_result
from harness.api import load_planned
from harness.core.errors import BadInput
from harness.core.paths import Results
from harness.gate.answer import judge_cell
from harness.gate.limits import GATE_FILE_NAME, Gate, read_gate, unused_patterns
from harness.launch import sweep as runner
from harness.measure.numbers import slowest_rank_seconds
from harness.measure.window import measured_window
from harness.records.record import Record
from harness.slurm.queue import refuse_live_jobs
from harness.statistics.verdict import MetricVerdict
from harness.sweep.cell import Cell
from harness.sweep.cluster import Profile
from harness.sweep.selected import select
from harness.sweep.sweep import Sweep
from harness.view.console import TerminalConsole
from harness.view.run import RunView


class GateWarning(pytest.PytestWarning):
    """Something that a gate lets through but reports."""


class ReplayClock:
    """A timer for pytest-benchmark that replays recorded step times.

    pytest-benchmark reads its timer before and after each call of what it measures. The call is
    `advance`, which moves the clock on by the next step, so that the difference is the recorded
    time of that step. Between calls the clock stands still.
    """

    def __init__(self) -> None:
        self.now = 0.0  # seconds
        self.steps: Iterator[float] = iter(())  # seconds of each step

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.now

    def advance(self) -> None:
        """Move on by the next step; raises StopIteration after the last."""
        self.now += next(self.steps)


class SweepFile(pytest.File):
    """A sweep that is compared with its baselines, one item a cell.

    `collect` sets `sweep`, `profile`, `baselines` and `gate`. Then the plugin calls `measure`,
    which sets `records`, and at last pytest runs the items, which call `check` or `report_lost`.
    """

    sweep: Sweep  # with --harness-set and --harness-data applied
    profile: Profile  # of --harness-cluster
    baselines: Sequence[CellResult]  # all in the folder, of any hardware and any sweep
    gate: Gate  # what is let through
    records: Sequence[Record] = ()  # of the selected cells' trials, once `measure` has run

    def collect(self) -> Iterator[pytest.Item]:
        """Yield an item for each cell of the sweep, and for each cell that only the baseline has.

        Raises CollectError, which pytest reports without a traceback, for input that can't be used.
        """
        try:
            self._read_input()
        except BadInput as error:
            raise self.CollectError(str(error)) from None
        for cell in self.sweep.cells:
            yield self._item(cell, self.check)
        # By name: other sweeps may have their baselines in the same folder.
        of_sweep = []
        for result in self.baselines:
            sweep_names = {trial.sweep for trial in result.trials}
            if self.sweep.name in sweep_names:
                of_sweep.append(result.cell)
        if not of_sweep:
            warning = (
                f"no baseline is of a sweep named {self.sweep.name!r}, so cells that were removed"
                " from it go unnoticed"
            )
            self.warn(GateWarning(warning))
        # A cell whose settings were changed counts as one that was lost and one that is new. One whose
        # code was changed is the same: that is what a baseline is for. It may have one for each hardware.
        present = {cell.settings_id for cell in self.sweep.cells}
        lost: dict[str, Cell] = {}
        for cell in of_sweep:
            if cell.settings_id not in present:
                lost[cell.settings_id] = cell
        for cell in lost.values():
            yield self._item(cell, self.report_lost)

    def _read_input(self) -> None:
        """Read sweep, profile, baselines and gate; raises BadInput.

        A pattern of the gate that names no cell is refused, because it is most likely misspelled
        and the limits that it should set would not apply.
        """
        option = self.config.getoption
        launcher = "torchrun"
        if option("harness_trials") == "recorded":
            launcher = ""  # any: the trials may have run in jobs of Slurm
        self.sweep, self.profile = load_planned(
            str(self.path),
            option("harness_set"),
            option("harness_data"),
            option("harness_cluster"),
            launcher=launcher,
        )
        folder = Path(option("harness_baseline"))
        baseline_paths = sorted(folder.rglob("*.json"))
        self.baselines = [baseline.read(path) for path in baseline_paths]
        if not self.baselines:
            raise BadInput(
                f"--harness-baseline: {folder}: found no baselines; harness baseline SWEEP makes them"
            )
        # Next to the folder where that is the folder of one hardware and the gate is for all.
        paths = [folder / GATE_FILE_NAME, folder.parent / GATE_FILE_NAME]
        existing_paths = filter(Path.is_file, paths)
        self.gate = read_gate(next(existing_paths, None))
        baseline_cells = [result.cell for result in self.baselines]
        cells = [*self.sweep.cells, *baseline_cells]
        for pattern in unused_patterns(self.gate, cells):
            raise BadInput(
                f"{self.gate.source}: cells: found {pattern!r}, which names no cell of sweep or baseline"
            )

    def _item(self, cell: Cell, check: Callable[[CellItem, Any], None]) -> pytest.Item:
        """Return the item of a cell, whose test asks for the fixture `benchmark`."""
        item: CellItem = CellItem.from_parent(
            self, name=cell.label, callobj=lambda benchmark: check(item, benchmark)
        )
        item.cell = cell
        item.clock = ReplayClock()
        marker = pytest.mark.benchmark(timer=item.clock, group=cell.workload.label)
        item.add_marker(marker)
        return item

    @property
    def selected_cells(self) -> list[Cell]:
        """Return the sweep's cells that pytest has not deselected, as with `-k` or `--deselect`.

        The session's items are what remains after deselection. Lost cells are not among the result.
        """
        selected = set()
        for item in self.session.items:
            if isinstance(item, CellItem) and item.parent is self:
                selected.add(item.cell.id)
        return [cell for cell in self.sweep.cells if cell.id in selected]

    def measure(self) -> None:
        """Run the trials of the selected cells as `--harness-trials` says; raises HarnessError.

        Records are written to the results folder as by `harness run`, but not delivered to MLflow.
        With `recorded`, no trial runs and the records that are there are used.
        """
        option = self.config.getoption
        trials = option("harness_trials")
        results = Results(Path(option("harness_results")))
        folder = results.sweep_folder(self.sweep.name)
        ids = [cell.id for cell in self.selected_cells]
        if not ids:  # only lost cells are left
            return
        term = f"cell={','.join(ids)}"
        sweep = select(self.sweep, [term])  # the sweep in the results stays whole
        if trials == "recorded":
            planned = runner.plan(sweep, folder, "missing")
            if planned.unreadable:  # a gate must not pass for want of a trial
                raise BadInput(planned.unreadable[0])
            self.records = planned.finished
            return
        redo: runner.Redo = "all" if trials == "all" else "failed"
        with RunView(sweep, TerminalConsole()) as view:
            self.records = runner.run(
                sweep,
                self.profile,
                folder,
                view,
                redo=redo,
                fail_fast=False,
                check=refuse_live_jobs,
            )

    @cached_property
    def comparison(self) -> CellComparison | BadInput:
        """Compare all selected cells with their baselines at once, or return why that is refused.

        They are one family: verdicts control false alarms over all of them. A refusal is returned
        and not raised because the tests share this value: each of them fails with it.
        """
        measured = Side(name="run", cells=aggregate(self.records))
        selected = {cell.settings_id for cell in self.selected_cells}
        of_cells = [result for result in self.baselines if result.cell.settings_id in selected]
        if not of_cells:
            return BadInput("the baseline has none of these cells: harness baseline")
        # Without a baseline of this hardware, those of another are compared: that is refused with
        # a message that names both, unless the gate has `across: [hardware]`.
        of_hardware = [result for result in of_cells if measured.hardware & set(result.hardware)]
        reference = Side(name="baseline", cells=of_hardware or of_cells)
        # By the cell's id: the smallest change of throughput that matters, as a fraction, and
        # the accuracy margin in the unit of the target metric.
        overrides: dict[str, tuple[float, float]] = {}
        for cell in self.sweep.cells:
            limits = self.gate.limits(cell)
            overrides[cell.id] = (limits.min_effect, limits.accuracy_margin)
        rules = Rules(across=self.gate.file.across, overrides=overrides)
        try:
            return compare(reference, [measured], rules)
        except BadInput as error:
            return error

    def check(self, item: CellItem, benchmark: Any) -> None:
        """Test a cell: its steps go to the benchmark, whatever the verdict on them is.

        Fails the test where nothing was measured, where the comparison was refused, and where the
        gate's answer is `fail`; an answer that only warns becomes a GateWarning. Failures have no
        traceback, which would lead into the harness and not to what is slower.
        """
        cell = item.cell
        records = [record for record in self.records if record.trial.cell.id == cell.id]
        seconds = measured_step_seconds(cell, records)
        if not seconds:
            benchmark.skipped = True  # else pytest-benchmark warns that the fixture was not used
            reasons = []
            for record in records:
                reason = record.failure or ", ".join(record.violations)
                reasons.append(f"{record.trial.id}: {reason}")
            text = "; ".join(reasons) or "no trial is recorded"
            pytest.fail(f"not measured: {text}", pytrace=False)
        item.clock.steps = iter(seconds)
        # `pedantic` makes exactly one call a round. pytest-benchmark's usual mode would calibrate
        # first, and so use up recorded steps.
        benchmark.pedantic(item.clock.advance, rounds=len(seconds))
        comparison = self.comparison
        if isinstance(comparison, BadInput):
            benchmark.extra_info.update(extra_info(cell, records, ()))
            pytest.fail(str(comparison), pytrace=False)
        limits = self.gate.limits(cell)
        expected_trials = self.sweep.count_trials(cell)
        answer = judge_cell(cell, limits, comparison, expected_trials)
        benchmark.extra_info.update(extra_info(cell, records, answer.verdicts))
        item.user_properties.append(("verdict", answer.text))  # pytest's JUnit XML has it
        if answer.outcome == "fail":
            pytest.fail(answer.text, pytrace=False)
        if answer.outcome == "warn":
            item.warn(GateWarning(f"{cell.label}: {'; '.join(answer.reasons)}"))

    def report_lost(self, item: CellItem, benchmark: Any) -> None:
        """Test a cell that the sweep has lost.

        What follows is the gate's policy for missing cells: fail, warn, or nothing. It asks for the
        fixture `benchmark` so that --benchmark-only does not skip it.
        """
        benchmark.skipped = True  # there is nothing to measure
        text = (
            f"{item.cell.label}: in the baseline and not in the sweep;"
            " if it was removed on purpose, remove its file below results/baselines"
        )
        policy = self.gate.limits(item.cell).missing
        if policy == "fail":
            pytest.fail(text, pytrace=False)
        if policy == "warn":
            self.warn(GateWarning(text))


class CellItem(pytest.Function):
    """The test of one cell."""

    cell: Cell  # of the sweep, or one that only a baseline has
    clock: ReplayClock  # the timer of its benchmark

    def reportinfo(self) -> tuple[Path, int, str]:
        """Return file, line and title for reports: those of the sweep, as no test file exists."""
        return self.path, 0, self.name


def measured_step_seconds(cell: Cell, records: Sequence[Record]) -> list[float]:
    """Return the seconds of all measured steps of a cell, trial after trial."""
    seconds: list[float] = []
    for record in records:
        if record.status == "done":
            window = measured_window(record.ranks, cell)
            seconds += slowest_rank_seconds(record.ranks, window.mask)
    return seconds


def extra_info(
    cell: Cell, records: Sequence[Record], verdicts: Sequence[MetricVerdict]
) -> dict[str, Any]:
    """Return what pytest-benchmark's JSON holds of a cell besides the times: its rows and verdicts.

    There are no verdicts where the comparison was refused.
    """
    result = cell_result(cell, records)
    verdicts_by_metric = {}
    for verdict in verdicts:
        # The value and its interval are ratios of throughput, or differences of the target metric.
        verdicts_by_metric[verdict.metric.name] = {
            "verdict": verdict.label,
            "value": verdict.effect,
            "interval": verdict.interval,
        }
    return {
        "cell": cell.id,
        "hardware": list(result.hardware),
        "samples_per_second": [row.throughput for row in result.trials],
        "digests": [row.parameter_digest for row in result.trials],
        "verdicts": verdicts_by_metric,
    }
