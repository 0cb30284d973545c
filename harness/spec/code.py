"""Describes the code of a workload, which is part of its cells' ids.

Built-in workloads are identified by their files, as users' workloads are, and not by the harness's
version: a checkout changes them without a new version, and a release that does not touch them leaves
their cells alone. The harness's training loop is not part of a cell. A record names its commit and
the digest of its files, and a checkpoint of another loop is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from harness.core.errors import CodeChanged
from harness.core.variables import UNDECIDING_VARIABLE
from harness.spec.cell import CUSTOM, WorkloadCode, WorkloadRef
from workloads.catalog import find_source
from workloads.code import digest_code, read_source
from workloads.importing import user_files

REMEDY = "harness run plans it again"
NO_CODE = WorkloadCode()
SHOWN_DIGITS = 12  # of a digest
MISSING = "missing"  # instead of the digest of a file that was removed after it was imported


def describe_workload_code(
    uses: str,
    base_folder: Path,
    custom_uses: Iterable[str] = (),
    known: WorkloadCode = NO_CODE,
) -> WorkloadCode:
    """Return the code of a workload as it is on disk now, and that of axes of the user's own.

    An installed package of such an axis is among the files, by its name and version. A file whose
    text is that of `known` has its digest. Raises OSError for a file that can't be read.
    """
    source = find_source(uses, base_folder)
    paths = dict(source.files)
    packages: dict[str, str] = {}
    for axis_uses in custom_uses:
        axis_source = find_source(axis_uses, base_folder)
        paths.update(axis_source.files)
        if axis_source.distribution is not None:
            packages[axis_source.distribution] = str(axis_source.version)
    files: dict[str, str] = {}
    texts: dict[str, str] = {}
    variables: set[str] = set()
    for name, path in sorted(paths.items()):
        source_file = read_source(path)
        texts[name] = source_file.sha256
        for variable in source_file.variables:
            if not UNDECIDING_VARIABLE.fullmatch(variable):
                variables.add(variable)
        is_known = texts[name] == known.texts.get(name)
        files[name] = known.files[name] if is_known else digest_code(path)
    return WorkloadCode(
        files=files | packages,
        texts=texts,
        variables=sorted(variables),
        distribution=source.distribution,
        version=source.version,
    )


def describe_dynamic_files(reference: WorkloadRef) -> dict[str, str]:
    """Return users' files that this process has imported and the workload's code does not have.

    They were imported by names that were computed. Paths relative to the folder that they are
    imported from, to the SHA-256 of their code. One that is gone by now does not fail the trial
    that is about to end.
    """
    planned = reference.code.files if reference.code else {}
    digests: dict[str, str] = {}
    for name, path in user_files().items():
        if name in planned:
            continue
        try:
            digests[name] = digest_code(path)
        except FileNotFoundError:
            digests[name] = MISSING
    return digests


def check_code(reference: WorkloadRef, base_folder: Path) -> None:
    """Raise CodeChanged unless the code of a workload is still that of its cell.

    Comments and docstrings may be others. A cell without code, as a gate trains it in another revision, may have any.
    """
    planned = reference.code
    if planned is None:
        return
    active = [reference.custom_uses[name] for name in reference.identity.get(CUSTOM, {})]
    present = describe_workload_code(reference.uses, base_folder, active, planned)
    if present == planned:
        return
    name = changed_parts(planned, present)[0]
    if name in {*planned.files, *present.files}:
        now, before = _head(present.files.get(name)), _head(planned.files.get(name))
        raise CodeChanged(_message(name, f"SHA-256 {now}", before))
    raise CodeChanged(_message(name, f"version {present.version}", f"{planned.version}"))


def changed_parts(before: WorkloadCode, now: WorkloadCode) -> list[str]:
    """Return the names of the files that differ, or of the distribution, sorted."""
    parts = set()
    for name in {*before.files, *now.files}:
        if before.files.get(name) != now.files.get(name):
            parts.add(name)
    if (before.distribution, before.version) != (now.distribution, now.version):
        parts.update(name for name in (before.distribution, now.distribution) if name)
    return sorted(parts)


def _message(name: str, present: str, planned: str) -> str:
    """Return the error for a file or a package that is not as it was planned."""
    return (
        f"{name}: found {present}; allowed: {planned}, as when the trial was planned: the"
        f" workload's code has changed since; {REMEDY}"
    )


def _head(digest: str | None) -> str:
    """Return the head of a digest, `none` for a file that the code does not have."""
    return "none" if digest is None else digest[:SHOWN_DIGITS]
