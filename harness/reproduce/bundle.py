"""Verdict bundles: a folder with all that a verdict rests on, sealed as a whole.

    reproduced-<trial>-<time>/
      verdict.json, verdict.md      what came of it, for programs and for people
      recorded/<trial>.json         what was on record: records, or what a baseline held
      results/runs/…                the new records, with the logs of their ranks
      exact/runs/…                  those of first runs in double precision
      control/runs/…                those of second runs in double precision
      requirements-here.txt         the packages of this environment, pinned
      requirements-recorded.txt     those of the record, as far as it names them
      changes-<commit>.diff         uncommitted changes that were part of the recorded code
      manifest.json                 the SHA-256 of every other file, sealed

`check` reads a bundle back. It refuses one that was changed in any bit, and one whose verdict does
not follow from its own records.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.analysis.evidence import compare_evidence, evidence_of_record
from harness.core.errors import BadInput
from harness.core.paths import Results, SweepFolder, write_atomically
from harness.records.decode import FileFormat, decode_file
from harness.records.files import read_record
from harness.records.seal import sealed_text
from harness.reproduce.conditions import has_other_kernels
from harness.reproduce.verdict import SCHEMA as VERDICT_SCHEMA
from harness.reproduce.verdict import ReproductionVerdict, TrialVerdict

VERDICT_FILE = "verdict.json"
TEXT_FILE = "verdict.md"
MANIFEST_FILE = "manifest.json"
RECORDED_FOLDER = "recorded"
RESULTS_FOLDER = "results"
EXACT_FOLDER = "exact"  # not in RESULTS_FOLDER: a trial of fp64 has the same id in its exact run
CONTROL_FOLDER = "control"
RECORD_SUFFIX = ".record.json"  # of what was recorded, where it is a record
SCHEMA = "2.0"
VERDICT_FORMAT = FileFormat(
    name="verdict",
    schema=VERDICT_SCHEMA,
    remedy="harness reproduce writes it again",
    is_sealed=True,
)
MANIFEST_FORMAT = FileFormat(
    name="manifest of a bundle",
    schema=SCHEMA,
    remedy="harness reproduce writes it again",
    is_sealed=True,
)


@dataclass(frozen=True, kw_only=True)
class BundleManifest:
    """The content of `manifest.json`."""

    schema: str = SCHEMA
    files: Mapping[str, str]  # path relative to the bundle -> SHA-256


def write_verdict(folder: Path, verdict: ReproductionVerdict, text: str) -> None:
    """Write what came of a reproduction, as JSON and as `text` for people."""
    write_atomically(folder / VERDICT_FILE, sealed_text(asdict(verdict)))
    write_atomically(folder / TEXT_FILE, text)


def seal_bundle(folder: Path) -> None:
    """Write the manifest of a bundle, whose files are all there now.

    A bundle is passed on. So it loses the key of its records: whoever has that could try out values
    that were withheld.
    """
    for name in (RESULTS_FOLDER, EXACT_FOLDER, CONTROL_FOLDER):
        for sweep_folder in Results(folder / name).runs.glob("*"):
            SweepFolder(sweep_folder).key_path.unlink(missing_ok=True)
    files = {name: _sha256(path) for name, path in _files(folder)}
    write_atomically(folder / MANIFEST_FILE, sealed_text(asdict(BundleManifest(files=files))))


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield every file of a bundle but the manifest, with its path relative to the bundle."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name != MANIFEST_FILE and (path.is_symlink() or not path.is_dir()):
            yield name, path


def _sha256(path: Path) -> str:
    """Return the SHA-256 of a file; a link is refused, because its content is not the bundle's."""
    if path.is_symlink():
        raise BadInput(f"{path}: found a link; allowed: files")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check(folder: Path) -> ReproductionVerdict:
    """Return the verdict of a bundle that is whole, and that follows from its own records.

    Raises BadInput, which names the first file that is missing, changed or no part of it.
    """
    manifest = decode_file(BundleManifest, folder / MANIFEST_FILE, MANIFEST_FORMAT)
    present = dict(_files(folder))
    for name, expected in manifest.files.items():
        if name not in present:
            raise BadInput(f"{folder / name}: missing; the bundle's manifest has it")
        digest = _sha256(present[name])
        if digest != expected:
            raise BadInput(
                f"{folder / name}: found SHA-256 {digest[:12]}…; allowed: {expected[:12]}…: it was"
                " changed after the bundle was sealed"
            )
    for name in present:
        if name not in manifest.files:
            raise BadInput(
                f"{folder / name}: found a file that the bundle's manifest does not have"
            )
    verdict = decode_file(ReproductionVerdict, folder / VERDICT_FILE, VERDICT_FORMAT)
    for trial in verdict.trials:
        _check_agreement(folder, manifest, trial)
    return verdict


def _check_agreement(folder: Path, manifest: BundleManifest, trial: TrialVerdict) -> None:
    """Raise BadInput unless the records of a trial agree as its verdict says.

    What was on record of a baseline's trial is no record, and is not compared again.
    """
    names = [trial.source, trial.result, trial.exact, trial.control]
    for name in names:
        if name is not None and name not in manifest.files:
            raise BadInput(f"{folder / VERDICT_FILE}: found {name}; allowed: files of the bundle")
    if trial.agreement is None or trial.result is None or not trial.source.endswith(RECORD_SUFFIX):
        return
    evidence = []
    for name in names:
        if name is not None:
            evidence.append(evidence_of_record(read_record(folder / name)))
    recorded, again, *exact = evidence
    agreement = compare_evidence(
        recorded, again, exact, has_other_kernels=has_other_kernels(trial.differences)
    )
    if asdict(agreement) != asdict(trial.agreement):
        raise BadInput(
            f"{folder / VERDICT_FILE}: {trial.trial}: agreement: found rung"
            f" {trial.agreement.rung}; allowed: {agreement.rung}, as of the bundle's records"
        )
