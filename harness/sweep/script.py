"""Scripts: a workload that is an ordinary training script with its own loop, run as torchrun runs it.

The harness starts it, watches its optimizer steps and records them. It can't change what the script
does, so a setting counts only where the script gets it: by a placeholder among its arguments, as in
`arguments: [--lr, "{lr}"]`. Everything else that a sweep may ask of a workload is refused.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.core.errors import did_you_mean
from harness.core.validation import Key
from harness.sweep.axes import AXES, AXIS_TYPES, Axes
from harness.sweep.cell import WorkloadRef, placeholders_of, script_axes
from harness.sweep.document import Document

UNKNOWN_BATCH_SIZE = 1
# What a placeholder may name besides options and axes: the trial's seed, the steps of its length, and
# its folder in the results, or a rank's share of the batch.
FACTS = ("seed", "steps", "folder", "rank_batch_size")
ScriptValue = str | int | float | bool
# Keys of an entry, and of a sweep, that only the harness's own loop can do.
REFUSED_KEYS = {
    "stop": "the script ends training itself",
    "evaluate": "the script evaluates when it does; harness.report(NAME=VALUE) records it",
    "checkpoint": "the script saves what it saves",
    "profile": "the harness takes no steps of its own in it",
    "data": "the script reads them itself; allowed: arguments",
}


def find_conflict(reference: WorkloadRef, axes: Axes) -> str | None:
    """Return why a script can't run with these axes, None if it can: it must get all of them."""
    arguments = reference.arguments or ()
    received = script_axes(arguments, reference.options)
    for name, value in axes.changed.items():
        is_unknown = name == "batch_size" and value == UNKNOWN_BATCH_SIZE
        if name not in received and not is_unknown:
            return (
                f"{name} {value}: {reference.uses} is a script, which does what its arguments"
                f" say; hand it over as {{{name}}}"
            )
    if reference.launch == "python" and axes.world_size > 1:
        return f"world_size {axes.world_size}: launch: python starts one process"
    names = placeholders_of(arguments)
    for name in names:
        if name in AXES and name not in reference.options and axes.value(name) is None:
            return f"{{{name}}} has no value; set the axis {name} or `options: {{{name}: …}}`"
    if "rank_batch_size" in names and axes.batch_size % axes.world_size:
        return f"batch_size {axes.batch_size} can't be shared out evenly among {axes.world_size}"
    return None


def setting_types(options: Iterable[str], arguments: Sequence[str]) -> dict[str, Any]:
    """Return the type of each option by its axis: those that the entry sets or that arguments name."""
    # An option called as an axis comes before the axis.
    names = [*options, *(name for name in placeholders_of(arguments) if name not in FACTS)]
    return {f"options.{name}": ScriptValue for name in names}


def check_options(
    document: Document, key: Key, options: Mapping[str, Any], arguments: Sequence[str]
) -> None:
    """Raise BadInput for an option that no argument names, and for a placeholder without a value.

    `key` is that of the entry.
    """
    names = placeholders_of(arguments)
    for name, value in options.items():
        document.validate(ScriptValue, value, (*key, "options", name))
        if name not in names:
            problem = f"found an option that no argument names; write {{{name}}} in `arguments`"
            raise document.error((*key, "options", name), problem)
    allowed = [*options, *AXIS_TYPES, *FACTS]
    for name in names:
        if name not in allowed:
            hint = did_you_mean(name, allowed, [*options, *FACTS, "or an axis"])
            problem = f"found {{{name}}} without a value; set `options: {{{name}: …}}`, or {hint}"
            raise document.error((*key, "arguments"), problem)


def read_arguments(document: Document, key: Key, written: Any) -> list[str]:
    """Return the arguments of an entry as a list of texts; a text is split as a shell does."""
    key = (*key, "arguments")
    if isinstance(written, str):
        try:
            return shlex.split(written)
        except ValueError as error:
            problem = f"found {written!r}: {error}; allowed: arguments as of a shell, or a list"
            raise document.error(key, problem) from None
    for number, argument in enumerate(written or ()):
        if isinstance(argument, bool | float):
            # Whether `on` or `true`, 1.10 or 1.1 was written can't be told any more.
            problem = f"found {argument} without quotes; allowed: text, which quotes make of it"
            raise document.error((*key, number), problem)
    return [str(argument) for argument in written or ()]


def module_file(module: str, base: Path) -> str:
    """Return the file that `python -m` would run, relative to the sweep's folder."""
    path = module.replace(".", "/")
    return f"{path}/__main__.py" if (base / path).is_dir() else f"{path}.py"


def check_entry(document: Document, key: Key, uses: str) -> None:
    """Raise BadInput for keys that make no sense with a script, in its entry or in the sweep."""
    content = document.content
    entry = content["workloads"][key[-1]]
    for name, reason in REFUSED_KEYS.items():
        for place, keys in (((*key, name), entry), ((name,), content)):
            if keys.get(name) not in (None, False):
                problem = f"found it with {uses}, a script: {reason}; leave it out"
                raise document.error(place, problem)
    place = (*key, "length") if "length" in entry else ("length",)
    length = entry.get("length") or content.get("length")
    epochs = length.get("epochs") if isinstance(length, dict) else None
    if epochs not in (None, 1):
        problem = (
            f"found {epochs} epochs of {uses}, a script, which counts its epochs itself; allowed:"
            f" `length: 300 steps`, or `arguments: --epochs {epochs}`"
        )
        raise document.error(place, problem)
    if content.get("warmup") == 0:
        problem = f"found 0; allowed with {uses}, a script: 1 or more: how its first step begins is unseen"
        raise document.error(("warmup",), problem)
