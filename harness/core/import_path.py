"""Makes sure that our processes import this harness, whatever is in their working directory.

A user's repository may have folders called `workloads`, `clusters` or `harness` next to its sweeps,
and modules that are called like packages that we use.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

from harness.core.errors import BadInput

ROOT = Path(__file__).parents[2]  # the folder that holds `harness`, `workloads` and `clusters`
WORKLOADS = "workloads"


def module_command(python: str, module: str) -> list[str]:
    """Return the command that runs a module of the harness.

    Without `-P`, `python -m` would import from its working directory first.
    """
    return [python, "-P", "-m", module]


def import_variables() -> dict[str, str]:
    """Return the variables with which `module_command` finds this harness.

    That is none where the harness is installed. Where `python -m` has found it in the working
    directory, which comes first on the path, other processes need that folder by name.
    """
    searched = sys.path if sys.flags.safe_path else sys.path[1:]
    if str(ROOT) in searched:
        return {}
    entries = [str(ROOT)]
    inherited = os.environ.get("PYTHONPATH")
    if inherited:
        entries.insert(0, inherited)
    return {"PYTHONPATH": os.pathsep.join(entries)}


def bind_workloads() -> None:
    """Have `import workloads` find the package that belongs to this harness.

    The working directory comes first on the path of `python -m`, of pytest, and where PYTHONPATH
    begins with a colon. Raises BadInput if another package of that name has been imported.
    """
    imported = sys.modules.get(WORKLOADS)
    if imported is not None:
        ours = ROOT / WORKLOADS
        folders = list(getattr(imported, "__path__", []))
        real_folders = [Path(folder).resolve() for folder in folders]
        if ours.is_dir() and ours.resolve() not in real_folders:
            raise BadInput(
                f"found the package {WORKLOADS!r} of {', '.join(folders) or 'a single file'} imported;"
                f" allowed: that of {ours}: import the harness before your own, or rename yours"
            )
        return
    spec = PathFinder.find_spec(WORKLOADS, [str(ROOT)])
    if spec is None or spec.loader is None:
        return  # it is not next to the harness, so the path decides
    module = module_from_spec(spec)
    sys.modules[WORKLOADS] = module
    spec.loader.exec_module(module)
