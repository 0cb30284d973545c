"""The command line's changes to a sweep file: `--set` and `--data`.

They change the file's content before it is checked, so a value from the command line is checked as
one in the file is, and its errors name the flag in place of the line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING
from pathlib import Path
from typing import Any

from harness.core.errors import BadInput, did_you_mean
from harness.core.validation import InvalidValue, choose
from harness.spec.axes import AXIS_TYPES
from harness.spec.cell import SOURCE, declared_defaults, setting_of
from harness.spec.document import MAX_DEPTH, Document, parse_value
from harness.spec.environment import axis_hint, variable_of
from harness.spec.shorthand import LENGTHS
from harness.spec.text import find_control_character
from harness.spec.workload import WorkloadEntry, read_declaration


def apply_set(document: Document, text: str, sweep_keys: Sequence[str]) -> None:
    """Apply `--set`: `execution=eager,compile` replaces an axis, `length.epochs=3` any other key.

    An axis, seeds and lengths hold for all workloads then, those that have their own included.
    `checkpoint.every` is the axis of that name if the sweep has it or gets several values, else a key.
    `text` is what follows `--set`, and `sweep_keys` are the keys of a sweep file. Raises BadInput
    for an unknown key or a value that is no YAML. Values are checked when the document is.
    """
    if find_control_character(text, besides="\n\t"):
        raise BadInput(f"--set {text!r}: found a control character; allowed: text without any")
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
    points take the value if it is the only one (`Matrix.set_for_all`).
    """
    setting = setting_of(axis)
    if setting is not None:
        for entry in document.content["workloads"].values():
            entry.get(setting.section, {}).pop(setting.name, None)
    for group in _groups_of_axes(document):
        group.pop(axis, None)
    document.put(("matrix", axis), _parse_list(value, source), source)


def _groups_of_axes(document: Document) -> list[dict[str, Any]]:
    """Return what sets axes apart from the matrix: `axes`, each part of `zip`, and the workloads' own."""
    content = document.content
    groups = [content.get("axes", {}), *content.get("zip", [])]
    for entry in content["workloads"].values():
        groups.append(entry.get("axes", {}))
    return groups


def _replace_key(
    document: Document, name: str, value: str, source: str, sweep_keys: Sequence[str]
) -> None:
    """Set any other key of the file, named by a dotted path such as `workloads.mlp.length.epochs`.

    Raises BadInput for an unknown first part and for a workload that the sweep does not have;
    unknown parts further down are found when the document is checked.
    """
    key = tuple(name.split("."))
    if len(key) > MAX_DEPTH:
        raise BadInput(f"{source}: found a key of {len(key)} parts; allowed: at most {MAX_DEPTH}")
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
    if find_control_character(text):
        raise BadInput(f"--data {text!r}: found a control character; allowed: a path without any")
    label, equals, path = text.partition("=")
    entries = document.content["workloads"]
    if equals and label not in entries:
        raise BadInput(f"--data {text}: found {label!r}; {did_you_mean(label, entries)}")
    if equals:
        labels = [label]
    else:
        path = text  # there was no `=`, so all of it is the path
        labels = [name for name in entries if _reads_files(document, name)]
    if not labels:
        raise BadInput(
            f"--data {text}: found no workload that reads data from files; allowed: LABEL=PATH"
        )
    for name in labels:
        key = ("workloads", name, "data", "path")
        # Absolute, because paths in a sweep file are relative to the file and this one is not.
        document.put(key, str(Path(path).absolute()), f"--data {text}")


def _reads_files(document: Document, label: str) -> bool:
    """Return whether a workload sets the `path` of its data, or has a source that requires one."""
    entry = document.content["workloads"][label]
    data = entry.get("data", {})
    if "path" in data:
        return True
    checked = document.validate(WorkloadEntry, entry, ("workloads", label))
    declared = read_declaration(document, label, checked).data
    chosen = [data]
    axis = f"data.{SOURCE}"
    for group in (document.content.get("matrix", {}), *_groups_of_axes(document)):
        if axis in group:
            sources = group[axis] if isinstance(group[axis], list) else [group[axis]]
            chosen = [{SOURCE: source} for source in sources]
    for settings in chosen:
        try:
            defaults = declared_defaults(choose(declared, settings))
        except InvalidValue:  # an unknown source, which planning reports
            return True
        if defaults.get("path") is MISSING:
            return True
    return False
