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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from harness.core.errors import BadInput, HarnessError, did_you_mean
from harness.core.processes import die_with_parent
from harness.core.validation import dotted
from harness.sweep.axes import AXES, Axes, section_of
from harness.sweep.cell import Cell, Trial, is_setting
from harness.sweep.document import Document, read_document
from harness.sweep.files import Digests, keep_digests, read_digests
from harness.sweep.matrix import CONFLICT, ExcludedPoint, Matrix
from harness.sweep.sweepfile import SweepFile, SweepKeys, read_sweep_file
from harness.sweep.workload import PlannedWorkload, SweepWorkload, find_reason
from workloads.catalog import BUILT_IN
from workloads.settings import Seed

# The sweeps that come with the package.
READY = Path(__file__).parent.parent.parent / "workloads" / "sweeps"
PLANNING_SECONDS = 3600  # importing a workload may download something

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
    # Of a part that `--only` has selected: the ids and seeds of its cells, and all cells of the sweep.
    selected_seeds: frozenset[tuple[str, Seed]] | None = None
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
        seeds = self.workload_seeds.get(cell.workload.label, self.seeds)
        if self.selected_seeds is None:
            return seeds
        return [seed for seed in seeds if (cell.id, seed) in self.selected_seeds]

    def count_trials(self, cell: Cell) -> int:
        """Return how many trials a cell has, over its seeds and repeats."""
        return len(self.seeds_of(cell)) * self.repeats

    def trials(self) -> list[Trial]:
        """Return the trials of all blocks in the order in which they run."""
        return list(chain.from_iterable(self.blocks()))

    def whole(self) -> Sweep:
        """Return the sweep with all of its cells and seeds."""
        cells = self.all_cells or self.cells
        return replace(self, cells=cells, selected_seeds=None, all_cells=())

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
        raise BadInput(f"{name}: found Python; allowed: a sweep: `harness init {name}` writes it")
    if path.is_file():
        return path
    ready = ready_sweeps()
    if name in ready:
        return ready[name]
    files = [str(file) for file in sorted(path.parent.glob("*.y*ml"))]
    hint = did_you_mean(name, [*ready, *files], ready)
    raise BadInput(f"{name}: no such sweep file or ready sweep; {hint}")


def load_sweep(
    path: Path, sets: Sequence[str] = (), data: Sequence[str] = (), digests: Path | None = None
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
    options = []
    for flag, texts in (("--set", sets), ("--data", data)):
        for text in texts:
            options += [flag, text]
    used = {entry.uses or label for label, entry in file.workloads.items()}
    if used <= BUILT_IN.keys():
        return _plan(document, file, options, digests)
    return call_apart(_plan, document, file, options, digests)


def call_apart(function: Callable[..., T], *arguments: Any) -> T:
    """Return what a function returns that imports users' code, in a forked process; raises what it raises.

    Whatever that code changes when it is imported is then no part of any trial. Forked, so that torch
    need not be loaded again where it is loaded. Raises HarnessError if the process ends otherwise.
    """
    sys.stdout.flush()
    fork = multiprocessing.get_context("fork")
    try:
        with ProcessPoolExecutor(1, fork, _begin_apart, (os.getpid(),)) as processes:
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
    document: Document, file: SweepFile, options: Sequence[str], digests: Path | None
) -> Sweep:
    """Return the sweep of a document, whose workloads this process imports; raises BadInput."""
    workloads = []
    for label, entry in file.workloads.items():
        workloads.append(SweepWorkload(document, label, entry))
    matrix = Matrix(document, file, workloads)
    # By id, as `include` may add what the matrix already has.
    cells: dict[str, Cell] = {}
    excluded = []
    workload_seeds = {}
    known = read_digests(digests)
    for workload in workloads:
        if workload.entry.seeds is not None:
            workload_seeds[workload.label] = workload.entry.seeds
        for point in _judged_points(workload, file, matrix, known, options):
            if isinstance(point, ExcludedPoint):
                excluded.append(point)
                continue
            first = cells.setdefault(point.id, point)
            if first is point:
                continue
            # Two labels would show the same trials. And of 100,000 cells, two share the digits of an id by
            # chance in 1 of 200 sweeps.
            same_label = first.workload.label == workload.label
            if not same_label or first.digest(workload.code) != point.digest(workload.code):
                problem = f"found the same id for {first.label} and {point.label}"
                raise document.error(workload.key, f"{problem}; allowed: a difference")
    keep_digests(digests, known)
    if not cells:
        reasons = Counter(f"{point.rule}: {point.reason}" for point in excluded)
        (reason, count), *_ = reasons.most_common(1)
        raise document.error((), f"found no cell to run: {count} left out by {reason}")
    _check_axes_are_named(matrix, cells.values())
    used_rules = {point.rule for point in excluded}
    return Sweep(
        **{key.name: getattr(file, key.name) for key in fields(SweepKeys)},
        source=Path(document.sources[()]),
        cells=list(cells.values()),
        excluded=excluded,
        unused_rules=[name for name in map(dotted, matrix.exclude) if name not in used_rules],
        workload_seeds=workload_seeds,
        options=options,
    )


def _check_axes_are_named(matrix: Matrix, cells: Iterable[Cell]) -> None:
    """Raise BadInput for an axis that varies and that no workload gets, as each is a script."""
    for rows in matrix.columns:
        for axis in rows[0]:
            if axis in AXES and not any(cell.workload.receives(axis) for cell in cells):
                problem = f"found an axis that no argument names; write {{{axis}}} in `arguments`"
                raise matrix.document.error(matrix.axes[axis], problem)


def _judged_points(
    workload: SweepWorkload,
    file: SweepFile,
    matrix: Matrix,
    digests: Digests,
    options: Sequence[str],
) -> Iterator[Cell | ExcludedPoint]:
    """Yield a cell for each point of a workload that can be trained, and why each other is left out.

    Raises BadInput for settings that are wrong, and for a point of `include` that can't be trained.
    """
    entry = workload.entry
    length = entry.length or file.length
    plans: dict[str, PlannedWorkload] = {}
    foreign = set(filter(is_setting, matrix.axes)) - workload.setting_types.keys()
    for point, included_by in matrix.points(workload):
        axes = Axes.of(point)
        settings = {axis: point[axis] for axis in filter(is_setting, point) if axis not in foreign}
        key = str(settings)  # many points have the same
        if key not in plans:
            plans[key] = workload.plan(settings, digests, matrix.axes)
        cell = Cell(
            workload=plans[key][0],
            axes=axes,
            environment=section_of(point, "env"),
            length=length,
            evaluate=entry.evaluate or file.evaluate,
            warmup=file.warmup_of(length),
            stop=entry.stop or file.stop,
            stack=file.stacks.get(axes.stack or ""),
        )
        excluded_by = None if included_by else matrix.exclusion_of(cell, point)
        reason = find_reason(plans[key], axes)
        lacking = foreign.intersection(point)
        if lacking:
            reason = f"{workload.label} has no {min(lacking)}"
        if excluded_by is not None:
            reason = "the sweep says so"
        if reason is None:
            yield cell
        # What is included is intended, unless `--set` has changed the sweep around it.
        elif included_by and "--set" not in options:
            raise matrix.document.error(included_by, reason)
        else:
            yield ExcludedPoint(
                workload=workload.label,
                axes={**axes.values, **point},
                rule=excluded_by or CONFLICT,
                reason=reason,
            )
