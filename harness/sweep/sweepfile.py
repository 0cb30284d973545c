"""The keys of a sweep file, its short forms, and the flags that change it: `--set` and `--data`.

Short forms are replaced by what they stand for, and flags change the content, before the content is
checked. So nothing after that knows which form was written, a value from the command line is checked
as one in the file is, and its errors name the flag in place of the line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from harness.core.errors import BadInput
from harness.core.validation import Key, Line, shown
from harness.sweep.axes import AXES, PREFIX, unknown_axis
from harness.sweep.cell import (
    CheckpointRules,
    Length,
    Stack,
    StopRule,
    is_setting,
)
from harness.sweep.document import Document, parse_value
from harness.sweep.workload import Seeds, WorkloadEntry
from workloads.settings import Between

ONE_EPOCH = Length(epochs=1)
# Of a sweep, and so of its folder; of a stack.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}\Z")
NAME_CHARACTERS = "letters, digits, ., - and _, at most 200"
Name = Annotated[str, Meta(pattern=f"^{NAME.pattern}", description=NAME_CHARACTERS)]
LENGTH = re.compile(r"(?P<count>[1-9][0-9]{0,17}) *(?P<unit>epoch|step)s?")
LENGTHS = ("length", "evaluate")  # the keys whose value is a length
MAX_TRIALS = 200_000  # those left out included: a typing error must not fill the memory
MAX_REPEATS = 10_000


@dataclass(frozen=True, kw_only=True)
class SweepKeys:
    """The keys of a sweep file that are those of the sweep too, and their defaults."""

    name: str  # decides the folder of the results; that of the file unless it is given
    seeds: Seeds = field(default_factory=lambda: [0])  # of every workload that sets none
    repeats: Annotated[int, Between(1, MAX_REPEATS)] = 1  # trials of each cell and seed
    checkpoint: CheckpointRules = field(default_factory=CheckpointRules)
    # Steps after each trial, outside its measurement, of which a profiler writes a trace. A trace takes
    # much memory.
    profile: Annotated[int, Between(1, 1000)] | None = None
    # Seconds that one trial may take; timers of the system overflow at some point beyond a year.
    timeout: Annotated[float, Between(1, 366 * 24 * 3600.0)] = 3600.0
    stacks: dict[Name, Stack] = field(default_factory=dict)  # the values of the axis `stack`


@dataclass(frozen=True, kw_only=True)
class SweepFile(SweepKeys):
    """All keys of a sweep file and their defaults."""

    name: Name
    workloads: Annotated[dict[Line, WorkloadEntry], Meta(min_length=1)]  # by label
    length: Length = ONE_EPOCH
    evaluate: Length = ONE_EPOCH  # how far apart evaluations are
    stop: StopRule | None = None  # None: every trial has its whole length
    warmup: Annotated[int, Between(0)] = 10  # steps never measured, at most half of a trial's
    # `harness.sweep.matrix` checks the following, because their types depend on the axis.
    matrix: dict[str, Any] = field(default_factory=dict)
    zip: list[dict[str, Any]] = field(default_factory=list)
    exclude: list[dict[str, Any]] = field(default_factory=list)
    include: list[dict[str, Any]] = field(default_factory=list)

    def warmup_of(self, length: Length) -> int:
        """Return the steps of a length that are not measured; how many an epoch has is not known yet."""
        return self.warmup if length.steps is None else min(self.warmup, length.steps // 2)


# In the order of the class.
SWEEP_KEYS = [key.name for key in fields(SweepFile)]


def read_sweep_file(document: Document, sets: Sequence[str], data: Sequence[str]) -> SweepFile:
    """Return the checked keys of a sweep file, `--set` and then `--data` applied; raises BadInput.

    The file is checked before the first flag and after each flag. So flags find mappings where they
    look for them, and a mistake is reported where it was made.
    """
    document.content.setdefault("name", Path(document.source_of(())).stem)
    file = _validate(document)
    for apply, texts in ((_apply_set, sets), (apply_data, data)):
        for text in texts:
            apply(document, text)
            file = _validate(document)
    return file


def _validate(document: Document) -> SweepFile:
    """Return the checked keys of a sweep file, and leave no short form in it; raises BadInput."""
    content = document.content
    _expand(document, (), content)
    if content.get("checkpoint") == "best":
        content["checkpoint"] = {"best": True}
    workloads: Any = content.get("workloads")
    for label, entry in workloads.items() if isinstance(workloads, dict) else ():
        if entry is None or isinstance(entry, str):
            workloads[label] = {"uses": entry}
        elif isinstance(entry, dict):
            _expand(document, ("workloads", label), entry)
            if isinstance(entry.get("target"), str):
                entry["target"] = {"name": entry["target"]}
    file: SweepFile = document.validate(SweepFile, content)
    return file


def _expand(document: Document, key: Key, content: dict[str, Any]) -> None:
    """Replace the short forms among the keys of the sweep, or of a workload, which is at `key`.

    `seeds: 3` are the seeds 0, 1 and 2, and `5 epochs` is the length {epochs: 5}.
    """
    seeds = content.get("seeds")
    if type(seeds) is int:
        content["seeds"] = list(range(min(seeds, MAX_TRIALS + 1)))
    # Two trials of one seed would share an id; that is what `repeats` is for.
    elif isinstance(seeds, list) and len(set(map(str, seeds))) < len(seeds):
        raise document.error((*key, "seeds"), f"found {shown(seeds)}; allowed: each once")
    for name in LENGTHS:
        length = content.get(name, {})
        if not isinstance(length, dict):
            match = LENGTH.fullmatch(str(length).strip())
            if match is None:
                allowed = "a length such as 5 epochs or 300 steps"
                raise document.error((*key, name), f"found {shown(length)}; allowed: {allowed}")
            content[name] = {f"{match['unit']}s": int(match["count"])}


def _apply_set(document: Document, text: str) -> None:
    """Apply `--set`: `execution=eager,compile` replaces an axis, `length.epochs=3` any other key.

    An axis, seeds and lengths hold for all workloads then, those that have their own included.
    Raises BadInput for an unknown key or a value that is no YAML.
    """
    name, equals, value = text.partition("=")
    name, source = name.strip(), f"--set {text}"
    if not equals:
        raise BadInput(f"{source}: found no '='; allowed: --set AXIS=VALUE,VALUE or KEY=VALUE")
    if name in AXES or name.startswith(PREFIX) or is_setting(name):
        _replace_axis(document, name, _parse_list(value, source), source)
        return
    key: Key = tuple(name.split("."))
    if key[0] not in SWEEP_KEYS:
        hint = unknown_axis(name, *SWEEP_KEYS, "length.epochs", "length.steps")
        raise BadInput(f"{source}: {hint}")
    if key[0] in ("seeds", *LENGTHS):
        for entry in document.content["workloads"].values():
            entry.pop(key[0], None)
    # Else it is a number of seeds, or a list in brackets.
    parse = _parse_list if name == "seeds" and "," in value else parse_value
    parsed = parse(value, source)
    if name.endswith((".steps", ".epochs")) and key[-2] in LENGTHS:
        # A length has one of the two, never both: the new one replaces the other.
        key, parsed = key[:-1], {key[-1]: parsed}
    document.put(key, parsed, source)


def _replace_axis(document: Document, axis: str, values: Any, source: str) -> None:
    """Have the matrix alone decide an axis, whatever decided it in the file.

    The other axes of a zip stay in it. Rules of `exclude` and `include` stay as they are; included
    points take the value if it is the only one.
    """
    for entry in document.content["workloads"].values():
        entry.get("axes", {}).pop(axis, None)
        if is_setting(axis):
            section, _, name = axis.partition(".")
            entry.get(section, {}).pop(name, None)
    for group in document.content.get("zip", []):
        group.pop(axis, None)
    document.put(("matrix", axis), values, source)


def _parse_list(value: str, source: str) -> Any:
    """Return the list in `a,b` or `[a, b]`; a single value is a list of one.

    `[1],[2]` are two values that are lists themselves.
    """
    wrapped = parse_value(f"[{value}]", source)
    if value.lstrip().startswith("[") and len(wrapped) == 1:
        return wrapped[0]
    return wrapped


def apply_data(document: Document, text: str) -> None:
    """Apply `--data`: `PATH` sets `data.path` of every workload, `LABEL=PATH` that of one.

    That a workload has this setting and that the files exist is checked when it is planned.
    """
    entries = document.content["workloads"]
    label, _, path = text.partition("=")
    labels = [label]
    if label not in entries:
        labels, path = list(entries), text
    # Absolute, because paths in a sweep file are relative to the file and this one is not.
    absolute = str(Path(path).absolute())
    for name in labels:
        document.put(("workloads", name, "data", "path"), absolute, f"--data {text}")
