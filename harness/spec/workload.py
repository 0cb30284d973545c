"""The workloads of a sweep file: their declarations, and their settings checked against files.

A workload's options and data settings may be axes, `options.NAME` and `data.NAME`, as may what users
have written, `custom.NAME`. A sweep may have workloads with and without such a setting: points of
those without are left out.

Built-in workloads are planned from a table, without importing torch. A user's own class has to be
imported, and it usually imports torch.
"""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, get_args, get_type_hints

from harness.core.errors import BadInput, one_line
from harness.core.validation import (
    LONGEST_VALUE,
    InvalidValue,
    Key,
    choose,
    decode_value,
    dotted,
    members_by_source,
)
from harness.spec.axes import Axes, find_conflict
from harness.spec.cell import (
    CUSTOM,
    SOURCE,
    Length,
    ReportedTarget,
    Seed,
    Setting,
    StopRule,
    WorkloadRef,
    declared_defaults,
    setting_of,
    without_defaults,
)
from harness.spec.custom import NO_CUSTOM_AXES, CustomAxes
from harness.spec.document import Document
from harness.spec.files import (
    FileDigests,
    Files,
    describe_state,
    describe_workload_code,
    files_by_setting,
)
from workloads.axis import CustomAxis
from workloads.catalog import BUILT_IN, Declaration, is_script, load_class
from workloads.files import UnknownColumn
from workloads.options import Count, Settings, map_paths

Seeds = list[Seed]


@dataclass(frozen=True, kw_only=True)
class WorkloadEntry:
    """The keys of one workload in a sweep file; the sweep's values are the defaults."""

    uses: str | None = None  # the workload; its label unless set
    options: dict[str, Any] = field(default_factory=dict)  # fields of the workload's `Options`
    data: dict[str, Any] = field(default_factory=dict)  # fields of its `Data`
    axes: dict[str, Any] = field(default_factory=dict)  # one value each, over the sweep's `axes`
    length: Length | None = None
    evaluate: Length | None = None
    stop: StopRule | None = None
    seeds: Seeds | None = None
    # Of a script: its command line, and which of the metrics that it reports is the target.
    arguments: str | list[str | int | float | bool] | None = None
    target: ReportedTarget | None = None


@dataclass(frozen=True, kw_only=True)
class SweepWorkload:
    """A workload of a sweep file, with the settings of a point of the matrix if it has some.

    Its settings are checked, and its files are read for their digests, when they are needed first.
    That raises BadInput for a wrong setting or an unusable file.
    """

    document: Document
    label: str  # the sweep's name for it
    entry: WorkloadEntry
    declaration: Declaration
    custom: CustomAxes = NO_CUSTOM_AXES  # of the sweep, which every workload has
    settings: Mapping[str, Any] = field(default_factory=dict)  # by axis, that the point sets
    unset: Sequence[str] = ()  # axes that the sweep leaves to the workload's declaration
    digests: FileDigests = field(default_factory=FileDigests)  # of data files, of all points

    @property
    def key(self) -> Key:
        """Return where the workload's entry is in the file, for errors."""
        return ("workloads", self.label)

    def setting_names(self) -> list[str]:
        """Return the axes of all settings, those of every source of its data too."""
        return [*self._fields, *(f"{CUSTOM}.{name}" for name in self.custom.classes)]

    def type_of(self, setting: Setting) -> Any:
        """Return the annotated type of a setting; raises KeyError for one that there is not.

        The type of `data.source` is any, as each source allows its own name only.
        """
        if setting.section == CUSTOM:
            return self.custom.classes[setting.name].Value
        if setting == Setting("data", SOURCE):
            return Any
        settings_class = self._fields[f"{setting.section}.{setting.name}"]
        return get_type_hints(settings_class, include_extras=True)[setting.name]

    def value_in_entry(self, axis: str) -> Any:
        """Return what a setting is without an axis: as written, else the default, MISSING without."""
        setting = setting_of(axis)
        assert setting is not None
        if setting.section == CUSTOM:
            return plain(self.custom.classes[setting.name].default)
        written = {"options": self.entry.options, "data": self.entry.data}[setting.section]
        if setting.name in written:
            return plain(written[setting.name])
        if axis not in self._fields:
            return MISSING  # which equals no value of an exclude rule
        default = declared_defaults(self._fields[axis])[setting.name]
        return MISSING if default is MISSING else plain(default)

    @cached_property
    def _fields(self) -> dict[str, type]:
        """The class with the field of each option and data setting, by its axis.

        Of several sources with a setting, the one that the entry chooses counts.
        """
        sources = members_by_source(self.declaration.data).values()
        try:
            chosen = choose(self.declaration.data, self.entry.data)
        except InvalidValue:  # an unknown source, which planning reports
            chosen = next(iter(sources))
        declared: dict[str, type] = {}
        for setting in fields(self.declaration.options):
            declared[f"options.{setting.name}"] = self.declaration.options
        for source in (chosen, *sources):
            for setting in fields(source):
                declared.setdefault(f"data.{setting.name}", source)
        return declared

    @cached_property
    def options(self) -> Settings:
        """The checked options, with absolute paths."""
        return self._read_settings("options", self.declaration.options)

    @cached_property
    def data(self) -> Settings:
        """The checked data settings, with absolute paths."""
        return self._read_settings("data", self.declaration.data)

    @cached_property
    def active_axes(self) -> dict[str, CustomAxis]:
        """The axes that users have written and that are not at their defaults, by name."""
        active = {}
        for name, value in self._custom_values.items():
            if value != self.custom.classes[name].default:
                active[name] = self.custom.classes[name](value)
        return active

    @cached_property
    def _custom_values(self) -> dict[str, Any]:
        """The checked values of all axes that users have written, by name."""
        values = {}
        for name, axis_class in self.custom.classes.items():
            values[name] = axis_class.default
            axis = f"{CUSTOM}.{name}"
            if axis in self.settings:
                values[name] = self._sources.validate(
                    axis_class.Value, self.settings[axis], (*self.key, CUSTOM, name)
                )
        return values

    @cached_property
    def _sources(self) -> Document:
        """The document with the settings of the point where their axes stand.

        Errors then name the line of the matrix, or the `--set`, that a setting comes from.
        """
        sources = dict(self.document.sources)
        for location, source in self.document.sources.items():
            if not location or location[0] not in ("axes", "matrix", "zip", "include"):
                continue
            axis = str(location[-1])
            setting = setting_of(axis)
            if setting is not None and axis in self.settings:
                sources[(*self.key, *setting)] = source
        return replace(self.document, sources=sources)

    def _written(self, section: str) -> dict[str, Any]:
        """Return the options or the data settings that the entry or the point sets."""
        written = dict({"options": self.entry.options, "data": self.entry.data}[section])
        for axis, value in self.settings.items():
            setting = setting_of(axis)
            assert setting is not None
            if setting.section == section:
                written[setting.name] = value
        return written

    def _read_settings(self, section: str, kind: Any) -> Settings:
        """Return the workload's options or data; raises BadInput.

        They have the right types, absolute paths, and files that can be read. `kind` is the class
        that the workload declares, or a union of them told apart by `source`.
        """
        document, key = self._sources, (*self.key, section)
        values = self._written(section)
        try:
            member = choose(kind, values)
        except InvalidValue as error:
            raise document.error(key + error.key, error.problem) from None
        _refuse_keys_of_other_sources(document, kind, member, values, key)
        try:
            settings: Settings = document.validate(member, values, key)
        except BadInput as error:
            # Ready sweeps leave the path of their data to the user.
            message = str(error)
            if "data.path: missing" in message:
                message += f"; give it here or as --data {self.label}=PATH"
            raise BadInput(message) from None
        for name in values:
            try:
                _check_is_plain(getattr(settings, name))
            except ValueError as error:
                raise document.error((*key, name), str(error)) from None
        settings = _with_paths_of_flags(document, settings, key)
        settings = settings.with_paths_relative_to(base_folder(document))
        try:
            settings.check()
        except ValueError as error:
            message = str(error)
            if isinstance(error, UnknownColumn):
                message += f"; name it as --set {dotted((*key, error.setting))}=COLUMN"
            # At the field that the message begins with, if any.
            name, _, problem = message.partition(": ")
            if name in {setting.name for setting in fields(settings)}:
                raise document.error((*key, name), problem) from None
            raise document.error(key, message) from None
        return settings

    @cached_property
    def reference(self) -> WorkloadRef:
        """The part of the workload that its cells keep."""
        files = files_by_setting(self.options, self.data)
        states, contents = self._digest_files(files)
        # Each member of a union has its own `source` as the default, so `without_defaults` drops it.
        # Without it, equal settings of two sources would share an id.
        identity = {
            "options": without_defaults(self.options),
            "data": without_defaults(self.data) | {"source": getattr(self.data, "source", None)},
            "files": contents or None,
        }
        return self._refer(
            identity,
            options=map_paths(asdict(self.options), str),
            data=map_paths(asdict(self.data), str),
            file_states=states,
            unset=[
                *_unset_settings("options", self.options, self._written("options")),
                *_unset_settings("data", self.data, self._written("data")),
                *self.unset,
            ],
        )

    def _refer(self, identity: Mapping[str, Any], **own: Any) -> WorkloadRef:
        """Return a reference with what all kinds of workloads have; `own` are its other fields.

        `identity` is the kind's part of it. Raises BadInput for code that can't be read.
        """
        uses = self.entry.uses or self.label
        base = base_folder(self.document)
        location = location_of(uses, base)
        identity = {"uses": location, **identity}
        active_uses = {name: self.custom.uses[name] for name in self.active_axes}
        if active_uses:  # without any, the id is that of a sweep without such axes
            identity[CUSTOM] = {name: self._custom_values[name] for name in active_uses}
            identity["custom_uses"] = {
                name: location_of(axis_uses, base) for name, axis_uses in active_uses.items()
            }
        try:
            code = describe_workload_code(uses, base, active_uses.values())
        except OSError as error:
            problem = f"{error.filename}: can't be read: {error.strerror}"
            raise self.document.error(_uses_key(self.label, self.entry), problem) from None
        return WorkloadRef(
            label=self.label,
            uses=uses if location.startswith("../") else location,  # a tree may have another base
            identity=identity,
            code=code,
            axes=list(self.settings),
            custom=map_paths(self._custom_values, str),
            custom_uses=dict(self.custom.uses),
            **own,
        )

    def _digest_files(
        self, by_setting: Mapping[str, Files]
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Return the states and the digests of the files of each setting.

        Raises BadInput, which names the setting, for a file that is missing or can't be read.
        """
        states: dict[str, str] = {}
        contents: dict[str, str] = {}
        for axis, files in by_setting.items():
            location: Key = (*self.key, *axis.split(".", 1))
            for _, path in files:
                if not path.is_file():
                    problem = f"found no file or folder {path}; allowed: one that exists"
                    raise self._sources.error(location, problem)
            try:
                # The state comes first: the trial then reads files again that change before they
                # are digested.
                states[axis] = describe_state(files)
                contents[axis] = self.digests.digest(files)
            except OSError as error:
                problem = f"{error.filename}: can't be read: {error.strerror}"
                raise self._sources.error(location, problem) from None
        return states, contents

    def find_conflict(self, axes: Axes) -> str | None:
        """Return why the workload can't be trained with these axes, None if it can.

        Conflicts among the axes come first, then those of the workload's settings. Raises BadInput
        for wrong settings, whatever the axes are.
        """
        declared = [self.options, self.data]
        reason = find_conflict(axes)
        if reason:
            return reason
        values = axes.values
        for settings in declared:
            reason = settings.conflict(values)
            if reason:
                return reason
        for name, axis in self.active_axes.items():
            reason = axis.conflict(values)
            if reason is not None:
                return f"{CUSTOM}.{name}: {reason}"
        return None


def plain(value: Any) -> Any:
    """Return a value of a setting as JSON can hold it."""
    return json.loads(json.dumps(map_paths(value, str)))


def _check_is_plain(value: Any) -> None:
    """Raise ValueError for a value of a setting that JSON can't hold, in which cells keep it."""
    try:
        plain(value)
    except TypeError:
        found = one_line(repr(value), LONGEST_VALUE)
        raise ValueError(
            f"found {found} of type {type(value).__name__}; allowed: numbers, text, paths, true,"
            " false and null, and lists and mappings of them"
        ) from None


def base_folder(document: Document) -> Path:
    """Return the folder that relative paths in a sweep file are relative to."""
    return Path(document.sources[()]).absolute().parent


def read_declaration(document: Document, label: str, entry: WorkloadEntry) -> Declaration:
    """Return the declaration of the workload of a sweep's entry; raises BadInput if there is none."""
    uses = entry.uses or label
    base, key = base_folder(document), _uses_key(label, entry)
    return _find_declaration(document, uses, base, key, has_arguments=entry.arguments is not None)


def with_class_of_file(document: Document, label: str, entry: WorkloadEntry) -> WorkloadEntry:
    """Return an entry that uses a file with the one workload in it named: `lm.py:LM` for `lm.py`.

    Any other entry is returned as it is, that of a script too. Raises BadInput for a file without a workload, or with
    several.
    """
    uses = entry.uses or label
    if not uses.endswith(".py"):
        return entry
    declaration = read_declaration(document, label, entry)
    return replace(entry, uses=declaration.path)


def named_declaration(uses: str, base: Path) -> Declaration:
    """Return the declaration of a workload named on the command line; raises BadInput."""
    return _find_declaration(Document({}, {(): f"WORKLOAD {uses}"}), uses, base, ())


def _find_declaration(
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
            # A batch size of 1 stands for one that is not known.
            return Declaration(path=uses, options=Settings, data=Settings, batch_size=1)
        workload_class = load_class(uses, base)
    except ValueError as error:
        raise document.error(key, str(error)) from None
    except SyntaxError as error:
        source = uses
        if error.filename:
            source = f"{error.filename}:{error.lineno}"
        raise document.error(key, f"{source}: found {error.msg}; allowed: valid Python") from None

    try:
        batch_size: int = decode_value(Count, workload_class.batch_size)
    except ValueError as error:
        raise document.error(key, f"{workload_class.__name__}.batch_size: {error}") from None
    for section in ("Options", "Data"):
        try:
            _check_settings_class(getattr(workload_class, section))
        except ValueError as error:
            problem = f"{workload_class.__name__}.{section}: {error}"
            raise document.error(key, problem) from None
    path = uses
    if uses.endswith(".py"):
        path = f"{uses}:{workload_class.__name__}"
    return Declaration(
        path=path,
        options=workload_class.Options,
        data=workload_class.Data,
        batch_size=batch_size,
    )


def _check_settings_class(declared: Any) -> None:
    """Raise ValueError unless sweep files can set the fields of a workload's `Options` or `Data`.

    `declared` is a class, or a union of classes.
    """
    for settings_class in get_args(declared) or [declared]:
        is_settings = isinstance(settings_class, type) and issubclass(settings_class, Settings)
        if not is_settings:
            raise ValueError(
                f"found {settings_class!r}; allowed: a dataclass that derives from workloads.Settings"
            )
        for setting in fields(settings_class):
            if hasattr(Settings, setting.name):
                raise ValueError(
                    f"{setting.name}: found the name of a method of Settings; allowed: another name"
                )
        try:
            get_type_hints(settings_class)
        except (AttributeError, NameError, SyntaxError, TypeError) as error:
            raise ValueError(
                f"found a type that can't be read: {error}; allowed: types that the module imports"
                " when it runs, not under TYPE_CHECKING alone"
            ) from None


def _uses_key(label: str, entry: WorkloadEntry) -> Key:
    """Return the key that names the class of a workload in a sweep file: `uses`, or else its label."""
    if entry.uses:
        return ("workloads", label, "uses")
    return ("workloads", label)


def _unset_settings(section: str, settings: Settings, written: Mapping[str, Any]) -> list[str]:
    """Return the settings of a section that are not written and have their declared defaults.

    `with_paths_relative_to` may set what is not written. `source` is left out: it distinguishes
    the members of a union, so reading the settings again needs it.
    """
    defaults = declared_defaults(settings)
    unset = []
    for name, default in defaults.items():
        is_default = getattr(settings, name) == default
        if is_default and name not in written and name != SOURCE:
            unset.append(f"{section}.{name}")
    return unset


def location_of(uses: str, base_folder: Path) -> str:
    """Return a workload's name with the path of a file relative to the base folder.

    So `w.py:W`, `./w.py:W` and the absolute path are one workload. Links to
    folders are followed, but not a link to the file: modules are named after files.
    """
    location, colon, class_name = uses.rpartition(":")
    if uses.endswith(".py"):  # a script
        location, colon, class_name = uses, "", ""
    if not location.endswith(".py"):
        return uses
    path = base_folder / Path(location).expanduser()
    relative = os.path.relpath(path.parent.resolve() / path.name, base_folder.resolve())
    return f"{Path(relative).as_posix()}{colon}{class_name}"


def _refuse_keys_of_other_sources(
    document: Document, kind: Any, member: Any, values: Mapping[str, Any], key: Key
) -> None:
    """Raise BadInput for a key that the chosen source of data does not take, and another does."""
    takers: dict[str, list[str]] = {}  # the sources that take a key
    chosen = ""
    for source, other in members_by_source(kind).items():
        for setting in fields(other):
            takers.setdefault(setting.name, []).append(source)
        if other is member:
            chosen = source
    for name in values:
        sources = takers.get(name, [chosen])
        if chosen not in sources:
            example = f"--set {dotted((*key, 'source'))}={sources[0]}"
            raise document.error(
                (*key, name),
                f"source {chosen} takes no {name}; allowed with source {' or '.join(sources)}:"
                f" {example}",
            )


def _with_paths_of_flags(document: Document, settings: Settings, key: Key) -> Settings:
    """Return settings in which paths after `--set` are taken from the working directory.

    Users type paths relative to the working directory, while a path in a file is relative to the
    file. A path that does not exist is left to the file's folder, or may name a model on the hub.
    """
    changes: dict[str, Any] = {}
    for setting in fields(settings):
        if document.source_of((*key, setting.name)).startswith("--set"):
            changes[setting.name] = map_paths(getattr(settings, setting.name), _if_it_exists)
    return replace(settings, **changes)


def _if_it_exists(path: Path) -> Path:
    """Return a path as absolute if it exists in the working directory, else unchanged."""
    return path.absolute() if path.exists() else path
