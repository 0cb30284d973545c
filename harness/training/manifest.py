"""The manifest of a checkpoint: proves that it is whole, and names the trial that it belongs to.

`manifest.json` is written last. It has the size and the SHA-256 of each file, so that a bit that
flips on the disk, or a page that a file system lost, is noticed before anything is loaded. It also
names the trial, the code and the software, since a trial that resumes with others would end with
results of neither.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from harness.core.errors import BadFile, BadInput
from harness.core.variables import chooses_kernels
from harness.records.code import training_digest
from harness.records.decode import FileFormat, decode_file
from harness.records.environment import describe_settings, describe_software, relevant_variables
from harness.records.seal import sealed_text

WEIGHTS_FILE = "model.safetensors"  # whole; only of the best evaluation
MANIFEST_FILE = "manifest.json"
MANIFEST_SCHEMA = "3.0"
MANIFEST_FORMAT = FileFormat(name="checkpoint's manifest", schema=MANIFEST_SCHEMA, is_sealed=True)
# Packages that ranks do not compute with.
LAUNCHER_PACKAGES = ("mlflow", "submitit")
SHOWN_DIGITS = 12  # of a digest, in errors


@dataclass(frozen=True, kw_only=True)
class CheckpointOrigin:
    """The conditions that must be the same for a trial to resume from another attempt."""

    # Its id, which stands for the whole cell with the workload's code, the seed and the repeat.
    trial: str
    code: str  # SHA-256 of the harness's training code
    software: Mapping[str, str]  # Python and the packages that compute, by name
    # Other conditions that kernels are chosen by: torch's instruction set, and variables.
    limits: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SealedFile:
    """One file of a checkpoint as it was written."""

    size: int  # bytes
    sha256: str


@dataclass(frozen=True, kw_only=True)
class CheckpointManifest:
    """The content of `manifest.json`."""

    schema: str = MANIFEST_SCHEMA
    step: int  # optimizer steps done
    ranks: int  # that have saved it, each in its own file
    origin: CheckpointOrigin
    files: Mapping[str, SealedFile]
    # Why no attempt can resume from it although it is whole; None if one can.
    not_resumable: str | None = None


def describe_origin(trial_id: str) -> CheckpointOrigin:
    """Return the origin of checkpoints that this process writes.

    Of the harness, only the code that trains counts: another version of the report changes no
    result, and a sweep that takes days must not start again for it.
    """
    software = describe_software()
    versions = {"python": software.python, "torch": software.torch}
    for name, version in software.packages.items():
        if name not in LAUNCHER_PACKAGES:
            versions.setdefault(name, version)
    # What kernels are chosen by in this process, apart from the software.
    limits = {"cpu_capability": str(describe_settings().cpu_capability)}
    for name, value in relevant_variables(os.environ).items():
        if chooses_kernels(name):
            limits[name] = value
    return CheckpointOrigin(
        trial=trial_id, code=training_digest(), software=versions, limits=limits
    )


def write_manifest(folder: Path, manifest: CheckpointManifest) -> None:
    """Write the manifest of a checkpoint whose files are all in `folder`."""
    (folder / MANIFEST_FILE).write_text(sealed_text(asdict(manifest)), encoding="utf-8")


def part_name(rank: int) -> str:
    """Return the name of the file that a rank writes."""
    return f"rank{rank}.safetensors"


def find_fault(checkpoint: Path, origin: CheckpointOrigin) -> str | None:
    """Return why a trial can't resume from a checkpoint, None if it can.

    Every file is read.
    """
    try:
        manifest = decode_file(CheckpointManifest, checkpoint / MANIFEST_FILE, MANIFEST_FORMAT)
    except BadInput as error:
        return str(error)
    mismatch = (
        _find_mismatch(manifest.origin, origin)
        or _find_damage(checkpoint, manifest)
        or manifest.not_resumable
    )
    if mismatch is None:
        return None
    return f"{checkpoint}: {mismatch}"


def read_manifest(checkpoint: Path, trial: str) -> CheckpointManifest:
    """Return the manifest of a trial's checkpoint whose files are as they were written.

    Every file is read. Raises BadFile for a missing or damaged one, and for another trial's: unlike
    a trial that resumes, a use of the parameters alone needs no equal software.
    """
    manifest = decode_file(CheckpointManifest, checkpoint / MANIFEST_FILE, MANIFEST_FORMAT)
    if manifest.origin.trial != trial:
        raise BadFile(f"{checkpoint}: trial: found {manifest.origin.trial}; allowed: {trial}")
    damage = _find_damage(checkpoint, manifest)
    if damage is not None:
        raise BadFile(f"{checkpoint}: {damage}")
    return manifest


def _find_mismatch(present: CheckpointOrigin, expected: CheckpointOrigin) -> str | None:
    """Return how the origin of a checkpoint differs from the expected one, None if it does not."""
    if present.trial != expected.trial:
        return f"trial: found {present.trial}; allowed: {expected.trial}"
    if present.code != expected.code:
        return (
            f"code: found {present.code[:SHOWN_DIGITS]}; allowed: {expected.code[:SHOWN_DIGITS]}:"
            " the code of the training has changed"
        )
    conditions, needed = _conditions(present), _conditions(expected)
    for name in sorted({*conditions, *needed}):
        if conditions.get(name) != needed.get(name):
            return f"{name}: found {conditions.get(name)}; allowed: {needed.get(name)}"
    return None


def _conditions(origin: CheckpointOrigin) -> dict[str, str]:
    """Return the versions and limits of an origin in one table."""
    return {**origin.software, **origin.limits}


def _find_damage(checkpoint: Path, manifest: CheckpointManifest) -> str | None:
    """Return which file of a checkpoint is not as it was written, None if all are."""
    if checkpoint.name != checkpoint_name(manifest.step):
        return f"step: found {manifest.step}; allowed: that of the folder's name"
    parts = {part_name(rank) for rank in range(manifest.ranks)}
    if set(manifest.files) - {WEIGHTS_FILE} != parts:
        return (
            f"{MANIFEST_FILE}: found {', '.join(manifest.files)}; allowed: a file of each of"
            f" {manifest.ranks} ranks"
        )
    for name, sealed in manifest.files.items():
        try:
            present = describe_file(checkpoint / name)
        except OSError as error:
            return f"{name}: can't be read: {error.strerror}"
        if present.size != sealed.size:
            return f"{name}: found {present.size} bytes; allowed: {sealed.size}"
        if present.sha256 != sealed.sha256:
            return (
                f"{name}: found SHA-256 {present.sha256[:SHOWN_DIGITS]}; allowed:"
                f" {sealed.sha256[:SHOWN_DIGITS]}: it is damaged"
            )
    return None


def checkpoint_name(step: int) -> str:
    """Return the name of a checkpoint's folder; names sort as steps do."""
    return f"step-{step:09d}"


def describe_file(path: Path) -> SealedFile:
    """Return the size and the digest of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return SealedFile(size=file.tell(), sha256=digest)
