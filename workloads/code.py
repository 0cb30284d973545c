"""Lists the files of a workload's code: its own file, and all of its user's that this imports.

Nothing is imported, so the list is the same whatever else a process has imported, and that of a
built-in workload needs no torch. A file counts if a statement imports it anywhere, in a function or
for type checkers too. One whose name is computed is not known before it is imported.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Any

from workloads.importing import OUR_PACKAGES, user_folders

PACKAGE = ("", "", 5)  # how ModuleFinder describes a package


@dataclass(frozen=True)
class CodeSource:
    """Where the code of a workload is: in files, or in an installed distribution."""

    file: Path | None = None  # the workload's own; None for one that is installed
    # All files by their paths relative to the folder of the workload's own.
    files: dict[str, Path] = field(default_factory=dict)
    # The top-level names of packages that they import, and that are not among them.
    packages: Sequence[str] = ()
    distribution: str | None = None
    version: str | None = None  # of the distribution


class _Finder(ModuleFinder):
    """A ModuleFinder that knows packages without `__init__.py`, in one folder or in several."""

    modules: dict[str, Any]

    def find_module(self, name: str, path: Any, parent: Any = None) -> Any:
        """Return where a module is, the list of its folders for such a package; raises ImportError."""
        folders = self.path if path is None else path
        spec = PathFinder.find_spec(name, folders)
        if spec is None and name not in sys.builtin_module_names:
            # ModuleFinder would look again, after it has made Python forget what all folders hold.
            raise ImportError(f"No module named {name!r}", name=name)
        if spec is not None and spec.origin is None and spec.submodule_search_locations:
            return None, list(spec.submodule_search_locations), PACKAGE
        return super().find_module(name, path, parent)

    def load_package(self, fqname: str, pathname: Any) -> Any:
        """Return a package, and look into the modules that it imports."""
        if isinstance(pathname, str):
            return super().load_package(fqname, pathname)
        package: Any = self.add_module(fqname)
        package.__path__ = pathname
        return package


def find_code(location: str, base: Path) -> CodeSource | None:
    """Return the code of a file, or of a module that is in `base` or not installed, else None.

    Raises OSError and SyntaxError for a file that can't be read.
    """
    PathFinder.invalidate_caches()  # files may have been written a moment ago
    package = location.partition(".")[0]
    folders = _search_path(base)
    excludes = [name for name in OUR_PACKAGES if name != package]
    finder = _Finder(folders, excludes=excludes)
    file = base / Path(location).expanduser()
    if location.endswith(".py"):
        folders.insert(0, str(file.parent))
        name = _module_name(file, folders)
        if name == file.stem:
            finder.run_script(str(file))
        else:  # so that its relative imports are followed
            finder.import_hook(name)
    else:
        if package in OUR_PACKAGES:
            folders[:] = [str(Path(__file__).parents[1])]
        try:
            finder.import_hook(location)
        except ImportError:
            return None
        file = Path(finder.modules[location].__file__)
    files = {}
    for module in finder.modules.values():
        if module.__file__:
            path = Path(module.__file__)
            files[os.path.relpath(path, file.parent)] = path
    names = {name.partition(".")[0] for name in finder.badmodules}
    packages = names.difference(sys.stdlib_module_names, finder.modules)
    return CodeSource(file, dict(sorted(files.items())), sorted(packages))


def _module_name(file: Path, folders: list[str]) -> str:
    """Return the name of a file as a module of its package, whose own folder is searched from now on."""
    name, folder = file.stem, file.parent
    while (folder / "__init__.py").is_file():
        name = f"{folder.name}.{name}"
        folder = folder.parent
    folders.append(str(folder))
    return name


def _search_path(base: Path) -> list[str]:
    """Return the folders that users' modules are imported from: `base`, and what is not installed.

    That is what PYTHONPATH names, and packages in editable mode. The folders of other workloads that this
    process has loaded are left out.
    """
    installed = sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")
    folders = [str(base)]
    for entry in sys.path:
        # Debian's folders are called `dist-packages`.
        is_installed = entry.startswith(installed) or "-packages" in entry
        if entry not in user_folders and not is_installed:
            folders.append(entry)
    return folders
