"""The built-in workloads by name, and how a user's own is found. Imports torch only when a class is loaded."""

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

GROUP = "harness.workloads"


@dataclass(frozen=True)
class Declaration:
    """What planning needs to know of a built-in workload without importing torch; a test holds it to the class."""

    path: str  # package.module:Class
    options: type[Settings]
    data: Any  # a Settings class, or a union of them told apart by `source`
    batch_size: int


BUILT_IN = {
    "mlp": Declaration("workloads.mlp:MLP", MLPOptions, ImageData, 64),
    "cnn": Declaration("workloads.cnn:CNN", CNNOptions, ImageData, 64),
    "distilbert": Declaration("workloads.distilbert:DistilBert", DistilBertOptions, TextData, 64),
}


def load_class(uses: str, base: Path | None = None) -> type[Workload]:
    """The workload class that a sweep names.

    `uses` is a built-in name, `package.module:Class`, `path/to/file.py:Class` (relative to `base`, or to the working
    directory), or the name of an entry point in the group `harness.workloads`. Raises ValueError if there is no such
    class or it is no complete workload; an error inside the user's module keeps its traceback.
    """
    if ":" not in uses:
        return _named(uses)
    location, _, name = uses.rpartition(":")
    if location.endswith(".py"):
        module = _from_file((base or Path.cwd()) / Path(location).expanduser())
    else:
        module = _from_package(location)
    return _workload(module, name)


def _named(name: str) -> type[Workload]:
    if name in BUILT_IN:
        return load_class(BUILT_IN[name].path)
    from importlib.metadata import entry_points  # takes 50 ms, as much as all of planning

    plugins = entry_points(group=GROUP)
    if name in plugins.names:
        return load_class(plugins[name].value)
    known = sorted({*BUILT_IN, *plugins.names})
    allowed = ", ".join([*known, "package.module:Class", "path/to/file.py:Class"])
    raise ValueError(f"found no workload {name!r}{_nearest(name, known)}; allowed: {allowed}")


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _from_package(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise ValueError(
            f"{name}: found no such module; allowed: an importable one, or path/to/file.py:Class"
        ) from None


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        siblings = sorted(sibling.name for sibling in path.parent.glob("*.py"))
        raise ValueError(
            f"{path}: found no such file{_nearest(path.name, siblings)}; allowed: a Python file"
        )
    # The path is part of the name, so that two files of one name can be loaded side by side.
    name = f"{path.stem}_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}"
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


def _workload(module: ModuleType, name: str) -> type[Workload]:
    from workloads.base import Workload

    found = getattr(module, name, None)
    if not (isinstance(found, type) and issubclass(found, Workload)):
        known = sorted(key for key, value in vars(module).items() if _complete(value))
        allowed = ", ".join(known) or "a class that derives from workloads.Workload"
        raise ValueError(
            f"{module.__file__}: found no workload {name!r}{_nearest(name, known)}; allowed: {allowed}"
        )
    if found.__abstractmethods__:
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise ValueError(
            f"{module.__file__}: found no {missing} in {name}; allowed: a class that defines them all"
        )
    return found


def _complete(value: object) -> bool:
    from workloads.base import Workload

    return isinstance(value, type) and issubclass(value, Workload) and not value.__abstractmethods__
