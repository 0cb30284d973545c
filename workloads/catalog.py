"""Lists the built-in workloads, and loads workload classes by name.

torch is imported only when a class is loaded.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

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
    - `package.module:Class`,
    - `path/to/file.py:Class`, relative to `base` (by default the working directory),
    - the name of an entry point in the group `harness.workloads`.

    Raises ValueError if there is no such class or if it lacks a method. An error inside the user's
    module keeps its traceback.
    """
    if ":" not in uses:
        return _load_by_name(uses)
    location, _, class_name = uses.rpartition(":")
    if location.endswith(".py"):
        folder = base or Path.cwd()
        module = _import_file(folder / Path(location).expanduser())
    else:
        module = _import_module(location)
    return _workload_in(module, class_name)


def _load_by_name(name: str) -> type[Workload]:
    """Return a built-in workload or one that an installed package declares as an entry point."""
    if name in BUILT_IN:
        return load_class(BUILT_IN[name].path)
    from importlib.metadata import entry_points  # takes 50 ms, as long as planning does

    plugins = entry_points(group=ENTRY_POINT_GROUP)
    if name in plugins.names:
        return load_class(plugins[name].value)
    names = sorted({*BUILT_IN, *plugins.names})
    allowed = ", ".join([*names, "package.module:Class", "path/to/file.py:Class"])
    raise ValueError(f"found no workload {name!r}{_suggestion(name, names)}; allowed: {allowed}")


def _suggestion(name: str, candidates: list[str]) -> str:
    """Return ` (did you mean 'mlp'?)`, or nothing if no candidate is similar."""
    similar = difflib.get_close_matches(name, candidates, n=1)
    if not similar:
        return ""
    return f" (did you mean {similar[0]!r}?)"


def _import_module(name: str) -> ModuleType:
    """Import an installed module; raises ValueError if there is none of that name."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # The missing module may be one that the user's module imports: that error is theirs to see.
        names_itself = error.name is not None and f"{name}.".startswith(f"{error.name}.")
        if not names_itself:
            raise
        raise ValueError(
            f"{name}: found no such module; allowed: an importable module, or path/to/file.py:Class"
        ) from None


def _import_file(path: Path) -> ModuleType:
    """Import a Python file that need not be in any package, once per process."""
    if not path.is_file():
        siblings = sorted(sibling.name for sibling in path.parent.glob("*.py"))
        raise ValueError(
            f"{path}: found no such file{_suggestion(path.name, siblings)}; allowed: a Python file"
        )
    # The path is part of the module's name, so that two files of the same name can be imported.
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()
    name = f"{path.stem}_{digest[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _workload_in(module: ModuleType, name: str) -> type[Workload]:
    """Return the class `name` of a module; raises ValueError unless it is a complete workload."""
    from workloads.base import Workload

    workload = getattr(module, name, None)
    if not (isinstance(workload, type) and issubclass(workload, Workload)):
        names = sorted(key for key, value in vars(module).items() if _is_complete_workload(value))
        allowed = ", ".join(names) or "a class that derives from workloads.Workload"
        raise ValueError(
            f"{module.__file__}: found no workload {name!r}{_suggestion(name, names)};"
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
