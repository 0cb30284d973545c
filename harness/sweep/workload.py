"""The workloads of a sweep file: what their code declares, and their settings checked against files.

A workload's options and data settings may be axes, `options.NAME` and `data.NAME`. A sweep may have
workloads with and without such a setting: points of those without are left out.

Built-in workloads are planned from a table, without importing torch. A user's own class has to be
imported, which `harness.sweep.sweep` does in a process of its own. A file with neither is a script:
see `harness.sweep.script`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import msgspec

from harness.core.errors import BadInput
from harness.core.validation import Key, decode_value, members_by_source, members_of, prepare
from harness.sweep import script
from harness.sweep.axes import Axes, find_conflict, section_of
from harness.sweep.cell import (
    SOURCE,
    Launch,
    Length,
    StopRule,
    Values,
    WorkloadRef,
    is_setting,
    same_value,
)
from harness.sweep.document import Document
from harness.sweep.files import (
    Digests,
    Files,
    describe_code,
    digest_files,
    files_by_setting,
    named_files,
)
from workloads.catalog import (
    BUILT_IN,
    Declaration,
    canonical_name,
    find_source,
    is_script,
    load_class,
    relative_name,
)
from workloads.settings import Count, Seed, Settings, Target, map_paths

SECTIONS = ("options", "data")  # of the settings of a workload
Seeds = Annotated[list[Seed], msgspec.Meta(min_length=1)]
# Names of settings and arguments whose values are no part of what is recorded for everybody to read.
SECRET_NAME = re.compile(
    r"secret|passw|credential|(api|access|private|auth|hub|hf)[_-]?(key|token)|^-*token$",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class WorkloadEntry:
    """The keys of one workload in a sweep file; the sweep's values are the defaults."""

    uses: str | None = None  # the workload; its label unless set
    options: dict[str, Any] = field(default_factory=dict)  # fields of the workload's `Options`
    data: dict[str, Any] = field(default_factory=dict)  # fields of its `Data`
    axes: dict[str, Any] = field(default_factory=dict)  # one value each, over those of `matrix`
    length: Length | None = None
    evaluate: Length | None = None
    stop: StopRule | None = None
    seeds: Seeds | None = None
    # Of a script: its command line, and which of the metrics that it reports is the target.
    # Of `1.10` or `on` without quotes can't be told what was written.
    arguments: str | list[str | int] | None = None
    target: Target | None = None
    module: str | None = None  # in place of `uses`: what runs is `torchrun -m pkg.train`
    launch: Launch = "torchrun"

    @property
    def settings(self) -> dict[str, Any]:
        """Return the options and data by their axes."""
        settings = {}
        for section in SECTIONS:
            for name, value in getattr(self, section).items():
                settings[f"{section}.{name}"] = value
        return settings


# A workload with its settings, and its options and data where it is a class.
PlannedWorkload = tuple[WorkloadRef, list[Settings]]


class SweepWorkload:
    """A workload of a sweep file, as its entry and its code declare it."""

    def __init__(self, document: Document, label: str, entry: WorkloadEntry) -> None:
        """Find the workload's code, and import a user's own class; raises BadInput."""
        self.document, self.label, self.entry = document, label, entry
        self.key: Key = ("workloads", label)  # where the entry is in the file, for errors
        self.base = Path(document.sources[()]).absolute().parent  # of relative paths
        uses = entry.uses or label
        key: Key = (*self.key, "uses")
        if entry.module is not None:
            uses = script.module_file(entry.module, self.base)
            key = (*self.key, "module")
        has_arguments = entry.arguments is not None or entry.module is not None
        self.declaration = _find_declaration(
            document, uses, key, self.base, has_arguments=has_arguments
        )
        self.uses = uses if uses in BUILT_IN else self.declaration.path
        self.arguments: Sequence[str] | None = None  # of a script
        if self.uses.endswith(".py"):
            self.arguments = script.read_arguments(document, self.key, entry.arguments)
            script.check_keys(document, self.key, self.arguments)
            options = script.options_class(self.arguments)
            self.declaration = replace(self.declaration, options=options)
        elif entry.arguments is not None or entry.target is not None:
            problem = "found arguments or target with a workload class; allowed with a script"
            raise document.error(self.key, f"{problem}: uses: train.py")
        self.source = find_source(self.uses, self.base)
        self.code = describe_code(self.source)
        # The annotated type of each setting by its axis, those of every source of its data too.
        self.setting_types: dict[str, Any] = {}
        for section in SECTIONS:
            for kind in members_by_source(getattr(self.declaration, section)).values():
                for name, hint in get_type_hints(kind, include_extras=True).items():
                    self.setting_types[f"{section}.{name}"] = hint

    def takes(self, axis: str) -> bool:
        """Return whether the workload takes an axis from the sweep: it has it and does not set it."""
        has_axis = axis in self.setting_types or not is_setting(axis)
        return has_axis and axis not in {**self.entry.axes, **self.entry.settings}

    def plan(self, values: Values, digests: Digests, axes: Collection[str] = ()) -> PlannedWorkload:
        """Return the workload with these values of its settings, by their axes, all checked.

        `axes` are all axes that the sweep sets, `digests` those of files by their state, to which others
        are added. Raises BadInput for a wrong setting, and for a file that is missing or can't be read.
        """
        self._refuse_secrets(values)
        entry = self.entry
        sections = []
        settings = {}
        changed = {}
        unset = sorted({"batch_size"}.difference(axes, entry.axes))
        for section in SECTIONS:
            parsed = self._read_settings(section, section_of(values, section))
            sections.append(parsed)
            identity = parsed.identity()
            for declared in fields(parsed):
                name, value = declared.name, getattr(parsed, declared.name)
                axis = f"{section}.{name}"
                settings[axis] = value
                # Each source of data has its own name as the default; it counts all the same, or equal
                # settings of two sources would share an id.
                is_default = name != SOURCE and same_value(value, default_of(declared))
                if is_default and axis not in values:
                    unset.append(axis)
                if not is_default and name in identity:
                    changed[axis] = identity[name]
        # Settings with their defaults are left out: one that is added later changes no existing id.
        identity = {"uses": canonical_name(self.uses, self.source), "settings": _to_json(changed)}
        script_keys: dict[str, Any] = {"arguments": self.arguments, "target": entry.target}
        script_keys |= {"module": entry.module, "launch": entry.launch}
        files = files_by_setting(*sections)
        if self.arguments is not None:
            identity |= _to_json(script_keys)
            # What arguments name besides is an axis or a fact.
            settings = {axis: value for axis, value in settings.items() if value is not None}
            files = named_files(self.arguments, section_of(settings, "options"), self.base)
        states, contents = self._digest_files(files, digests)
        identity["files"] = contents or None
        reference = WorkloadRef(
            label=self.label,
            uses=relative_name(self.uses, self.base),
            settings=_to_json(settings),
            identity=identity,
            file_states=states,
            axes=[axis for axis in values if axis in axes],
            unset=unset,
            code=self.code,
            **script_keys,
        )
        return reference, sections

    def _digest_files(
        self, files: Mapping[str, Files], digests: Digests
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Return the states of the files of each setting, and the SHA-256 of their contents.

        Raises BadInput for a file that can't be read.
        """
        states = {}
        contents = {}
        for axis, of_setting in files.items():
            try:
                states[axis], contents[axis] = digest_files(of_setting, digests)
            except OSError as error:
                key = (*self.key, *axis.split(".", 1))
                raise self.document.error(key, _unreadable(error)) from None
        return states, contents

    def _refuse_secrets(self, values: Values) -> None:
        """Raise BadInput for a setting or argument whose name says secret: they are recorded."""
        for text in (*values, *(self.arguments or ())):
            name = text.partition("=")[0]
            if SECRET_NAME.search(name.rpartition(".")[2]):
                problem = f"found {name}, which says secret, and settings are recorded"
                allowed = "an environment variable that the workload reads itself"
                raise self.document.error(self.key, f"{problem}; allowed: {allowed}")

    def _read_settings(self, section: str, values: Values) -> Settings:
        """Return the workload's options or data, whichever `section` is.

        They have the right types, absolute paths, and files that can be read. Raises BadInput, also for a
        rule for stopping that looks at a validation set which the settings leave empty. A user's class
        may have one without a setting, so only its ranks can tell.
        """
        document, key = self.document, (*self.key, section)
        try:
            settings: Settings = document.validate(getattr(self.declaration, section), values, key)
        except BadInput as error:
            if "data.path: missing" not in str(error):
                raise
            # Ready sweeps leave the path of their data to the user.
            raise BadInput(f"{error}; give it here or as --data {self.label}=PATH") from None
        changes = {}
        for name in values:
            # Users type paths relative to the working directory, while a path in a file is relative
            # to the file.
            if document.source_of((*key, name)).startswith("--set"):
                changes[name] = map_paths(getattr(settings, name), Path.absolute)
        has_rule = self.entry.stop or document.content.get("stop")
        if has_rule and section == "data" and getattr(settings, "validation", None) == 0:
            problem = "found 0; allowed: more, such as 0.15: stop looks at a validation set"
            raise document.error((*key, "validation"), problem)
        settings = replace(settings, **changes).with_paths_relative_to(self.base)
        self._check_files(settings, values, key)
        return settings

    def _check_files(self, settings: Settings, values: Values, key: Key) -> None:
        """Raise BadInput unless the files of settings, which are at `key`, can be read and fit.

        The error is at the setting that the message begins with, if `values` has it, or at the one
        that has the file.
        """
        try:
            settings.check()
        except (OSError, ValueError) as error:
            problem = str(error)
            if isinstance(error, OSError):
                problem = _unreadable(error)
            name, _, rest = problem.partition(": ")
            if name in values:
                raise self.document.error((*key, name), rest) from None
            for place, path in settings.paths().items():
                if problem.startswith(str(path)):
                    key = (*key, place.partition("[")[0])
            raise self.document.error(key, problem) from None


def find_reason(plan: PlannedWorkload, axes: Axes) -> str | None:
    """Return why a workload with its settings can't be trained with these axes, None if it can."""
    reference, sections = plan
    if reference.is_script:
        return script.find_conflict(reference, axes)
    reason, values = find_conflict(axes), axes.values
    for settings in sections:
        reason = reason or settings.conflict(values)
    return reason


def named_declaration(uses: str) -> Declaration:
    """Return the declaration of a workload named on the command line; raises BadInput."""
    command_line = Document({}, {(): f"WORKLOAD {uses}"})
    return _find_declaration(command_line, uses, (), Path.cwd())


def _find_declaration(
    document: Document, uses: str, key: Key, base: Path, *, has_arguments: bool = False
) -> Declaration:
    """Return the declaration of a workload; raises BadInput if it is unknown or invalid Python.

    Built-in workloads are declared in a table; a user's own class is imported, and torch with it.
    Any other error that a user's module raises keeps its traceback. A file that gets arguments is a
    script, whatever is in it.
    """
    if uses in BUILT_IN:
        return BUILT_IN[uses]
    try:
        if uses.endswith(".py") and (is_script(uses, base) or has_arguments):
            file = base / Path(uses).expanduser()
            ast.parse(file.read_bytes(), filename=uses)
            return Declaration(uses, Settings, Settings, script.UNKNOWN_BATCH_SIZE)
        workload_class = load_class(uses, base)
        name = workload_class.__name__
        decode_value(Count, workload_class.batch_size, at=(name, "batch_size"))
        for kind in members_of(workload_class.Options) + members_of(workload_class.Data):
            if not (isinstance(kind, type) and issubclass(kind, Settings)):
                allowed = "a dataclass that derives from workloads.Settings"
                raise ValueError(f"{name}: found {kind!r}; allowed: {allowed}")
            prepare(kind)
    except ValueError as error:
        raise document.error(key, str(error)) from None
    except SyntaxError as error:
        source = f"{error.filename}:{error.lineno}" if error.filename else uses
        raise document.error(key, f"{source}: found {error.msg}; allowed: valid Python") from None
    path = f"{uses}:{name}" if uses.endswith(".py") else uses
    return Declaration(path, workload_class.Options, workload_class.Data, workload_class.batch_size)


def default_of(declared: Field[Any]) -> Any:
    """Return the default of a field of a dataclass, MISSING if it has none."""
    if declared.default_factory is MISSING:
        return declared.default
    return declared.default_factory()


def _unreadable(error: OSError) -> str:
    """Return the problem of a file that can't be read."""
    return f"{error.filename}: found {error.strerror}; allowed: a readable file"


def _to_json(settings: Values) -> dict[str, Any]:
    """Return settings as JSON can hold them: paths and values of other types as text."""
    content: dict[str, Any] = msgspec.to_builtins(settings, enc_hook=str, order="deterministic")
    return content
