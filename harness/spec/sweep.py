"""A sweep: from its YAML file to cells and trials.

Planning happens before anything starts, and without torch if the workloads are built in, so that a
mistake in a file costs a second, not a place in the queue.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from harness.core.errors import BadInput, did_you_mean
from harness.core.validation import Key, dotted
from harness.spec import matrix
from harness.spec.axes import Axes
from harness.spec.cell import (
    CUSTOM,
    Cell,
    Fingerprints,
    Length,
    Profiling,
    Seed,
    StopRule,
    Trial,
    placeholders_of,
    setting_of,
)
from harness.spec.custom import read_custom_axes
from harness.spec.document import Document, read_document
from harness.spec.environment import Variables
from harness.spec.overrides import apply_data, apply_set
from harness.spec.saving import CheckpointRules, SaveRules
from harness.spec.script import plan_workload, read_arguments
from harness.spec.shorthand import expand_shorthand
from harness.spec.stack import Stack, check_stacks, declare_in_place
from harness.spec.text import find_control_character, problem_of_name
from harness.spec.workload import (
    Seeds,
    SweepWorkload,
    WorkloadEntry,
    read_declaration,
    with_class_of_file,
)
from workloads.catalog import BUILT_IN
from workloads.options import Between

# The sweeps that come with the package.
READY = Path(__file__).parent.parent.parent / "workloads" / "sweeps"
ONE_EPOCH = Length(epochs=1)
# A typing error must not fill the memory with trials.
MAX_REPEATS = 10_000
MAX_TRIALS = 100_000
MAX_TIMEOUT = 366 * 24 * 3600.0  # a year; the system's timers overflow at some point beyond it
MOST_REASONS = 3  # that an error lists, if all points of a matrix are excluded


@dataclass(frozen=True, kw_only=True)
class SweepContent:
    """The keys of a sweep file and their defaults."""

    name: str  # decides the folder of the results
    workloads: dict[str, WorkloadEntry]  # by label
    description: str = ""
    seeds: Seeds = field(default_factory=lambda: [0])  # each cell is trained with all of them
    repeats: Annotated[int, Between(1, MAX_REPEATS)] = 1  # trials of each cell and seed
    length: Length = ONE_EPOCH
    evaluate: Length = ONE_EPOCH  # how far apart evaluations are
    stop: StopRule | None = None  # None: every trial has its whole length
    warmup: Annotated[int, Between(0)] = 10  # optimizer steps that are never measured
    checkpoint: CheckpointRules = field(default_factory=CheckpointRules)
    profile: Profiling | None = None
    fingerprints: Fingerprints | None = None
    timeout: Annotated[float, Between(1, MAX_TIMEOUT)] = 3600.0  # seconds that one trial may take
    # The axes that the user has written: name -> file.py:Class or package.module:Class.
    custom: dict[str, str] = field(default_factory=dict)
    stacks: dict[str, Stack] = field(
        default_factory=dict
    )  # the values of the axis `stack`, by name
    # `harness.spec.matrix` checks the following, because their types depend on the axis.
    axes: dict[str, Any] = field(default_factory=dict)
    matrix: dict[str, Any] = field(default_factory=dict)
    zip: list[dict[str, Any]] = field(default_factory=list)
    exclude: list[dict[str, Any]] = field(default_factory=list)
    include: list[dict[str, Any]] = field(default_factory=list)


# In the order of the class.
SWEEP_KEYS = [key.name for key in fields(SweepContent)]


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A checked sweep file with the matrix expanded."""

    name: str
    description: str
    source: Path  # the sweep file
    seeds: Sequence[Seed]  # of every workload that sets none
    repeats: Annotated[int, Between(1, MAX_REPEATS)]  # trials of each cell and seed
    checkpoint: Literal["none", "best"]  # whether the parameters of the best evaluation are kept
    timeout: Annotated[float, Between(1)]  # seconds that one trial may take
    cells: Sequence[Cell]
    excluded: Sequence[matrix.ExcludedPoint]
    unused_rules: Sequence[str]  # exclude rules that matched nothing
    saves: SaveRules = field(default_factory=SaveRules)
    profile: Profiling | None = None
    fingerprints: Fingerprints | None = None
    workload_seeds: Mapping[str, Sequence[Seed]] = field(default_factory=dict)  # by label
    stacks: Mapping[str, Stack] = field(default_factory=dict)  # all that the file declares, by name
    options: Sequence[
        str
    ] = ()  # --set and --data with their texts, which changed the file's content

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
        return self.workload_seeds.get(cell.workload.label, self.seeds)

    def count_trials(self, cell: Cell) -> int:
        """Return how many trials a cell has, over its seeds and repeats."""
        return len(self.seeds_of(cell)) * self.repeats

    def trials(self) -> list[Trial]:
        """Return the trials of all blocks in the order in which they run."""
        return list(self._trials)

    @cached_property
    def _trials(self) -> Sequence[Trial]:
        """The trials as a sequence, cached because commands read them several times."""
        return [trial for block in self.blocks() for trial in block]

    def whole(self) -> Sweep:
        """Return the sweep with all of its cells: itself, unless it is a `SelectedSweep`."""
        return self

    def trials_left_out(self) -> list[Trial]:
        """Return the trials of the whole sweep that are not among `trials`."""
        return []


def ready_sweeps() -> dict[str, Path]:
    """Return the sweeps that come with the package, by name."""
    return {path.stem: path for path in sorted(READY.glob("*.yaml"))}


def find_sweep_file(name: str) -> Path:
    """Return the file of a sweep, given as a path or as the name of a ready one; raises BadInput.

    A path with another ending than .yaml or .yml is a sweep file all the same, unless it is Python.
    """
    if find_control_character(name):
        raise BadInput(f"{name!r}: found a control character; allowed: a path without any")
    path = Path(name)
    if path.suffix == ".py":
        line = f"workloads: {{{path.stem}: {{uses: {name}}}}}"
        raise BadInput(f"{name}: found Python; allowed: a sweep file, with the line `{line}`")
    if path.exists() and not path.is_dir():
        return path
    ready = ready_sweeps()
    if name in ready:
        return ready[name]
    folder = path if path.is_dir() else path.parent
    files = sorted(str(file) for file in folder.glob("*") if file.suffix in (".yaml", ".yml"))
    meant = [file for file in files if path.is_dir() or Path(file).stem == path.stem] or [name]
    problem = "found a folder" if path.is_dir() else "no such sweep file or ready sweep"
    raise BadInput(f"{name}: {problem}; {did_you_mean(meant[0], [*ready, *files], ready)}")


def load_sweep(path: Path, sets: Sequence[str] = (), data: Sequence[str] = ()) -> Sweep:
    """Return the sweep in a file with `--set` and `--data` applied; raises BadInput.

    Planning checks types, axes against each other, and that data files can be read. `sets` and `data`
    are the texts after these flags, in their order; all of `data` is applied last.
    """
    document = read_document(path)
    declare_in_place(document)
    file = _read_file(document, sets, data)
    custom = read_custom_axes(document, path.absolute().parent)
    workloads: dict[str, SweepWorkload] = {}
    for label, written in file.workloads.items():
        entry = with_class_of_file(document, label, written)
        workloads[label] = plan_workload(
            document,
            label,
            entry,
            declaration=read_declaration(document, label, entry),
            custom=custom,
        )
    axes_matrix = matrix.read_matrix(document, workloads)
    cells: list[Cell] = []
    excluded: list[matrix.ExcludedPoint] = []
    for workload in workloads.values():
        cells += _CellPlanner(file, workload, axes_matrix).cells(excluded)
    if not cells:
        raise _nothing_to_run(document, excluded)
    options = []
    for name, texts in (("--set", sets), ("--data", data)):
        for text in texts:
            options += [name, text]
    workload_seeds = {}
    for label, workload in workloads.items():
        if workload.entry.seeds is not None:
            workload_seeds[label] = workload.entry.seeds
    sweep = Sweep(
        name=file.name,
        description=file.description,
        source=path,
        seeds=file.seeds,
        repeats=file.repeats,
        checkpoint="best" if file.checkpoint.best else "none",
        saves=SaveRules(every=file.checkpoint.every, keep=file.checkpoint.keep),
        profile=file.profile,
        fingerprints=file.fingerprints,
        timeout=file.timeout,
        cells=_distinct(document, cells),
        excluded=excluded,
        unused_rules=[f"exclude[{number}]" for number in sorted(axes_matrix.unused)],
        workload_seeds=workload_seeds,
        stacks=file.stacks,
        options=options,
    )
    _check_trial_count(document, sweep)
    return sweep


def _check_trial_count(document: Document, sweep: Sweep) -> None:
    """Raise BadInput for more trials than can be listed, before making any of them."""
    count = sum(map(sweep.count_trials, sweep.cells))
    if count > MAX_TRIALS:
        problem = (
            f"found {count:,} trials over all cells, seeds and repeats; allowed: at most"
            f" {MAX_TRIALS:,}"
        )
        raise document.error((), problem)


def _read_file(document: Document, sets: Sequence[str], data: Sequence[str]) -> SweepContent:
    """Return the checked keys of a sweep file, `--set` and then `--data` applied; raises BadInput.

    The file is checked before the first flag and after each flag. So flags find mappings where they
    look for them, and a mistake is reported where it was made.
    """
    file = _validate(document)
    for text in sets:
        apply_set(document, text, SWEEP_KEYS)
        file = _validate(document)
    for text in data:  # after flags that may have chosen a source which reads files
        apply_data(document, text)
        file = _validate(document)
    _check_file(document, file)
    return file


def _validate(document: Document) -> SweepContent:
    """Return the checked keys of a sweep file, and leave no short form in it; raises BadInput."""
    expand_shorthand(document, SWEEP_KEYS)
    file: SweepContent = document.validate(SweepContent, document.content)
    return file


def _check_file(document: Document, file: SweepContent) -> None:
    """Raise BadInput for mistakes that the types of the keys allow.

    These are a name that is not safe to show, no workloads, and repeated seeds.
    """
    _check_name(document, ("name",), file.name)
    if not file.workloads:
        raise document.error(
            ("workloads",), f"found none; {did_you_mean('', BUILT_IN)}, or a class of yours"
        )
    _check_seeds(document, ("seeds",), file.seeds)
    check_stacks(document, file.stacks)
    for label, entry in file.workloads.items():
        _check_name(document, ("workloads", label), label)
        if entry.seeds is not None:
            _check_seeds(document, ("workloads", label, "seeds"), entry.seeds)


def _check_name(document: Document, key: Key, name: str) -> None:
    """Raise BadInput for the name of a sweep or of a workload that is not safe to show."""
    problem = problem_of_name(name)
    if problem is not None:
        raise document.error(key, problem)


def _check_seeds(document: Document, key: Key, seeds: Sequence[int]) -> None:
    """Raise BadInput for no seeds, and for a repeated seed.

    Two trials of one seed would share an id; that is what `repeats` is for.
    """
    if not seeds or len(set(seeds)) < len(seeds):
        raise document.error(key, f"found {seeds}; allowed: at least one, each once")


def _distinct(document: Document, cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells, each once, in their order.

    Cells of one workload may be equal, since `include` may add what the matrix already has. Raises
    BadInput for equal cells of two workloads: both labels would show the same trials.
    """
    distinct: list[Cell] = []
    first_cells: defaultdict[Hashable, dict[Axes, Cell]] = defaultdict(dict)
    for cell in cells:
        first = first_cells[cell.key_without_axes].setdefault(cell.axes, cell)
        label = cell.workload.label
        if first.workload.label != label:
            problem = f"found the same as {first.workload.label}; allowed: a difference"
            raise document.error(("workloads", label), problem)
        if first is cell:
            distinct.append(cell)
    return distinct


def _nothing_to_run(document: Document, excluded: Sequence[matrix.ExcludedPoint]) -> BadInput:
    """Return the error for a sweep without cells, with the most frequent reasons for that."""
    reasons: Counter[str] = Counter()
    for point in excluded:
        if point.rule == matrix.CONFLICT:
            reasons[f"because {point.reason}"] += 1
        else:
            reasons[f"by {point.rule}"] += 1
    listed = [f"{count} left out {reason}" for reason, count in reasons.most_common(MOST_REASONS)]
    problem = f"found no cell to run: {', '.join(listed)}; allowed: at least one cell"
    if any("strategy single is one rank" in reason for reason in listed):
        problem += ", as with `strategy: ddp`"
    return document.error((), problem)


class _CellPlanner:
    """Makes the cells of one workload of a sweep."""

    def __init__(
        self, file: SweepContent, workload: SweepWorkload, axes_matrix: matrix.Matrix
    ) -> None:
        self.file = file
        self.workload = workload
        self.entry = workload.entry
        self.axes_matrix = axes_matrix
        self.setting_names = frozenset(workload.setting_names())
        # The workload with the settings of points of the matrix, by these settings as text.
        self.at_points: dict[str, SweepWorkload] = {}

    def cells(self, excluded: list[matrix.ExcludedPoint]) -> list[Cell]:
        """Return the workload's cells, and add the points that are left out to `excluded`.

        A point of the product with a conflict is left out, since products contain unintended
        points. An included point is intended, so its conflict is an error, BadInput, unless it comes
        from a value of `--set`: then the point is left out.
        """
        label = self.workload.label
        axes_of_workload = self._axes_of_workload()
        self._check_warmup()
        self._check_arguments()
        cells: list[Cell] = []
        for point in self.axes_matrix.points(axes_of_workload):
            workload = self._workload(point)
            rule = self.axes_matrix.matching_exclusion(label, point)
            reason: str | None = "the sweep says so"
            if rule is None:
                rule = matrix.CONFLICT
                reason = self._find_conflict(point, workload)
            if reason is None:
                cells.append(self._cell(point, workload))
                continue
            levels = point.levels
            excluded.append(
                matrix.ExcludedPoint(workload=label, axes=levels, rule=rule, reason=reason)
            )
        of_file = replace(self.axes_matrix, set_for_all={})
        for (number, point), (_, point_of_file) in zip(
            self.axes_matrix.inclusions(label, axes_of_workload),
            of_file.inclusions(label, axes_of_workload),
            strict=True,
        ):
            workload = self._workload(point)
            conflict = self._find_conflict(point, workload)
            if not conflict:
                cells.append(self._cell(point, workload))
                continue
            if self._find_conflict(point_of_file, self._workload(point_of_file)):
                raise self.workload.document.error(("include", number), conflict)
            excluded.append(
                matrix.ExcludedPoint(
                    workload=label, axes=point.levels, rule=matrix.CONFLICT, reason=conflict
                )
            )
        return cells

    def _workload(self, point: matrix.MatrixPoint) -> SweepWorkload:
        """Return the workload with the settings of a point."""
        key = str(point.settings)
        if key not in self.at_points:
            unset = [] if self._sets_batch_size() else ["batch_size"]
            self.at_points[key] = replace(self.workload, settings=point.settings, unset=unset)
        return self.at_points[key]

    def _sets_batch_size(self) -> bool:
        """Return whether the sweep sets a batch size that may apply to the workload."""
        groups = [self.entry.axes, *self.axes_matrix.include]
        for axis in ("batch_size", "rank_batch_size"):
            if self.axes_matrix.sets(axis) or any(axis in group for group in groups):
                return True
        return False

    def _find_conflict(self, point: matrix.MatrixPoint, workload: SweepWorkload) -> str | None:
        """Return why a point makes no sense for the workload, None if it does."""
        for axis in point.settings:
            if axis not in self.setting_names:
                return f"{self.workload.label} has no {axis}"
        return workload.find_conflict(point.axes)

    def _axes_of_workload(self) -> dict[str, Any]:
        """Return the axes that the workload sets, including its batch size.

        Its declared batch size is left out where `axes` of the sweep has one, which it would
        overwrite. The product overwrites it in any case. Raises BadInput for an axis that the
        matrix decides too, and for both ways to set a batch size.
        """
        document, workload_key = self.workload.document, self.workload.key
        axes: dict[str, Any] = {}
        for axis, value in self.entry.axes.items():
            key = (*workload_key, "axes", axis)
            setting = setting_of(axis)
            if setting is not None and setting.section != CUSTOM:
                problem = (
                    f"found a setting of the workload; allowed: {dotted((*workload_key, *setting))}"
                )
                raise document.error(key, problem)
            axes[axis] = matrix.axis_value(document, key, value, self.axes_matrix.workloads)
            if self.axes_matrix.varies(axis):
                problem = "found in matrix or zip too; allowed: an axis in one place"
                raise document.error(key, problem)
        axes |= self._written_settings()
        batch_size_axes = []
        for axis in ("batch_size", "rank_batch_size"):
            if axis in axes or self.axes_matrix.sets(axis):
                batch_size_axes.append(axis)
        if len(batch_size_axes) > 1:
            problem = "found batch_size and rank_batch_size; allowed: one of them"
            raise document.error(workload_key, problem)
        if "batch_size" in self.axes_matrix.fixed:
            return axes
        return {"batch_size": self.workload.declaration.batch_size, **axes}

    def _written_settings(self) -> dict[str, Any]:
        """Return those settings of the workload's entry that `axes` of the sweep has too.

        The workload's settings override them. Raises BadInput for one that the matrix decides.
        """
        settings: dict[str, Any] = {}
        written = {"options": self.entry.options, "data": self.entry.data}
        for section, values in written.items():
            for name, value in values.items():
                axis = f"{section}.{name}"
                if self.axes_matrix.varies(axis):
                    problem = "found in matrix or zip too; allowed: a setting in one place"
                    raise self.workload.document.error((*self.workload.key, section, name), problem)
                if axis in self.axes_matrix.fixed:
                    settings[axis] = value
        return settings

    def _check_warmup(self) -> None:
        """Raise BadInput if no step remains to be measured after the warm-up.

        A length in epochs is not checked: how many steps it has is only known with the data.
        """
        steps, warmup = self._length.steps, self.file.warmup
        if steps is None or warmup < steps:
            return
        document, label = self.workload.document, self.workload.label
        default = "" if ("warmup",) in document.sources else ", the default"
        problem = f"found {warmup}{default}; allowed: fewer than the {steps} steps of {label}"
        raise document.error(("warmup",), problem)

    def _check_arguments(self) -> None:
        """Raise BadInput if a script's arguments name the steps, and the length has none."""
        document, label = self.workload.document, self.workload.label
        names = placeholders_of(read_arguments(document, label, self.entry))
        if "steps" not in names or "steps" in self.entry.options or self._length.steps is not None:
            return
        problem = "found {steps} without a length in steps; allowed with `length: 300 steps`"
        raise document.error((*self.workload.key, "arguments"), problem)

    def _stop_rule(self, workload: SweepWorkload) -> StopRule | None:
        """Return the workload's rule for stopping, or else the sweep's.

        Raises BadInput if it needs a validation set that the data's settings leave empty. A user's
        class may have one without a setting, so only its ranks can tell.
        """
        rule = self.entry.stop or self.file.stop
        if rule is not None and getattr(workload.data, "validation", None) == 0:
            problem = (
                "found 0; allowed: more, such as 0.15: stop looks at a validation set, so that the"
                " test set does not decide when training ends"
            )
            raise workload.document.error((*workload.key, "data", "validation"), problem)
        return rule

    @property
    def _length(self) -> Length:
        """Return the length of the workload, or else the sweep's."""
        return self.entry.length or self.file.length

    def _environment(self, point: matrix.MatrixPoint, workload: SweepWorkload) -> Variables:
        """Return the variables of a point, with those that custom axes set or leave unset.

        Raises BadInput for a variable that is an axis of the sweep too, and for one that the class
        does not declare.
        """
        if not workload.custom.classes:
            return point.environment
        variables = dict.fromkeys(workload.custom.variables)
        environment: dict[str, str | None] = {**variables, **point.environment}
        for name, axis in workload.active_axes.items():
            for variable, value in axis.environment().items():
                if variable in point.environment or variable not in axis.variables:
                    problem = f"found the variable {variable}; allowed: one of `variables` that is no axis"
                    raise workload.document.error((CUSTOM, name), problem)
                environment[variable] = value
        return environment

    def _cell(self, point: matrix.MatrixPoint, workload: SweepWorkload) -> Cell:
        """Return the cell of a point; lengths are the workload's or the sweep's."""
        stack = point.axes.stack
        return Cell(
            workload=workload.reference,
            axes=point.axes,
            environment=self._environment(point, workload),
            length=self._length,
            evaluate=self.entry.evaluate or self.file.evaluate,
            warmup=self.file.warmup,
            stop=self._stop_rule(workload),
            stack=None if stack is None else self.file.stacks[stack],
        )
