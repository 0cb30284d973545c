"""Short ways to write a sweep file, `seeds: 3` and `length: 5 epochs`, and keys in a wrong place.

Short forms are replaced by what they stand for before the file is checked. Nothing after that knows
them, so a cell's id does not depend on which form was written.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from harness.core.errors import did_you_mean, one_line
from harness.core.synonyms import SWEEP_LINES, SYNONYMS, TRUE, WORKLOAD_LINES
from harness.core.text import parse_duration
from harness.core.validation import LONGEST_VALUE, Key, shown
from harness.spec.axes import AXIS_TYPES
from harness.spec.document import MAX_NODES, Document
from harness.spec.saving import NEVER
from harness.spec.workload import WorkloadEntry

WORKLOAD_KEYS = [key.name for key in fields(WorkloadEntry)]
# The keys that a sweep file must have, with a line for each.
REQUIRED = {"name": "name: my sweep", "workloads": "workloads: {mlp: {}}"}
LENGTHS = ("length", "evaluate")  # the keys whose value is a length
# What the words stand for that may be in place of the keys of `checkpoint`.
CHECKPOINTS: Mapping[str, Mapping[str, Any]] = {"best": {"best": True}, "none": {"every": NEVER}}
# Of so few digits that Python reads it whatever it is; the bound of a length is checked later.
DURATION = re.compile(r"[0-9]+(\.[0-9]+)?(ms|s|m|h)")
LENGTH = re.compile(r"(?P<count>[0-9]{1,18}) *(?P<unit>epoch|step)s?")


def expand_shorthand(document: Document, sweep_keys: Collection[str]) -> None:
    """Replace the short forms of a sweep file by what they stand for.

    `sweep_keys` are the keys of a sweep file. Raises BadInput for a short form that means nothing,
    and for a key that belongs elsewhere.
    """
    content = document.content
    _refuse_misplaced(document, (), content, sweep_keys)
    _refuse_other_shapes(document, (), content)
    for name, line in REQUIRED.items():
        if name not in content and not set(content) - set(sweep_keys):
            raise document.error((name,), f"missing; write `{line}`")
    _expand(document, (), content)
    if "checkpoint" in content:
        content["checkpoint"] = _expand_checkpoint(document, content["checkpoint"])
    workloads = content.get("workloads")
    if not isinstance(workloads, dict):
        return  # which validation refuses
    for label, entry in workloads.items():
        if entry is None:  # a workload as it is declared
            workloads[label] = {}
        elif isinstance(entry, dict):
            _refuse_misplaced(document, ("workloads", label), entry, WORKLOAD_KEYS)
            _refuse_other_shapes(document, ("workloads", label), entry)
            _expand(document, ("workloads", label), entry)


def _expand(document: Document, key: Key, content: dict[str, Any]) -> None:
    """Replace the short forms among the keys of the sweep, or of a workload, which is at `key`."""
    if "seeds" in content:
        content["seeds"] = _expand_seeds(document, (*key, "seeds"), content["seeds"])
    if key and isinstance(content.get("target"), str):  # a script's metric
        content["target"] = {"name": content["target"]}
    for name in LENGTHS:
        if name in content:
            content[name] = _expand_length(document, (*key, name), content[name])


def _expand_seeds(document: Document, key: Key, value: Any) -> Any:
    """Return [0, 1, 2] for 3, a list as it is; raises BadInput for a number of no seeds, and for text."""
    if isinstance(value, str):
        allowed = "allowed: how many seeds (3: seeds 0, 1 and 2), or a list of them ([0, 5])"
        raise document.error(key, f"found {shown(value)}; {allowed}")
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    if not 1 <= value <= MAX_NODES:
        problem = (
            f"found {value}; allowed: how many seeds, from 1 to {MAX_NODES:,} (3: seeds 0, 1 and 2),"
            f" or a list of them ([{value}])"
        )
        raise document.error(key, problem)
    return list(range(value))


def _expand_length(document: Document, key: Key, value: Any) -> Any:
    """Return {"epochs": 5} for `5 epochs`, a mapping as it is; raises BadInput for other text."""
    if isinstance(value, int) and not isinstance(value, bool):
        problem = f"found {value} without a unit; allowed: {value} epochs or {value} steps"
        raise document.error(key, problem)
    if not isinstance(value, str):
        return value
    match = LENGTH.fullmatch(value.strip())
    if match is None:
        problem = f"found {shown(value)}; allowed: a length such as 5 epochs or 300 steps"
        raise document.error(key, problem)
    return {f"{match['unit']}s": int(match["count"])}


def _expand_checkpoint(document: Document, value: Any) -> Any:
    """Return {"best": True} for `best`, a mapping as it is; raises BadInput for other words.

    So it does for an interval without a unit.
    """
    if isinstance(value, str):
        if value not in CHECKPOINTS:
            allowed = [*CHECKPOINTS, "{every: 10m, keep: 2}"]
            problem = f"found {shown(value)}; {did_you_mean(value, allowed)}"
            raise document.error(("checkpoint",), problem)
        return dict(CHECKPOINTS[value])
    every = value.get("every") if isinstance(value, dict) else None
    if isinstance(every, int) and not isinstance(every, bool):
        problem = f"found {every} without a unit; allowed: {every}m or {every} steps"
        raise document.error(("checkpoint", "every"), problem)
    return value


def _refuse_misplaced(
    document: Document, key: Key, content: Mapping[str, Any], allowed: Collection[str]
) -> None:
    """Raise BadInput for a key that belongs elsewhere, with the line to write instead.

    `content` is that of the sweep, or of a workload, which is at `key`. A key that is only unknown
    is left to validation.
    """
    for name, value in content.items():
        if name in allowed:
            continue
        line = _line_instead(name, value, is_workload=bool(key))
        if line is not None:
            problem = f"unknown key; did you mean `{line}`? {did_you_mean('', allowed)}"
            raise document.error((*key, name), problem)


def _refuse_other_shapes(document: Document, key: Key, content: Mapping[str, Any]) -> None:
    """Raise BadInput for a value whose meaning is clear though it has another shape, with the line to write.

    `content` is that of the sweep, or of a workload, which is at `key`.
    """
    for name, value in content.items():
        line = _line_in_shape(name, value)
        if line is not None:
            problem = f"found {shown(value)}; did you mean `{line}`?"
            raise document.error((*key, name), problem)


def _line_in_shape(name: str, value: Any) -> str | None:
    """Return the line that says what a value was meant to say, None if its shape is right or unclear."""
    match name, value:
        case "workloads", str():
            return f"workloads: {{{_written(value)}: {{}}}}"
        case "workloads", list():
            return f"workloads: {{{', '.join(f'{_written(label)}: {{}}' for label in value)}}}"
        case "matrix", list():
            return "matrix: {precision: [fp32, bf16]}"
        case "zip", dict():
            return f"zip: [{shown(value)}]"
        case "data", str():
            return f"data: {{source: {_written(value)}}}"
        case "timeout", str() if DURATION.fullmatch(value.strip()):
            return f"timeout: {parse_duration(value, name):g}"
    return None


def _line_instead(name: str, value: Any, *, is_workload: bool) -> str | None:
    """Return the line that says what an unknown key was meant to say, None if that is not known.

    It is for the same place. Of several values of an axis, a workload has no such line.
    """
    meant = SYNONYMS.get(name, name)
    if value is True:
        value = TRUE.get(meant, value)
    if meant in AXIS_TYPES and not isinstance(value, list):
        return f"axes: {{{meant}: {_written(value)}}}"
    if meant in AXIS_TYPES and not is_workload:
        return f"matrix: {{{meant}: {shown(value)}}}"
    section, _, unit = meant.partition(".")
    if section == "length":
        return f"length: {_written(value)} {unit}"
    lines = WORKLOAD_LINES if is_workload else SWEEP_LINES
    if name in lines:
        return lines[name].format(value=_written(value))
    if is_workload and not get_close_matches(name, WORKLOAD_KEYS):
        return f"options: {{{name}: {shown(value)}}}"
    return None


def _written(value: Any) -> str:
    """Return a value as it may be written in a line of YAML, an ellipsis for a list or a mapping."""
    if isinstance(value, str):
        return one_line(SYNONYMS.get(value, value), LONGEST_VALUE)
    if isinstance(value, list | dict):
        return "…"
    return shown(value)
