"""The workloads of a sweep file: their declarations, and their settings checked against files.

A workload's options and data settings may be axes, `options.NAME` and `data.NAME`. A sweep may have
workloads with and without such a setting: points of those without are left out.

Built-in workloads are planned from a table, without importing torch. A user's own class has to be
imported, which `harness.spec.sweep` does in a process of its own.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
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
    SOURCE,
    Length,
    ReportedTarget,
    Seed,
    StopRule,
    WorkloadRef,
    declared_defaults,
    setting_of,
    without_defaults,
)
from harness.spec.document import Document
from harness.spec.files import (
    FileDigests,
    describe_code,
    describe_files,
    files_by_setting,
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
UNKNOWN_BATCH_SIZE = 1  # of a script
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


@dataclass(frozen=True, kw_only=True)
class PlannedWorkload:
    """A workload with all its settings, checked."""

    reference: WorkloadRef
    options: Settings
    data: Settings

    def find_conflict(self, axes: Axes) -> str | None:
        """Return why the workload can't be trained with these axes, None if it can."""
        reason = find_conflict(axes)
        if reason is not None:
            return reason
        values = axes.values
        return self.options.conflict(values) or self.data.conflict(values)


@dataclass(frozen=True, kw_only=True)
class SweepWorkload:
    """A workload of a sweep file, as its entry declares it."""

    document: Document
    label: str  # the sweep's name for it
    entry: WorkloadEntry
    declaration: Declaration
    digests: FileDigests = field(default_factory=FileDigests)  # of data files, of all workloads

    @property
    def key(self) -> Key:
        """Return where the workload's entry is in the file, for errors."""
        return ("workloads", self.label)

    def receives(self, axis: str) -> bool:
        """Return whether the training does as an axis of the harness says."""
        return True

    @cached_property
    def setting_types(self) -> Mapping[str, Any]:
        """The annotated type of each setting by its axis, those of every source of its data too.

        Of several sources with a setting, the one that the entry chooses counts.
        """
        sources = members_by_source(self.declaration.data).values()
        try:
            chosen = choose(self.declaration.data, self.entry.data)
        except InvalidValue:  # an unknown source, which planning reports
            chosen = next(iter(sources))
        declared: dict[str, Any] = {}
        for section, kinds in (
            ("options", [self.declaration.options]),
            ("data", [chosen, *sources]),
        ):
            for kind in kinds:
                hints = get_type_hints(kind, include_extras=True)
                for setting in fields(kind):
                    declared.setdefault(f"{section}.{setting.name}", hints[setting.name])
        return declared

    def plan(
        self,
        settings: Mapping[str, Any] | None = None,
        sources: Mapping[str, str] | None = None,
        unset: Sequence[str] = (),
    ) -> PlannedWorkload:
        """Return the workload with the settings of a point over those of its entry.

        `sources` says what errors call the line or the flag that sets each of them, and `unset` are
        axes that the sweep leaves to the workload. Raises BadInput for a wrong setting, and for a
        file that is missing or can't be read.
        """
        settings = settings or {}
        document = self._document_at(settings, sources or {})
        options = self._read_settings(document, settings, "options", self.declaration.options)
        data = self._read_settings(document, settings, "data", self.declaration.data)
        states, contents = describe_files(
            document, self.key, files_by_setting(options, data), self.digests
        )
        # Each member of a union has its own `source` as the default, so `without_defaults` drops it.
        # Without it, equal settings of two sources would share an id.
        identity = {
            "options": without_defaults(options),
            "data": without_defaults(data) | {"source": getattr(data, "source", None)},
            "files": contents or None,
        }
        reference = self._refer(
            identity,
            options=map_paths(asdict(options), str),
            data=map_paths(asdict(data), str),
            axes=list(settings),
            file_states=states,
            unset=[
                *_unset_settings("options", options, self._written(settings, "options")),
                *_unset_settings("data", data, self._written(settings, "data")),
                *unset,
            ],
        )
        return PlannedWorkload(reference=reference, options=options, data=data)

    def _document_at(self, settings: Mapping[str, Any], sources: Mapping[str, str]) -> Document:
        """Return the document in which the settings of a point are where their axes are."""
        moved = dict(self.document.sources)
        for axis in settings:
            if axis in sources:
                moved[(*self.key, *axis.split(".", 1))] = sources[axis]
        return replace(self.document, sources=moved)

    def _written(self, settings: Mapping[str, Any], section: str) -> dict[str, Any]:
        """Return the options or the data settings that the entry or the point sets."""
        written = dict({"options": self.entry.options, "data": self.entry.data}[section])
        for axis, value in settings.items():
            setting = setting_of(axis)
            if setting is not None and setting.section == section:
                written[setting.name] = value
        return written

    def _read_settings(
        self, document: Document, point: Mapping[str, Any], section: str, kind: Any
    ) -> Settings:
        """Return the workload's options or data; raises BadInput.

        They have the right types, absolute paths, and files that can be read. `kind` is the class
        that the workload declares, or a union of them told apart by `source`.
        """
        key = (*self.key, section)
        values = self._written(point, section)
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
                refuse_secret(name, getattr(settings, name))
            except ValueError as error:
                raise document.error((*key, name), str(error)) from None
        settings = _with_paths_of_flags(document, settings, key)
        settings = settings.with_paths_relative_to(base_folder(document))
        try:
            settings.check()
        except OSError as error:
            problem = f"{error.filename}: found {error.strerror}; allowed: a readable file"
            raise document.error(_key_of(settings, key, problem), problem) from None
        except ValueError as error:
            # At the field that the message begins with, if any.
            name, _, problem = str(error).partition(": ")
            if name in {setting.name for setting in fields(settings)}:
                raise document.error((*key, name), problem) from None
            raise document.error(_key_of(settings, key, str(error)), str(error)) from None
        return settings

    def _refer(self, identity: Mapping[str, Any], **own: Any) -> WorkloadRef:
        """Return a reference with what all kinds of workloads have; `own` are its other fields.

        `identity` is the kind's part of it. Raises BadInput for code that can't be read.
        """
        uses = self.entry.uses or self.label
        if uses.endswith(".py"):  # the file has one workload, whose name is known by now
            uses = self.declaration.path
        base = base_folder(self.document)
        try:
            source = find_source(uses, base)
            code = describe_code(source)
        except OSError as error:
            problem = f"{error.filename}: can't be read: {error.strerror}"
            raise self.document.error(uses_key(self.label, self.entry), problem) from None
        return WorkloadRef(
            label=self.label,
            uses=relative_name(uses, base),
            identity={"uses": canonical_name(uses, source), **identity},
            code=code,
            **own,
        )


def _key_of(settings: Settings, key: Key, message: str) -> Key:
    """Return the key of the setting whose file a message begins with, else that of all settings."""
    for place, path in settings.paths().items():
        if message.startswith(str(path)):
            return (*key, place.partition("[")[0])
    return key


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


def refuse_secret(name: str, value: Any) -> None:
    """Raise ValueError for a text whose name says that it is a secret: settings are recorded."""
    if SECRET_NAME.search(name) and isinstance(value, str) and value:
        raise ValueError(
            "found a name that says secret, and settings are recorded; allowed: an environment variable"
            " that the workload reads itself"
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
            return Declaration(
                path=uses, options=Settings, data=Settings, batch_size=UNKNOWN_BATCH_SIZE
            )
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


def uses_key(label: str, entry: WorkloadEntry) -> Key:
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
