"""Cells and trials, and the stable ids that hash everything that decides their results.

An id names folders of results and joins trials of different sweeps, so it must not change as long
as the meaning of a cell does not. Hence it hashes only what differs from the defaults: an axis or an option
that a later version adds leaves the ids of all earlier cells as they are, provided that no default
ever changes.

There are two ids. `Cell.id` includes the workload's code: two programs are never one cell. A gate, a
baseline or a comparison judges a change of code, so it matches cells by their settings, whose id is
`Cell.settings_id`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from harness.core.errors import BadInput
from harness.core.text import counted, parse_duration
from harness.core.validation import Line
from harness.sweep.axes import AXES, PREFIX, RECIPE_AXES, Axes, Variables, section_of
from workloads.settings import Between, Count, Seed, Target

Values = Mapping[str, Any]  # by axes, which may be settings
SOURCE = "source"  # the data setting that decides which others there are

ThroughputUnit = Literal["samples/s", "steps/s"]
THROUGHPUT_UNITS: tuple[ThroughputUnit, ...] = get_args(ThroughputUnit)
# What labels write before the values of the axes that they all show. The world size is shown with the
# strategy.
LABEL_AXES = dict.fromkeys(("execution", "precision", "strategy"), "")
LABEL_AXES |= {"num_workers": "w", "batch_size": "b", "num_threads": "t"}
# What an argument of a script gets the value of, as in `--lr={lr}`.
PLACEHOLDER = re.compile(r"(?<!\{)\{([A-Za-z_][A-Za-z0-9_]*)\}(?!\})")
ESCAPED = re.compile(r"\{(\{[A-Za-z_][A-Za-z0-9_]*\})\}")  # `{{name}}` is the text `{name}`


# A record has the time and the loss of every step, and is read as a whole.
MAX_STEPS = 2**24
StepCount = Annotated[int, Between(1, MAX_STEPS)]
NEVER = "never"
Interval = Annotated[
    str,
    Meta(
        pattern=rf"^({NEVER}|[1-9]\d{{0,8}} *steps?|\d+(\.\d+)?(ms|s|m|h))\Z",
        description=f"a time such as 10m, steps such as 500 steps, or {NEVER}",
    ),
]
Repeat = Annotated[int, Between(0)]


def is_setting(axis: str) -> bool:
    """Return whether an axis is a setting of a workload, such as `options.lr` or `data.path`."""
    return axis.startswith(("options.", "data."))


@dataclass(frozen=True, kw_only=True)
class Length:
    """A length of training, in optimizer steps or in epochs, of which exactly one is set."""

    steps: StepCount | None = None
    epochs: StepCount | None = None

    def __post_init__(self) -> None:
        """Raise ValueError unless exactly one of the two is set."""
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("found both steps and epochs, or neither; allowed: one of them")

    def in_steps(self, steps_per_epoch: int) -> int:
        """Return the length in optimizer steps, for a workload with `steps_per_epoch`."""
        return self.steps or (self.epochs or 0) * steps_per_epoch

    def __str__(self) -> str:
        if self.steps is not None:
            return counted(self.steps, "step")
        return counted(self.epochs or 0, "epoch")


@dataclass(frozen=True, kw_only=True)
class StopRule:
    """The rule by which evaluations of the validation set end a trial before its length.

    The schedule of the learning rate is that of the whole length, no matter where the trial ends.
    """

    # Both look at the target metric.
    patience: Count | None = None  # evaluations in a row without an improvement
    goal: float | None = None  # a value that is good enough

    def __post_init__(self) -> None:
        """Raise ValueError for a rule that stops nothing."""
        if self.patience is None and self.goal is None:
            raise ValueError("found neither patience nor goal; allowed: one of them, or both")


@dataclass(frozen=True, kw_only=True)
class CheckpointRules:
    """The key `checkpoint` of a sweep file: which checkpoints are saved, and how many are kept."""

    every: Interval | None = None  # null: 10m under Slurm, as a job may end at any moment
    keep: Annotated[int, Between(1, 1000)] = 2  # the newest of these checkpoints
    best: bool = False  # whether the parameters of the best evaluation are kept

    @property
    def steps(self) -> int | None:
        """Return the interval in steps, None if it is one of time."""
        count, is_steps, _ = str(self.every).partition("step")
        return int(count) if is_steps else None

    @property
    def seconds(self) -> float | None:
        """Return the interval in seconds, None if it is no time."""
        if self.every in (None, NEVER) or self.steps is not None:
            return None
        return parse_duration(str(self.every), "checkpoint")

    def of(self, launcher: str, *, is_script: bool) -> CheckpointRules | None:
        """Return the interval of a trial, None for never; a script saves what it saves."""
        every = self.every or ("10m" if launcher == "slurm" else NEVER)
        if is_script or every == NEVER:
            return None
        return replace(self, every=every)


@dataclass(frozen=True, kw_only=True)
class Stack:
    """A value of the axis `stack`: another interpreter or container, with packages of its own.

    A cell's id has its name and its definition. What is installed there is no part of the id, as it is
    not for the interpreter of the harness: records say it.
    """

    # A path, relative to the sweep file's folder, or a name on PATH; null: python3 of the prefix.
    python: Line | None = None
    # A command that runs the command after it. It has to pass on the environment, the working
    # directory and signals, and to show the files of this machine under their own paths.
    prefix: Sequence[Line] = ()

    @property
    def command(self) -> list[str]:
        """Return the command that begins with the prefix and ends with the interpreter."""
        return [*self.prefix, self.python or "python3"]


# How a script would be started by hand; `python` sets none of torchrun's variables.
Launch = Literal["torchrun", "python"]


@dataclass(frozen=True, kw_only=True)
class WorkloadRef:
    """A workload as a sweep refers to it."""

    label: str  # the sweep's name for it; no part of the identity
    # A built-in name, package.module:Class, file.py:Class, or a script: file.py
    uses: str
    # All options and data by their axes, as in `options.lr`, defaults included, as JSON can hold them;
    # paths of files are absolute.
    settings: Values
    # What of it decides a result: `uses`, the `settings` that differ from their defaults with the data's
    # source, and `files`, the digests of the files of each setting. Paths are no part of it.
    identity: Mapping[str, Any]
    # By setting, a digest of the sizes and times of its files when their content was digested: as
    # long as it is the same, they need not be read again. No part of the identity.
    file_states: Mapping[str, str] = field(default_factory=dict, compare=False)
    # Which of its settings are axes of the sweep, as in `options.hidden`; no part of the identity.
    axes: Sequence[str] = ()
    # What the sweep leaves at the defaults that the code declares: settings, as in `options.lr`, and
    # `batch_size`; no part of the identity.
    unset: Sequence[str] = ()
    # The files of its code, by their paths relative to the folder of its own, as in `models/wide.py`, to
    # the SHA-256 of their content; of an installed workload the distribution and its version. None:
    # any code (`with_any_code`).
    code: Mapping[str, str] | None = None
    # Of a script, with placeholders as in `{lr}`; None for a class.
    arguments: Sequence[str] | None = None
    target: Target | None = None  # that a script reports; None where it reports no metric
    module: str | None = None  # that a script runs as, with its package: `torchrun -m pkg.train`
    launch: Launch = "torchrun"  # whose variables a script gets

    @property
    def is_script(self) -> bool:
        """Return whether it is a script with its own loop, of which the harness sees the steps only."""
        return self.arguments is not None

    def require_class(self) -> None:
        """Raise BadInput for a script, where the harness's own loop is needed."""
        if self.is_script:
            problem = f"found {self.uses}, a script with its own loop"
            raise BadInput(f"{self.label}: {problem}; allowed for this command: a workload class")

    @property
    def options(self) -> dict[str, Any]:
        """Return the options by their names."""
        return section_of(self.settings, "options")

    @cached_property
    def script_axes(self) -> frozenset[str]:
        """The axes that are known of a script.

        They are those that the harness applies itself, and those that arguments name. An option
        of the same name is what the script gets instead.
        """
        named = set(placeholders_of(self.arguments or ())) - set(self.options)
        if "rank_batch_size" in named:  # a rank's share of it
            named.add("batch_size")
        return frozenset({"world_size", "num_threads", "stack"} | (named & set(AXES)))

    def receives(self, axis: str) -> bool:
        """Return whether the workload gets an axis: a script has those that are known of it."""
        return not self.is_script or axis not in AXES or axis in self.script_axes

    @cached_property
    def identity_digest(self) -> str:
        """The SHA-256 of the identity, which many cells share."""
        return _sha256(self.identity)

    @property
    def file_digests(self) -> Mapping[str, str]:
        """Return the SHA-256 of the files of each setting, by its axis: `data.path`."""
        return self.identity.get("files") or {}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One point of the matrix: a workload with every axis set."""

    workload: WorkloadRef
    axes: Axes
    # How long it trains; the schedule of the learning rate ends there too.
    length: Length
    evaluate: Length  # how often the model is evaluated, besides once at the end
    # Optimizer steps before the measured window; an attempt begins with as many.
    warmup: Annotated[int, Between(0)]
    # What ranks begin with, over whatever else sets these variables. It has all variables that the
    # sweep names, of which some may be unset.
    environment: Variables = field(default_factory=dict)
    stop: StopRule | None = None  # None: it trains for its whole length
    stack: Stack | None = None  # what the axis of that name stands for

    def __hash__(self) -> int:
        """Return the hash of the id, which equal cells share; mappings have none."""
        return hash(self.id)

    @cached_property  # a sweep of many trials needs it thousands of times
    def id(self) -> str:
        """Return the workload's name and 10 hexadecimal digits, as in `mlp-0123456789`.

        The digits are the head of a SHA-256 over everything that decides the cell's result: its
        settings and the workload's code. The seed and the repeat are the trial's, and the label is
        for people only.
        """
        return f"{short_name(self.workload.uses)}-{self.digest(self.workload.code)[:10]}"

    @cached_property
    def settings_id(self) -> str:
        """Return the id without the workload's code, which does not change with the code.

        It covers the workload's settings, the axes that differ from their defaults, the
        variables that are set, the lengths, the warm-up, the rule for stopping and the stack.
        """
        return f"{short_name(self.workload.uses)}-{self.digest(None)[:10]}"

    def with_any_code(self) -> Cell:
        """Return the cell as any revision of its workload's code can train it.

        It has only the settings that the sweep sets. So each arm of a gate takes the others from the
        defaults of its code.
        """
        settings = dict(self.workload.settings)
        for axis in self.workload.unset:
            settings.pop(axis, None)
        workload = replace(self.workload, code=None, settings=settings)
        return replace(self, workload=workload)

    def digest(self, code: Mapping[str, str] | None) -> str:
        """Return the SHA-256 over all settings and the code."""
        settings: dict[str, Any] = {
            "workload": self.workload.identity_digest,
            "axes": self.axes.changed,
            "length": str(self.length),
            "evaluate": str(self.evaluate),
            "warmup": self.warmup,
            "environment": self.variables_set,
            "stop": self.stop and asdict(self.stop),
            "stack": self.stack and asdict(self.stack),
            "code": code,
        }
        return _sha256(settings)

    @property
    def throughput_unit(self) -> ThroughputUnit:
        """Return steps/s for a script, whose samples may still be counted or reported."""
        return "steps/s" if self.workload.is_script else "samples/s"

    @property
    def length_text(self) -> str:
        """Return how long it trains, in words."""
        if self.workload.is_script and self.length.steps is None:
            return "the script's"
        return str(self.length)

    @property
    def variables_set(self) -> dict[str, str]:
        """Return the variables to set for ranks, without those to unset."""
        return {name: value for name, value in self.environment.items() if value is not None}

    def level(self, axis: str) -> Any:
        """Return the value of an axis, by its name in a sweep file; None of an unset variable.

        So it is of a setting that the workload does not have. Raises KeyError for what is no axis.
        """
        if is_setting(axis):
            return hashable(self.workload.settings.get(axis))
        if axis.startswith(PREFIX):
            return self.environment.get(axis.removeprefix(PREFIX))
        if not self.workload.receives(axis):
            return None  # what the script does, if anything, is not known
        return self.axes.value(axis)

    @property
    def levels(self) -> dict[str, Any]:
        """Return the value of every axis, by its name in a sweep file."""
        names = filter(self.workload.receives, axis_names([self]))
        return {name: self.level(name) for name in names}

    @cached_property
    def label(self) -> str:
        """Return the workload and its axes for people, as in `mlp compile bf16 ddp×2 w0 b64 t1`.

        After the axes that every label shows come those that differ from their defaults, as
        `AXIS=VALUE`, the variables that are set, and the settings that are axes.
        """
        variables = [f"{PREFIX}{name}" for name in self.variables_set]
        shown = [*LABEL_AXES, *self.axes.changed, *variables, *self.workload.axes]
        axes = dict.fromkeys(shown)
        axes.pop("world_size", None)
        parts = [self.workload.label]
        for axis in axes:
            if axis == "strategy" or self.workload.receives(axis):
                parts.append(self.label_part(axis))
        return " ".join(parts)

    def label_part(self, axis: str) -> str:
        """Return the value of an axis as labels spell it: `bf16`, `ddp×2`, `w0`, `NCCL_ALGO=Ring`."""
        if axis in ("strategy", "world_size"):
            if self.workload.is_script:
                return f"script×{self.axes.world_size}"
            if self.axes.strategy == "single":
                return "single"
            return f"{self.axes.strategy}×{self.axes.world_size}"
        value = axis_value(self.level(axis))
        if axis in LABEL_AXES:
            return f"{LABEL_AXES[axis]}{value}"
        return f"{short_axis(axis)}={value}"


def placeholders_of(arguments: Sequence[str]) -> list[str]:
    """Return the names in braces among the arguments of a script, each once, in their order."""
    return list(dict.fromkeys(PLACEHOLDER.findall(" ".join(arguments))))


def changes_recipe(axis: str) -> bool:
    """Return whether an axis changes the computation, so that cells are not meant to agree.

    The axes of `RECIPE_AXES` do, and so do all options and data of a workload.
    """
    return axis in RECIPE_AXES or is_setting(axis)


def axis_names(cells: Iterable[Cell]) -> list[str]:
    """Return the names of all axes of some cells: the harness's, then variables and settings."""
    names = dict.fromkeys(AXES)  # an ordered set
    for cell in cells:
        for variable in cell.environment:
            names[f"{PREFIX}{variable}"] = None
        names.update(dict.fromkeys(cell.workload.axes))
    return list(names)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One execution of a cell."""

    cell: Cell
    seed: Seed  # of parameters, data order and dropout
    repeat: Repeat = 0  # tells trials apart that have everything else in common; counted from 0

    @cached_property
    def id(self) -> str:
        """Return the cell's id with seed and repeat: the name of the trial's folder."""
        return f"{self.cell.id}-s{self.seed}-r{self.repeat}"


def axis_value(value: Any) -> str:
    """Return a value of an axis as a sweep file spells it: `bf16`, `2`, `true`, `null`."""
    if isinstance(value, str):
        return value
    return json.dumps(value, default=str)


def hashable(value: Any) -> Any:
    """Return a value of a setting with tuples for lists, and texts for mappings."""
    if isinstance(value, list | tuple):
        return tuple(map(hashable, value))
    if isinstance(value, dict):
        return json.dumps(value, sort_keys=True)
    return value


def short_axis(axis: str) -> str:
    """Return the name of an axis without its section: `hidden` of `options.hidden`.

    It stays whole where it would be taken for another axis, as `options.lr`.
    """
    section, _, name = axis.partition(".")
    is_short = section in ("env", "options", "data") and name not in AXES
    return name if is_short else axis


@cache
def short_name(uses: str) -> str:
    """Return `mlp` for `mlp`, `spiral` for `examples/spiral.py:Spiral`.

    The name is safe in a folder's name: lower case letters, digits and hyphens.
    """
    name = Path(uses.rpartition(":")[2]).stem.lower()  # of a class, or of the file of a script
    return re.sub(r"[^a-z0-9]+", "-", name).strip("-") or "workload"


def same_value(a: Any, b: Any) -> bool:
    """Return whether two values of a setting are equal; to Python, True equals 1."""
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(same_value, a, b))
    return isinstance(a, bool) == isinstance(b, bool) and bool(a == b)


def _sha256(content: Any) -> str:
    """Return the SHA-256 of a value as JSON; the order of keys makes no difference."""
    return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()
