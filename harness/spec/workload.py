"""The workloads of a sweep file: what their code declares, and their settings checked against files.

A workload's options and data settings may be axes, `options.NAME` and `data.NAME`. A sweep may have
workloads with and without such a setting: points of those without are left out.

Built-in workloads are planned from a table, without importing torch. A user's own class has to be
imported, which `harness.spec.sweep` does in a process of its own. A file with neither is a script:
see `harness.spec.script`.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints

from harness.core.errors import BadInput
from harness.core.validation import (
    InvalidValue,
    Key,
    choose,
    decode_value,
    members_by_source,
)
from harness.spec import script
from harness.spec.axes import Axes, find_conflict
from harness.spec.cell import (
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
from harness.spec.document import Document
from harness.spec.files import (
    FileDigests,
    describe_code,
    describe_files,
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


class PlannedWorkload(NamedTuple):
    """A workload with all its settings, checked."""

    reference: WorkloadRef
    options: Settings
    data: Settings

    def find_conflict(self, axes: Axes) -> str | None:
        """Return why the workload can't be trained with these axes, None if it can."""
        if self.reference.is_script:
            return script.find_conflict(self.reference, axes)
        values = axes.values
        reason = find_conflict(axes) or self.options.conflict(values)
        return reason or self.data.conflict(values)


@dataclass(frozen=True, kw_only=True)
class SweepWorkload:
    """A workload of a sweep file, as its entry and its code declare it."""

    document: Document
    label: str  # the sweep's name for it
    entry: WorkloadEntry
    declaration: Declaration
    digests: FileDigests  # of data files, of all workloads
    arguments: Sequence[str] | None = None  # of a script

    @property
    def key(self) -> Key:
        """Return where the workload's entry is in the file, for errors."""
        return ("workloads", self.label)

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
        sections = [("options", self.declaration.options), ("data", chosen)]
        sections += [("data", member) for member in members.values()]
        types: dict[str, Any] = {}
        for section, kind in sections:
            if kind is not None:
                for name, hint in get_type_hints(kind, include_extras=True).items():
                    types.setdefault(f"{section}.{name}", hint)
        return types

    def plan(
        self, settings: Mapping[str, Any] | None = None, unset: Sequence[str] = ()
    ) -> PlannedWorkload:
        """Return the workload with the settings of a point over those of its entry.

        `unset` are axes that the sweep leaves to the workload. Raises BadInput for a wrong setting,
        and for a file that is missing or can't be read.
        """
        written = {"options": dict(self.entry.options), "data": dict(self.entry.data)}
        for axis, value in (settings or {}).items():
            section, _, name = axis.partition(".")
            written[section][name] = value
        for section, values in written.items():
            self._check_values(section, values)
        options, data = Settings(), Settings()
        unset = list(unset)
        if self.arguments is not None:
            script.check_options(self.document, self.key, written["options"], self.arguments)
            files = named_files(self.arguments, written["options"], base_folder(self.document))
            identity: dict[str, Any] = {"options": written["options"], "arguments": self.arguments}
            if self.entry.target is not None:
                identity["target"] = [self.entry.target.name, self.entry.target.higher_is_better]
            for name in ("module", "launch"):
                if getattr(self.entry, name) != getattr(WorkloadEntry, name):
                    identity[name] = getattr(self.entry, name)
        else:
            options = self._read_settings("options", self.declaration.options, written["options"])
            data = self._read_settings("data", self.declaration.data, written["data"])
            files = files_by_setting(options, data)
            # Each member of a union has its own `source` as the default, so `without_defaults` drops
            # it. Without it, equal settings of two sources would share an id.
            identity = {
                "options": without_defaults(options),
                "data": without_defaults(data) | {"source": getattr(data, "source", None)},
            }
            unset += _unset_settings("options", options, written["options"])
            unset += _unset_settings("data", data, written["data"])
            written = {"options": asdict(options), "data": asdict(data)}
        states, contents = describe_files(self.document, self.key, files, self.digests)
        if contents or self.arguments is None:
            identity["files"] = contents or None
        reference = replace(
            self._reference,
            identity={**self._reference.identity, **identity},
            options=map_paths(written["options"], str),
            data=map_paths(written["data"], str),
            axes=list(settings or {}),
            file_states=states,
            unset=unset,
        )
        return PlannedWorkload(reference, options, data)

    @cached_property
    def _reference(self) -> WorkloadRef:
        """The reference without settings; raises BadInput for code that can't be read."""
        uses, base = self.declaration.path, base_folder(self.document)
        written = self.entry.uses or self.label
        if self.arguments is None and not written.endswith(".py"):  # else its class is known by now
            uses = written
        try:
            source = find_source(uses, base)
            code = describe_code(source)
        except OSError as error:
            problem = f"{error.filename}: can't be read: {error.strerror}"
            raise self.document.error((*self.key, "uses"), problem) from None
        return WorkloadRef(
            label=self.label,
            uses=relative_name(uses, base),
            options={},
            data={},
            identity={"uses": canonical_name(uses, source)},
            code=code,
            arguments=self.arguments,
            target=self.entry.target,
            module=self.entry.module,
            launch=self.entry.launch,
        )

    def _check_values(self, section: str, values: Mapping[str, Any]) -> None:
        """Raise BadInput for a text whose name says that it is a secret: settings are recorded."""
        texts = {(section, name): value for name, value in values.items() if isinstance(value, str)}
        for argument in self.arguments or ():
            if argument.startswith("-"):
                texts["arguments", argument.partition("=")[0]] = argument
        for (place, name), text in texts.items():
            if text and SECRET_NAME.search(name):
                key = (*self.key, "arguments") if place == "arguments" else (*self.key, place, name)
                allowed = "an environment variable that the workload reads itself"
                problem = f"found {name}, which says secret, and settings are recorded"
                raise self.document.error(key, f"{problem}; allowed: {allowed}")

    def _read_settings(self, section: str, kind: Any, values: Mapping[str, Any]) -> Settings:
        """Return the workload's options or data; raises BadInput.

        They have the right types, absolute paths, and files that can be read. `kind` is the class
        that the workload declares, or a union of them told apart by `source`.
        """
        document, key = self.document, (*self.key, section)
        try:
            member = choose(kind, values)
        except InvalidValue as error:
            raise document.error(key + error.key, error.problem) from None
        try:
            settings: Settings = document.validate(member, values, key)
        except BadInput as error:
            # Ready sweeps leave the path of their data to the user.
            message = str(error)
            if "data.path: missing" in message:
                message += f"; give it here or as --data {self.label}=PATH"
            raise BadInput(message) from None
        changes: dict[str, Any] = {}
        for name in values:
            value = getattr(settings, name)
            try:
                json.dumps(map_paths(value, str))
            except TypeError:
                allowed = "numbers, text, paths, true, false, null, and lists and mappings of them"
                problem = (
                    f"found a {type(value).__name__}, which no cell can keep; allowed: {allowed}"
                )
                raise document.error((*key, name), problem) from None
            # Users type paths relative to the working directory, while a path in a file is relative
            # to the file.
            if document.source_of((*key, name)).startswith("--set"):
                changes[name] = map_paths(value, _if_it_exists)
        settings = replace(settings, **changes)
        settings = settings.with_paths_relative_to(base_folder(document))
        try:
            settings.check()
        except (OSError, ValueError) as error:
            problem = str(error)
            if isinstance(error, OSError):
                problem = f"{error.filename}: found {error.strerror}; allowed: a readable file"
            # At the field that the message begins with, if any, or that has the file.
            name, _, rest = problem.partition(": ")
            for place, path in settings.paths().items():
                if problem.startswith(str(path)):
                    raise document.error((*key, place.partition("[")[0]), problem) from None
            if name in {setting.name for setting in fields(settings)}:
                raise document.error((*key, name), rest) from None
            raise document.error(key, problem) from None
        return settings


def read_workload(
    document: Document, label: str, entry: WorkloadEntry, digests: FileDigests
) -> SweepWorkload:
    """Return a workload of a sweep file, by the kind of its entry; raises BadInput.

    A user's own class is imported.
    """
    uses, key = entry.uses or label, ("workloads", label)
    has_arguments = entry.arguments is not None
    uses_key = (*key, "uses") if entry.uses else key
    if entry.module is not None:
        if entry.uses is not None:
            raise document.error(uses_key, "found it with module; allowed: one of them")
        uses, uses_key = script.module_file(entry.module, base_folder(document)), (*key, "module")
        has_arguments = True
    declaration = find_declaration(
        document, uses, base_folder(document), uses_key, has_arguments=has_arguments
    )
    arguments = None
    if declaration.path.endswith(".py"):
        script.check_entry(document, key, uses)
        arguments = script.read_arguments(document, key, entry.arguments)
    elif has_arguments or entry.target is not None:
        name = "arguments" if has_arguments else "target"
        problem = "found it with a workload class; allowed with a script: uses: train.py"
        raise document.error((*key, name), problem)
    return SweepWorkload(
        document=document,
        label=label,
        entry=entry,
        declaration=declaration,
        digests=digests,
        arguments=arguments,
    )


def base_folder(document: Document) -> Path:
    """Return the folder that relative paths in a sweep file are relative to."""
    return Path(document.sources[()]).absolute().parent


def named_declaration(uses: str, base: Path) -> Declaration:
    """Return the declaration of a workload named on the command line; raises BadInput."""
    return find_declaration(Document({}, {(): f"WORKLOAD {uses}"}), uses, base, ())


def find_declaration(
    document: Document, uses: str, base: Path, key: Key, *, has_arguments: bool = False
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


def _unset_settings(section: str, settings: Settings, written: Mapping[str, Any]) -> list[str]:
    """Return the settings of a section that are not written and have their declared defaults.

    `with_paths_relative_to` may set what is not written. `source` is left out: it distinguishes
    the members of a union, so reading the settings again needs it.
    """
    unset = []
    for name, default in declared_defaults(settings).items():
        is_default = getattr(settings, name) == default
        if is_default and name not in written and name != SOURCE:
            unset.append(f"{section}.{name}")
    return unset


def _if_it_exists(path: Path) -> Path:
    """Return a path as absolute if it exists in the working directory, else unchanged."""
    return path.absolute() if path.exists() else path
