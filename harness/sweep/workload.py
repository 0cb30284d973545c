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
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec

from harness.core.errors import BadInput
from harness.core.validation import Key, decode_value, members_by_source
from harness.sweep import script
from harness.sweep.axes import Axes, find_conflict
from harness.sweep.cell import (
    SOURCE,
    Launch,
    Length,
    ReportedTarget,
    Seed,
    StopRule,
    WorkloadRef,
    declared_defaults,
    script_axes,
    without_defaults,
)
from harness.sweep.document import Document
from harness.sweep.files import FileDigests, Files, describe_code, files_by_setting, named_files
from workloads.catalog import (
    BUILT_IN,
    Declaration,
    canonical_name,
    find_source,
    is_script,
    load_class,
    relative_name,
)
from workloads.code import CodeSource
from workloads.settings import Count, Settings, map_paths

Seeds = list[Seed]
# Names of settings and arguments whose values are no part of what is recorded for everybody to read.
SECRET_NAME = re.compile(
    r"(^|[_-])(api[_-]?key|access[_-]?key|private[_-]?key|secret|password|passwd|passphrase|credentials?"
    r"|(hf|hub|auth|access|bearer|api|github|wandb)[_-]?token)$|^-*token$",
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
    arguments: str | list[str | int | float | bool] | None = None
    target: ReportedTarget | None = None
    module: str | None = None  # in place of `uses`: what runs is `torchrun -m pkg.train`
    launch: Launch = "torchrun"


# A workload with its settings, and its options and data where it is a class.
PlannedWorkload = tuple[WorkloadRef, list[Settings]]


@dataclass(frozen=True, kw_only=True)
class SweepWorkload:
    """A workload of a sweep file, as its entry and its code declare it."""

    document: Document
    label: str  # the sweep's name for it
    entry: WorkloadEntry
    declaration: Declaration
    arguments: Sequence[str] | None = None  # of a script

    @property
    def key(self) -> Key:
        """Return where the workload's entry is in the file, for errors."""
        return ("workloads", self.label)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The settings of the entry, by their axes."""
        options = {f"options.{name}": value for name, value in self.entry.options.items()}
        return options | {f"data.{name}": value for name, value in self.entry.data.items()}

    def has(self, axis: str) -> bool:
        """Return whether an axis is a setting of the workload, or of its entry, which is checked."""
        return axis in self.setting_types or axis in self.settings

    def receives(self, axis: str) -> bool:
        """Return whether the workload gets an axis: a script has those that its arguments name."""
        return self.arguments is None or axis in script_axes(self.arguments, self.entry.options)

    @cached_property
    def setting_types(self) -> Mapping[str, Any]:
        """The annotated type of each setting by its axis, those of every source of its data too.

        Of several sources with a setting, the one that the entry chooses counts.
        """
        if self.arguments is not None:
            return script.setting_types(self.entry.options, self.arguments)
        members = members_by_source(self.declaration.data)
        chosen = members.get(str(self.entry.data.get(SOURCE)))
        data = [member for member in (*members.values(), chosen) if member is not None]
        types: dict[str, Any] = {}
        for section, kind in [("options", self.declaration.options), *(("data", m) for m in data)]:
            for name, hint in get_type_hints(kind, include_extras=True).items():
                types[f"{section}.{name}"] = hint
        return types

    def plan(
        self,
        values: Mapping[str, Any],
        digests: FileDigests,
        axes: Sequence[str] = (),
        unset: Sequence[str] = (),
    ) -> PlannedWorkload:
        """Return the workload with these values of its settings, by their axes, all checked.

        `axes` are those that are axes of the sweep, `unset` the axes that it leaves to the workload.
        Raises BadInput for a wrong setting, and for a file that is missing or can't be read.
        """
        written: dict[str, dict[str, Any]] = {"options": {}, "data": {}}
        for axis, value in values.items():
            section, _, name = axis.partition(".")
            written[section][name] = value
        self._refuse_secrets(values)
        entry, base = self.entry, base_folder(self.document)
        uses, source, code = self._code
        identity: dict[str, Any] = {"uses": canonical_name(uses, source)}
        sections: list[Settings] = []
        if self.arguments is not None:
            script.check_options(self.document, self.key, written["options"], self.arguments)
            files = named_files(self.arguments, written["options"], base)
            identity |= {"options": written["options"], "arguments": self.arguments}
            identity |= {"module": entry.module, "launch": entry.launch}
            identity["target"] = entry.target and asdict(entry.target)
        else:
            options = self._read_settings("options", self.declaration.options, written["options"])
            data = self._read_settings("data", self.declaration.data, written["data"])
            sections = [options, data]
            files = files_by_setting(options, data)
            identity["options"] = _to_json(without_defaults(options))
            # Each source has its own name as the default, which is left out. Without it, equal
            # settings of two sources would share an id.
            own = {SOURCE: getattr(data, SOURCE, None)}
            identity["data"] = _to_json(without_defaults(data)) | own
            unset = [*unset, *_unset("options", options, values), *_unset("data", data, values)]
            written = {"options": _to_json(options), "data": _to_json(data)}
        states, contents = self._describe(files, digests)
        reference = WorkloadRef(
            label=self.label,
            uses=relative_name(uses, base),
            options=written["options"],
            data=written["data"],
            identity={**identity, "files": contents or None},
            file_states=states,
            axes=axes,
            unset=unset,
            code=code,
            arguments=self.arguments,
            target=entry.target,
            module=entry.module,
            launch=entry.launch,
        )
        return reference, sections

    def _describe(
        self, by_setting: Mapping[str, Files], digests: FileDigests
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Return the states and the digests of the files of each setting; raises BadInput."""
        states: dict[str, str] = {}
        contents: dict[str, str] = {}
        for axis, files in by_setting.items():
            try:
                states[axis], contents[axis] = digests.digest(files)
            except OSError as error:
                problem = f"found {error.filename}: {error.strerror}"
                key = (*self.key, *axis.split(".", 1))
                allowed = "allowed: a file that can be read"
                raise self.document.error(key, f"{problem}; {allowed}") from None
        return states, contents

    @cached_property
    def _code(self) -> tuple[str, CodeSource, Mapping[str, str]]:
        """The workload's name, its files, and their digests; raises BadInput for unreadable code."""
        uses, written = self.declaration.path, self.entry.uses or self.label
        if self.arguments is None and not written.endswith(".py"):  # else its class is known by now
            uses = written
        try:
            source = find_source(uses, base_folder(self.document))
            return uses, source, describe_code(source)
        except OSError as error:
            problem = f"{error.filename}: can't be read: {error.strerror}"
            raise self.document.error((*self.key, "uses"), problem) from None

    def _refuse_secrets(self, values: Mapping[str, Any]) -> None:
        """Raise BadInput for a text whose name says that it is a secret: settings are recorded."""
        texts = {axis: value for axis, value in values.items() if isinstance(value, str)}
        for argument in self.arguments or ():
            if argument.startswith("-"):
                texts[f"arguments.{argument.partition('=')[0]}"] = argument
        for axis, text in texts.items():
            section, _, name = axis.partition(".")
            if text and SECRET_NAME.search(name):
                key = (section,) if section == "arguments" else (section, name)
                problem = f"found {name}, which says secret, and settings are recorded"
                allowed = "an environment variable that the workload reads itself"
                raise self.document.error((*self.key, *key), f"{problem}; allowed: {allowed}")

    def _read_settings(self, section: str, kind: Any, values: Mapping[str, Any]) -> Settings:
        """Return the workload's options or data; raises BadInput.

        They have the right types, absolute paths, and files that can be read. `kind` is the class
        that the workload declares, or a union of them told apart by `source`.
        """
        document, key = self.document, (*self.key, section)
        try:
            settings: Settings = document.validate(kind, values, key)
        except BadInput as error:
            # Ready sweeps leave the path of their data to the user.
            is_missing = "data.path: missing" in str(error)
            hint = f"; give it here or as --data {self.label}=PATH" if is_missing else ""
            raise BadInput(f"{error}{hint}") from None
        changes: dict[str, Any] = {}
        for name in values:
            # Users type paths relative to the working directory, while a path in a file is relative
            # to the file.
            if document.source_of((*key, name)).startswith("--set"):
                changes[name] = map_paths(getattr(settings, name), _if_it_exists)
        settings = replace(settings, **changes).with_paths_relative_to(base_folder(document))
        try:
            settings.check()
        except (OSError, ValueError) as error:
            problem = str(error)
            if isinstance(error, OSError):
                problem = f"{error.filename}: found {error.strerror}; allowed: a readable file"
            # At the field that the message begins with, if any, or that has the file.
            name, _, rest = problem.partition(": ")
            if name in {setting.name for setting in fields(settings)}:
                raise document.error((*key, name), rest) from None
            for place, path in settings.paths().items():
                if problem.startswith(str(path)):
                    key = (*key, place.partition("[")[0])
            raise document.error(key, problem) from None
        return settings


def find_reason(plan: PlannedWorkload, axes: Axes) -> str | None:
    """Return why a workload with its settings can't be trained with these axes, None if it can."""
    reference, settings = plan
    if reference.is_script:
        return script.find_conflict(reference, axes)
    reason = find_conflict(axes)
    values = axes.values
    for section in settings:
        reason = reason or section.conflict(values)
    return reason


def read_workload(document: Document, label: str, entry: WorkloadEntry) -> SweepWorkload:
    """Return a workload of a sweep file, by the kind of its entry; raises BadInput.

    A user's own class is imported.
    """
    declaration = declaration_of(document, label, entry)
    arguments, key = None, ("workloads", label)
    if declaration.path.endswith(".py"):
        script.check_entry(document, key, declaration.path)
        arguments = script.read_arguments(document, key, entry.arguments)
    else:
        for name in ("arguments", "target"):
            if getattr(entry, name) is not None:
                problem = "found it with a workload class; allowed with a script: uses: train.py"
                raise document.error((*key, name), problem)
    return SweepWorkload(
        document=document, label=label, entry=entry, declaration=declaration, arguments=arguments
    )


def base_folder(document: Document) -> Path:
    """Return the folder that relative paths in a sweep file are relative to."""
    return Path(document.sources[()]).absolute().parent


def named_declaration(uses: str) -> Declaration:
    """Return the declaration of a workload named on the command line; raises BadInput."""
    return _find_declaration(Document({}, {(): f"WORKLOAD {uses}"}), uses, ())


def declaration_of(document: Document, label: str, entry: WorkloadEntry) -> Declaration:
    """Return what the code of a workload declares; raises BadInput."""
    key: Key = ("workloads", label, "uses") if entry.uses else ("workloads", label)
    if entry.module is None:
        has_arguments = entry.arguments is not None
        return _find_declaration(document, entry.uses or label, key, has_arguments=has_arguments)
    if entry.uses is not None:
        raise document.error(key, "found it with module; allowed: one of them")
    key = ("workloads", label, "module")
    file = script.module_file(entry.module, base_folder(document))
    return _find_declaration(document, file, key, has_arguments=True)


def _find_declaration(
    document: Document, uses: str, key: Key, *, has_arguments: bool = False
) -> Declaration:
    """Return the declaration of a workload; raises BadInput if it is unknown or invalid Python.

    Built-in workloads are declared in a table; a user's own class is imported, and torch with it.
    Any other error that a user's module raises keeps its traceback. A file that gets arguments is a
    script, whatever is in it.
    """
    if uses in BUILT_IN:
        return BUILT_IN[uses]
    base = base_folder(document)
    try:
        if uses.endswith(".py") and (is_script(uses, base) or has_arguments):
            ast.parse((base / Path(uses).expanduser()).read_bytes(), filename=uses)
            return Declaration(uses, Settings, Settings, script.UNKNOWN_BATCH_SIZE)
        workload_class = load_class(uses, base)
        name = workload_class.__name__
        decode_value(Count, workload_class.batch_size, at=(name, "batch_size"))
        for section in ("Options", "Data"):
            _check_settings_class(f"{name}.{section}", getattr(workload_class, section))
    except ValueError as error:
        raise document.error(key, str(error)) from None
    except SyntaxError as error:
        source = f"{error.filename}:{error.lineno}" if error.filename else uses
        raise document.error(key, f"{source}: found {error.msg}; allowed: valid Python") from None
    path = f"{uses}:{name}" if uses.endswith(".py") else uses
    return Declaration(path, workload_class.Options, workload_class.Data, workload_class.batch_size)


def _check_settings_class(name: str, declared: Any) -> None:
    """Raise ValueError unless sweep files can set the fields of a workload's `Options` or `Data`.

    `declared` is a class, or a union of classes.
    """
    for settings_class in get_args(declared) or [declared]:
        if not (isinstance(settings_class, type) and issubclass(settings_class, Settings)):
            allowed = "a dataclass that derives from workloads.Settings"
            raise ValueError(f"{name}: found {settings_class!r}; allowed: {allowed}")
        try:
            names = get_type_hints(settings_class)
        except (AttributeError, NameError, SyntaxError, TypeError) as error:
            # Such as types that the module imports under TYPE_CHECKING alone.
            raise ValueError(f"{name}: found a type that can't be read: {error}") from None
        for method in names.keys() & vars(Settings).keys():
            raise ValueError(f"{name}: {method}: found the name of a method; allowed: another")


def _unset(section: str, settings: Settings, values: Mapping[str, Any]) -> list[str]:
    """Return the settings of a section that are not among `values` and have their declared defaults.

    `with_paths_relative_to` may set what is not written. `source` is left out: it distinguishes
    the members of a union, so reading the settings again needs it.
    """
    unset = []
    for name, default in declared_defaults(settings).items():
        axis, is_default = f"{section}.{name}", getattr(settings, name) == default
        if is_default and axis not in values and name != SOURCE:
            unset.append(axis)
    return unset


def _to_json(settings: Any) -> dict[str, Any]:
    """Return settings as JSON can hold them: paths and values of other types as text."""
    content: dict[str, Any] = msgspec.to_builtins(settings, enc_hook=str, order="deterministic")
    return content


def _if_it_exists(path: Path) -> Path:
    """Return a path as absolute if it exists in the working directory, else unchanged."""
    return path.absolute() if path.exists() else path
