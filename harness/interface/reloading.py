"""Loads sweep files with users' workloads as they are on disk now.

Python imports a module once, and a notebook lives on while its user edits a workload.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

from harness.spec.sweep import Sweep, load_sweep
from workloads.code import is_installed
from workloads.importing import OUR_PACKAGES

FileState = tuple[int, int] | None  # time of the last change in ns, and bytes; None without a file

# The users' modules that sweep files had this process import, by name, with their files' states.
_imported: dict[str, tuple[ModuleType, FileState]] = {}


def load_edited_sweep(path: Path, sets: Sequence[str] = (), data: Sequence[str] = ()) -> Sweep:
    """Return the sweep in a file as `load_sweep` does, with edited workloads imported again.

    If any file has changed, all users' modules that earlier calls imported are imported again,
    since they hold parts of each other. A module that the user's own program imported stays as it is.
    """
    if any(_file_state(module) != state for module, state in list(_imported.values())):
        for name, (module, _) in list(_imported.items()):  # copies, as other threads may plan too
            _remove(name, module)
        _imported.clear()
    before = dict(sys.modules)
    try:
        return load_sweep(path, sets, data)
    finally:
        # After an error too: a workload that can't be imported may have imported other modules.
        _imported.update(_new_modules_of_users(before))


def _new_modules_of_users(
    before: Mapping[str, ModuleType],
) -> dict[str, tuple[ModuleType, FileState]]:
    """Return the modules that are neither installed nor among `before`, with their files' states."""
    modules: dict[str, ModuleType] = {}
    compiled: set[str] = set()  # packages that can't be imported twice
    for name, module in list(sys.modules.items()):
        package = name.partition(".")[0]
        if before.get(name) is module or package in OUR_PACKAGES:
            continue
        file = Path(_file_of(module))
        # That of a module that torch makes up, such as torch.ops, is no absolute path.
        if not file.is_absolute() or is_installed(file.parent):
            continue
        modules[name] = module
        if file.suffix != ".py":
            compiled.add(package)
    states = {}
    for name, module in modules.items():
        if name.partition(".")[0] not in compiled:
            states[name] = (module, _file_state(module))
    return states


def _remove(name: str, module: ModuleType) -> None:
    """Let the next import of a module read its file again."""
    if sys.modules.get(name) is module:
        del sys.modules[name]
    # `from package import name` would find it in the package.
    parent, _, attribute = name.rpartition(".")
    package = sys.modules.get(parent)
    if getattr(package, attribute, None) is module:
        delattr(package, attribute)


def _file_of(module: ModuleType) -> str:
    """Return the file of a module; empty for one that has none."""
    file = getattr(module, "__file__", None)
    return file if isinstance(file, str) else ""


def _file_state(module: ModuleType) -> FileState:
    """Return the state of a module's file, which changes with its content."""
    try:
        status = Path(_file_of(module)).stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
