"""Scripts: a workload that is an ordinary training script with its own loop, run as torchrun runs it.

The harness starts it, watches its optimizer steps and records them. It can't change what the script
does, so a setting counts only where the script gets it: by a placeholder among its arguments, as in
`arguments: [--lr, "{lr}"]`. Everything else that a sweep may ask of a workload is refused.
"""

from __future__ import annotations

import ast
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from harness.core.errors import did_you_mean
from harness.spec.axes import AXES, AXIS_TYPES, Axes
from harness.spec.cell import (
    CUSTOM,
    Setting,
    WorkloadRef,
    placeholders_of,
    script_axes,
    setting_of,
)
from harness.spec.document import Document
from harness.spec.shorthand import CHECKPOINTS
from harness.spec.workload import (
    SweepWorkload,
    WorkloadEntry,
    base_folder,
    plain,
)
from workloads.axis import CustomAxis
from workloads.catalog import find_source, is_script

# What a placeholder may name besides options and axes: the trial's seed, the steps of its length, and
# its folder in the results.
FACTS = ("seed", "steps", "folder")
ScriptValue = str | int | float | bool
# Keys of an entry, and of a sweep, that only the harness's own loop can do.
REFUSED_KEYS = {
    "stop": "the script ends training itself",
    "evaluate": "the script evaluates when it does; harness.report(NAME=VALUE) records it",
    "checkpoint": "the script saves what it saves",
    "profile": "the harness takes no steps of its own in it",
    "fingerprints": "the harness does not see what a step computes",
}
REPORT = "harness.report"
REPORTED = ("loss", "samples")  # arguments of it that are no metric


@dataclass(frozen=True, kw_only=True)
class SweepScript(SweepWorkload):
    """A script of a sweep file, with the options of a point of the matrix if it has some."""

    def setting_names(self) -> list[str]:
        """Return the axes of all options: those that the entry sets, and those that arguments name."""
        names = dict.fromkeys(self.entry.options)
        for name in placeholders_of(read_arguments(self.document, self.label, self.entry)):
            if name not in FACTS:  # an option called as an axis comes before the axis
                names[name] = None
        return [*(f"options.{name}" for name in names), *super().setting_names()]

    def type_of(self, setting: Setting) -> Any:
        """Return the type of an option, a text, a number or a boolean, or that of a custom axis."""
        if setting.section == CUSTOM:
            return self.custom.classes[setting.name].Value
        return ScriptValue

    @cached_property
    def arguments(self) -> list[str]:
        """The arguments of the script with their placeholders; raises BadInput for unknown ones."""
        arguments = read_arguments(self.document, self.label, self.entry)
        allowed = [*self.entry.options, *AXIS_TYPES, *FACTS]
        set_by_axis = {setting.name for axis in self.settings if (setting := setting_of(axis))}
        for name in placeholders_of(arguments):
            if name not in allowed and name not in set_by_axis:
                hint = did_you_mean(name, allowed, [*self.entry.options, *FACTS, "or an axis"])
                problem = (
                    f"found {{{name}}} without a value; set `options: {{{name}: …}}`, or {hint}"
                )
                raise self.document.error((*self.key, "arguments"), problem)
        return arguments

    @cached_property
    def script_options(self) -> dict[str, ScriptValue]:
        """The options that the entry or the point sets; raises BadInput for those that go nowhere."""
        values = plain(self._written("options"))
        for name, value in values.items():
            key = (*self.key, "options", name)
            self._sources.validate(ScriptValue, value, key)
            if name not in placeholders_of(self.arguments):
                problem = f"found an option that no argument names; write {{{name}}} in `arguments`"
                raise self._sources.error(key, problem)
        return dict(values)

    @cached_property
    def reference(self) -> WorkloadRef:
        """The part of the script that its cells keep."""
        options, arguments = self.script_options, self.arguments
        target = self.entry.target
        identity: dict[str, Any] = {"options": options, "arguments": arguments}
        if target is not None:
            identity["target"] = [target.name, target.higher_is_better]
        return self._refer(
            identity,
            options=options,
            data={},
            unset=self.unset,
            arguments=arguments,
            target=target,
        )

    def find_conflict(self, axes: Axes) -> str | None:
        """Return why the script can't run with these axes, None if it can: it must get all of them."""
        received = script_axes(self.arguments, self.script_options)
        for name, value in axes.changed.items():
            if name in received or (name == "batch_size" and value == self.declaration.batch_size):
                continue
            return (
                f"{name} {value}: {self.reference.uses} is a script, which does what its arguments"
                f" say; hand it over as {{{name}}}"
            )
        names = placeholders_of(self.arguments)
        for name in names:
            if name in AXES and name not in self.script_options and axes.value(name) is None:
                return f"{{{name}}} has no value; set the axis {name} or `options: {{{name}: …}}`"
        if "rank_batch_size" in names and axes.batch_size % axes.world_size:
            return (
                f"batch_size {axes.batch_size} can't be shared out evenly among {axes.world_size}"
            )
        for name, axis in self.active_axes.items():
            changes = ("change_model", "change_optimizer", "change_loss")
            if any(
                getattr(type(axis), change) is not getattr(CustomAxis, change) for change in changes
            ):
                return f"{CUSTOM}.{name} changes what is inside {self.reference.uses}, a script"
        return None


def plan_workload(
    document: Document, label: str, entry: WorkloadEntry, **more: Any
) -> SweepWorkload:
    """Return a workload of a sweep file, by the kind of its entry; raises BadInput.

    `more` are the fields of `SweepWorkload` besides these.
    """
    kind = SweepWorkload
    if uses_script(document, label, entry):
        kind = SweepScript
        _check_entry(document, label, entry)
    elif entry.arguments is not None or entry.target is not None:
        name = "target" if entry.arguments is None else "arguments"
        problem = "found it with a workload class; allowed with a script: uses: train.py"
        raise document.error(("workloads", label, name), problem)
    return kind(document=document, label=label, entry=entry, **more)


def uses_script(document: Document, label: str, entry: WorkloadEntry) -> bool:
    """Return whether an entry names a script; raises BadInput for a file that is missing."""
    uses = entry.uses or label
    if not uses.endswith(".py"):
        return False
    try:
        return entry.arguments is not None or is_script(uses, base_folder(document))
    except ValueError as error:
        raise document.error(("workloads", label), str(error)) from None


def read_arguments(document: Document, label: str, entry: WorkloadEntry) -> list[str]:
    """Return the arguments of an entry as a list of texts; a text is split as a shell does."""
    key = ("workloads", label, "arguments")
    if isinstance(entry.arguments, str):
        try:
            return shlex.split(entry.arguments)
        except ValueError as error:
            problem = (
                f"found {entry.arguments!r}: {error}; allowed: arguments as of a shell, or a list"
            )
            raise document.error(key, problem) from None
    arguments = []
    for number, argument in enumerate(entry.arguments or ()):
        if isinstance(argument, bool | float):
            # Whether `on` or `true`, 1.10 or 1.1 was written can't be told any more.
            shown = str(argument).lower() if isinstance(argument, bool) else argument
            problem = f"found {shown} without quotes; allowed: text, which quotes make of it"
            raise document.error((*key, number), problem)
        arguments.append(str(argument))
    return arguments


def _check_entry(document: Document, label: str, entry: WorkloadEntry) -> None:
    """Raise BadInput for keys that make no sense with a script, in its entry or in the sweep."""
    key, uses = ("workloads", label), entry.uses or label
    content = document.content
    for name, reason in REFUSED_KEYS.items():
        for place, keys in (
            ((*key, name), content["workloads"][label]),
            ((name,), content),
        ):
            if keys.get(name) not in (None, False, CHECKPOINTS["none"]):
                problem = f"found it with {uses}, a script: {reason}; leave it out"
                raise document.error(place, problem)
    if entry.data:
        problem = f"found data of {uses}, a script, which reads them itself; allowed: arguments"
        raise document.error((*key, "data"), problem)
    length = entry.length
    if length is None and isinstance(content.get("length"), dict):
        steps, epochs = content["length"].get("steps"), content["length"].get("epochs")
    else:
        steps, epochs = (length.steps, length.epochs) if length else (None, None)
    if epochs not in (None, 1) and steps is None:
        problem = (
            f"found {epochs} epochs of {uses}, a script, which counts its epochs itself; allowed:"
            f" `length: 300 steps`, or `arguments: --epochs {epochs}`"
        )
        raise document.error((*key, "length") if length else ("length",), problem)
    if content.get("warmup") == 0:
        problem = f"found 0; allowed with {uses}, a script: 1 or more: how its first step begins is unseen"
        raise document.error(("warmup",), problem)
    if entry.target is None:
        _check_reports(document, label, uses)


def _check_reports(document: Document, label: str, uses: str) -> None:
    """Raise BadInput for a script that reports a metric where no entry says what it is for."""
    for path in find_source(uses, base_folder(document)).files.values():
        for line, name in reported_metrics(path):
            problem = (
                f"missing; {path.name}:{line} reports {name}: if it is the metric to compare, write"
                f" `target: {name}`, or `target: {{name: {name}, higher_is_better: false}}`"
            )
            raise document.error(("workloads", label, "target"), problem)


def reported_metrics(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and name of each metric that a file reports by a literal name."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return  # which planning has refused, or no Python
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or ast.unparse(node.func) not in (REPORT, "report"):
            continue
        for keyword in node.keywords:
            if keyword.arg is not None and keyword.arg not in REPORTED:
                yield node.lineno, keyword.arg
