"""Finds out what ranks run from: the stacks of a sweep, and the code, repository and packages here.

A stack needs little: Python, torch, and the few packages that a worker loads. The harness itself is
not among them: ranks import the one that starts them, whatever is installed there. So a difference
between two stacks is never one of the harness.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.core.errors import BadInput, HarnessError, one_line
from harness.core.import_path import ROOT, WORKLOADS, module_command
from harness.core.packages import installed_packages, pins
from harness.core.paths import SweepFolder, cache_folder, write_atomically
from harness.core.processes import run_command
from harness.records.environment import (
    Code,
    Repository,
    describe_code,
    describe_repository,
    encode_diff,
)
from harness.sweep.cell import Cell
from harness.sweep.sweep import Sweep
from workloads.catalog import BUILT_IN, find_source, imported_distributions

# Prints what an interpreter has. It may be too old for the harness, so the program imports nothing of it, nor
# of the working directory. Of two distributions of one name, the first is the one that is imported.
PROBE = """
import json, sys
sys.path = [entry for entry in sys.path if entry]
from importlib import metadata
packages = {}
for distribution in metadata.distributions():
    packages.setdefault(str(distribution.metadata["Name"]), distribution.version)
version = sys.version.split()[0]
print(json.dumps({"python": version, "packages": packages}))
"""
MIN_VERSIONS = {"Python": (3, 11), "torch": (2, 11)}
# Runs a command so that it ends with this process, however that ends.
BOUND = module_command(sys.executable, "harness.core.processes")
# Runs a container whose own command ignores SIGUSR2, which all processes below a launcher get:
# bwrap or unshare would end, and the rank with it. A rank gets a signal that it blocks all the same.
IGNORING_SIGNAL = ("sh", "-c", 'trap "" USR2; exec "$@"', "sh")


@dataclass(frozen=True, kw_only=True)
class ReadyStack:
    """A stack under which ranks can run here."""

    name: str
    python: str  # the interpreter, as the prefix finds it
    prefix: Sequence[str]  # none: the interpreter is started as it is
    packages: Mapping[str, str]  # name -> version, of all distributions

    @property
    def pins(self) -> str:
        """Return a line `NAME==VERSION` for each distribution, as `pip install -r` takes it."""
        return pins(self.packages)

    @property
    def installed(self) -> str:
        """Return the SHA-256 of `pins`, by which records refer to them."""
        return _digest(self.pins)

    def variables(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Return an environment with what the interpreter imports from, the harness first."""
        entries = [harness_path(), variables.get("PYTHONPATH", "")]
        return {**variables, "PYTHONPATH": os.pathsep.join(filter(None, entries))}

    def boxed(self, command: Sequence[str], variables: Mapping[str, str]) -> list[str]:
        """Return a command that runs another one in the stack's container, if it has one.

        PYTHONPATH is in the command too, as a container may set its own.
        """
        if not self.prefix:
            return list(command)
        python_path = f"PYTHONPATH={variables['PYTHONPATH']}"
        return [*IGNORING_SIGNAL, *self.prefix, "env", python_path, *command]


def ready_stacks(sweep: Sweep, cells: Iterable[Cell]) -> dict[str, ReadyStack]:
    """Return the stacks of some cells by name, once it is certain that ranks can run there.

    Raises BadInput, which names the sweep's file, the stack and what is missing.
    """
    ready: dict[str, ReadyStack] = {}
    for cell in cells:
        if cell.axes.stack not in ready:
            stack = ready_stack(cell, sweep.base_folder, str(sweep.source))
            if stack is not None:
                ready[stack.name] = stack
    return ready


def ready_stack(cell: Cell, base: Path, source: str) -> ReadyStack | None:
    """Return the stack of a cell, once its interpreter has said what it is and has; None without one.

    `base` is the folder that its path is relative to. Raises BadInput, which begins with `source`.
    """
    if cell.stack is None:
        return None
    context = f"{source}: stacks.{cell.axes.stack}"
    *prefix, python = cell.stack.command
    if "/" in python and not prefix:
        # A link stays a link: by it an interpreter knows that it is that of a virtual environment.
        python = str(base / Path(python).expanduser())
    report = _probe([*prefix, python, "-c", PROBE], context)
    packages = report["packages"]
    versions = {"Python": report["python"], **packages}
    for package, minimum in MIN_VERSIONS.items():
        found = versions.get(package, "none")
        numbers = re.match(r"(\d+)\.(\d+)", found)  # of `2.11.0+cu128`
        version: tuple[int, ...] = ()
        if numbers is not None:
            version = tuple(map(int, numbers.groups()))
        if version < minimum:
            allowed = ".".join(map(str, minimum))
            raise BadInput(f"{context}: found {package} {found}; allowed: {allowed} or later")
    return ReadyStack(
        name=str(cell.axes.stack),
        python=python,
        prefix=prefix,
        packages=packages,
    )


def _probe(command: Sequence[str], context: str) -> dict[str, Any]:
    """Return what the interpreter says of itself; raises BadInput if it can't say it."""
    try:
        done = run_command(command, timeout=120.0)  # a container may have to be unpacked
    except (OSError, HarnessError) as error:
        raise BadInput(f"{context}: {command[0]}: {error}") from None
    printed = done.stdout.strip().rpartition("\n")[2]
    try:
        return dict(json.loads(printed))
    except (ValueError, TypeError):
        last_error = done.stderr.strip().rpartition("\n")[2]
        reason = one_line(last_error or printed, 200)
        raise BadInput(
            f"{context}: found {reason!r} where it starts Python; allowed: an interpreter, after a prefix"
            " that runs the command after it and prints nothing at its end"
        ) from None


def harness_path() -> str:
    """Return a folder that other interpreters can import this harness from, and nothing else.

    A checkout has nothing that hides a package. The folder of an installed harness has all packages
    of its interpreter, torch too, so it gets links to the harness alone.
    """
    if not any(ROOT.glob("*.dist-info")):
        return str(ROOT)
    folder = cache_folder() / "import-path" / _digest(str(ROOT))[:16]
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("harness", WORKLOADS, "clusters"):
        link = folder / name
        if not link.is_symlink() and (ROOT / name).is_dir():
            temporary = folder / f".{name}.{os.getpid()}"
            temporary.symlink_to(ROOT / name)
            temporary.rename(link)
    return str(folder)


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """What only the launcher knows of the environment of trials."""

    code: Code  # the harness's
    repository: Repository | None  # the user's; None where sweep and workloads are in none
    installed: str  # SHA-256 of the list of all installed packages
    packages: Mapping[str, Sequence[str]]  # distributions that a workload imports, by its `uses`


def describe_launch(
    sweep: Sweep, folder: SweepFolder, stacks: Iterable[ReadyStack] = ()
) -> Provenance:
    """Describe what the trials of a sweep are launched from, once per command.

    What is large is written into the sweep's folder, where all trials share it: the list of installed
    packages, and how the user's repository differs from its commit. Records have the digests.
    """
    pinned = pins(installed_packages())
    installed = _digest(pinned)
    contents: dict[Path, str | bytes] = {folder.packages_path(installed): pinned}
    for stack in stacks:
        contents[folder.packages_path(stack.installed)] = stack.pins
    # The repository of the sweep file, else of a workload of the user's, and its differences.
    used = sorted({cell.workload.uses for cell in sweep.cells})
    files = [sweep.source.absolute()]
    for uses in used:
        if uses not in BUILT_IN:  # whose repository is the harness's: `code` describes it
            files += find_source(uses, sweep.base_folder).files.values()
    repository = None
    for parent in dict.fromkeys(path.parent for path in files):
        repository, diff = describe_repository(parent, files)
        if repository is not None:
            if repository.diff is not None:
                contents[folder.diff_path(repository.diff)] = encode_diff(diff)
            break
    for path, content in contents.items():
        if not path.exists():  # a file is named after its content
            write_atomically(path, content)
    return Provenance(
        code=describe_code(),
        repository=repository,
        installed=installed,
        packages={uses: imported_distributions(uses, sweep.base_folder) for uses in used},
    )


def _digest(text: str) -> str:
    """Return the SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()
