"""The workloads of a sweep file: their declarations, and their settings checked against files.

Built-in workloads are planned from a table, without importing torch. A user's own class has to be
imported, and it usually imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from harness.core.errors import BadInput
from harness.spec.axes import Axes, find_conflict
from harness.spec.cell import (
    Length,
    WorkloadCode,
    WorkloadRef,
    digest_files,
    without_defaults,
)
from harness.spec.code import describe_workload_code
from harness.spec.document import Document, Key, choose, dotted
from workloads.catalog import BUILT_IN, Declaration, load_class
from workloads.files import UnknownColumn
from workloads.options import Between, Settings, Strict

# What `numpy.random.seed` takes: 32 bits without a sign.
Seed = Annotated[int, Between(0, 2**32 - 1)]
Seeds = list[Seed]


@dataclass(frozen=True, kw_only=True)
class WorkloadEntry(Strict):
    """The keys of one workload in a sweep file; what is not set is as the whole sweep has it."""

    uses: str | None = None  # the workload; its label unless set
    options: dict[str, Any] = field(default_factory=dict)  # fields of the workload's `Options`
    data: dict[str, Any] = field(default_factory=dict)  # fields of its `Data`
    axes: dict[str, Any] = field(default_factory=dict)  # one value each, over the sweep's `axes`
    length: Length | None = None
    evaluate: Length | None = None
    seeds: Seeds | None = None


@dataclass(frozen=True, kw_only=True)
class PlannedWorkload:
    """A workload of a sweep whose settings were checked."""

    declaration: Declaration
    options: Settings  # with absolute paths
    data: Settings  # with absolute paths
    reference: WorkloadRef  # what its cells keep of it

    def find_conflict(self, axes: Axes) -> str | None:
        """Return why the workload can't be trained with these axes, None if it can.

        Conflicts among the axes come first, then those that the workload's own settings know of.
        """
        reason = find_conflict(axes)
        if reason:
            return reason
        settings = asdict(axes)
        return self.options.conflict(settings) or self.data.conflict(settings)


def plan_workload(document: Document, label: str, entry: WorkloadEntry) -> PlannedWorkload:
    """Return the workload of a sweep's entry.

    Raises BadInput for a wrong setting or an unusable file. Its data files are read for their
    digest, which is part of the identity of its cells, and so are the files of its code.
    """
    uses = entry.uses or label
    key: Key = ("workloads", label)
    uses_key = key
    if entry.uses:
        uses_key = (*key, "uses")
    base_folder = Path(document.sources[()]).absolute().parent
    declaration = _find_declaration(document, uses, base_folder, uses_key)
    options = _read_settings(
        document, declaration.options, entry.options, (*key, "options"), base_folder
    )
    data = _read_settings(document, declaration.data, entry.data, (*key, "data"), base_folder)
    # Each member of a union has its own `source` as the default, so `without_defaults` drops it.
    # Without it, equal settings of two sources would share an id.
    identity = {
        "uses": uses,
        "options": without_defaults(options),
        "data": without_defaults(data) | {"source": getattr(data, "source", None)},
        "files": digest_files([*options.files(), *data.files()]),
    }
    reference = WorkloadRef(
        label=label,
        uses=uses,
        options=_as_json(options),
        data=_as_json(data),
        identity=identity,
        code=_find_code(document, uses, base_folder, uses_key),
    )
    return PlannedWorkload(declaration=declaration, options=options, data=data, reference=reference)


def _find_declaration(document: Document, uses: str, base_folder: Path, key: Key) -> Declaration:
    """Return what a workload declares; raises BadInput for an unknown one and for invalid Python.

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


def _find_code(document: Document, uses: str, base_folder: Path, key: Key) -> WorkloadCode:
    """Return the code of a workload that was found; raises BadInput for a file that is unreadable."""
    try:
        return describe_workload_code(uses, base_folder)
    except OSError as error:
        raise document.error(key, f"{error.filename}: can't be read: {error.strerror}") from None


def workload_declaration(uses: str, base_folder: Path) -> Declaration:
    """Return what planning needs to know about a workload.

    Built-in workloads are declared in a table; a user's own class is imported, and torch with it.
    Raises ValueError if there is none of that name.
    """
    if uses in BUILT_IN:
        return BUILT_IN[uses]
    workload_class = load_class(uses, base_folder)
    return Declaration(
        path=uses,
        options=workload_class.Options,
        data=workload_class.Data,
        batch_size=workload_class.batch_size,
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
    except ValueError as error:
        raise document.error((*key, "source"), str(error)) from None
    try:
        settings: Settings = document.validate(member, dict(values), key)
    except BadInput as error:
        # Ready sweeps leave the path of their data to whoever runs them.
        message = str(error)
        if "data.path: missing" in message:
            message += f"; give it here or as --data {key[1]}=PATH"
        raise BadInput(message) from None
    settings = settings.with_paths_relative_to(base_folder)
    try:
        settings.check()
    except ValueError as error:
        message = str(error)
        if isinstance(error, UnknownColumn):
            message += f"; name it as --set {dotted((*key, error.setting))}=COLUMN"
        raise _settings_error(document, key, settings, message) from None
    return settings


def _settings_error(document: Document, key: Key, settings: Settings, message: str) -> BadInput:
    """Return the error for a failed check, at the field that `message` begins with, if any."""
    name, _, problem = message.partition(": ")
    if name in {setting.name for setting in fields(settings)}:
        return document.error((*key, name), problem)
    return document.error(key, message)


def _as_json(settings: Settings) -> dict[str, Any]:
    """Return settings as JSON can hold them, paths as text."""
    values: dict[str, Any] = {}
    for name, value in asdict(settings).items():
        if isinstance(value, Path):
            values[name] = str(value)
        else:
            values[name] = value
    return values
