"""The workloads of a sweep file: their declarations, and their settings checked against files.

Built-in workloads are planned from a table, without importing torch. A user's own class has to be
imported, and it usually imports torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from harness.core.errors import BadInput
from harness.core.validation import InvalidValue, Key, choose, dotted, members_by_source
from harness.spec.axes import Axes, find_conflict
from harness.spec.cell import (
    Length,
    StopRule,
    WorkloadCode,
    WorkloadRef,
    declared_defaults,
    without_defaults,
)
from harness.spec.code import describe_workload_code
from harness.spec.custom import NO_CUSTOM_AXES, CustomAxes
from harness.spec.data_files import FileDigests, Files, describe_state, files_by_setting
from harness.spec.document import Document
from harness.spec.setting_axis import CUSTOM, SOURCE, setting_of
from workloads.axis import CustomAxis
from workloads.catalog import BUILT_IN, Declaration, load_class
from workloads.files import UnknownColumn
from workloads.options import Between, Settings, map_paths

# What `numpy.random.seed` takes: 32 bits without a sign.
Seed = Annotated[int, Between(0, 2**32 - 1)]
Seeds = list[Seed]
NO_SETTINGS: Mapping[str, Any] = MappingProxyType({})


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


@dataclass(frozen=True, kw_only=True)
class PlannedWorkload:
    """A workload of a sweep whose settings were checked."""

    declaration: Declaration
    options: Settings  # with absolute paths
    data: Settings  # with absolute paths
    reference: WorkloadRef  # the part that its cells keep
    custom: Mapping[str, CustomAxis] = field(default_factory=dict)  # those not at their defaults

    def find_conflict(self, axes: Axes) -> str | None:
        """Return why the workload can't be trained with these axes, None if it can.

        Conflicts among the axes come first, then those of the workload's settings.
        """
        reason = find_conflict(axes) or self._missing_plan(axes)
        if reason:
            return reason
        settings = axes.values
        reason = self.options.conflict(settings) or self.data.conflict(settings)
        if reason:
            return reason
        for name, axis in self.custom.items():
            reason = axis.conflict(settings)
            if reason is not None:
                return f"{CUSTOM}.{name}: {reason}"
        return None

    def _missing_plan(self, axes: Axes) -> str | None:
        """Return a conflict if tensor-parallel ranks have no plan for sharing the work."""
        if self.declaration.has_tensor_parallel_plan:
            return None
        setting = None
        if axes.strategy == "tp":
            setting = "strategy tp"
        elif axes.tensor_parallel > 1:
            setting = f"tensor_parallel {axes.tensor_parallel}"
        if setting is None:
            return None
        return f"{setting} needs a tensor_parallel_plan, which {self.reference.uses} does not have"


def read_declaration(document: Document, label: str, entry: WorkloadEntry) -> Declaration:
    """Return the declaration of the workload of a sweep's entry; raises BadInput if there is none."""
    return _find_declaration(
        document, entry.uses or label, _base_folder(document), _uses_key(label, entry)
    )


def _uses_key(label: str, entry: WorkloadEntry) -> Key:
    """Return the key that names the class of a workload in a sweep file: `uses`, or else its label."""
    key: Key = ("workloads", label)
    if entry.uses:
        return (*key, "uses")
    return key


def _base_folder(document: Document) -> Path:
    """Return the folder that relative paths in a sweep file are relative to."""
    return Path(document.sources[()]).absolute().parent


def plan_workload(
    document: Document,
    label: str,
    entry: WorkloadEntry,
    declaration: Declaration,
    settings: Mapping[str, Any] = NO_SETTINGS,
    digests: FileDigests | None = None,
    custom: CustomAxes = NO_CUSTOM_AXES,
) -> PlannedWorkload:
    """Return the workload of a sweep's entry at a point of the matrix.

    `settings` are the settings by axis that the point sets. Raises BadInput for a wrong setting
    or an unusable file. Its data files are read for their digest, which is part of the identity of
    its cells, unless `digests` has it from another point. So are the files of its code.
    """
    uses = entry.uses or label
    key: Key = ("workloads", label)
    document = _with_sources_of_axes(document, key, settings)
    base_folder = _base_folder(document)
    written: dict[str, dict[str, Any]] = {
        "options": dict(entry.options),
        "data": dict(entry.data),
        CUSTOM: {},
    }
    for axis, value in settings.items():
        setting = setting_of(axis)
        assert setting is not None
        written[setting.section][setting.name] = value
    options = _read_settings(
        document, declaration.options, written["options"], (*key, "options"), base_folder
    )
    data = _read_settings(document, declaration.data, written["data"], (*key, "data"), base_folder)
    values = _read_settings(document, custom.settings, written[CUSTOM], (*key, CUSTOM), base_folder)
    changed = without_defaults(values)
    location = _location_of(uses, base_folder)
    files = files_by_setting(options, data)
    states, contents = _digest_files(document, key, files, digests or FileDigests())
    # Each member of a union has its own `source` as the default, so `without_defaults` drops it.
    # Without it, equal settings of two sources would share an id.
    identity = {
        "uses": location,
        "options": without_defaults(options),
        "data": without_defaults(data) | {"source": getattr(data, "source", None)},
        "files": contents or None,
    }
    active_uses = {name: custom.uses[name] for name in changed}
    if changed:  # without any, the id is that of a sweep without such axes
        locations = {name: _location_of(used, base_folder) for name, used in active_uses.items()}
        identity |= {CUSTOM: changed, "custom_uses": locations}
    reference = WorkloadRef(
        label=label,
        uses=uses if location.startswith("../") else location,  # a tree may have another base
        options=_as_json(options),
        data=_as_json(data),
        identity=identity,
        file_states=states,
        code=_find_code(document, uses, base_folder, _uses_key(label, entry), active_uses.values()),
        axes=list(settings),
        unset=[
            *_unset_settings("options", options, written["options"]),
            *_unset_settings("data", data, written["data"]),
        ],
        custom=_as_json(values),
        custom_uses=dict(custom.uses),
    )
    return PlannedWorkload(
        declaration=declaration,
        options=options,
        data=data,
        reference=reference,
        custom={name: custom.classes[name](value) for name, value in changed.items()},
    )


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


def _location_of(uses: str, base_folder: Path) -> str:
    """Return a workload's name with the path of a file relative to the base folder.

    So `w.py:W`, `./w.py:W` and the absolute path are one workload. Links to
    folders are followed, but not a link to the file: modules are named after files.
    """
    location, _, class_name = uses.rpartition(":")
    if not location.endswith(".py"):
        return uses
    path = base_folder / Path(location).expanduser()
    relative = os.path.relpath(path.parent.resolve() / path.name, base_folder.resolve())
    return f"{Path(relative).as_posix()}:{class_name}"


def _digest_files(
    document: Document, key: Key, by_setting: Mapping[str, Files], digests: FileDigests
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the states and the digests of the files of each setting of the workload at `key`.

    Raises BadInput, which names the setting, for a file that is missing or can't be read.
    """
    states: dict[str, str] = {}
    contents: dict[str, str] = {}
    for axis, files in by_setting.items():
        location: Key = (*key, *axis.split(".", 1))
        for _, path in files:
            if not path.is_file():
                problem = f"found no file or folder {path}; allowed: one that exists"
                raise document.error(location, problem)
        try:
            # The state comes first: the trial then reads files again that change before they are digested.
            states[axis] = describe_state(files)
            contents[axis] = digests.digest(files)
        except OSError as error:
            problem = f"{error.filename}: can't be read: {error.strerror}"
            raise document.error(location, problem) from None
    return states, contents


def _with_sources_of_axes(document: Document, key: Key, axes: Iterable[str]) -> Document:
    """Return the document with the settings of the workload at `key` where their axes stand.

    Errors then name the line of the matrix, or the `--set`, that a setting comes from.
    """
    sources = dict(document.sources)
    for location, source in document.sources.items():
        if not location or location[0] not in ("axes", "matrix", "zip", "include"):
            continue
        axis = str(location[-1])
        setting = setting_of(axis)
        if setting is not None and axis in axes:
            sources[(*key, *setting)] = source
    return replace(document, sources=sources)


def named_declaration(uses: str, base_folder: Path) -> Declaration:
    """Return the declaration of a workload named on the command line; raises BadInput."""
    return _find_declaration(Document({}, {(): f"WORKLOAD {uses}"}), uses, base_folder, ())


def _find_declaration(document: Document, uses: str, base_folder: Path, key: Key) -> Declaration:
    """Return the declaration of a workload; raises BadInput if it is unknown or invalid Python.

    Any other error that a user's module raises keeps its traceback.
    """
    try:
        return workload_declaration(uses, base_folder)
    except ValueError as error:
        raise document.error(key, str(error)) from None
    except SyntaxError as error:
        source = uses
        if error.filename:
            source = f"{error.filename}:{error.lineno}"
        raise document.error(key, f"{source}: found {error.msg}; allowed: valid Python") from None


def _find_code(
    document: Document, uses: str, base_folder: Path, key: Key, custom_uses: Iterable[str]
) -> WorkloadCode:
    """Return the code of a workload that was found; raises BadInput for a file that is unreadable."""
    try:
        return describe_workload_code(uses, base_folder, custom_uses)
    except OSError as error:
        raise document.error(key, f"{error.filename}: can't be read: {error.strerror}") from None


def workload_declaration(uses: str, base_folder: Path) -> Declaration:
    """Return the declaration of a workload, which planning needs.

    Built-in workloads are declared in a table; a user's own class is imported, and torch with it.
    Raises ValueError if there is none of that name.
    """
    if uses in BUILT_IN:
        return BUILT_IN[uses]
    workload_class = load_class(uses, base_folder)
    from workloads.base import Workload  # the class has imported torch by now

    plan = workload_class.tensor_parallel_plan
    return Declaration(
        path=uses,
        options=workload_class.Options,
        data=workload_class.Data,
        batch_size=workload_class.batch_size,
        has_tensor_parallel_plan=plan is not Workload.tensor_parallel_plan,
    )


def _read_settings(
    document: Document, kind: Any, values: Mapping[str, Any], key: Key, base_folder: Path
) -> Settings:
    """Return a workload's options or data, which the file has at `key`; raises BadInput.

    They have the right types, absolute paths, and files that can be read. `kind` is the Settings
    class that the workload declares, or a union of them told apart by `source`.
    """
    try:
        member = choose(kind, values)
    except InvalidValue as error:
        raise document.error(key + error.key, error.problem) from None
    _refuse_keys_of_other_sources(document, kind, member, values, key)
    try:
        settings: Settings = document.validate(member, dict(values), key)
    except BadInput as error:
        # Ready sweeps leave the path of their data to the user.
        message = str(error)
        if "data.path: missing" in message:
            message += f"; give it here or as --data {key[1]}=PATH"
        raise BadInput(message) from None
    settings = _with_paths_of_flags(document, settings, key)
    settings = settings.with_paths_relative_to(base_folder)
    try:
        settings.check()
    except ValueError as error:
        message = str(error)
        if isinstance(error, UnknownColumn):
            message += f"; name it as --set {dotted((*key, error.setting))}=COLUMN"
        raise _settings_error(document, key, settings, message) from None
    return settings


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


def _settings_error(document: Document, key: Key, settings: Settings, message: str) -> BadInput:
    """Return the error for a failed check, at the field that `message` begins with, if any."""
    name, _, problem = message.partition(": ")
    if name in {setting.name for setting in fields(settings)}:
        return document.error((*key, name), problem)
    return document.error(key, message)


def _as_json(settings: Settings) -> dict[str, Any]:
    """Return settings as JSON can hold them, paths as text."""
    values: dict[str, Any] = map_paths(asdict(settings), str)
    return values
