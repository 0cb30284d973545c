"""Turns the cells of a sweep into pytest items.

The recorded steps of a cell go to pytest-benchmark, and the verdict on them decides whether its
test passes.

`harness.cli.pytest_plugin` imports this module once a sweep is to be collected. All trials have
ended by the time the first test starts: a test only reads what they measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from harness.analysis import baseline
from harness.analysis.compare import (
    CellComparison,
    Rules,
    Side,
    compare,
)
from harness.analysis.result import CellResult, aggregate, cell_result
from harness.core.errors import BadInput
from harness.core.paths import Results, TrialFolder
from harness.core.text import counted
from harness.gate.answer import GateAnswer, judge_cell
from harness.gate.limits import GATE_FILE_NAME, Gate, read_gate, unused_patterns
from harness.launch import sweep as runner
from harness.launch.runner import TrialListener
from harness.measure.summary import measured_window, slowest_rank_seconds
from harness.records.record import Record
from harness.slurm.queue import refuse_live_jobs
from harness.sweep import cluster
from harness.sweep import sweep as spec
from harness.sweep.cell import Cell, Trial
from harness.sweep.cluster import Profile
from harness.sweep.selected import select
from harness.sweep.sweep import Sweep
from harness.view.run import trial_line
from harness.view.value import write


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
        if not any(_is_of_sweep(result, self.sweep) for result in self.baselines):
            self.warn(
                GateWarning(
                    f"no baseline is of a sweep named {self.sweep.name!r},"
                    " so cells that were removed from it go unnoticed"
                )
            )
        for cell in self.sweep.cells:
            yield self._item(cell, self.check)
        for cell in lost_cells(self.sweep, self.baselines):
            yield self._item(cell, self.report_lost)

    def _read_input(self) -> None:
        """Read sweep, profile, baselines and gate; raises BadInput.

        A pattern of the gate that names no cell is refused, because it is most likely misspelled
        and the limits that it should set would not apply.
        """
        option = self.config.getoption
        self.sweep = spec.load_sweep(self.path, option("harness_set"), option("harness_data"))
        self.profile = cluster.load_profile(option("harness_cluster"))
        if self.profile.launcher != "torchrun" and option("harness_trials") != "recorded":
            raise BadInput(
                f"--harness-cluster: launcher: found {self.profile.launcher!r};"
                " allowed: torchrun, or --harness-trials=recorded after harness submit"
            )
        cluster.check_fits(self.profile, self.sweep.cells)
        self.baselines, self.gate = read_baselines(
            Path(option("harness_baseline")), option("harness_gate")
        )
        cells = list(self.sweep.cells)
        for result in self.baselines:
            cells.append(result.cell)
        unused = unused_patterns(self.gate, cells)
        if unused:
            raise BadInput(
                f"{self.gate.source}: cells: found {unused[0]!r},"
                " which names no cell of sweep or baseline"
            )

    def _item(self, cell: Cell, check: Callable[[CellItem, Any], None]) -> pytest.Item:
        """Return the item of a cell, whose test asks for the fixture `benchmark`."""
        item: CellItem = CellItem.from_parent(
            self, name=cell.label, callobj=lambda benchmark: check(item, benchmark)
        )
        item.cell = cell
        item.clock = ReplayClock()
        item.add_marker(pytest.mark.benchmark(timer=item.clock, group=cell.workload.label))
        return item

    @property
    def selected_cells(self) -> list[Cell]:
        """Return the sweep's cells that pytest has not deselected, as with `-k` or `--deselect`.

        The session's items are what remains after deselection. Lost cells are not among the result.
        """
        ids = {cell.id for cell in self.sweep.cells}
        items = [item for item in self.session.items if isinstance(item, CellItem)]
        return [item.cell for item in items if item.parent is self and item.cell.id in ids]

    def measure(self) -> None:
        """Run the trials of the selected cells as `--harness-trials` says; raises HarnessError.

        Records are written to the results folder as by `harness run`, but not delivered to MLflow.
        With `recorded`, no trial runs and the records that are there are used.
        """
        selected = self.selected_cells
        which = self.config.getoption("harness_trials")
        results = Results(Path(self.config.getoption("harness_results")))
        sweep_folder = results.sweep_folder(self.sweep.name)
        if not selected or which == "recorded":
            planned = runner.plan(replace(self.sweep, cells=selected), sweep_folder, "missing")
            if planned.unreadable:  # a gate must not pass for want of a trial
                raise BadInput(planned.unreadable[0])
            self.records = planned.finished
            return
        sweep = self.sweep
        if len(selected) < len(sweep.cells):  # the sweep in the results stays whole
            sweep = select(sweep, [f"cell={','.join(cell.id for cell in selected)}"])
        self.records = runner.run(
            sweep,
            self.profile,
            sweep_folder,
            TrialReporter(self.config),
            redo="all" if which == "all" else "failed",
            fail_fast=False,
            check=refuse_live_jobs,
        )

    @cached_property
    def measured(self) -> Side:
        """Return the results of the selected cells; only valid after `measure`, as it is cached."""
        return Side(name="run", cells=aggregate(self.records))

    @cached_property
    def comparison(self) -> CellComparison | BadInput:
        """Compare all selected cells with their baselines at once, or return why that is refused.

        They are one family: verdicts control false alarms over all of them. A refusal is returned
        and not raised because the tests share this value: each of them fails with it.
        """
        try:
            reference = self._reference()
            # By the cell's id: the smallest change of throughput that matters, as a fraction, and
            # the accuracy margin in the unit of the target metric.
            overrides: dict[str, tuple[float, float]] = {}
            for cell in self.sweep.cells:
                limits = self.gate.limits(cell)
                overrides[cell.id] = (limits.min_effect, limits.accuracy_margin)
            rules = Rules(across=self.gate.file.across, overrides=overrides)
            return compare(reference, [self.measured], rules)
        except BadInput as error:
            return error

    def _reference(self) -> Side:
        """Return the selected cells' baselines, of this hardware if there are any.

        Raises BadInput if no baseline is of a selected cell.
        """
        ids = {cell.settings_id for cell in self.selected_cells}
        of_cells = [result for result in self.baselines if result.cell.settings_id in ids]
        if not of_cells:
            raise BadInput("the baseline has none of these cells: harness baseline")
        hardware = self.measured.hardware
        of_hardware = [result for result in of_cells if hardware & set(result.hardware)]
        # Without a baseline of this hardware, those of another are compared: that is refused with
        # a message that names both, unless the gate has `across: [hardware]`.
        return Side(name="baseline", cells=of_hardware or of_cells)

    def check(self, item: CellItem, benchmark: Any) -> None:
        """Test a cell: its steps go to the benchmark, whatever the verdict on them is.

        Fails the test where nothing was measured, where the comparison was refused, and where the
        gate's answer is `fail`; an answer that only warns becomes a GateWarning. Failures have no
        traceback, which would lead into the harness and not to what is slower.
        """
        cell = item.cell
        records = [record for record in self.records if record.trial.cell.id == cell.id]
        seconds: list[float] = []  # of all measured steps, trial after trial
        for record in records:
            if record.status == "done":
                window = measured_window(record.ranks, cell)
                seconds += slowest_rank_seconds(record.ranks, window.mask).tolist()
        if not seconds:
            benchmark.skipped = True  # else pytest-benchmark warns that the fixture was not used
            pytest.fail(f"not measured: {_describe_unmeasured(records)}", pytrace=False)
        item.clock.steps = iter(seconds)
        # `pedantic` makes exactly one call a round. pytest-benchmark's usual mode would calibrate
        # first, and so use up recorded steps.
        benchmark.pedantic(item.clock.advance, rounds=len(seconds))
        comparison = self.comparison
        if isinstance(comparison, BadInput):
            benchmark.extra_info.update(extra_info(cell, records, None))
            pytest.fail(str(comparison), pytrace=False)
        expected_trials = self.sweep.count_trials(cell)
        answer = judge_cell(cell, self.gate.limits(cell), comparison, expected_trials)
        benchmark.extra_info.update(extra_info(cell, records, answer))
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


class TrialReporter(TrialListener):
    """Prints a line for each trial while trials run, past pytest's capture of the output.

    It listens to the runner as `RunView` of `harness run` does. No line is redrawn, so that logs of
    CI stay readable; so there is no progress within a trial.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.terminal: Any = config.pluginmanager.get_plugin("terminalreporter")
        self.capture: Any = config.pluginmanager.get_plugin("capturemanager")
        self.planned_count = 0  # trials to run
        self.finished_count = 0

    def on_plan(self, pending: Sequence[Trial], finished: Sequence[Record]) -> None:
        """Print how many trials will run."""
        self.planned_count = len(pending)
        self.print_line(
            f"harness: {counted(len(pending), 'trial')} to run, {len(finished)} already there"
        )

    def on_trial_end(self, record: Record, folder: TrialFolder) -> None:
        """Print the trial's line as `harness run` does, without its colors."""
        self.finished_count += 1
        line = trial_line(record, folder, self.finished_count, self.planned_count)
        self.print_line(write(line))

    def on_message(self, text: str) -> None:
        """Print it as a separate line."""
        self.print_line(f"harness: {text}")

    def print_line(self, text: str) -> None:
        """Print a separate line.

        Without pytest's terminal reporter (`-p no:terminal`) nothing is printed.
        """
        if self.terminal is not None:
            with self.capture.global_and_fixture_disabled():
                self.terminal.ensure_newline()
                self.terminal.write_line(text)


def _describe_unmeasured(records: Sequence[Record]) -> str:
    """Return why none of a cell's trials was measured: the failure or the violations of each."""
    reasons = [
        f"{record.trial.id}: {record.failure or ', '.join(record.violations)}" for record in records
    ]
    return "; ".join(reasons) or "no trial is recorded"


def read_baselines(folder: Path, gate: str | None) -> tuple[list[CellResult], Gate]:
    """Return the baselines in a folder and those below it, and the gate.

    The gate is the file `gate`, else gate.yaml in the folder or next to it, else the defaults. It is
    next to the folder where that is the folder of one hardware and the gate is for all.

    Raises BadInput for a folder without baselines, and for a file that can't be read.
    """
    baselines = [baseline.read(path) for path in sorted(folder.rglob("*.json"))]
    if not baselines:
        raise BadInput(
            f"--harness-baseline: {folder}: found no baselines; harness baseline SWEEP makes them"
        )
    if gate:
        return baselines, read_gate(Path(gate))
    for candidate in (folder / GATE_FILE_NAME, folder.parent / GATE_FILE_NAME):
        if candidate.is_file():
            return baselines, read_gate(candidate)
    return baselines, read_gate(None)


def lost_cells(sweep: Sweep, baselines: Sequence[CellResult]) -> list[Cell]:
    """Return the cells that the baselines of this sweep, by its name, have and the sweep has not.

    A cell whose settings were changed counts as one that was lost and one that is new. One whose
    code was changed is the same: that is what a baseline is for.
    """
    ids = {cell.settings_id for cell in sweep.cells}
    lost: dict[str, Cell] = {}  # by id: a cell may have a baseline for each kind of hardware
    for result in baselines:
        if result.cell.settings_id not in ids and _is_of_sweep(result, sweep):
            lost[result.cell.settings_id] = result.cell
    return list(lost.values())


def _is_of_sweep(result: CellResult, sweep: Sweep) -> bool:
    """Return whether any trial of a baseline ran in a sweep of this name."""
    return any(trial.sweep == sweep.name for trial in result.trials)


def extra_info(cell: Cell, records: Sequence[Record], answer: GateAnswer | None) -> dict[str, Any]:
    """Return what pytest-benchmark's JSON holds of a cell besides the times: its rows and verdicts.

    `answer` is None where the comparison was refused; then the verdict's keys are absent.
    """
    result = cell_result(cell, records)
    info: dict[str, Any] = {
        "cell": cell.id,
        "axes": cell.levels,
        "hardware": list(result.hardware),
        "left_out": dict(result.left_out),
        "samples_per_second": [row.throughput for row in result.trials],
        "digests": [row.parameter_digest for row in result.trials],
    }
    if answer is not None:
        info |= {"outcome": answer.outcome, "reasons": list(answer.reasons), "verdicts": {}}
        for verdict in answer.verdicts:
            # The value and its interval are ratios of throughput, or differences of the target metric.
            info["verdicts"][verdict.metric.name] = {
                "verdict": verdict.label,
                "value": verdict.effect,
                "interval": verdict.interval,
                "baseline": verdict.mean_a,
                "run": verdict.mean_b,
            }
    return info
