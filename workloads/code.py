"""Lists the files of a workload's code: its own file, and all of its user's that this may import.

They are found in the text of the files, without importing anything. So the list is the same whatever
else a process has imported, and that of a built-in workload needs no torch. A file counts if a
statement imports it anywhere, in a function or for type checkers too, or if its name is a text in the code,
as for `import_module`. The standard library's `modulefinder` finds no such texts, and ends with an error at
a folder of modules without `__init__.py`, as training code often has.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from workloads.importing import OUR_PACKAGES

MODULE_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
SUFFIXES = (".py", *EXTENSION_SUFFIXES)


def files_of(path: Path, roots: Sequence[Path], package: str | None = None) -> dict[str, Path]:
    """Return a file and all that it may import, by their paths relative to its folder.

    `roots` are the folders that it imports from, its own first. What is installed is left out, and
    where a package of ours is named, all that is not in it.
    """
    files: dict[str, Path] = {}
    pending = [path]
    while pending:
        file = pending.pop()
        name = Path(os.path.relpath(file, path.parent)).as_posix()
        if name in files:
            continue
        files[name] = file
        if file.suffix == ".py":
            for found in _imported_files(file, roots, package):
                pending.append(found)
    return dict(sorted(files.items()))


def find_module(name: str, roots: Sequence[Path]) -> Path | None:
    """Return the file of a module that is in one of these folders, or not installed; else None."""
    for root in _roots_of(name.partition(".")[0], roots):
        files = list(_files_of_module(root, name.split(".")))
        if files:
            return files[-1]
    return None


def imported_names(path: Path) -> list[str]:
    """Return the absolute names that a file's statements import, as in `package.module`."""
    return [name for name, is_statement in _names(path, *_state(path)) if is_statement]


def imported_packages(files: Mapping[str, Path], roots: Sequence[Path]) -> list[str]:
    """Return the top-level names of installed packages that files of code import, sorted."""
    names: set[str] = set()
    for path in files.values():
        names.update(name.partition(".")[0] for name in imported_names(path))
    names -= {"", *OUR_PACKAGES, *sys.stdlib_module_names}
    return sorted(name for name in names if not _roots_of(name, roots))


def is_installed(folder: Path) -> bool:
    """Return whether a folder is one of Python's own, or of installed packages."""
    if {"site-packages", "dist-packages"} & set(folder.parts):
        return True
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return any(folder.is_relative_to(sysconfig.get_path(name)) for name in names)


def _imported_files(path: Path, roots: Sequence[Path], package: str | None) -> Iterator[Path]:
    """Yield the files that a file may import."""
    for name, is_statement in _names(path, *_state(path)):
        module = name.lstrip(".")
        level = len(name) - len(module)
        if level:
            yield from _files_of_module(path.parents[level - 1], module.split("."))
            continue
        parts = module.split(".")
        if parts[0] in OUR_PACKAGES if package is None else parts[0] != package:
            continue
        for root in _roots_of(parts[0], roots, elsewhere=is_statement):
            yield from _files_of_module(root, parts)


def _files_of_module(root: Path, parts: Iterable[str]) -> Iterator[Path]:
    """Yield the files of a module and of the packages around it, as far as they are in a folder.

    The last part may be a name that the module before it defines.
    """
    folder = root
    for part in parts:
        if not part:
            continue
        for suffix in SUFFIXES:
            file = folder / f"{part}{suffix}"
            if file.is_file():
                yield file
        folder /= part
        if (folder / "__init__.py").is_file():
            yield folder / "__init__.py"
        elif not folder.is_dir():
            return


def _roots_of(package: str, roots: Sequence[Path], *, elsewhere: bool = True) -> list[Path]:
    """Return the folders that a package of the user's is in; none for one that is installed.

    Those that are neither among `roots` nor installed count too, unless that is not to be looked for: as
    one of PYTHONPATH, or one that is installed in editable mode.
    """
    near = [root for root in roots if _has_package(root, package)]
    if near or not elsewhere or package in OUR_PACKAGES or package in sys.stdlib_module_names:
        return near
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):  # no valid name, or a module that says nothing of itself
        return []
    if spec is None:
        return []
    origins = list(spec.submodule_search_locations or [])
    if not origins and spec.has_location and spec.origin:
        origins = [spec.origin]
    return [Path(origin).parent for origin in origins if not is_installed(Path(origin).parent)]


def _has_package(root: Path, package: str) -> bool:
    """Return whether a folder has a module or a package of a name."""
    return (root / package).is_dir() or any((root / f"{package}{s}").is_file() for s in SUFFIXES)


def _state(path: Path) -> tuple[int, int]:
    """Return the time and the size of a file, by which the cache knows its content."""
    status = path.stat()
    return status.st_mtime_ns, status.st_size


@lru_cache(maxsize=4096)
def _names(path: Path, modified: int, size: int) -> list[tuple[str, bool]]:
    """Return the names of modules in a file, each with whether a statement imports it.

    `from a import b` gives `a.b`, where b may be no module. A relative import keeps its leading dots.
    """
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # whoever imports it will say so
        return []
    names: dict[tuple[str, bool], None] = {}  # an ordered set
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(((alias.name, True), None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            separator = "." if node.module else ""
            for alias in node.names:
                names[f"{module}{separator}{alias.name}", True] = None
        elif isinstance(node, ast.Constant) and MODULE_NAME.fullmatch(str(node.value)):
            names[str(node.value), False] = None
    return list(names)
