"""The cells of a sweep as pytest's items: their recorded steps in pytest-benchmark's table, our verdict as outcome."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from rich.text import Text

from harness.analysis import baseline
from harness.analysis.compare import Comparison, Rules, Side, certified_drifts, compare
from harness.analysis.questions import hardware_keys
from harness.analysis.result import CellResult, aggregate, window_seconds
from harness.core.errors import BadInput
from harness.core.paths import Results, TrialFolder
from harness.gate.answer import Answer, judge_cell
from harness.gate.limits import GATE_FILE_NAME, Gate, read_gate, unused_patterns
from harness.hardware.certificate import citation_lines
from harness.launch import sweep as runner
from harness.records.record import Record
from harness.render.terminal.run import trial_line
from harness.slurm.queue import refuse_live_jobs
from harness.spec import cluster
from harness.spec import sweep as spec
from harness.spec.cell import Cell, Trial
from harness.spec.sweep import Sweep


class GateWarning(pytest.PytestWarning):
    """Something that a gate lets through and does not keep to itself."""


class ReplayClock:
    """A timer that shows recorded moments: it stands still until `advance` takes it one step further."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps: Iterator[float] = iter(())

    def __call__(self) -> float:
        return self.now

    def advance(self) -> None:
        self.now += next(self.steps)


class SweepFile(pytest.File):
    """A sweep held against its baseline."""

    records: Sequence[Record] = ()

    def collect(self) -> Iterator[pytest.Item]:
        option = self.config.getoption
        try:
            self.sweep = spec.load_sweep(self.path, option("harness_set"), option("harness_data"))
            self.profile = cluster.load_profile(option("harness_cluster"))
            if self.profile.launcher != "torchrun" and option("harness_trials") != "recorded":
                found = f"--harness-cluster: launcher: found {self.profile.launcher!r}"
                raise BadInput(
                    f"{found}; allowed: torchrun, or --harness-trials=recorded after harness submit"
                )
            cluster.check_fits(self.profile, {cell.label: cell.axes for cell in self.sweep.cells})
            self.baselines, self.gate = read_baselines(
                Path(option("harness_baseline")), option("harness_gate")
            )
            if lost := unused_patterns(
                self.gate, [*self.sweep.cells, *(one.cell for one in self.baselines)]
            ):
                raise BadInput(
                    f"{self.gate.source}: cells: found {lost[0]!r}, which names no cell of sweep or baseline"
                )
        except BadInput as error:
            raise self.CollectError(str(error)) from None
        if not any(
            trial.sweep == self.sweep.name for one in self.baselines for trial in one.trials
        ):
            self.warn(
                GateWarning(
                    f"no baseline is of a sweep {self.sweep.name!r}: cells that it lost can't be told"
                )
            )
        for cell in self.sweep.cells:
            yield self._item(cell, lambda benchmark, cell=cell: self.check(cell, benchmark))
        for cell in lost_cells(self.sweep, self.baselines):
            yield self._item(cell, lambda benchmark, cell=cell: self.miss(cell, benchmark))

    def _item(self, cell: Cell, check: Callable[..., None]) -> pytest.Item:
        item: pytest.Function = CellItem.from_parent(self, name=cell.label, callobj=check)
        item.cell, item.clock = cell, ReplayClock()  # type: ignore[attr-defined]
        item.add_marker(pytest.mark.benchmark(timer=item.clock, group=cell.workload.label))  # type: ignore[attr-defined]
        return item

    @property
    def place(self) -> Results:
        return Results(Path(self.config.getoption("harness_results")))

    @property
    def selected(self) -> list[Cell]:
        """The cells that are left when pytest has deselected."""
        known = {cell.id for cell in self.sweep.cells}
        items = [
            item
            for item in self.session.items
            if isinstance(item, CellItem) and item.parent is self
        ]
        return [item.cell for item in items if item.cell.id in known]

    def measure(self) -> None:
        """Run those trials of the selected cells that have to run; raises HarnessError."""
        sweep = replace(self.sweep, cells=self.selected)
        folder, which = self.place.sweep_folder(sweep.name), self.config.getoption("harness_trials")
        if not sweep.cells or which == "recorded":
            self.records = runner.plan(sweep, folder, "missing").finished
            return
        redo: runner.Redo = "all" if which == "all" else "failed"
        told = Told(self.config)
        replaced = sum(
            folder.trial_folder(trial.id).record_path.exists() for trial in sweep.trials()
        )
        if redo == "all" and replaced:
            after = (
                f"afterwards MLflow gets the new ones by: harness collect {shlex.quote(sweep.name)}"
            )
            told.say(f"harness: {replaced} records in {folder.path} are replaced; {after}")
        self.records = runner.run(
            sweep, self.profile, folder, told, redo=redo, fail_fast=False, check=refuse_live_jobs
        )

    @cached_property
    def ran(self) -> Side:
        """What `measure` has found."""
        return Side(name="run", cells=aggregate(self.records))

    def tell_certificate(self) -> None:
        """How often equal code is told apart on the hardware of these trials; raises BadInput."""
        for line in citation_lines(self.place, sorted(self.ran.hardware)):
            Told(self.config).say(f"harness: {line}")

    @cached_property
    def comparison(self) -> Comparison | BadInput:
        """Of all selected cells at once, as they are one family; or why there is none."""
        ids = {cell.id for cell in self.selected}
        held = [one for one in self.baselines if one.cell.id in ids]
        here = [one for one in held if self.ran.hardware & set(hardware_keys(one))]
        base = Side(name="baseline", cells=here or held)
        limits = {cell.id: self.gate.limits(cell) for cell in self.sweep.cells}
        try:
            if not held:
                raise BadInput("the baseline has none of these cells: harness baseline save")
            rules = Rules(
                across=self.gate.file.across,
                overrides={
                    cell_id: (one.min_effect, one.accuracy_margin)
                    for cell_id, one in limits.items()
                },
                drift=certified_drifts(self.place, [self.ran, base]),
            )
            return compare(base, [self.ran], rules)
        except BadInput as error:
            return error

    def check(self, cell: Cell, benchmark: Any) -> None:
        """The test of a cell: its steps go to the benchmark, whatever the verdict on them."""
        item = next(
            one for one in self.session.items if isinstance(one, CellItem) and one.cell is cell
        )
        own = [record for record in self.records if record.trial.cell.id == cell.id]
        seconds = [
            float(step)
            for record in own
            if record.status == "done"
            for step in window_seconds(record)
        ]
        if not seconds:
            benchmark.skipped = True  # so that it doesn't complain of not having been used
            said = "; ".join(
                f"{one.trial.id}: {one.failure or ', '.join(one.violations)}" for one in own
            )
            pytest.fail(f"not measured: {said or 'no trial is recorded'}", pytrace=False)
        item.clock.steps = iter(seconds)
        benchmark.pedantic(item.clock.advance, rounds=len(seconds))
        found = self.comparison
        if isinstance(found, BadInput):
            benchmark.extra_info.update(extra_info(cell, own, None))
            pytest.fail(str(found), pytrace=False)
        expected = len(self.sweep.seeds) * self.sweep.repeats
        judged = judge_cell(cell, self.gate.limits(cell), found, expected)
        benchmark.extra_info.update(extra_info(cell, own, judged))
        item.user_properties.append(("verdict", judged.text))
        if judged.outcome == "fail":
            pytest.fail(judged.text, pytrace=False)
        if judged.outcome == "warn":
            item.warn(GateWarning(f"{cell.label}: {'; '.join(judged.reasons)}"))

    def miss(self, cell: Cell, benchmark: Any) -> None:
        """The test of a cell that the sweep has lost; it asks for the benchmark so that --benchmark-only keeps it."""
        benchmark.skipped = True
        words = f"{cell.label}: in the baseline and not in the sweep; if it is meant to go: harness baseline prune"
        if self.gate.limits(cell).missing == "fail":
            pytest.fail(words, pytrace=False)
        if self.gate.limits(cell).missing == "warn":
            self.warn(GateWarning(words))


class CellItem(pytest.Function):
    """One cell."""

    cell: Cell
    clock: ReplayClock

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, self.name


class Told:
    """Tells of running trials, past pytest's capture."""

    def __init__(self, config: pytest.Config) -> None:
        self.terminal: Any = config.pluginmanager.get_plugin("terminalreporter")
        self.capture: Any = config.pluginmanager.get_plugin("capturemanager")
        self.count = self.done = 0

    def on_plan(self, pending: Sequence[Trial], finished: Sequence[Record]) -> None:
        self.count = len(pending)
        self.say(f"harness: {len(pending)} trials to run, {len(finished)} already there")

    def on_trial_start(self, trial: Trial) -> None: ...

    def on_trial_progress(self, trial: Trial, progress: dict[str, Any]) -> None: ...

    def on_trial_end(self, record: Record, folder: TrialFolder) -> None:
        self.done += 1
        self.say(Text.from_markup(trial_line(record, folder, self.done, self.count)).plain)

    def say(self, text: str) -> None:
        if self.terminal is not None:
            with self.capture.global_and_fixture_disabled():
                self.terminal.ensure_newline()
                self.terminal.write_line(text)


def read_baselines(folder: Path, gate: str | None) -> tuple[list[CellResult], Gate]:
    """All that lies in a folder and those below it, and what the gate lets through; raises BadInput."""
    found = [baseline.read(path) for path in sorted(folder.rglob("*.json"))]
    if not found:
        raise BadInput(
            f"--harness-baseline: {folder}: found no baselines; harness baseline save SWEEP makes them"
        )
    beside = [
        place / GATE_FILE_NAME
        for place in (folder, folder.parent)
        if (place / GATE_FILE_NAME).is_file()
    ]
    return found, read_gate(Path(gate) if gate else next(iter(beside), None))


def lost_cells(sweep: Sweep, baselines: Sequence[CellResult]) -> list[Cell]:
    """Those that the baseline has of this sweep, by its name, and that are not in it any more."""
    own = {cell.id for cell in sweep.cells}
    lost = [one.cell for one in baselines if any(trial.sweep == sweep.name for trial in one.trials)]
    return list({cell.id: cell for cell in lost if cell.id not in own}.values())


def extra_info(cell: Cell, records: Sequence[Record], judged: Answer | None) -> dict[str, Any]:
    """What goes into pytest-benchmark's JSON beside the times."""
    (result,) = aggregate(records)
    info: dict[str, Any] = {
        "cell": cell.id,
        "trials": len(result.trials),
        "left_out": dict(result.left_out),
        "samples_per_second": [one.throughput for one in result.trials],
        "digests": [one.parameter_digest for one in result.trials],
        **{kind: list(found) for kind, found in result.conditions.items()},
        "axes": asdict(cell.axes),
    }
    if judged is not None:
        info |= {"outcome": judged.outcome, "reasons": list(judged.reasons)}
        info["verdicts"] = {
            row.verdict.question.metric.name: {
                "verdict": row.verdict.label,
                "higher_is_better": row.verdict.question.metric.higher_is_better,
                "baseline": row.mean_a,
                "run": row.mean_b,
                "value": row.verdict.question.metric.back_transform(
                    row.verdict.question.estimate.value
                ),
                "interval": None
                if row.verdict.question.estimate.standard_error is None
                else [row.verdict.low, row.verdict.high],
                "count": row.verdict.question.estimate.count,
                "min_effect": row.verdict.question.metric.min_effect,
            }
            for row in judged.rows
        }
    return info
