"""A sweep: from its YAML file to cells and trials."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from harness.core.errors import BadInput, did_you_mean
from harness.spec import matrix
from harness.spec.axes import AXIS_TYPES, Axes, find_conflict
from harness.spec.cell import (
    Cell,
    Length,
    Profiling,
    Trial,
    WorkloadRef,
    digest_files,
    without_defaults,
)
from harness.spec.document import Document, choose, parse_value, read_document
from workloads.catalog import BUILT_IN, Declaration, load_class
from workloads.options import Between, Settings, Strict

READY = Path(__file__).parent.parent.parent / "workloads" / "sweeps"
ONE_EPOCH = Length(epochs=1)
MOST_REPEATS = 10_000  # a slip of the finger must not fill the memory with trials
Seeds = list[Annotated[int, Between(0, 2**32 - 1)]]


@dataclass(frozen=True, kw_only=True)
class WorkloadEntry(Strict):
    """One workload of a sweep file."""

    uses: str | None = None  # its own name unless given
    options: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    axes: dict[str, Any] = field(default_factory=dict)
    length: Length | None = None
    evaluate: Length | None = None
    seeds: Seeds | None = None  # those of the sweep unless given


@dataclass(frozen=True, kw_only=True)
class SweepFile(Strict):
    """The keys of a sweep file and their defaults."""

    name: str
    workloads: dict[str, WorkloadEntry | None]
    description: str = ""
    seeds: Seeds = field(default_factory=lambda: [0])
    repeats: Annotated[int, Between(1, MOST_REPEATS)] = 1
    length: Length = ONE_EPOCH
    evaluate: Length = ONE_EPOCH
    warmup: Annotated[int, Between(0)] = 10
    checkpoint: Literal["none", "best"] = "none"
    profile: Profiling | None = None
    timeout: Annotated[float, Between(1)] = 3600.0
    axes: dict[str, Any] = field(default_factory=dict)
    matrix: dict[str, Any] = field(default_factory=dict)
    zip: list[dict[str, Any]] = field(default_factory=list)
    exclude: list[dict[str, Any]] = field(default_factory=list)
    include: list[dict[str, Any]] = field(default_factory=list)


SWEEP_KEYS = [f.name for f in fields(SweepFile)]


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What a sweep file asks for."""

    name: str
    description: str
    source: Path
    seeds: Sequence[int]  # of every workload that has none of its own
    repeats: int
    checkpoint: Literal["none", "best"]
    timeout: float  # seconds that one trial may take
    cells: Sequence[Cell]
    excluded: Sequence[matrix.ExcludedPoint]
    unused_rules: Sequence[str]  # exclude rules that matched nothing
    profile: Profiling | None = None
    workload_seeds: Mapping[str, Sequence[int]] = field(default_factory=dict)  # by label

    @property
    def base_folder(self) -> Path:
        """What relative paths in the file are relative to."""
        return self.source.absolute().parent

    def blocks(self) -> list[list[Trial]]:
        """Return the trials in the order in which they run, block by block.

        A block holds every cell that has its seed once, so that cells compare under like conditions. Every other block
        runs backwards, so that a machine that gets slower and slower favors no cell.
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
        seeds = [seed for cell in self.cells for seed in self.seeds_of(cell)]
        return list(dict.fromkeys(seeds))

    def seeds_of(self, cell: Cell) -> Sequence[int]:
        """Return the seeds that a cell is trained with."""
        return self.workload_seeds.get(cell.workload.label, self.seeds)

    def count_trials(self, cell: Cell) -> int:
        """Return how many trials a cell has, over its seeds and repeats."""
        return len(self.seeds_of(cell)) * self.repeats

    def trials(self) -> list[Trial]:
        return [trial for block in self.blocks() for trial in block]


def ready_sweeps() -> dict[str, Path]:
    """The sweeps that come with the package, by name."""
    return {path.stem: path for path in sorted(READY.glob("*.yaml"))}


def find_sweep_file(name: str) -> Path:
    """The file of a sweep given as a path or by the name of a ready one; raises BadInput."""
    path, ready = Path(name), ready_sweeps()
    if path.is_file() or path.suffix in (".yaml", ".yml"):
        return path
    if name in ready:
        return ready[name]
    raise BadInput(f"{name}: no such sweep file or ready sweep; {did_you_mean(name, ready)}")


def load_sweep(path: Path, sets: Sequence[str] = (), data: Sequence[str] = ()) -> Sweep:
    """The sweep in `path` with `--set` and `--data` applied; raises BadInput, having read every data file."""
    document = read_document(path)
    file: SweepFile = document.validate(SweepFile, document.content)
    for apply, texts in ((_apply_data, data), (_apply_set, sets)):
        for text in texts:
            apply(document, text)
            file = document.validate(SweepFile, document.content)
    _check_file(document, file)
    cells, excluded, points = [], [], matrix.read_matrix(document, list(file.workloads))
    for label, entry in file.workloads.items():
        found, left_out = _cells_of(document, file, label, entry or WorkloadEntry(), points)
        cells += found
        excluded += left_out
    distinct: dict[str, Cell] = {}
    for cell in cells:
        first = distinct.setdefault(cell.id, cell).workload.label
        if first != cell.workload.label:
            raise document.error(
                ("workloads", cell.workload.label),
                f"found the same as {first}; allowed: a difference",
            )
    if not cells:
        reasons = Counter(
            f"by {out.rule}" if out.rule != "conflict" else f"because {out.reason}"
            for out in excluded
        )
        listed = ", ".join(f"{count} left out {reason}" for reason, count in reasons.most_common(3))
        raise document.error((), f"found no cell to run: {listed}; allowed: at least one cell")
    return Sweep(
        name=file.name,
        description=file.description,
        source=path,
        seeds=file.seeds,
        repeats=file.repeats,
        checkpoint=file.checkpoint,
        profile=file.profile,
        timeout=file.timeout,
        cells=list(distinct.values()),
        excluded=excluded,
        unused_rules=[f"exclude[{number}]" for number in sorted(points.unused)],
        workload_seeds=_workload_seeds(file),
    )


def _workload_seeds(file: SweepFile) -> dict[str, Sequence[int]]:
    """Return the seeds of the workloads that have their own, by label."""
    seeds: dict[str, Sequence[int]] = {}
    for label, entry in file.workloads.items():
        if entry is not None and entry.seeds is not None:
            seeds[label] = entry.seeds
    return seeds


def _check_file(document: Document, file: SweepFile) -> None:
    if not file.name.strip():
        raise document.error(("name",), "found an empty name; allowed: any text")
    if not file.workloads:
        raise document.error(
            ("workloads",), f"found none; {did_you_mean('', BUILT_IN)}, or a class of yours"
        )
    _check_seeds(document, ("seeds",), file.seeds)
    for label, entry in file.workloads.items():
        if entry is not None and entry.seeds is not None:
            _check_seeds(document, ("workloads", label, "seeds"), entry.seeds)


def _check_seeds(document: Document, key: tuple[str, ...], seeds: Sequence[int]) -> None:
    """Raise BadInput for no seeds, and for a seed that is there twice."""
    if not seeds or len(set(seeds)) < len(seeds):
        raise document.error(key, f"found {seeds}; allowed: at least one, each once")


def _cells_of(
    document: Document, file: SweepFile, label: str, entry: WorkloadEntry, points: matrix.Matrix
) -> tuple[list[Cell], list[matrix.ExcludedPoint]]:
    """The cells of one workload, and what was left out of its matrix."""
    declared, options, data, choice = _choose(document, label, entry)
    key = ("workloads", label)
    own = {
        axis: matrix.axis_value(document, (*key, "axes", axis), value)
        for axis, value in entry.axes.items()
    }
    if twice := [axis for axis in own if points.varies(axis)]:
        raise document.error(
            (*key, "axes", twice[0]), "found in matrix or zip too; allowed: an axis in one place"
        )
    if all(axis in own or points.sets(axis) for axis in ("batch_size", "rank_batch_size")):
        raise document.error(key, "found batch_size and rank_batch_size; allowed: one of them")
    own = {"batch_size": declared.batch_size} | own if "batch_size" not in points.fixed else own
    length, evaluate = entry.length or file.length, entry.evaluate or file.evaluate
    if length.steps is not None and length.steps <= file.warmup:
        default = "" if ("warmup",) in document.sources else ", the default"
        raise document.error(
            ("warmup",),
            f"found {file.warmup}{default}; allowed: fewer than the {length.steps} steps of {label}",
        )

    def senseless(axes: Axes) -> str | None:
        return find_conflict(axes) or options.conflict(asdict(axes)) or data.conflict(asdict(axes))

    cells, excluded = [], []
    for axes, rule in points.points(label, own):
        why = "the sweep says so" if rule else senseless(axes)
        if why:
            excluded.append(
                matrix.ExcludedPoint(
                    workload=label, axes=asdict(axes), rule=rule or "conflict", reason=why
                )
            )
        else:
            cells.append(
                Cell(
                    workload=choice, axes=axes, length=length, evaluate=evaluate, warmup=file.warmup
                )
            )
    for number, axes in points.inclusions(label, own):
        if why := senseless(axes):
            raise document.error(("include", number), why)
        cells.append(
            Cell(workload=choice, axes=axes, length=length, evaluate=evaluate, warmup=file.warmup)
        )
    return cells, excluded


def _choose(
    document: Document, label: str, entry: WorkloadEntry
) -> tuple[Declaration, Settings, Settings, WorkloadRef]:
    """A workload's declaration and its settings, checked against the files that they name."""
    key, uses, base = (
        ("workloads", label),
        entry.uses or label,
        Path(document.sources[()]).absolute().parent,
    )
    named = (*key, "uses") if entry.uses else key
    try:
        declared = workload_declaration(uses, base)
    except ValueError as error:
        raise document.error(named, str(error)) from None
    except SyntaxError as error:
        place = f"{error.filename}:{error.lineno}" if error.filename else uses
        raise document.error(named, f"{place}: found {error.msg}; allowed: valid Python") from None
    options = _settings(document, declared.options, entry.options, (*key, "options"), base)
    data = _settings(document, declared.data, entry.data, (*key, "data"), base)
    identity = {
        "uses": uses,
        "options": without_defaults(options),
        "data": without_defaults(data) | {"source": getattr(data, "source", None)},
        "files": digest_files([*options.files(), *data.files()]),
    }
    choice = WorkloadRef(
        label=label, uses=uses, options=_plain(options), data=_plain(data), identity=identity
    )
    return declared, options, data, choice


def workload_declaration(uses: str, base: Path) -> Declaration:
    """What planning needs to know of a workload; raises ValueError if there is none. Imports torch for users' own."""
    if uses in BUILT_IN:
        return BUILT_IN[uses]
    found = load_class(uses, base)
    return Declaration(
        path=uses, options=found.Options, data=found.Data, batch_size=found.batch_size
    )


def _settings(
    document: Document, kind: Any, values: Mapping[str, Any], key: tuple[str, ...], base: Path
) -> Settings:
    try:
        member = choose(kind, values)
    except ValueError as error:
        raise document.error((*key, "source"), str(error)) from None
    hint = f"; give it here or as --data {key[1]}=PATH"
    try:
        settings: Settings = document.validate(member, dict(values), key)
    except BadInput as error:
        raise BadInput(
            f"{error}{hint}" if "data.path: missing" in str(error) else str(error)
        ) from None
    settings = settings.with_paths_relative_to(base)
    try:
        settings.check()
    except ValueError as error:
        name, _, problem = str(error).partition(": ")
        named = name in {f.name for f in fields(settings)}
        raise (
            document.error((*key, name), problem) if named else document.error(key, str(error))
        ) from None
    return settings


def _plain(settings: Settings) -> dict[str, Any]:
    return {
        name: str(value) if isinstance(value, Path) else value
        for name, value in asdict(settings).items()
    }


def _apply_set(document: Document, text: str) -> None:
    """`--set execution=eager,compile` replaces an axis; `--set length.epochs=3` any other key."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise BadInput(
            f"--set {text}: found no '='; allowed: --set axis=value[,value…] or --set some.key=value"
        )
    name, place, entries = name.strip(), f"--set {text}", document.content["workloads"]
    key, last = tuple(name.split(".")), name.rpartition(".")[2]
    if name in AXIS_TYPES:
        own = [(entry or {}).get("axes", {}) for entry in entries.values()]
        for axes in [document.content.get("axes", {}), *document.content.get("zip", []), *own]:
            axes.pop(name, None)
        document.put(("matrix", name), _many(value, place), place)
    elif key[0] not in SWEEP_KEYS:
        raise BadInput(
            f"{place}: unknown axis or key; {did_you_mean(name, [*AXIS_TYPES, *SWEEP_KEYS])}"
        )
    elif key[0] == "workloads" and len(key) > 2 and key[1] not in entries:
        raise BadInput(f"{place}: workloads: found {key[1]!r}; {did_you_mean(key[1], entries)}")
    elif name == "seeds":
        for entry in entries.values():
            (entry or {}).pop("seeds", None)  # the option is for all workloads
        document.put(("seeds",), _many(value, place), place)
    elif key[-2:-1] in (("length",), ("evaluate",)) and last in ("steps", "epochs"):
        document.put(
            key[:-1], {last: parse_value(value, place)}, place
        )  # it has one of the two, never both
    else:
        document.put(key, parse_value(value, place), place)


def _many(value: str, place: str) -> Any:
    """The list in `a,b` or `[a, b]`."""
    return parse_value(value if value.startswith("[") else f"[{value}]", place)


def _apply_data(document: Document, text: str) -> None:
    """`--data PATH` for every workload whose data lies in files, `--data LABEL=PATH` for one."""
    label, equals, path = text.partition("=")
    entries = document.content["workloads"]
    if equals and label not in entries:
        raise BadInput(f"--data {text}: found {label!r}; {did_you_mean(label, entries)}")
    whom = [label] if equals else [name for name, entry in entries.items() if _has_files(entry)]
    if not whom:
        raise BadInput(
            f"--data {text}: found no workload whose data lies in files; allowed: LABEL=PATH"
        )
    for name in whom:
        document.put(
            ("workloads", name, "data", "path"),
            str(Path(path if equals else text).absolute()),
            f"--data {text}",
        )


def _has_files(entry: dict[str, Any] | None) -> bool:
    data = (entry or {}).get("data", {})
    return data.get("source") in ("idx", "csv") or "path" in data
