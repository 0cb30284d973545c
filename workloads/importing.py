"""Imports the modules of users' workloads, which may be anywhere.

This module imports no torch.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import os
import sys
import traceback
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType

OUR_PACKAGES = ("harness", "workloads")
# The folders that users' workloads were loaded from, the last one first. They are at the end of
# `sys.path`, in this order.
_user_folders: list[str] = []


def import_module(name: str) -> ModuleType:
    """Import a module by its name; raises ValueError if there is none, and for an error in it.

    A SyntaxError stays as it is, since it names its line itself.
    """
    try:
        return importlib.import_module(name)
    except SyntaxError:
        raise
    except ModuleNotFoundError as error:
        # The missing module may be one that the user's module imports: then that is the error.
        names_itself = error.name is not None and f"{name}.".startswith(f"{error.name}.")
        if not names_itself:
            raise _error_in_module(error) from error
        _, _, reason = str(error).partition("; ")  # such as: 'code' is not a package
        detail = f" ({reason})" if reason else ""
        raise ValueError(
            f"{name}: found no such module{detail}; allowed: a module that is installed or next to the"
            " sweep file, or path/to/file.py:Class"
        ) from None
    except (Exception, SystemExit) as error:
        raise _error_in_module(error) from error


def import_file(path: Path) -> ModuleType:
    """Import a Python file that need not be in any package, once per process.

    It may import from its own folder. Raises ValueError if there is no such file, and for an error
    in it. A SyntaxError stays as it is.
    """
    check_is_file(path)
    # The path is part of the module's name, so that two files of the same name can be imported.
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()
    name = f"{path.stem}_{digest[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    make_importable(path.parent)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        # A script that ends with sys.exit() would end the command.
        is_error = isinstance(error, Exception | SystemExit)
        if is_error and not isinstance(error, SyntaxError):
            raise _error_in_module(error) from error
        raise
    return module


def check_is_file(path: Path) -> None:
    """Raise ValueError, with a similar name if there is one, for a Python file that does not exist."""
    if not path.is_file():
        siblings = sorted(sibling.name for sibling in path.parent.glob("*.py"))
        raise ValueError(
            f"{path}: found no such file{suggestion(path.name, siblings)}; allowed: a Python file"
        )


def make_importable(folder: Path) -> None:
    """Import from a user's folder from now on: before other such folders, after everything else.

    A module of another user's folder is forgotten where this folder has one of the same name, or
    this folder's files would get the other's module.
    """
    entry = str(folder.resolve())
    if _user_folders[:1] == [entry]:
        return  # nothing was imported from another folder since
    if entry in _user_folders:
        _user_folders.remove(entry)
        sys.path.remove(entry)
    if entry in sys.path:
        return  # PYTHONPATH has it, for example
    names = _importable_names(folder)
    for name, module in list(sys.modules.items()):
        package = name.partition(".")[0]
        if package not in names:
            continue  # nearly all of some thousands
        file = _file_of(module)
        if not _is_users(file) or file.startswith(entry + os.sep):
            continue
        if PathFinder.find_spec(package, [entry]) is not None:
            del sys.modules[name]
    sys.path.insert(len(sys.path) - len(_user_folders), entry)
    _user_folders.insert(0, entry)


def user_files() -> dict[str, Path]:
    """Return the files of users' modules that were imported, by the path below their folder."""
    paths: dict[str, Path] = {}
    if not _user_folders:  # as with built-in workloads; there are thousands of modules
        return paths
    for name, module in sorted(sys.modules.items()):
        file = _file_of(module)
        if name.partition(".")[0] in OUR_PACKAGES or not _is_users(file):
            continue
        folder = next(entry for entry in _user_folders if file.startswith(entry + os.sep))
        path = Path(file)
        paths[path.relative_to(folder).as_posix()] = path
    return paths


def suggestion(name: str, candidates: list[str]) -> str:
    """Return ` (did you mean 'mlp'?)`, or nothing if no candidate is similar."""
    similar = difflib.get_close_matches(name, candidates, n=1)
    if not similar:
        return ""
    return f" (did you mean {similar[0]!r}?)"


def _importable_names(folder: Path) -> set[str]:
    """Return the names that a folder may have modules of: of its files up to a dot, and of its folders."""
    try:
        return {path.name.partition(".")[0] for path in folder.iterdir()}
    except OSError:
        return set()  # nothing can be imported from a folder that can't be listed


def _file_of(module: ModuleType) -> str:
    """Return the file of a module; empty for one that is built into Python, or a namespace.

    As text: a process has thousands of modules, and a Path of each would take 0.1 s.
    """
    file = getattr(module, "__file__", None)
    return file if isinstance(file, str) else ""


def _is_users(file: str) -> bool:
    """Return whether a module's file is in a folder that a workload was loaded from."""
    if f"{os.sep}site-packages{os.sep}" in file:  # of a virtual environment next to the sweep
        return False
    return file.startswith(tuple(folder + os.sep for folder in _user_folders))


def _error_in_module(error: BaseException) -> ValueError:
    """Return the one-line error for what a user's module raised when it was imported.

    It names the last line of the user's own code that was running, else of any code.
    """
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__]
    users = [frame for frame in frames if _is_users(frame.filename)]
    location = ""
    for frame in (users or frames)[-1:]:
        location = f"{frame.filename}:{frame.lineno}: "
    problem = " ".join(f"{type(error).__name__}: {error}".split())
    missing = getattr(error, "name", None)
    if isinstance(error, ImportError) and isinstance(missing, str):
        package = missing.partition(".")[0]
        if package in OUR_PACKAGES:
            problem += f"; {package!r} is a package of the harness: rename yours"
    return ValueError(f"{location}{problem}")
