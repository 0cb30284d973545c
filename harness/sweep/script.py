"""Scripts: a workload that is an ordinary training script with its own loop, run as torchrun runs it.

The harness starts it, watches its optimizer steps and records them. It can't change what the script
does, so a setting counts only where the script gets it: by a placeholder among its arguments, as in
`arguments: [--lr, "{lr}"]`. Everything else that a sweep may ask of a workload is refused.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any

from harness.core.validation import Key
from harness.sweep.axes import AXES, Axes
from harness.sweep.cell import WorkloadRef, placeholders_of
from harness.sweep.document import Document
from workloads.settings import Settings

UNKNOWN_BATCH_SIZE = 1
# What a placeholder may name besides options and axes: the trial's seed, the steps of its length, and
# its folder in the results, or a rank's share of the batch.
FACTS = ("seed", "steps", "folder", "rank_batch_size")
ScriptValue = str | int | float | bool
# Keys of an entry, and of a sweep, that only the harness's own loop can do.
REFUSED_KEYS = ("stop", "evaluate", "checkpoint", "profile", "data")


def find_conflict(reference: WorkloadRef, axes: Axes) -> str | None:
    """Return why a script can't run with these axes, None if it can: it must get all of them."""
    options = reference.options
    for name, value in axes.changed.items():
        is_unknown = name == "batch_size" and value == UNKNOWN_BATCH_SIZE
        if name not in reference.script_axes and not is_unknown:
            reason = f"{reference.uses} is a script, which does what its arguments say"
            remedy = f"set options.{name}" if name in options else f"hand it over as {{{name}}}"
            return f"{name} {value}: {reason}; {remedy}"
    if reference.launch == "python" and axes.world_size > 1:
        return f"world_size {axes.world_size}: launch: python starts one process"
    names = placeholders_of(reference.arguments or ())
    for name in names:
        if name in AXES and name not in options and axes.value(name) is None:
            return f"{{{name}}} has no value; set the axis {name} or `options: {{{name}: …}}`"
    if "rank_batch_size" in names and axes.batch_size % axes.world_size:
        return f"batch_size {axes.batch_size} can't be shared out evenly among {axes.world_size}"
    return None


def options_class(arguments: Sequence[str]) -> type[Settings]:
    """Return the options of a script: what its arguments name.

    What may be an axis or a fact as well needs no value.
    """
    options: list[Any] = []
    for name in placeholders_of(arguments):
        if name in AXES or name in FACTS:
            options.append((name, ScriptValue | None, None))
        else:
            options.append((name, ScriptValue))
    return make_dataclass("Options", options, bases=(Settings,), frozen=True, kw_only=True)


def read_arguments(document: Document, key: Key, written: Any) -> list[str]:
    """Return the arguments of an entry as a list of texts; a text is split as a shell does."""
    if isinstance(written, str):
        try:
            return shlex.split(written)
        except ValueError as error:
            problem = f"found {written!r}: {error}; allowed: arguments as of a shell, or a list"
            raise document.error((*key, "arguments"), problem) from None
    return [str(argument) for argument in written or ()]


def module_file(module: str, base: Path) -> str:
    """Return the file that `python -m` would run, relative to the sweep's folder."""
    path = module.replace(".", "/")
    return f"{path}/__main__.py" if (base / path).is_dir() else f"{path}.py"


def check_keys(document: Document, key: Key, arguments: Sequence[str]) -> None:
    """Raise BadInput for keys that make no sense with a script, in its entry or in the sweep."""
    for name in REFUSED_KEYS:
        value, value_key = _find_key(document, key, name)
        if value:
            problem = "found it with a script, which does this itself; allowed: arguments"
            raise document.error(value_key, problem)
    length, length_key = _find_key(document, key, "length")
    if length.get("epochs", 1) != 1:
        problem = f"found {length['epochs']} epochs of a script, which counts its epochs itself"
        raise document.error(length_key, f"{problem}; allowed: `length: 300 steps`, or an argument")
    names = placeholders_of(arguments)
    options, options_key = _find_key(document, key, "options")
    for name in options:
        if name not in names:
            problem = f"found an option that no argument names; write {{{name}}} in `arguments`"
            raise document.error((*options_key, name), problem)
    if "steps" in names and "steps" not in {**length, **options}:
        problem = "found {steps} without a length in steps; allowed with `length: 300 steps`"
        raise document.error((*key, "arguments"), problem)
    if document.content.get("warmup") == 0:
        allowed = "1 or more: how its first step begins is unseen"
        raise document.error(("warmup",), f"found 0; allowed with a script: {allowed}")


def _find_key(document: Document, key: Key, name: str) -> tuple[Any, Key]:
    """Return the value of a key of an entry, or else of the sweep, and where that key is."""
    entry = document.content["workloads"][key[-1]]
    if entry.get(name):
        return entry[name], (*key, name)
    return document.content.get(name) or {}, (name,)
