"""Lists the built-in workloads, and loads workload classes by name.

torch is imported only when a class is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from workloads.importing import import_file, import_module, make_importable, suggestion, user_files
from workloads.options import CNNOptions, DistilBertOptions, MLPOptions, Settings
from workloads.sources import ImageData, TextData

if TYPE_CHECKING:
    from workloads.base import Workload

ENTRY_POINT_GROUP = "harness.workloads"


@dataclass(frozen=True)
class Declaration:
    """What planning needs to know of a workload without importing torch.

    For the built-in workloads it repeats attributes of the class; a test compares the two.
    """

    path: str  # package.module:Class
    options: type[Settings]
    data: Any  # a Settings class, or a union of them told apart by `source`
    batch_size: int  # samples in a global batch unless the sweep file sets it


BUILT_IN = {
    "mlp": Declaration("workloads.mlp:MLP", MLPOptions, ImageData, 64),
    "cnn": Declaration("workloads.cnn:CNN", CNNOptions, ImageData, 64),
    "distilbert": Declaration("workloads.distilbert:DistilBert", DistilBertOptions, TextData, 64),
}


def load_class(uses: str, base: Path | None = None) -> type[Workload]:
    """Return the workload class that a sweep file names.

    `uses` is one of

    - the name of a built-in workload,
    - `package.module:Class`, installed or in `base`,
    - `path/to/file.py:Class`, relative to `base`,
    - the name of an entry point in the group `harness.workloads`.

    `base` is the sweep file's folder, by default the working directory. From then on this process
    imports from it too, and from a file's own folder, so that a workload may be spread over several
    modules. Whatever is installed comes before them.

    Raises ValueError if there is no such class, if it lacks a method, and for an error in the
    user's module, whose file and line it names. A SyntaxError stays as it is.
    """
    if ":" not in uses:
        return _load_by_name(uses)
    location, _, class_name = uses.rpartition(":")
    folder = (base or Path.cwd()).absolute()
    make_importable(folder)
    if location.endswith(".py"):
        module = import_file(folder / Path(location).expanduser())
    else:
        module = import_module(location)
    return _workload_in(module, class_name)


def source_files(workload_class: type[Workload]) -> list[Path]:
    """Return the files of the user's code that have been imported for a workload; none of ours."""
    return user_files(workload_class.__module__.partition(".")[0])


def _load_by_name(name: str) -> type[Workload]:
    """Return a built-in workload or one that an installed package declares as an entry point."""
    if name in BUILT_IN:
        return _load_installed(BUILT_IN[name].path)
    from importlib.metadata import entry_points  # takes 50 ms, as long as planning does

    plugins = entry_points(group=ENTRY_POINT_GROUP)
    if name in plugins.names:
        return _load_installed(plugins[name].value)
    names = sorted({*BUILT_IN, *plugins.names})
    allowed = ", ".join([*names, "package.module:Class", "path/to/file.py:Class"])
    raise ValueError(f"found no workload {name!r}{suggestion(name, names)}; allowed: {allowed}")


def _load_installed(path: str) -> type[Workload]:
    """Return the class at `package.module:Class`."""
    location, _, class_name = path.rpartition(":")
    return _workload_in(import_module(location), class_name)


def _workload_in(module: ModuleType, name: str) -> type[Workload]:
    """Return the class `name` of a module; raises ValueError unless it is a complete workload."""
    from workloads.base import Workload

    workload = getattr(module, name, None)
    if not (isinstance(workload, type) and issubclass(workload, Workload)):
        names = sorted(key for key, value in vars(module).items() if _is_complete_workload(value))
        allowed = ", ".join(names) or "a class that derives from workloads.Workload"
        raise ValueError(
            f"{module.__file__}: found no workload {name!r}{suggestion(name, names)};"
            f" allowed: {allowed}"
        )
    if workload.__abstractmethods__:
        missing = ", ".join(sorted(workload.__abstractmethods__))
        raise ValueError(
            f"{module.__file__}: found no {missing} in {name}; allowed: a class that defines all"
            " abstract methods"
        )
    return workload


def _is_complete_workload(value: object) -> bool:
    """Return whether `value` is a workload class without abstract methods."""
    from workloads.base import Workload

    if not isinstance(value, type) or not issubclass(value, Workload):
        return False
    return not value.__abstractmethods__
