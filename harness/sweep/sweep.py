"""A sweep: from its YAML file to cells and trials.

Planning happens before anything starts, and without torch if the workloads are built in, so that a
mistake in a file costs a second, not a place in the queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from pathlib import Path
from typing import Any

from harness.core.errors import BadInput, did_you_mean
from harness.core.validation import dotted, shown
from harness.sweep.apart import call_apart
from harness.sweep.axes import AXES, AXIS_TYPES, Axes
from harness.sweep.cell import (
    Cell,
    Seed,
    StopRule,
    Trial,
    WorkloadRef,
    placeholders_of,
    setting_of,
)
from harness.sweep.document import Document, read_document
from harness.sweep.environment import PREFIX, variable_of
from harness.sweep.files import FileDigests
from harness.sweep.matrix import CONFLICT, ExcludedPoint, Matrix, read_matrix, read_values
from harness.sweep.sweepfile import SweepFile, SweepKeys, read_sweep_file
from harness.sweep.workload import PlannedWorkload, SweepWorkload, find_reason, read_workload
from workloads.catalog import BUILT_IN

# The sweeps that come with the package.
READY = Path(__file__).parent.parent.parent / "workloads" / "sweeps"
MAX_TRIALS = 100_000  # a typing error must not fill the memory with trials
DEFAULT_WARMUP = 10  # steps; fewer where the length leaves fewer


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
    entries = document.content.get("workloads")
    used: list[Any] = ["uses" for text in sets if "uses" in text]
    for label, entry in entries.items() if isinstance(entries, dict) else ():
        used.append(entry.get("uses", label) if isinstance(entry, dict) else label)
    if all(uses in BUILT_IN for uses in used):
        return _plan(document, sets, data, digests)
    return call_apart(_plan, document, sets, data, digests)


def _plan(
    document: Document, sets: Sequence[str], data: Sequence[str], digests: Path | None
) -> Sweep:
    """Return the sweep of a document, whose workloads this process imports; raises BadInput."""
    path = Path(document.sources[()])
    file = read_sweep_file(document, sets, data)
    workloads = [read_workload(document, label, file.workloads[label]) for label in file.workloads]
    types = {workload.label: workload.setting_types for workload in workloads}
    matrix = read_matrix(document, file, types)
    _check_axes_are_received(matrix, workloads)
    cells: list[Cell] = []
    excluded: list[ExcludedPoint] = []
    known = FileDigests(digests)
    for workload in workloads:
        for axis in workload.setting_types.keys() & matrix.sources.keys():
            # Errors in the value of such a setting name the line of the axis.
            key = (*workload.key, *axis.split(".", 1))
            document.sources.setdefault(key, matrix.sources[axis])
        cells += _cells_of(workload, file, matrix, excluded, known, has_flags=bool(sets))
    if not cells:
        reasons = Counter(f"{point.rule}: {point.reason}" for point in excluded)
        most = [f"{count} left out by {reason}" for reason, count in reasons.most_common(3)]
        problem = f"found no cell to run: {', '.join(most)}; allowed: at least one cell"
        raise document.error((), problem)
    options = [("--set", text) for text in sets] + [("--data", text) for text in data]
    sweep = Sweep(
        **{key.name: getattr(file, key.name) for key in fields(SweepKeys)},
        source=path,
        cells=_distinct(document, cells),
        excluded=excluded,
        unused_rules=matrix.unused_rules(excluded),
        workload_seeds={
            label: entry.seeds for label, entry in file.workloads.items() if entry.seeds
        },
        options=list(chain.from_iterable(options)),
    )
    count = sum(map(sweep.count_trials, sweep.cells))
    if count > MAX_TRIALS:
        problem = f"found {count:,} trials over all cells, seeds and repeats; allowed: at most {MAX_TRIALS:,}"
        raise document.error((), problem)
    return sweep


def _check_axes_are_received(matrix: Matrix, workloads: Sequence[SweepWorkload]) -> None:
    """Raise BadInput for an axis that varies and that no workload receives: each is a script."""
    for axis in sorted(matrix.varying.intersection(AXES)):
        if not any(workload.receives(axis) for workload in workloads):
            problem = f"found an axis that no argument names; write {{{axis}}} in `arguments`"
            raise BadInput(f"{matrix.sources[axis]}: {axis}: {problem}")


def _cells_of(
    workload: SweepWorkload,
    file: SweepFile,
    matrix: Matrix,
    excluded: list[ExcludedPoint],
    digests: FileDigests,
    *,
    has_flags: bool,
) -> Iterator[Cell]:
    """Yield a workload's cells, and add the points that are left out to `excluded`.

    A point of the product with a conflict is left out, since products contain unintended points. An
    included point is intended, so its conflict is an error, BadInput, unless `--set` has changed the
    sweep.
    """
    label, entry, types = workload.label, workload.entry, workload.setting_types
    own = _own_values(workload, matrix)
    length, stop = entry.length or file.length, entry.stop or file.stop
    warmup = _warmup(workload, file, length.steps)
    unset = ["batch_size"] if {"batch_size"}.isdisjoint((*matrix.sources, *entry.axes)) else []
    unnamed = workload.settings.keys() - matrix.sources.keys()
    planned: dict[str, PlannedWorkload] = {}  # by the settings, as text
    for point, included_by in matrix.points(label, own, types):
        axes, environment, settings = _split(point)
        key = str(settings)
        if key not in planned and all(map(workload.has, settings)):
            varied = [axis for axis in settings if axis in matrix.sources]
            planned[key] = workload.plan(settings, digests, varied, unset)
            _check_validation(workload, planned[key][0], stop)
        plan = planned.get(key)
        rule, reason = _judge(matrix, workload, point, included_by, plan, axes)
        if plan is not None and reason is None:
            yield Cell(
                workload=plan[0],
                axes=axes,
                environment=environment,
                length=length,
                evaluate=entry.evaluate or file.evaluate,
                warmup=warmup,
                stop=stop,
                stack=None if axes.stack is None else file.stacks[axes.stack],
            )
            continue
        if included_by is not None and not has_flags:
            raise workload.document.error(("include", included_by), str(reason))
        levels = {**axes.values, **{axis: point[axis] for axis in point if axis not in unnamed}}
        excluded.append(ExcludedPoint(workload=label, axes=levels, rule=rule, reason=str(reason)))


def _judge(
    matrix: Matrix,
    workload: SweepWorkload,
    point: Mapping[str, Any],
    included_by: int | None,
    plan: PlannedWorkload | None,
    axes: Axes,
) -> tuple[str, str | None]:
    """Return the rule and the reason why a point is left out, if it is.

    `plan` is None if the workload lacks one of its settings. What is included no rule excludes.
    """
    if included_by is None and matrix.exclude:
        own_levels = {} if plan is None else plan[0].levels
        levels = {**own_levels, **axes.values, **point, "workload": workload.label}
        rule = matrix.exclusion_of(levels)
        if rule is not None:
            return rule, "the sweep says so"
    if plan is None:
        missing = [axis for axis in point if setting_of(axis) and not workload.has(axis)]
        return CONFLICT, f"{workload.label} has no {missing[0]}"
    return CONFLICT, find_reason(plan, axes)


def _split(point: Mapping[str, Any]) -> tuple[Axes, dict[str, str | None], dict[str, Any]]:
    """Return the harness's axes, the variables and the workload's settings of a point."""
    axes = {axis: value for axis, value in point.items() if axis in AXIS_TYPES}
    settings = {axis: value for axis, value in point.items() if setting_of(axis) is not None}
    names = [axis for axis in point if variable_of(axis) is not None]
    environment = {axis.removeprefix(PREFIX): point[axis] for axis in names}
    return Axes.of(axes), environment, settings


def _own_values(workload: SweepWorkload, matrix: Matrix) -> dict[str, Any]:
    """Return what the workload decides: its batch size, and the axes and settings of its entry.

    Raises BadInput for one that the matrix varies.
    """
    document, types = workload.document, workload.setting_types
    own = dict(workload.settings)
    if "batch_size" not in matrix.constants:
        own["batch_size"] = workload.declaration.batch_size
    for axis, value in workload.entry.axes.items():
        key = (*workload.key, "axes", axis)
        if axis in types:
            allowed = dotted((*workload.key, *axis.split(".", 1)))
            problem = f"found a setting of the workload; allowed: {allowed}"
            raise document.error(key, problem)
        if isinstance(value, list):
            allowed = f"one value; several belong below matrix: `{axis}: {shown(value)}`"
            raise document.error(key, f"found {shown(value)}; allowed: {allowed}")
        (own[axis],) = read_values(document, key, value, {workload.label: types})
    for axis in matrix.varying & (workload.settings.keys() | workload.entry.axes.keys()):
        section, name = setting_of(axis) or ("axes", axis)
        problem = "found in matrix or zip too; allowed: in one place"
        raise document.error((*workload.key, section, name), problem)
    return own


def _warmup(workload: SweepWorkload, file: SweepFile, steps: int | None) -> int:
    """Return the steps that are not measured, of a length in `steps`, None of one in epochs.

    How many steps an epoch has is only known with the data. Raises BadInput if no step remains to be
    measured, and if a script's arguments name the steps of a length that has none.
    """
    document, label = workload.document, workload.label
    names = placeholders_of(workload.arguments or ())
    if steps is None and "steps" in names and "steps" not in workload.entry.options:
        problem = "found {steps} without a length in steps; allowed with `length: 300 steps`"
        raise document.error((*workload.key, "arguments"), problem)
    if file.warmup is None:
        return DEFAULT_WARMUP if steps is None else min(DEFAULT_WARMUP, steps // 2)
    if steps is not None and file.warmup >= steps:
        problem = f"found {file.warmup}; allowed: fewer than the {steps} steps of {label}"
        raise document.error(("warmup",), problem)
    return file.warmup


def _check_validation(
    workload: SweepWorkload, reference: WorkloadRef, stop: StopRule | None
) -> None:
    """Raise BadInput if a rule for stopping looks at a validation set that the settings leave empty.

    A user's class may have one without a setting, so only its ranks can tell.
    """
    if stop is not None and reference.data.get("validation") == 0:
        allowed = "more, such as 0.15: stop looks at a validation set, so that the test set does not decide"
        problem = f"found 0; allowed: {allowed} when training ends"
        raise workload.document.error((*workload.key, "data", "validation"), problem)


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
        # Ids have the head of the digest only: of 100,000 cells, two share one by chance in 1 of 200 sweeps.
        if first.digest(first.workload.code) != cell.digest(cell.workload.code):
            problem = f"found the same id for {first.label} and {cell.label}; allowed: one of them"
            raise document.error(("matrix",), problem)
    return list(distinct.values())
