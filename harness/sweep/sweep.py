"""A sweep: from its YAML file to cells and trials.

Planning happens before anything starts, and without torch if the workloads are built in, so that a
mistake in a file costs a second, not a place in the queue.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from harness.core.errors import BadInput, HarnessError, did_you_mean
from harness.core.processes import die_with_parent
from harness.core.validation import shown
from harness.sweep.axes import AXES, AXIS_TYPES, PREFIX, Axes
from harness.sweep.cell import Cell, Seed, StopRule, Trial, is_setting
from harness.sweep.document import Document, read_document
from harness.sweep.files import FileDigests
from harness.sweep.matrix import CONFLICT, ExcludedPoint, Matrix, read_values
from harness.sweep.sweepfile import MAX_TRIALS, SweepFile, SweepKeys, read_sweep_file
from harness.sweep.workload import PlannedWorkload, SweepWorkload, find_reason
from workloads.catalog import BUILT_IN

# The sweeps that come with the package.
READY = Path(__file__).parent.parent.parent / "workloads" / "sweeps"
PLANNING_SECONDS = 3600  # importing a workload may download something
DEFAULT_WARMUP = 10  # steps; fewer where the length leaves fewer

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Sweep(SweepKeys):
    """A checked sweep file with the matrix expanded."""

    source: Path  # the sweep file
    cells: Sequence[Cell]
    excluded: Sequence[ExcludedPoint]
    unused_rules: Sequence[str]  # exclude rules that matched nothing
    workload_seeds: Mapping[str, Sequence[Seed]] = field(default_factory=dict)  # by label
    options: Sequence[str] = ()  # --set and --data with their texts, which changed the content
    # Of a part that `--only` has selected: the seeds by cell id, and all cells of the whole sweep.
    selected_seeds: Mapping[str, Sequence[Seed]] | None = None
    all_cells: Sequence[Cell] = ()

    @property
    def base_folder(self) -> Path:
        """Return the folder that relative paths in the file are relative to: the file's own."""
        return self.source.absolute().parent

    def blocks(self) -> list[list[Trial]]:
        """Return the trials in the order in which they run, block by block.

        A block has every cell with its seed once, so that cells compare under similar conditions.
        Every other block runs backwards, so that a machine that slows down favors no cell.
        """
        blocks: list[list[Trial]] = []
        for repeat in range(self.repeats):
            for seed in self.all_seeds:
                cells = [cell for cell in self.cells if seed in self.seeds_of(cell)]
                if len(blocks) % 2:
                    cells.reverse()
                blocks.append([Trial(cell=cell, seed=seed, repeat=repeat) for cell in cells])
        return blocks

    @property
    def all_seeds(self) -> list[int]:
        """Return the seeds that any cell is trained with, in the order in which they run."""
        return list(dict.fromkeys(chain.from_iterable(map(self.seeds_of, self.cells))))

    def seeds_of(self, cell: Cell) -> Sequence[int]:
        """Return the seeds that a cell is trained with."""
        if self.selected_seeds is not None:
            return self.selected_seeds[cell.id]
        return self.workload_seeds.get(cell.workload.label, self.seeds)

    def count_trials(self, cell: Cell) -> int:
        """Return how many trials a cell has, over its seeds and repeats."""
        return len(self.seeds_of(cell)) * self.repeats

    def trials(self) -> list[Trial]:
        """Return the trials of all blocks in the order in which they run."""
        return list(chain.from_iterable(self.blocks()))

    def whole(self) -> Sweep:
        """Return the sweep with all of its cells and seeds: itself, unless it is a part."""
        if self.selected_seeds is None:
            return self
        return replace(self, cells=self.all_cells, selected_seeds=None, all_cells=())

    def trials_left_out(self) -> list[Trial]:
        """Return the trials of the whole sweep that are not among `trials`."""
        selected = {trial.id for trial in self.trials()}
        return [trial for trial in self.whole().trials() if trial.id not in selected]


def ready_sweeps() -> dict[str, Path]:
    """Return the sweeps that come with the package, by name."""
    return {path.stem: path for path in sorted(READY.glob("*.yaml"))}


def find_sweep_file(name: str) -> Path:
    """Return the file of a sweep, given as a path or as the name of a ready one; raises BadInput."""
    path = Path(name)
    if path.suffix == ".py":
        line = f"workloads: {{{path.stem}: {{uses: {name}}}}}"
        raise BadInput(f"{name}: found Python; allowed: a sweep file, with the line `{line}`")
    if path.is_file():
        return path
    ready = ready_sweeps()
    if name in ready:
        return ready[name]
    files = [str(file) for file in sorted(path.parent.glob("*.y*ml"))]
    hint = did_you_mean(name, [*ready, *files], ready)
    raise BadInput(f"{name}: no such sweep file or ready sweep; {hint}")


def load_sweep(
    path: Path,
    sets: Sequence[str] = (),
    data: Sequence[str] = (),
    digests: Path | None = None,
) -> Sweep:
    """Return the sweep in a file with `--set` and `--data` applied; raises BadInput.

    Planning checks types, axes against each other, and that data files can be read. `sets` and `data`
    are the texts after these flags, in their order; all of `data` is applied last. `digests` is a file
    that remembers those of large data files.

    Users' code is imported in a process of its own: whatever it changes, such as variables or the
    working directory, is no part of any other trial, and what it prints goes to stderr.
    """
    document = read_document(path)
    file = read_sweep_file(document, sets, data)
    used = {entry.uses or label for label, entry in file.workloads.items()}
    if used <= BUILT_IN.keys():
        return _plan(document, file, sets, data, digests)
    return call_apart(_plan, document, file, sets, data, digests)


def call_apart(function: Callable[..., T], *arguments: Any) -> T:
    """Return what a function returns that imports users' code, in a forked process; raises what it raises.

    Whatever that code changes when it is imported is then no part of any trial. Forked, so that torch
    need not be loaded again where it is loaded. Raises HarnessError if the process ends otherwise.
    """
    sys.stdout.flush()
    context = multiprocessing.get_context("fork")
    try:
        with ProcessPoolExecutor(1, context, _begin_apart, (os.getpid(),)) as processes:
            return processes.submit(function, *arguments).result()
    except BrokenProcessPool:
        problem = "importing a workload ended the process that plans: see its output above"
        raise HarnessError(problem) from None


def _begin_apart(parent: int) -> None:
    """Have this process, which was forked, print to stderr and end at the deadline or with its parent."""
    die_with_parent(parent=parent)
    signal.alarm(PLANNING_SECONDS)
    os.dup2(2, 1)
    sys.stdout = sys.stderr


def _plan(
    document: Document,
    file: SweepFile,
    sets: Sequence[str],
    data: Sequence[str],
    digests: Path | None,
) -> Sweep:
    """Return the sweep of a document, whose workloads this process imports; raises BadInput."""
    workloads = [SweepWorkload(document, label, file.workloads[label]) for label in file.workloads]
    matrix = Matrix(document, file, workloads)
    cells: list[Cell] = []
    excluded: list[ExcludedPoint] = []
    known = FileDigests(digests)
    for workload in workloads:
        planner = _Planner(workload, file, matrix, known)
        for point in planner.judged_points(has_flags=bool(sets)):
            if isinstance(point, Cell):
                cells.append(point)
            else:
                excluded.append(point)
    if not cells:
        reasons = Counter(f"{point.rule}: {point.reason}" for point in excluded)
        (reason, count), *_ = reasons.most_common(1)
        raise document.error((), f"found no cell to run: {count} left out by {reason}")
    _check_axes_are_named(document, matrix, cells)
    unused_rules = dict.fromkeys(f"exclude[{number}]" for number in range(len(matrix.exclude)))
    for point in excluded:
        unused_rules.pop(point.rule, None)
    workload_seeds = {}
    for label, entry in file.workloads.items():
        if entry.seeds is not None:
            workload_seeds[label] = entry.seeds
    options: list[str] = []
    for text in sets:
        options += ["--set", text]
    for text in data:
        options += ["--data", text]
    sweep = Sweep(
        **{key.name: getattr(file, key.name) for key in fields(SweepKeys)},
        source=Path(document.sources[()]),
        cells=_distinct(document, cells),
        excluded=excluded,
        unused_rules=list(unused_rules),
        workload_seeds=workload_seeds,
        options=options,
    )
    count = sum(map(sweep.count_trials, sweep.cells))
    if count > MAX_TRIALS:
        problem = f"found {count:,} trials over all cells, seeds and repeats"
        raise document.error((), f"{problem}; allowed: at most {MAX_TRIALS:,}")
    return sweep


def _check_axes_are_named(document: Document, matrix: Matrix, cells: Sequence[Cell]) -> None:
    """Raise BadInput for an axis that varies and that no workload gets, as each is a script."""
    for axis in matrix.varying.intersection(AXES):
        if not any(cell.workload.receives(axis) for cell in cells):
            problem = f"found an axis that no argument names; write {{{axis}}} in `arguments`"
            raise document.error(matrix.axes[axis], problem)


@dataclass(frozen=True)
class _Planner:
    """Makes the cells of one workload out of the points of the matrix."""

    workload: SweepWorkload
    file: SweepFile
    matrix: Matrix
    digests: FileDigests

    def judged_points(self, *, has_flags: bool) -> Iterator[Cell | ExcludedPoint]:
        """Yield a cell for each point that can be trained, and why each other is left out.

        A point of the product with a conflict is left out, since products contain unintended points. An
        included point is intended, so its conflict is an error, BadInput, unless `--set` has changed the
        sweep.
        """
        workload, file, entry = self.workload, self.file, self.workload.entry
        length, stop = entry.length or file.length, entry.stop or file.stop
        warmup = _warmup(workload, file, length.steps)
        planned: dict[str, PlannedWorkload | None] = {}  # by the settings, as text
        for point, included_by in self.matrix.points(workload, _own_values(workload)):
            axes, environment, settings = _split(point)
            key = str(settings)
            if key not in planned:
                planned[key] = self._plan_settings(settings)
                _check_validation(workload, planned[key], stop)
            plan = planned[key]
            rule, reason = self._judge(point, included_by, plan, axes)
            if plan is not None and reason is None:
                yield Cell(
                    workload=plan[0],
                    axes=axes,
                    environment=environment,
                    length=length,
                    evaluate=entry.evaluate or file.evaluate,
                    warmup=warmup,
                    stop=stop,
                    stack=file.stacks.get(axes.stack or ""),
                )
                continue
            if included_by is not None and not has_flags:
                raise workload.document.error(("include", included_by), str(reason))
            varied = {axis: point[axis] for axis in point if axis in self.matrix.axes}
            levels = {**axes.values, **varied}
            yield ExcludedPoint(workload=workload.label, axes=levels, rule=rule, reason=str(reason))

    def _plan_settings(self, settings: Mapping[str, Any]) -> PlannedWorkload | None:
        """Return the workload with its settings at some points, None if it lacks one that the sweep sets."""
        varied = [axis for axis in settings if axis in self.matrix.axes]
        if not self.workload.setting_types.keys() >= set(varied):
            return None
        unset = {"batch_size"}.difference(self.matrix.axes, self.workload.entry.axes)
        return self.workload.plan(settings, self.digests, varied, sorted(unset))

    def _judge(
        self,
        point: Mapping[str, Any],
        included_by: int | None,
        plan: PlannedWorkload | None,
        axes: Axes,
    ) -> tuple[str, str | None]:
        """Return the rule and the reason why a point is left out, if it is.

        What is included no rule excludes.
        """
        workload, matrix = self.workload, self.matrix
        if included_by is None and matrix.exclude:
            declared = {} if plan is None else plan[0].settings
            levels = {**declared, **axes.values, **point, "workload": workload.label}
            rule = matrix.exclusion_of(levels)
            if rule is not None:
                return rule, "the sweep says so"
        if plan is None:
            lacking = set(filter(is_setting, point)) - workload.setting_types.keys()
            return CONFLICT, f"{workload.label} has no {min(lacking)}"
        return CONFLICT, find_reason(plan, axes)


def _split(point: Mapping[str, Any]) -> tuple[Axes, dict[str, str | None], dict[str, Any]]:
    """Return the harness's axes, the variables and the workload's settings of a point."""
    axes: dict[str, Any] = {}
    environment: dict[str, str | None] = {}
    settings: dict[str, Any] = {}
    for axis, value in point.items():
        if axis in AXIS_TYPES:
            axes[axis] = value
        elif is_setting(axis):
            settings[axis] = value
        else:
            environment[axis.removeprefix(PREFIX)] = value
    return Axes.of(axes), environment, settings


def _own_values(workload: SweepWorkload) -> dict[str, Any]:
    """Return the settings and the axes of a workload's entry; raises BadInput for one with several values."""
    own = workload.entry.settings
    for axis, value in workload.entry.axes.items():
        key = (*workload.key, "axes", axis)
        values = read_values(workload.document, key, value, [workload])
        if len(values) > 1:
            allowed = "one value; several belong below matrix"
            raise workload.document.error(key, f"found {shown(value)}; allowed: {allowed}")
        own[axis] = values[0]
    return own


def _warmup(workload: SweepWorkload, file: SweepFile, steps: int | None) -> int:
    """Return the steps that are not measured, of a length in `steps`, None of one in epochs.

    How many steps an epoch has is only known with the data. Raises BadInput if no step remains to be
    measured.
    """
    if file.warmup is None:
        return DEFAULT_WARMUP if steps is None else min(DEFAULT_WARMUP, steps // 2)
    if steps is not None and file.warmup >= steps:
        problem = f"found {file.warmup}; allowed: fewer than the {steps} steps of {workload.label}"
        raise workload.document.error(("warmup",), problem)
    return file.warmup


def _check_validation(
    workload: SweepWorkload, plan: PlannedWorkload | None, stop: StopRule | None
) -> None:
    """Raise BadInput if a rule for stopping looks at a validation set that the settings leave empty.

    A user's class may have one without a setting, so only its ranks can tell.
    """
    if stop is not None and plan is not None and plan[0].settings.get("data.validation") == 0:
        allowed = "more, such as 0.15: stop looks at a validation set, so that the test set does not decide"
        key = (*workload.key, "data", "validation")
        raise workload.document.error(key, f"found 0; allowed: {allowed} when training ends")


def _distinct(document: Document, cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells, each once, in their order.

    Cells of one workload may be equal, since `include` may add what the matrix already has. Raises
    BadInput for equal cells of two workloads: both labels would show the same trials.
    """
    distinct: dict[str, Cell] = {}
    for cell in cells:
        first, label = distinct.setdefault(cell.id, cell), cell.workload.label
        if first is cell:
            continue
        if first.workload.label != label:
            problem = f"found the same as {first.workload.label}; allowed: a difference"
            raise document.error(("workloads", label), problem)
        # An id is the head of a digest: of 100,000 cells, two share one by chance in 1 of 200 sweeps.
        if first.digest(first.workload.code) != cell.digest(cell.workload.code):
            problem = f"found the same id for {first.label} and {cell.label}; allowed: one of them"
            raise document.error(("matrix",), problem)
    return list(distinct.values())
