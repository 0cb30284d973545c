"""The keys of a sweep file, its short forms, and the flags that change it: `--set` and `--data`.

Short forms are replaced by what they stand for, and flags change the content, before the content is
checked. So nothing after that knows which form was written, a value from the command line is checked
as one in the file is, and its errors name the flag in place of the line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

from harness.core.errors import BadInput, did_you_mean
from harness.core.validation import Key, members_by_source, shown
from harness.spec.axes import AXIS_TYPES
from harness.spec.cell import (
    SOURCE,
    Fingerprints,
    Length,
    Profiling,
    StopRule,
    declared_defaults,
    setting_of,
)
from harness.spec.document import Document, parse_value
from harness.spec.environment import axis_hint, variable_of
from harness.spec.files import FileDigests
from harness.spec.saving import CheckpointRules
from harness.spec.stack import Stack
from harness.spec.workload import Seeds, WorkloadEntry, read_workload
from workloads.catalog import BUILT_IN
from workloads.settings import Between

ONE_EPOCH = Length(epochs=1)
NAME = re.compile(r"\w[\w.-]{0,199}", re.ASCII)  # of a sweep, and so of its folder; of a stack
LABEL = re.compile(r"\w[\w.:/ -]{0,199}")  # of a workload, which may be its file and class
LABEL_BEFORE_PATH = re.compile(r"[\w.:-]+(?==)")
LENGTH = re.compile(r"(?P<count>[1-9][0-9]{0,17}) *(?P<unit>epoch|step)s?")
LENGTHS = ("length", "evaluate")  # the keys whose value is a length
# A typing error must not fill the memory with trials.
MAX_SEEDS = MAX_REPEATS = 10_000
MAX_TIMEOUT = 366 * 24 * 3600.0  # a year; the system's timers overflow at some point beyond it


@dataclass(frozen=True, kw_only=True)
class SweepKeys:
    """The keys of a sweep file that are those of the sweep too, and their defaults."""

    name: str  # decides the folder of the results; that of the file unless it is given
    seeds: Seeds = field(default_factory=lambda: [0])  # of every workload that sets none
    repeats: Annotated[int, Between(1, MAX_REPEATS)] = 1  # trials of each cell and seed
    checkpoint: CheckpointRules = field(default_factory=CheckpointRules)
    profile: Profiling | None = None
    fingerprints: Fingerprints | None = None
    timeout: Annotated[float, Between(1, MAX_TIMEOUT)] = 3600.0  # seconds that one trial may take
    stacks: dict[str, Stack] = field(default_factory=dict)  # the values of the axis `stack`


@dataclass(frozen=True, kw_only=True)
class SweepFile(SweepKeys):
    """All keys of a sweep file and their defaults."""

    workloads: dict[str, WorkloadEntry]  # by label
    length: Length = ONE_EPOCH
    evaluate: Length = ONE_EPOCH  # how far apart evaluations are
    stop: StopRule | None = None  # None: every trial has its whole length
    # Optimizer steps that are never measured; null: 10, or fewer where the length has few steps.
    warmup: Annotated[int, Between(0)] | None = None
    # `harness.spec.matrix` checks the following, because their types depend on the axis.
    matrix: dict[str, Any] = field(default_factory=dict)
    zip: list[dict[str, Any]] = field(default_factory=list)
    exclude: list[dict[str, Any]] = field(default_factory=list)
    include: list[dict[str, Any]] = field(default_factory=list)


# In the order of the class.
SWEEP_KEYS = [key.name for key in fields(SweepFile)]


def read_sweep_file(document: Document, sets: Sequence[str], data: Sequence[str]) -> SweepFile:
    """Return the checked keys of a sweep file, `--set` and then `--data` applied; raises BadInput.

    The file is checked before the first flag and after each flag. So flags find mappings where they
    look for them, and a mistake is reported where it was made.
    """
    document.content.setdefault("name", Path(document.source_of(())).stem)
    file = _validate(document)
    for text in sets:
        _apply_set(document, text)
        file = _validate(document)
    for text in data:  # after flags that may have chosen a source which reads files
        apply_data(document, text)
        file = _validate(document)
    _check_names(document, file)
    return file


def _validate(document: Document) -> SweepFile:
    """Return the checked keys of a sweep file, and leave no short form in it; raises BadInput."""
    content = document.content
    _expand(document, (), content)
    if isinstance(content.get("checkpoint"), str):
        if content["checkpoint"] != "best":
            hint = did_you_mean(content["checkpoint"], ["best", "{every: 10m, keep: 2}"])
            raise document.error(("checkpoint",), f"found {content['checkpoint']!r}; {hint}")
        content["checkpoint"] = {"best": True}
    workloads = content.get("workloads")
    if not isinstance(workloads, dict):
        workloads = {}  # which validation refuses
    for label, entry in workloads.items():
        if entry is None:  # a workload as it is declared
            workloads[label] = {}
        elif isinstance(entry, str):
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
        if not 1 <= seeds <= MAX_SEEDS:
            allowed = f"how many seeds, from 1 to {MAX_SEEDS:,}, or a list of them ([{seeds}])"
            raise document.error((*key, "seeds"), f"found {seeds}; allowed: {allowed}")
        content["seeds"] = list(range(seeds))
    for name in LENGTHS:
        if name not in content or isinstance(content[name], dict):
            continue
        match = LENGTH.fullmatch(str(content[name]).strip())
        if match is None:
            problem = (
                f"found {shown(content[name])}; allowed: a length such as 5 epochs or 300 steps"
            )
            raise document.error((*key, name), problem)
        content[name] = {f"{match['unit']}s": int(match["count"])}


def _check_names(document: Document, file: SweepFile) -> None:
    """Raise BadInput for names that a folder or a table can't have, no workloads, repeated seeds."""
    names: list[tuple[Key, str, re.Pattern[str]]] = [(("name",), file.name, NAME)]
    names += [(("stacks", name), name, NAME) for name in file.stacks]
    names += [(("workloads", label), label, LABEL) for label in file.workloads]
    for key, name, pattern in names:
        if not pattern.fullmatch(name):
            problem = f"found {name!r}; allowed: letters, digits, ., - and _, at most 200"
            raise document.error(key, problem)
    if not file.workloads:
        hint = did_you_mean("", BUILT_IN)
        raise document.error(("workloads",), f"found none; {hint}, or a class of yours")
    all_seeds: dict[Key, Seeds | None] = {("seeds",): file.seeds}
    for label, entry in file.workloads.items():
        all_seeds["workloads", label, "seeds"] = entry.seeds
    for key, seeds in all_seeds.items():
        # Two trials of one seed would share an id; that is what `repeats` is for.
        if seeds is not None and (not seeds or len(set(seeds)) < len(seeds)):
            raise document.error(key, f"found {shown(seeds)}; allowed: at least one, each once")


def _apply_set(document: Document, text: str) -> None:
    """Apply `--set`: `execution=eager,compile` replaces an axis, `length.epochs=3` any other key.

    An axis, seeds and lengths hold for all workloads then, those that have their own included.
    Raises BadInput for an unknown key or a value that is no YAML.
    """
    name, equals, value = text.partition("=")
    name, source = name.strip(), f"--set {text}"
    if not equals or not name:
        allowed = "--set axis=value[,value…] or --set some.key=value"
        raise BadInput(f"{source}: found no '='; allowed: {allowed}")
    section = name.partition(".")[0]
    if section == "seeds" or section in LENGTHS:
        for entry in document.content["workloads"].values():
            entry.pop(section, None)
    if name in AXIS_TYPES or variable_of(name) is not None or setting_of(name) is not None:
        _replace_axis(document, name, _parse_list(value, source), source)
    elif name == "seeds" and "," in value:  # else a number of seeds, or a list in brackets
        document.put(("seeds",), _parse_list(value, source), source)
    else:
        _replace_key(document, name, parse_value(value, source), source)


def _replace_axis(document: Document, axis: str, values: Any, source: str) -> None:
    """Have the matrix alone decide an axis, whatever decided it in the file.

    The other axes of a zip stay in it. Rules of `exclude` and `include` stay as they are; included
    points take the value if it is the only one.
    """
    setting, content = setting_of(axis), document.content
    for entry in content["workloads"].values():
        entry.get("axes", {}).pop(axis, None)
        if setting is not None:
            entry.get(setting.section, {}).pop(setting.name, None)
    for group in content.get("zip", []):
        group.pop(axis, None)
    document.put(("matrix", axis), values, source)


def _replace_key(document: Document, name: str, value: Any, source: str) -> None:
    """Set any other key of the file, named by a dotted path such as `workloads.mlp.length.epochs`.

    Raises BadInput for an unknown first part and for a workload that the sweep does not have;
    unknown parts further down are found when the document is checked.
    """
    key = tuple(name.split("."))
    labels = document.content["workloads"]
    if key[0] not in SWEEP_KEYS:
        lengths = ["length.epochs", "length.steps"]
        hint = did_you_mean(name, [*AXIS_TYPES, axis_hint(name), *SWEEP_KEYS, *lengths])
        raise BadInput(f"{source}: unknown axis or key; {hint}")
    if key[0] == "workloads" and len(key) > 2 and key[1] not in labels:
        raise BadInput(f"{source}: workloads: found {key[1]!r}; {did_you_mean(key[1], labels)}")
    if len(key) > 1 and key[-2] in LENGTHS and key[-1] in ("steps", "epochs"):
        # A length has one of the two, never both: the new one replaces the other.
        document.put(key[:-1], {key[-1]: value}, source)
    else:
        document.put(key, value, source)


def _parse_list(value: str, source: str) -> Any:
    """Return the list in `a,b` or `[a, b]`; a single value is a list of one.

    `[1],[2]` are two values that are lists themselves.
    """
    wrapped = parse_value(f"[{value}]", source)
    if value.lstrip().startswith("[") and len(wrapped) == 1:
        return wrapped[0]
    return wrapped


def apply_data(document: Document, text: str) -> None:
    """Apply `--data`: `PATH` for every workload that reads data from files, `LABEL=PATH` for one.

    Raises BadInput for an unknown label, where no workload reads files, and for a workload that can't
    be loaded. That the files exist is checked when the workload is planned.
    """
    entries: Mapping[str, Any] = document.content["workloads"]
    match = LABEL_BEFORE_PATH.match(text)
    path, labels = text, list(entries)
    if match is not None and not Path(text).exists():
        path, labels = text[match.end() + 1 :], [match[0]]
        if match[0] not in entries:
            raise BadInput(f"--data {text}: found {match[0]!r}; {did_you_mean(match[0], entries)}")
    names = {label: _path_setting(document, label, is_named=len(labels) == 1) for label in labels}
    if path != text and names[labels[0]] is None:
        names[labels[0]] = "path"  # which the check of its settings refuses
    if not any(names.values()):
        raise BadInput(
            f"--data {text}: found no workload that reads data from files; allowed: LABEL=PATH, for a"
            " workload whose `Data` has a setting of type Path"
        )
    for label, setting in names.items():
        if setting is not None:
            # Absolute, because paths in a sweep file are relative to the file and this one is not.
            absolute = str(Path(path).absolute())
            document.put(("workloads", label, "data", setting), absolute, f"--data {text}")


def _path_setting(document: Document, label: str, *, is_named: bool) -> str | None:
    """Return the setting of a workload's data that says where they are, None without one.

    It is `path`, or else the only one of type Path. Of a workload that is not named on the command
    line, it counts only where it is set, or has to be.
    """
    entry = document.content["workloads"][label]
    data = entry.get("data", {})
    checked = document.validate(WorkloadEntry, entry, ("workloads", label))
    members = members_by_source(
        read_workload(document, label, checked, FileDigests()).declaration.data
    )
    chosen = document.content.get("matrix", {}).get(f"data.{SOURCE}", data.get(SOURCE))
    for source in chosen if isinstance(chosen, list) else [chosen]:
        kind = next(iter(members.values()))
        if source is not None:
            kind = members.get(str(source))
        if kind is None:  # an unknown source, which planning reports
            return "path"
        hints = get_type_hints(kind)
        paths = [name for name, hint in hints.items() if Path in (hint, *get_args(hint))]
        if "path" in paths:
            paths = ["path"]
        if len(paths) != 1:
            continue
        if is_named or paths[0] in data or declared_defaults(kind)[paths[0]] is MISSING:
            return paths[0]
    return None
