"""Scripts: a workload that is an ordinary training script with its own loop, run as torchrun runs it.

The harness starts it, watches its optimizer steps and records them. It can't change what the script
does, so a setting counts only where the script gets it: by a placeholder among its arguments, as in
`arguments: [--lr, "{lr}"]`. Everything else that a sweep may ask of a workload is refused.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from harness.core.errors import did_you_mean
from harness.spec.axes import AXES, AXIS_TYPES, Axes
from harness.spec.cell import placeholders_of, script_axes
from harness.spec.document import Document
from harness.spec.files import FileDigests
from harness.spec.workload import (
    UNKNOWN_BATCH_SIZE,
    PlannedWorkload,
    SweepWorkload,
    WorkloadEntry,
    base_folder,
    find_declaration,
    plain,
    refuse_secret,
    uses_key,
)
from workloads.settings import Settings

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
    "fingerprints": "the harness does not see what a step computes",
}


@dataclass(frozen=True, kw_only=True)
class PlannedScript(PlannedWorkload):
    """A script with all its options, checked."""

    def find_conflict(self, axes: Axes) -> str | None:
        """Return why the script can't run with these axes, None if it can: it must get all of them."""
        arguments = self.reference.arguments or ()
        received = script_axes(arguments, self.reference.options)
        for name, value in axes.changed.items():
            if name in received or (name == "batch_size" and value == UNKNOWN_BATCH_SIZE):
                continue
            return (
                f"{name} {value}: {self.reference.uses} is a script, which does what its arguments"
                f" say; hand it over as {{{name}}}"
            )
        names = placeholders_of(arguments)
        for name in names:
            if name not in AXES or name in self.reference.options:
                continue
            if axes.value(name) is None:
                return f"{{{name}}} has no value; set the axis {name} or `options: {{{name}: …}}`"
        if "rank_batch_size" in names and axes.batch_size % axes.world_size:
            return (
                f"batch_size {axes.batch_size} can't be shared out evenly among {axes.world_size}"
            )
        return None


@dataclass(frozen=True, kw_only=True)
class SweepScript(SweepWorkload):
    """A script of a sweep file."""

    def receives(self, axis: str) -> bool:
        """Return whether the harness applies an axis itself, or an argument names it."""
        arguments = read_arguments(self.document, self.label, self.entry)
        return axis in script_axes(arguments, self.entry.options)

    @cached_property
    def setting_types(self) -> Mapping[str, Any]:
        """The type of each option: of those that the entry sets, and those that arguments name."""
        names = dict.fromkeys(self.entry.options)
        for name in placeholders_of(read_arguments(self.document, self.label, self.entry)):
            if name not in FACTS:  # an option called as an axis comes before the axis
                names[name] = None
        return {f"options.{name}": ScriptValue for name in names}

    def plan(
        self,
        settings: Mapping[str, Any] | None = None,
        sources: Mapping[str, str] | None = None,
        unset: Sequence[str] = (),
    ) -> PlannedWorkload:
        """Return the script with the options of a point over those of its entry; raises BadInput."""
        settings = settings or {}
        document = self._document_at(settings, sources or {})
        options = plain(self._written(settings, "options"))
        arguments = self._read_arguments(options)
        for name, value in options.items():
            key = (*self.key, "options", name)
            document.validate(ScriptValue, value, key)
            if name not in placeholders_of(arguments):
                problem = f"found an option that no argument names; write {{{name}}} in `arguments`"
                raise document.error(key, problem)
            try:
                refuse_secret(name, value)
            except ValueError as error:
                raise document.error(key, str(error)) from None
        target = self.entry.target
        identity: dict[str, Any] = {"options": options, "arguments": arguments}
        if target is not None:
            identity["target"] = [target.name, target.higher_is_better]
        reference = self._refer(
            identity,
            options=options,
            data={},
            axes=list(settings),
            unset=unset,
            arguments=arguments,
            target=target,
        )
        return PlannedScript(reference=reference, options=Settings(), data=Settings())

    def _read_arguments(self, options: Mapping[str, Any]) -> list[str]:
        """Return the arguments with their placeholders; raises BadInput for unknown ones."""
        key = (*self.key, "arguments")
        arguments = read_arguments(self.document, self.label, self.entry)
        allowed = [*options, *AXIS_TYPES, *FACTS]
        for name in placeholders_of(arguments):
            if name not in allowed:
                hint = did_you_mean(name, allowed, [*options, *FACTS, "or an axis"])
                problem = (
                    f"found {{{name}}} without a value; set `options: {{{name}: …}}`, or {hint}"
                )
                raise self.document.error(key, problem)
        for argument in arguments:
            name = argument.partition("=")[0]
            if name.startswith("-"):
                try:
                    refuse_secret(name.lstrip("-"), argument)
                except ValueError as error:
                    raise self.document.error(key, f"{name}: {error}") from None
        return arguments


def read_workload(
    document: Document, label: str, entry: WorkloadEntry, digests: FileDigests | None = None
) -> SweepWorkload:
    """Return a workload of a sweep file, by the kind of its entry; raises BadInput.

    A user's own class is imported.
    """
    uses, base = entry.uses or label, base_folder(document)
    key = uses_key(label, entry)
    has_arguments = entry.arguments is not None
    declaration = find_declaration(document, uses, base, key, has_arguments=has_arguments)
    kind = SweepWorkload
    if declaration.path.endswith(".py"):
        kind = SweepScript
        _check_entry(document, label, entry)
    elif has_arguments or entry.target is not None:
        name = "arguments" if has_arguments else "target"
        problem = "found it with a workload class; allowed with a script: uses: train.py"
        raise document.error(("workloads", label, name), problem)
    return kind(
        document=document,
        label=label,
        entry=entry,
        declaration=declaration,
        digests=digests or FileDigests(),
    )


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
            if keys.get(name) not in (None, False):
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
