"""The command line's changes to a sweep file: `--set` and `--data`.

They change the file's content before it is checked, so a value from the command line is checked as
one in the file is, and its errors name the flag in place of the line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, get_type_hints

from harness.core.errors import BadInput, did_you_mean
from harness.core.validation import InvalidValue, choose
from harness.spec.axes import AXIS_TYPES
from harness.spec.cell import SOURCE, declared_defaults, setting_of
from harness.spec.document import Document, parse_value
from harness.spec.environment import axis_hint, variable_of
from harness.spec.script import read_workload
from harness.spec.shorthand import LENGTHS
from harness.spec.workload import WorkloadEntry

LABEL = re.compile(r"[\w.:-]+(?==)")  # before a path


def apply_set(document: Document, text: str, sweep_keys: Sequence[str]) -> None:
    """Apply `--set`: `execution=eager,compile` replaces an axis, `length.epochs=3` any other key.

    An axis, seeds and lengths hold for all workloads then, those that have their own included.
    `text` is what follows `--set`, and `sweep_keys` are the keys of a sweep file. Raises BadInput
    for an unknown key or a value that is no YAML. Values are checked when the document is.
    """
    name, equals, value = text.partition("=")
    name = name.strip()
    if not equals or not name:
        raise BadInput(
            f"--set {text}: found no '='; allowed: --set axis=value[,value…] or --set some.key=value"
        )
    source = f"--set {text}"
    is_open_axis = variable_of(name) is not None or setting_of(name) is not None
    if name in AXIS_TYPES or is_open_axis:
        _replace_axis(document, name, value, source)
    elif name == "seeds":
        _remove_from_workloads(document, name)
        is_list = "," in value  # else a number of seeds, or a list in brackets
        seeds = _parse_list(value, source) if is_list else parse_value(value, source)
        document.put(("seeds",), seeds, source)
    else:
        section = name.partition(".")[0]
        if section in LENGTHS:
            _remove_from_workloads(document, section)
        _replace_key(document, name, value, source, sweep_keys)


def _remove_from_workloads(document: Document, key: str) -> None:
    """Remove a key from all workloads, so that the sweep's value holds for them too."""
    for entry in document.content["workloads"].values():
        entry.pop(key, None)


def _replace_axis(document: Document, axis: str, value: str, source: str) -> None:
    """Have the matrix alone decide an axis, whatever decided it in the file.

    The other axes of a zip stay in it. Rules of `exclude` and `include` stay as they are; included
    points take the value if it is the only one.
    """
    setting = setting_of(axis)
    content = document.content
    for entry in content["workloads"].values():
        entry.get("axes", {}).pop(axis, None)
        if setting is not None:
            entry.get(setting.section, {}).pop(setting.name, None)
    for group in content.get("zip", []):
        group.pop(axis, None)
    document.put(("matrix", axis), _parse_list(value, source), source)


def _replace_key(
    document: Document, name: str, value: str, source: str, sweep_keys: Sequence[str]
) -> None:
    """Set any other key of the file, named by a dotted path such as `workloads.mlp.length.epochs`.

    Raises BadInput for an unknown first part and for a workload that the sweep does not have;
    unknown parts further down are found when the document is checked.
    """
    key = tuple(name.split("."))
    labels = document.content["workloads"]
    if key[0] not in sweep_keys:
        lengths = ["length.epochs", "length.steps"]
        hint = did_you_mean(name, [*AXIS_TYPES, axis_hint(name), *sweep_keys, *lengths])
        raise BadInput(f"{source}: unknown axis or key; {hint}")
    if key[0] == "workloads" and len(key) > 2 and key[1] not in labels:
        raise BadInput(f"{source}: workloads: found {key[1]!r}; {did_you_mean(key[1], labels)}")
    parsed = parse_value(value, source)
    is_length = len(key) > 1 and key[-2] in LENGTHS
    if is_length and key[-1] in ("steps", "epochs"):
        # A length has one of the two, never both: the new one replaces the other.
        document.put(key[:-1], {key[-1]: parsed}, source)
    else:
        document.put(key, parsed, source)


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
    entries = document.content["workloads"]
    match = LABEL.match(text)
    path, names = text, {}
    if match is not None and not Path(text).exists():
        label, path = match[0], text[match.end() + 1 :]
        if label not in entries:
            raise BadInput(f"--data {text}: found {label!r}; {did_you_mean(label, entries)}")
        # Where its data has no such setting, the check of its settings says what it has.
        names[label] = _path_setting(document, label, is_named=True) or "path"
    else:
        for label in entries:
            setting = _path_setting(document, label, is_named=len(entries) == 1)
            if setting is not None:
                names[label] = setting
    if not names:
        raise BadInput(
            f"--data {text}: found no workload that reads data from files; allowed: LABEL=PATH, for a"
            " workload whose `Data` has a setting of type Path"
        )
    for label, setting in names.items():
        # Absolute, because paths in a sweep file are relative to the file and this one is not.
        key = ("workloads", label, "data", setting)
        document.put(key, str(Path(path).absolute()), f"--data {text}")


def _path_setting(document: Document, label: str, *, is_named: bool) -> str | None:
    """Return the setting of a workload's data that says where they are, None without one.

    It is `path`, or else the only one of type Path. Of a workload that is not named on the command
    line, it counts only where it is set, or has to be.
    """
    entry = document.content["workloads"][label]
    data = entry.get("data", {})
    checked = document.validate(WorkloadEntry, entry, ("workloads", label))
    declared = read_workload(document, label, checked).declaration.data
    matrix = document.content.get("matrix", {})
    chosen = matrix.get(f"data.{SOURCE}", data.get(SOURCE))
    sources = chosen if isinstance(chosen, list) else [chosen]
    for source in sources:
        try:
            kind = choose(declared, {} if source is None else {SOURCE: source})
        except InvalidValue:  # an unknown source, which planning reports
            return "path"
        hints = get_type_hints(kind)
        paths = [setting.name for setting in fields(kind) if Path in _kinds(hints[setting.name])]
        names = ["path"] if "path" in paths else paths
        if len(names) != 1:
            continue
        is_needed = declared_defaults(kind)[names[0]] is MISSING
        if is_needed or is_named or names[0] in data:
            return names[0]
    return None


def _kinds(kind: Any) -> tuple[Any, ...]:
    """Return the types of an optional one, or the type itself."""
    return getattr(kind, "__args__", None) or (kind,)
