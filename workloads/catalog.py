"""Lists the built-in workloads, and loads workload classes by name.

torch is imported only when a class is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from workloads import code
from workloads.importing import (
    check_is_file,
    import_file,
    import_module,
    make_importable,
    suggestion,
)
from workloads.options import CNNOptions, DistilBertOptions, GPTOptions, MLPOptions, Settings
from workloads.sources import CorpusData, ImageData, TextData

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

    from workloads.base import Workload

# Modules that import transformers.
HEAVY_MODULES = ("workloads.distilbert",)
ENTRY_POINT_GROUP = "harness.workloads"


@dataclass(frozen=True)
class Declaration:
    """What planning needs to know of a workload without importing torch.

    For the built-in workloads it repeats attributes of the class; a test compares the two.
    """

    # package.module:Class; of a user's own file.py:Class, the name of an entry point, or a script's path.
    path: str
    options: type[Settings]
    data: Any  # a Settings class, or a union of them told apart by `source`
    batch_size: int  # samples in a global batch unless the sweep file sets it


BUILT_IN = {
    "mlp": Declaration("workloads.mlp:MLP", MLPOptions, ImageData, 64),
    "cnn": Declaration("workloads.cnn:CNN", CNNOptions, ImageData, 64),
    "distilbert": Declaration(
        "workloads.distilbert:DistilBert",
        DistilBertOptions,
        TextData,
        64,
    ),
    "gpt": Declaration("workloads.gpt:GPT", GPTOptions, CorpusData, 32),
}


def load_class(uses: str, base: Path | None = None) -> type[Workload]:
    """Return the workload class that a sweep file names.

    `uses` is one of

    - the name of a built-in workload,
    - `package.module:Class`, installed or in `base`,
    - `path/to/file.py:Class`, relative to `base`, or the file alone if it has one workload,
    - the name of an entry point in the group `harness.workloads`.

    `base` is the sweep file's folder, by default the working directory. From then on this process
    imports from it too, and from a file's own folder, so that a workload may be spread over several
    modules. Whatever is installed comes before them.

    Raises ValueError if there is no such class, if it lacks a method, and for an error in the
    user's module, whose file and line it names. A SyntaxError stays as it is.
    """
    folder = (base or Path.cwd()).absolute()
    if uses.endswith(".py"):
        return _only_workload_in(_load_module(uses, folder), uses)
    if ":" not in uses:
        return _load_by_name(uses)
    location, _, class_name = uses.rpartition(":")
    return _workload_in(_load_module(location, folder), class_name)


def _load_module(location: str, folder: Path) -> ModuleType:
    """Return the module at `path/to/file.py`, relative to `folder`, or `package.module`."""
    make_importable(folder)
    if location.endswith(".py"):
        return import_file(folder / Path(location).expanduser())
    return import_module(location)


def is_script(uses: str, base: Path) -> bool:
    """Return whether the file `uses` is a script with its own loop, and not one with a workload.

    A file with a workload imports from this package, itself or by a module of its user's. Nothing is
    loaded, since that would run a script. Raises ValueError if there is no such file.
    """
    check_is_file(base.absolute() / Path(uses).expanduser())
    for file in find_source(uses, base).files.values():
        names = code.imported_names(file) if file.suffix == ".py" else []
        if any(name.partition(".")[0] == __package__ for name in names):
            return False
    return True


@dataclass(frozen=True)
class CodeSource:
    """Where the code of a workload is: in files, or in an installed distribution."""

    files: Mapping[str, Path]  # by the path relative to the folder that they are imported from
    distribution: str | None = None
    version: str | None = None  # of the distribution


def find_source(uses: str, base: Path | None = None) -> CodeSource:
    """Return where the code of a workload is; the arguments are those of `load_class`.

    Nothing is loaded. An installed workload is its distribution, unless that is installed in editable
    mode: then its files can change as any other.
    """
    location = _location(BUILT_IN[uses].path if uses in BUILT_IN else uses)
    if location.partition(".")[0] == __package__:
        built_in = Path(__file__).parent / f"{location.rpartition('.')[2]}.py"
        return CodeSource(code.files_of(built_in, [built_in.parent.parent], __package__))
    folder = (base or Path.cwd()).absolute()
    file = _file_of(uses, folder)
    if file is not None:
        return CodeSource(code.files_of(file, [file.parent, folder]))
    distribution = None
    if not location:
        entry_point = _entry_points()[uses]
        location = _location(entry_point.value)
        if entry_point.dist is not None:
            distribution = entry_point.dist.name
    distribution = distribution or distribution_of(location.partition(".")[0])
    if distribution is None:
        return CodeSource({})
    from importlib import metadata

    return CodeSource({}, distribution, metadata.version(distribution))


def canonical_name(uses: str, base: Path) -> str:
    """Return the name of a workload that is the same wherever its sweep and its file are.

    That of a file of the user's is the file's own name, as in `w.py:W` for `../w.py:W` and `w:W`:
    what is in it is part of its code.
    """
    file = None if uses in BUILT_IN else _file_of(uses, base.absolute())
    if file is None:
        return uses
    class_name = "" if uses.endswith(".py") else f":{uses.rpartition(':')[2]}"
    return f"{file.name}{class_name}"


def relative_name(uses: str, base: Path) -> str:
    """Return a workload's name with the path of a file in the base folder relative to that.

    The same folder may be elsewhere in another checkout. Links to folders are followed, but not a link
    to the file: modules are named after files.
    """
    location = _location(uses)
    if not location.endswith(".py"):
        return uses
    path = base / Path(location).expanduser()
    path, root = path.parent.resolve() / path.name, base.resolve()
    if not path.is_relative_to(root):
        return uses
    return path.relative_to(root).as_posix() + uses.removeprefix(location)


def _location(uses: str) -> str:
    """Return the file or the module in a workload's name, empty for an entry point."""
    return uses if uses.endswith(".py") else uses.rpartition(":")[0]


def _file_of(uses: str, base: Path) -> Path | None:
    """Return the file of a user's workload, None for one that is installed."""
    location = _location(uses)
    if location.endswith(".py"):
        return base / Path(location).expanduser()
    if not location:
        location = _location(_entry_points()[uses].value)
        return code.find_module(location, [])
    return code.find_module(location, [base])


def heavy_modules(uses: str) -> list[str]:
    """Return the modules of a built-in workload that take seconds to load; none of any other.

    A process that trains many cells may import them once for all: nothing of them runs before the
    workload is made. What code of a user does when it is imported is not known.
    """
    if uses not in BUILT_IN:
        return []
    module, _, _ = BUILT_IN[uses].path.partition(":")
    return [module] if module in HEAVY_MODULES else []


def imported_distributions(uses: str, base: Path) -> list[str]:
    """Return the installed distributions that a user's code imports, sorted; none of a built-in's.

    Loads no workload. Searching for distributions that have another name than what is imported from
    them takes a second, once per process.
    """
    if uses in BUILT_IN:
        return []
    source = find_source(uses, base)
    roots = [base.absolute(), *{path.parent for path in source.files.values()}]
    names = code.imported_packages(source.files, roots)
    distributions = {distribution_of(name) for name in names}
    return sorted(name for name in distributions if name is not None)


def distribution_of(package: str) -> str | None:
    """Return the installed distribution that has a top-level package, None if none says so.

    Most have the package's name. Searching all takes a second.
    """
    from importlib import metadata

    try:
        return metadata.distribution(package).name
    except metadata.PackageNotFoundError:
        names = _distributions_by_package().get(package)
    return names[0] if names else None


@cache
def _distributions_by_package() -> Mapping[str, list[str]]:
    """Return the installed distributions that have each top-level package."""
    from importlib import metadata

    return metadata.packages_distributions()


def _load_by_name(name: str) -> type[Workload]:
    """Return a built-in workload or one that an installed package declares as an entry point."""
    if name in BUILT_IN:
        path = BUILT_IN[name].path
    else:
        plugins = _entry_points()
        if name not in plugins.names:
            names = sorted({*BUILT_IN, *plugins.names})
            allowed = ", ".join([*names, "package.module:Class", "path/to/file.py:Class"])
            raise ValueError(
                f"found no workload {name!r}{suggestion(name, names)}; allowed: {allowed}"
            )
        path = plugins[name].value
    location, _, class_name = path.rpartition(":")
    return _workload_in(import_module(location), class_name)


def installed_names() -> list[str]:
    """Return the names of the workloads that installed packages declare, sorted."""
    return sorted(_entry_points().names)


def _entry_points() -> EntryPoints:
    """Return the workloads that installed packages declare."""
    from importlib.metadata import entry_points  # takes 50 ms, as long as planning does

    return entry_points(group=ENTRY_POINT_GROUP)


def _workload_in(module: ModuleType, name: str) -> type[Workload]:
    """Return the class `name` of a module; raises ValueError unless it is a complete workload."""
    from workloads.base import Workload, missing_methods

    workload = getattr(module, name, None)
    if not (isinstance(workload, type) and issubclass(workload, Workload)):
        names = sorted(key for key, value in vars(module).items() if _is_complete_workload(value))
        allowed = ", ".join(names) or "a class that derives from workloads.Workload"
        raise ValueError(
            f"{module.__file__}: found no workload {name!r}{suggestion(name, names)};"
            f" allowed: {allowed}"
        )
    missing = missing_methods(workload)
    if missing:
        raise ValueError(
            f"{module.__file__}: found no {', '.join(missing)} in {name}; allowed: a class that"
            f" defines {'it' if len(missing) == 1 else 'them'}"
        )
    return workload


def _only_workload_in(module: ModuleType, uses: str) -> type[Workload]:
    """Return the one workload that the file `uses` defines; raises ValueError for any other number.

    What the file imports does not count, nor do classes that leave methods to those derived from
    them. Where there is no other, such a class counts, so that what it lacks is named.
    """
    from workloads.base import Workload, missing_methods

    classes: list[type[Workload]] = []
    for name, value in vars(module).items():
        is_workload = isinstance(value, type) and issubclass(value, Workload)
        if is_workload and (value.__module__, value.__name__) == (module.__name__, name):
            classes.append(value)
    complete = [workload for workload in classes if not missing_methods(workload)]
    names = [workload.__name__ for workload in complete or classes]
    if len(names) == 1:
        return _workload_in(module, names[0])
    file = module.__file__
    if not names:
        raise ValueError(
            f"{file}: found no workload; allowed: a class that derives from workloads.Workload"
        )
    allowed = " or ".join(f"{uses}:{name}" for name in names)
    raise ValueError(f"{file}: found {len(names)} workloads; allowed: {allowed}")


def _is_complete_workload(value: object) -> bool:
    """Return whether `value` is a workload class without abstract methods."""
    from workloads.base import Workload, missing_methods

    if not isinstance(value, type) or not issubclass(value, Workload):
        return False
    return not missing_methods(value)
