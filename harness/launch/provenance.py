"""Describes what trials are launched from: code, repository and packages, once per command.

What is large is written into the sweep's folder, where all trials share it: the list of installed
packages, and how the user's repository differs from its commit. Records have the digests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.core.packages import installed_packages, pins
from harness.core.paths import SweepFolder, write_atomically
from harness.launch.stack import ReadyStack
from harness.records.environment import (
    Code,
    Repository,
    describe_code,
    describe_repository,
    encode_diff,
)
from harness.sweep.sweep import Sweep
from workloads.catalog import BUILT_IN, find_source, imported_distributions


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
    """Describe what the trials of a sweep are launched from, and write what records refer to."""
    pinned = pins(installed_packages())
    installed = hashlib.sha256(pinned.encode()).hexdigest()
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
        if repository is not None and repository.diff is not None:
            contents[folder.diff_path(repository.diff)] = encode_diff(diff)
        if repository is not None:
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
