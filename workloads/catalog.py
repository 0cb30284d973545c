"""Lists the built-in workloads, and loads workload classes by name.

torch is imported only when a class is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from workloads.cnn_settings import CNNOptions
from workloads.code import CodeSource, find_code
from workloads.distilbert_settings import DistilBertOptions, TextData
from workloads.gpt_settings import CorpusData, GPTOptions
from workloads.images import ImageData
from workloads.importing import (
    check_is_file,
    import_file,
    import_module,
    make_importable,
    suggestion,
)
from workloads.mlp_settings import MLPOptions
from workloads.settings import Settings

if TYPE_CHECKING:
    from workloads.base import Workload


@dataclass(frozen=True)
class Declaration:
    """What planning needs to know of a workload without importing torch.

    For the built-in workloads it repeats attributes of the class; a test compares the two.
    """

    # package.module:Class; of a user's own file.py:Class, or a script's path.
    path: str
    options: type[Settings]
    data: Any  # a Settings class, or a union of them told apart by `source`
    batch_size: int  # samples in a global batch unless the sweep file sets it


NO_WORKLOAD = "a class that derives from workloads.Workload"
BUILT_IN = {
    "mlp": Declaration("workloads.mlp:MLP", MLPOptions, ImageData, 64),
    "cnn": Declaration("workloads.cnn:CNN", CNNOptions, ImageData, 64),
    "distilbert": Declaration("workloads.distilbert:DistilBert", DistilBertOptions, TextData, 64),
    "gpt": Declaration("workloads.gpt:GPT", GPTOptions, CorpusData, 32),
}


def load_class(uses: str, base: Path = Path()) -> type[Workload]:
    """Return the workload class that a sweep file names.

    `uses` is one of

    - the name of a built-in workload,
    - `package.module:Class`, installed or in `base`,
    - `path/to/file.py:Class`, relative to `base`, or the file alone if it has one workload.

    `base` is the sweep file's folder, by default the working directory. From then on this process
    imports from it too, and from a file's own folder, so that a workload may be spread over several
    modules. Whatever is installed comes before them.

    Raises ValueError if there is no such class, if it lacks a method, and for an error in the
    user's module, whose file and line it names. A SyntaxError stays as it is.
    """
    folder = base.absolute()
    location, class_name = _resolve(uses)
    if uses not in BUILT_IN:
        make_importable(folder)
    if location.endswith(".py"):
        module = import_file(folder / Path(location).expanduser())
    else:
        module = import_module(location)
    return _workload_in(module, class_name, location)


def is_script(uses: str, base: Path) -> bool:
    """Return whether the file `uses` is a script with its own loop, and not one with a workload.

    A file with a workload imports from this package, itself or by a module of its user's. Nothing is
    loaded, since that would run a script. Raises ValueError if there is no such file.
    """
    check_is_file(base.absolute() / Path(uses).expanduser())
    return __package__ not in find_source(uses, base).packages


def find_source(uses: str, base: Path = Path()) -> CodeSource:
    """Return where the code of a workload is; the arguments are those of `load_class`.

    Nothing is loaded. An installed workload is its distribution, unless that is installed in editable
    mode: then its files can change as any other.
    """
    location, _ = _resolve(uses)
    source = find_code(location, base.absolute())
    if source is not None:
        return source
    distribution = distribution_of(location.partition(".")[0])
    version = None if distribution is None else metadata.version(distribution)
    return CodeSource(distribution=distribution, version=version)


def canonical_name(uses: str, source: CodeSource) -> str:
    """Return the name of a workload that is the same wherever its sweep and its file are.

    That of a file of the user's is the file's own name, as in `w.py:W` for `../w.py:W` and `w:W`:
    what is in it is part of its code.
    """
    if uses in BUILT_IN or source.file is None:
        return uses
    location, _ = _resolve(uses)
    return source.file.name + uses.removeprefix(location)


def relative_name(uses: str, base: Path) -> str:
    """Return a workload's name with the path of a file in the base folder relative to that.

    The same folder may be elsewhere in another checkout. Links to folders are followed, but not a link
    to the file: modules are named after files.
    """
    location, _ = _resolve(uses)
    path = base / Path(location).expanduser()
    path, root = path.parent.resolve() / path.name, base.resolve()
    if not location.endswith(".py") or not path.is_relative_to(root):
        return uses
    return path.relative_to(root).as_posix() + uses.removeprefix(location)


def heavy_modules(uses: str) -> list[str]:
    """Return the modules of a built-in workload that take seconds to load; none of any other.

    A process that trains many cells may import them once for all: nothing of them runs before the
    workload is made. What code of a user does when it is imported is not known.
    """
    return ["workloads.distilbert"] if uses == "distilbert" else []  # which imports transformers


def imported_distributions(uses: str, base: Path) -> list[str]:
    """Return the installed distributions that a user's code imports, sorted; none of a built-in's.

    Loads no workload. Searching for distributions that have another name than what is imported from
    them takes a second, once per process.
    """
    if uses in BUILT_IN:
        return []
    packages = set(find_source(uses, base).packages) - {__package__}
    distributions = {distribution_of(name) for name in packages}
    return sorted(name for name in distributions if name is not None)


def distribution_of(package: str) -> str | None:
    """Return the installed distribution that has a top-level package, None if none says so.

    Most have the package's name. Searching all takes a second.
    """
    try:
        return metadata.distribution(package).name
    except metadata.PackageNotFoundError:
        distributions = _distributions_by_package().get(package, ())
        return next(iter(distributions), None)


@cache
def _distributions_by_package() -> dict[str, list[str]]:
    """Return the installed distributions that have each top-level package."""
    return dict(metadata.packages_distributions())


def _resolve(uses: str) -> tuple[str, str]:
    """Return the file or the module in a workload's name, and its class; that of a file alone is "".

    Raises ValueError for another name that is not built in.
    """
    if uses.endswith(".py"):
        return uses, ""
    if ":" not in uses and uses not in BUILT_IN:
        found = f"{uses!r}{suggestion(uses, list(BUILT_IN))}"
        allowed = ", ".join([*sorted(BUILT_IN), "package.module:Class", "path/to/file.py:Class"])
        raise ValueError(f"found no workload {found}; allowed: {allowed}")
    path = BUILT_IN[uses].path if uses in BUILT_IN else uses
    location, _, class_name = path.rpartition(":")
    return location, class_name


def _workload_in(module: ModuleType, name: str, location: str) -> type[Workload]:
    """Return the class `name` of the module at a location, or the one that it defines if the name is empty.

    What a file imports does not count then, nor do classes that leave methods to those derived from
    them. Raises ValueError unless there is one, which is complete.
    """
    from workloads.base import Workload, missing_methods

    classes = {}
    for key, value in vars(module).items():
        if isinstance(value, type) and issubclass(value, Workload):
            classes[key] = value
    own = [key for key, value in classes.items() if value.__module__ == module.__name__]
    candidates = [key for key in own if not missing_methods(classes[key])] or own
    found = f"no workload {name!r}" if name else f"{len(candidates)} workloads"
    if not name and len(candidates) == 1:
        name = candidates[0]
    if name not in classes:
        allowed = " or ".join(f"{location}:{key}" for key in candidates) or NO_WORKLOAD
        raise ValueError(f"{module.__file__}: found {found}; allowed: {allowed}")
    missing = missing_methods(classes[name])
    if missing:
        raise ValueError(f"{module.__file__}: found no {', '.join(missing)} in {name}")
    return classes[name]
