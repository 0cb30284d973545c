"""A sweep: from its YAML file to cells and trials.

Planning happens before anything starts, and without torch if the workloads are built in, so that a
mistake in a file costs a second, not a place in the queue.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from harness.core.errors import BadInput, did_you_mean
from harness.core.validation import Key, dotted, shown
from harness.spec import matrix
from harness.spec.apart import call_apart
from harness.spec.axes import AXES, Axes
from harness.spec.cell import (
    Cell,
    Fingerprints,
    Length,
    Profiling,
    Seed,
    StopRule,
    Trial,
    placeholders_of,
)
from harness.spec.document import Document, read_document
from harness.spec.files import FileDigests
from harness.spec.overrides import apply_data, apply_set
from harness.spec.saving import CheckpointRules, SaveInterval
from harness.spec.script import read_arguments, read_workload
from harness.spec.shorthand import expand_shorthand
from harness.spec.stack import Stack
from harness.spec.workload import PlannedWorkload, Seeds, SweepWorkload, WorkloadEntry
from workloads.catalog import BUILT_IN
from workloads.settings import Between

# The sweeps that come with the package.
READY = Path(__file__).parent.parent.parent / "workloads" / "sweeps"
ONE_EPOCH = Length(epochs=1)
NAME = re.compile(r"\w[\w.-]{0,199}", re.ASCII)  # of a sweep, and so of its folder; of a stack
LABEL = re.compile(r"\w[\w.:/ -]{0,199}")  # of a workload, which may be its file and class
# A typing error must not fill the memory with trials.
MAX_REPEATS = 10_000
MAX_TRIALS = 100_000
MAX_TIMEOUT = 366 * 24 * 3600.0  # a year; the system's timers overflow at some point beyond it
DEFAULT_WARMUP = 10  # steps; fewer where the length leaves fewer
MOST_REASONS = 3  # that an error lists, if all points of a matrix are excluded


@dataclass(frozen=True, kw_only=True)
class SweepContent:
    """The keys of a sweep file and their defaults."""

    name: str  # decides the folder of the results
    workloads: dict[str, WorkloadEntry]  # by label
    seeds: Seeds = field(default_factory=lambda: [0])  # each cell is trained with all of them
    repeats: Annotated[int, Between(1, MAX_REPEATS)] = 1  # trials of each cell and seed
    length: Length = ONE_EPOCH
    evaluate: Length = ONE_EPOCH  # how far apart evaluations are
    stop: StopRule | None = None  # None: every trial has its whole length
    # Optimizer steps that are never measured; null: 10, or fewer where the length has few steps.
    warmup: Annotated[int, Between(0)] | None = None
    checkpoint: CheckpointRules = field(default_factory=CheckpointRules)
    profile: Profiling | None = None
    fingerprints: Fingerprints | None = None
    timeout: Annotated[float, Between(1, MAX_TIMEOUT)] = 3600.0  # seconds that one trial may take
    stacks: dict[str, Stack] = field(
        default_factory=dict
    )  # the values of the axis `stack`, by name
    # `harness.spec.matrix` checks the following, because their types depend on the axis.
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
    source: Path  # the sweep file
    seeds: Sequence[Seed]  # of every workload that sets none
    repeats: Annotated[int, Between(1, MAX_REPEATS)]  # trials of each cell and seed
    checkpoint: Literal["none", "best"]  # whether the parameters of the best evaluation are kept
    timeout: Annotated[float, Between(1)]  # seconds that one trial may take
    cells: Sequence[Cell]
    excluded: Sequence[matrix.ExcludedPoint]
    unused_rules: Sequence[str]  # exclude rules that matched nothing
    saves: SaveInterval = field(default_factory=SaveInterval)
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
    file = _read_file(document, sets, data)
    workloads: dict[str, SweepWorkload] = {}
    for label, entry in file.workloads.items():
        workloads[label] = read_workload(document, label, entry, digests)
    types = {label: workload.setting_types for label, workload in workloads.items()}
    axes_matrix = matrix.read_matrix(document, types)
    _check_axes_are_received(document, list(workloads.values()))
    cells: list[Cell] = []
    excluded: list[matrix.ExcludedPoint] = []
    for workload in workloads.values():
        planner = _CellPlanner(file, workload, axes_matrix, types, has_flags=bool(sets))
        cells += planner.cells(excluded)
    if not cells:
        raise _nothing_to_run(document, excluded)
    options = []
    for name, texts in (("--set", sets), ("--data", data)):
        for text in texts:
            options += [name, text]
    workload_seeds = {}
    for label, entry in file.workloads.items():
        if entry.seeds is not None:
            workload_seeds[label] = entry.seeds
    sweep = Sweep(
        name=file.name,
        source=path,
        seeds=file.seeds,
        repeats=file.repeats,
        checkpoint="best" if file.checkpoint.best else "none",
        saves=SaveInterval(every=file.checkpoint.every, keep=file.checkpoint.keep),
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
    count = sum(map(sweep.count_trials, sweep.cells))
    if count > MAX_TRIALS:
        problem = f"found {count:,} trials over all cells, seeds and repeats; allowed: at most {MAX_TRIALS:,}"
        raise document.error((), problem)
    return sweep


def _check_axes_are_received(document: Document, workloads: Sequence[SweepWorkload]) -> None:
    """Raise BadInput for an axis that varies and that no workload receives: each is a script."""
    content = document.content
    groups: list[tuple[Key, dict[str, Any]]] = [(("matrix",), content.get("matrix", {}))]
    for number, group in enumerate(content.get("zip", [])):
        groups.append((("zip", number), group))
    for key, group in groups:
        for axis, values in group.items():
            varies = isinstance(values, list) and len(values) > 1
            if not varies or axis not in AXES or any(entry.receives(axis) for entry in workloads):
                continue
            problem = f"found an axis that no argument names; write {{{axis}}} in `arguments`"
            raise document.error((*key, axis), problem)


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
    expand_shorthand(document)
    file: SweepContent = document.validate(SweepContent, document.content)
    return file


def _check_file(document: Document, file: SweepContent) -> None:
    """Raise BadInput for mistakes that the types of the keys allow.

    These are names that are none, no workloads, and repeated seeds.
    """
    _check_name(document, ("name",), file.name, NAME)
    for name in file.stacks:
        _check_name(document, ("stacks", name), name, NAME)
    if not file.workloads:
        hint = did_you_mean("", BUILT_IN)
        raise document.error(("workloads",), f"found none; {hint}, or a class of yours")
    _check_seeds(document, ("seeds",), file.seeds)
    for label, entry in file.workloads.items():
        _check_name(document, ("workloads", label), label, LABEL)
        if entry.seeds is not None:
            _check_seeds(document, ("workloads", label, "seeds"), entry.seeds)


def _check_name(document: Document, key: Key, name: str, pattern: re.Pattern[str]) -> None:
    """Raise BadInput for a name that a folder, a table or a log can't have."""
    if not pattern.fullmatch(name):
        problem = f"found {name!r}; allowed: letters, digits, ., - and _, at most 200"
        raise document.error(key, problem)


def _check_seeds(document: Document, key: Key, seeds: Sequence[int]) -> None:
    """Raise BadInput for no seeds, and for a repeated seed.

    Two trials of one seed would share an id; that is what `repeats` is for.
    """
    if not seeds or len(set(seeds)) < len(seeds):
        raise document.error(key, f"found {shown(seeds)}; allowed: at least one, each once")


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
        self,
        file: SweepContent,
        workload: SweepWorkload,
        axes_matrix: matrix.Matrix,
        types: Mapping[str, matrix.SettingTypes],
        *,
        has_flags: bool,
    ) -> None:
        self.file = file
        self.workload = workload
        self.entry = workload.entry
        self.matrix = axes_matrix
        self.types = types
        self.has_flags = has_flags  # whether `--set` has changed the file
        # The workload with the settings of points of the matrix, by these settings as text.
        self.planned: dict[str, PlannedWorkload] = {}
        self.length = self.entry.length or file.length
        self.evaluate = self.entry.evaluate or file.evaluate

    def cells(self, excluded: list[matrix.ExcludedPoint]) -> list[Cell]:
        """Return the workload's cells, and add the points that are left out to `excluded`.

        A point of the product with a conflict is left out, since products contain unintended
        points. An included point is intended, so its conflict is an error, BadInput, unless `--set`
        has changed the sweep.
        """
        document, label = self.workload.document, self.workload.label
        own = self._own_axes()
        warmup = self._warmup()
        self._check_arguments()
        cells: list[Cell] = []
        for point in self.matrix.points(label, own, self.workload.setting_types):
            planned, rule, reason = self._judge(point)
            if planned is not None and reason is None:
                cells.append(self._cell(point, planned, warmup))
                continue
            if point.included_by is not None and not self.has_flags:
                raise document.error(("include", point.included_by), str(reason))
            excluded.append(
                matrix.ExcludedPoint(
                    workload=label, axes=point.levels, rule=rule, reason=str(reason)
                )
            )
        return cells

    def _judge(self, point: matrix.MatrixPoint) -> tuple[PlannedWorkload | None, str, str | None]:
        """Return the workload of a point, and the rule and the reason why it is left out, if it is."""
        label = self.workload.label
        unknown = [axis for axis in point.settings if axis not in self.workload.setting_types]
        planned = None if unknown else self._plan(point.settings)
        if self.matrix.exclude and point.included_by is None:
            levels: dict[str, Any] = {}
            if planned is not None:
                for section in ("options", "data"):
                    for name, value in getattr(planned.reference, section).items():
                        levels[f"{section}.{name}"] = value
            rule = self.matrix.matching_exclusion({**levels, **point.levels, "workload": label})
            if rule is not None:
                return planned, rule, "the sweep says so"
        if planned is None:
            return None, matrix.CONFLICT, f"{label} has no {unknown[0]}"
        return planned, matrix.CONFLICT, planned.find_conflict(point.axes)

    def _plan(self, settings: matrix.Values) -> PlannedWorkload:
        """Return the workload with the settings of a point."""
        key = str(settings)
        if key not in self.planned:
            is_set = self.matrix.sets("batch_size") or "batch_size" in self.entry.axes
            unset = [] if is_set else ["batch_size"]
            self.planned[key] = self.workload.plan(settings, self.matrix.sources, unset)
        return self.planned[key]

    def _own_axes(self) -> dict[str, Any]:
        """Return the axes that the workload decides: its batch size, and what its entry sets.

        Raises BadInput for an axis that the matrix varies.
        """
        document, workload_key = self.workload.document, self.workload.key
        axes: dict[str, Any] = {}
        if "batch_size" not in self.matrix.constants:
            axes["batch_size"] = self.workload.declaration.batch_size
        for axis, key, value in self._written():
            if axis in self.matrix.varying:
                problem = "found in matrix or zip too; allowed: in one place"
                raise document.error((*workload_key, *key), problem)
            if key[0] == "axes":
                if axis in self.workload.setting_types:
                    allowed = dotted((*workload_key, *axis.split(".", 1)))
                    problem = f"found a setting of the workload; allowed: {allowed}"
                    raise document.error((*workload_key, *key), problem)
                axes[axis] = matrix.own_axis(document, (*workload_key, *key), value, self.types)
            elif axis in self.matrix.constants:
                axes[axis] = value
        return axes

    def _written(self) -> Iterator[tuple[str, Key, Any]]:
        """Yield the axes, options and data settings of the entry, with their keys there."""
        for axis, value in self.entry.axes.items():
            yield axis, ("axes", axis), value
        for section, values in (("options", self.entry.options), ("data", self.entry.data)):
            for name, value in values.items():
                yield f"{section}.{name}", (section, name), value

    def _warmup(self) -> int:
        """Return the steps that are not measured; raises BadInput if none remains to be measured.

        A length in epochs is not checked: how many steps it has is only known with the data.
        """
        steps, warmup = self.length.steps, self.file.warmup
        if warmup is None:
            return DEFAULT_WARMUP if steps is None else min(DEFAULT_WARMUP, steps // 2)
        if steps is not None and warmup >= steps:
            problem = (
                f"found {warmup}; allowed: fewer than the {steps} steps of {self.workload.label}"
            )
            raise self.workload.document.error(("warmup",), problem)
        return warmup

    def _check_arguments(self) -> None:
        """Raise BadInput if a script's arguments name the steps, and the length has none."""
        document, label = self.workload.document, self.workload.label
        names = placeholders_of(read_arguments(document, label, self.entry))
        if "steps" not in names or "steps" in self.entry.options or self.length.steps is not None:
            return
        problem = "found {steps} without a length in steps; allowed with `length: 300 steps`"
        raise document.error((*self.workload.key, "arguments"), problem)

    def _stop_rule(self, planned: PlannedWorkload) -> StopRule | None:
        """Return the workload's rule for stopping, or else the sweep's.

        Raises BadInput if it needs a validation set that the data's settings leave empty. A user's
        class may have one without a setting, so only its ranks can tell.
        """
        rule = self.entry.stop or self.file.stop
        if rule is not None and getattr(planned.data, "validation", None) == 0:
            problem = (
                "found 0; allowed: more, such as 0.15: stop looks at a validation set, so that the"
                " test set does not decide when training ends"
            )
            raise self.workload.document.error((*self.workload.key, "data", "validation"), problem)
        return rule

    def _cell(self, point: matrix.MatrixPoint, planned: PlannedWorkload, warmup: int) -> Cell:
        """Return the cell of a point; lengths are the workload's or the sweep's."""
        stack = point.axes.stack
        return Cell(
            workload=planned.reference,
            axes=point.axes,
            environment=point.environment,
            length=self.length,
            evaluate=self.evaluate,
            warmup=warmup,
            stop=self._stop_rule(planned),
            stack=None if stack is None else self.file.stacks[stack],
        )
