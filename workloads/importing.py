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
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType

OUR_PACKAGES = ("harness", "workloads")
# The folders that users' workloads were loaded from, the last one first. They are at the end of
# `sys.path`, in this order.
user_folders: list[str] = []


def import_module(name: str) -> ModuleType:
    """Import a module by its name; raises ValueError for an error in it, or if there is none.

    A SyntaxError stays as it is, since it names its line itself.
    """
    with _errors_naming_lines():
        return importlib.import_module(name)


def import_file(path: Path) -> ModuleType:
    """Import a Python file that need not be in any package, once per process.

    It may import from its own folder. Raises what `import_module` raises.
    """
    check_is_file(path)
    # The path is part of the module's name, so that two files of the same name can be imported.
    content = str(path.resolve()).encode()
    digest = hashlib.sha256(content).hexdigest()
    name = f"{path.stem}_{digest[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    make_importable(path.parent)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        with _errors_naming_lines():
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def check_is_file(path: Path) -> None:
    """Raise ValueError for a Python file that does not exist."""
    if not path.is_file():
        siblings = [sibling.name for sibling in path.parent.glob("*.py")]
        similar = suggestion(path.name, siblings)
        raise ValueError(f"{path}: found no such file{similar}; allowed: a Python file")


def make_importable(folder: Path) -> None:
    """Import from a user's folder from now on: before other such folders, after everything else.

    A module of another user's folder is forgotten where this folder has one of the same name, or
    this folder's files would get the other's module.
    """
    entry = str(folder.resolve())
    if entry in user_folders:
        user_folders.remove(entry)
        sys.path.remove(entry)
    if entry in sys.path:
        return  # PYTHONPATH has it, for example
    for name, module in list(sys.modules.items()):
        user_folder = _user_folder_of(getattr(module, "__file__", None))
        if user_folder in (None, entry):
            continue
        if PathFinder.find_spec(name.partition(".")[0], [entry]) is not None:
            del sys.modules[name]
    sys.path.insert(len(sys.path) - len(user_folders), entry)
    user_folders.insert(0, entry)


def user_files() -> dict[str, Path]:
    """Return the files of users' modules that were imported, by the path below their folder."""
    paths = {}
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        folder = _user_folder_of(file)
        if folder is not None and name.partition(".")[0] not in OUR_PACKAGES:
            paths[os.path.relpath(file, folder)] = Path(file)
    return paths


def suggestion(name: str, candidates: list[str]) -> str:
    """Return ` (did you mean 'mlp'?)`, or nothing if no candidate is similar."""
    similar = difflib.get_close_matches(name, candidates, n=1)
    return f" (did you mean {similar[0]!r}?)" if similar else ""


def _user_folder_of(file: str | None) -> str | None:
    """Return the folder of a user that a module's file is in, None for any other module."""
    # Packages of an environment next to the sweep are not the user's.
    if file is None or f"{os.sep}site-packages{os.sep}" in file:
        return None
    for folder in user_folders:
        if file.startswith(folder + os.sep):
            return folder
    return None


@contextmanager
def _errors_naming_lines() -> Iterator[None]:
    """Raise ValueError for an error of a user's module in the block: one line that names where.

    That is the last line of the user's own code that was running, else of any code.
    """
    try:
        yield
    except SyntaxError:
        raise
    except (Exception, SystemExit) as error:  # sys.exit() in a script would end the command
        frames = traceback.extract_tb(error.__traceback__)
        users = [frame for frame in frames if _user_folder_of(frame.filename)]
        location = f"{users[-1].filename}:{users[-1].lineno}: " if users else ""
        problem = " ".join(f"{type(error).__name__}: {error}".split())
        package = (getattr(error, "name", None) or "").partition(".")[0]
        if isinstance(error, ImportError) and package in OUR_PACKAGES:
            problem += f"; {package!r} is a package of the harness: rename yours"
        elif not users:
            problem += (
                "; allowed: a module that is installed or next to the sweep file, or file.py:Class"
            )
        raise ValueError(f"{location}{problem}") from error
