"""A sweep: from its YAML file to cells and trials.

Planning happens before anything starts, and without torch if the workloads are built in, so that a
mistake in a file costs a second, not a place in the queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from harness.core.errors import BadInput, did_you_mean
from harness.core.validation import Key, dotted, shown
from harness.spec.apart import call_apart
from harness.spec.axes import AXES, AXIS_TYPES, Axes
from harness.spec.cell import (
    Cell,
    Seed,
    StopRule,
    Trial,
    placeholders_of,
    setting_of,
)
from harness.spec.document import Document, read_document
from harness.spec.environment import PREFIX
from harness.spec.files import FileDigests
from harness.spec.matrix import CONFLICT, ExcludedPoint, Matrix, Point, read_matrix, read_values
from harness.spec.sweepfile import SweepFile, SweepKeys, read_sweep_file
from harness.spec.workload import PlannedWorkload, SweepWorkload, read_workload
from workloads.catalog import BUILT_IN

# The sweeps that come with the package.
READY = Path(__file__).parent.parent.parent / "workloads" / "sweeps"
MAX_TRIALS = 100_000  # a typing error must not fill the memory with trials
DEFAULT_WARMUP = 10  # steps; fewer where the length leaves fewer
MOST_REASONS = 3  # that an error lists, if all points of a matrix are excluded


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
        seeds: dict[int, None] = {}  # an ordered set
        for cell in self.cells:
            seeds.update(dict.fromkeys(self.seeds_of(cell)))
        return list(seeds)

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
        return [trial for block in self.blocks() for trial in block]

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
    used = []
    for label, entry in entries.items() if isinstance(entries, dict) else ():
        used.append(entry.get("uses", label) if isinstance(entry, dict) else label)
    if all(uses in BUILT_IN for uses in used) and not any("uses" in text for text in sets):
        return _plan(document, path, sets, data, FileDigests(digests))
    return call_apart(_plan, document, path, sets, data, FileDigests(digests))


def _plan(
    document: Document,
    path: Path,
    sets: Sequence[str],
    data: Sequence[str],
    digests: FileDigests,
) -> Sweep:
    """Return the sweep of a document, whose workloads this process imports; raises BadInput."""
    file = read_sweep_file(document, sets, data)
    workloads: list[SweepWorkload] = []
    for label, entry in file.workloads.items():
        workloads.append(read_workload(document, label, entry, digests))
    types = {workload.label: workload.setting_types for workload in workloads}
    matrix = read_matrix(document, file, types)
    _check_axes_are_received(matrix, workloads)
    for workload in workloads:
        for axis in workload.setting_types.keys() & matrix.sources.keys():
            # Errors in the value of such a setting name the line of the axis.
            key = (*workload.key, *axis.split(".", 1))
            document.sources.setdefault(key, matrix.sources[axis])
    cells: list[Cell] = []
    excluded: list[ExcludedPoint] = []
    for workload in workloads:
        cells += _cells_of(workload, file, matrix, excluded, has_flags=bool(sets))
    if not cells:
        raise _nothing_to_run(document, excluded)
    options = []
    for name, texts in (("--set", sets), ("--data", data)):
        for text in texts:
            options += [name, text]
    seeds = {label: entry.seeds for label, entry in file.workloads.items() if entry.seeds}
    sweep = Sweep(
        **{key.name: getattr(file, key.name) for key in fields(SweepKeys)},
        source=path,
        cells=_distinct(document, cells),
        excluded=excluded,
        unused_rules=[f"exclude[{number}]" for number in sorted(matrix.unused)],
        workload_seeds=seeds,
        options=options,
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
    *,
    has_flags: bool,
) -> Iterator[Cell]:
    """Yield a workload's cells, and add the points that are left out to `excluded`.

    A point of the product with a conflict is left out, since products contain unintended points. An
    included point is intended, so its conflict is an error, BadInput, unless `--set` has changed the
    sweep.
    """
    label, entry = workload.label, workload.entry
    length, stop = entry.length or file.length, entry.stop or file.stop
    warmup = _warmup(workload, file, length.steps)
    is_set = "batch_size" in matrix.sources or "batch_size" in entry.axes
    planned: dict[str, PlannedWorkload] = {}  # by the settings of points, as text
    for point in matrix.points(label, _own_values(workload, matrix), workload.setting_types):
        axes, environment, settings = _split(point.values)
        key = str(settings)
        if key not in planned and workload.setting_types.keys() >= settings.keys():
            unset = [] if is_set else ["batch_size"]
            planned[key] = workload.plan(settings, unset)
            _check_validation(workload, planned[key], stop)
        plan = planned.get(key)
        rule, reason = _judge(matrix, workload, point, axes, plan)
        if plan is not None and reason is None:
            yield Cell(
                workload=plan.reference,
                axes=axes,
                environment=environment,
                length=length,
                evaluate=entry.evaluate or file.evaluate,
                warmup=warmup,
                stop=stop,
                stack=None if axes.stack is None else file.stacks[axes.stack],
            )
            continue
        if point.included_by is not None and not has_flags:
            raise workload.document.error(("include", point.included_by), str(reason))
        levels = {**axes.values, **point.values}
        excluded.append(ExcludedPoint(workload=label, axes=levels, rule=rule, reason=str(reason)))


def _judge(
    matrix: Matrix,
    workload: SweepWorkload,
    point: Point,
    axes: Axes,
    plan: PlannedWorkload | None,
) -> tuple[str, str | None]:
    """Return the rule and the reason why a point is left out, if it is.

    `plan` is None if the workload lacks one of its settings. What is included no rule excludes.
    """
    if matrix.exclude and point.included_by is None:
        own = {} if plan is None else plan.reference.levels
        levels = {**own, **axes.values, **point.values, "workload": workload.label}
        rule = matrix.matching_exclusion(levels)
        if rule is not None:
            return rule, "the sweep says so"
    if plan is None:
        settings = [axis for axis in point.values if setting_of(axis) is not None]
        missing = [axis for axis in settings if axis not in workload.setting_types]
        return CONFLICT, f"{workload.label} has no {missing[0]}"
    return CONFLICT, plan.find_conflict(axes)


def _split(values: Mapping[str, Any]) -> tuple[Axes, dict[str, str | None], dict[str, Any]]:
    """Return the harness's axes, the variables and the workload's settings of a point."""
    own: dict[str, Any] = {}
    environment: dict[str, str | None] = {}
    settings: dict[str, Any] = {}
    for axis, value in values.items():
        if axis in AXIS_TYPES:
            own[axis] = value
        elif setting_of(axis) is not None:
            settings[axis] = value
        else:
            environment[axis.removeprefix(PREFIX)] = value
    return Axes.of(own), environment, settings


def _own_values(workload: SweepWorkload, matrix: Matrix) -> dict[str, Any]:
    """Return the axes that the workload decides: its batch size, and what its entry sets.

    Raises BadInput for an axis that the matrix varies.
    """
    document, entry, types = workload.document, workload.entry, workload.setting_types
    own: dict[str, Any] = {}
    if "batch_size" not in matrix.constants:
        own["batch_size"] = workload.declaration.batch_size
    for section, values in (("axes", entry.axes), ("options", entry.options), ("data", entry.data)):
        for name, value in values.items():
            key: Key = (*workload.key, section, name)
            axis = name if section == "axes" else f"{section}.{name}"
            if axis in matrix.varying:
                problem = "found in matrix or zip too; allowed: in one place"
                raise document.error(key, problem)
            if section != "axes":
                if axis in matrix.constants:
                    own[axis] = value
                continue
            if axis in types:
                allowed = dotted((*workload.key, *axis.split(".", 1)))
                problem = f"found a setting of the workload; allowed: {allowed}"
                raise document.error(key, problem)
            if isinstance(value, list):
                allowed = f"one value; several belong below matrix: `{axis}: {shown(value)}`"
                raise document.error(key, f"found {shown(value)}; allowed: {allowed}")
            (own[axis],) = read_values(document, key, value, {workload.label: types})
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
    workload: SweepWorkload, plan: PlannedWorkload, stop: StopRule | None
) -> None:
    """Raise BadInput if a rule for stopping looks at a validation set that the settings leave empty.

    A user's class may have one without a setting, so only its ranks can tell.
    """
    if stop is not None and getattr(plan.data, "validation", None) == 0:
        problem = (
            "found 0; allowed: more, such as 0.15: stop looks at a validation set, so that the"
            " test set does not decide when training ends"
        )
        raise workload.document.error((*workload.key, "data", "validation"), problem)


def _distinct(document: Document, cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells, each once, in their order.

    Cells of one workload may be equal, since `include` may add what the matrix already has. Raises
    BadInput for equal cells of two workloads: both labels would show the same trials.
    """
    distinct: dict[str, Cell] = {}
    for cell in cells:
        first, label = distinct.setdefault(cell.id, cell), cell.workload.label
        if first.workload.label != label:
            problem = f"found the same as {first.workload.label}; allowed: a difference"
            raise document.error(("workloads", label), problem)
    return list(distinct.values())


def _nothing_to_run(document: Document, excluded: Sequence[ExcludedPoint]) -> BadInput:
    """Return the error for a sweep without cells, with the most frequent reasons for that."""
    reasons = Counter(f"{point.rule}: {point.reason}" for point in excluded)
    listed = [
        f"{count} left out by {reason}" for reason, count in reasons.most_common(MOST_REASONS)
    ]
    problem = f"found no cell to run: {', '.join(listed)}; allowed: at least one cell"
    return document.error((), problem)
