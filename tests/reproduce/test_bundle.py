"""A bundle is whole or refused: every file counts, and so does that its verdict follows from it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.analysis.evidence import compare_evidence, evidence_of_record
from harness.core.errors import BadInput
from harness.core.paths import SweepFolder
from harness.records.files import write_record
from harness.records.seal import sealed_text
from harness.reproduce import bundle
from harness.reproduce.verdict import ReproductionVerdict, TrialVerdict
from tests.factories import make_record
from tests.support.commands import harness

RECORD = make_record()
SOURCE = f"recorded/{RECORD.trial.id}.record.json"
RESULT = f"results/runs/demo/{RECORD.trial.id}/record.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A bundle of a trial that was repeated."""
    evidence = evidence_of_record(RECORD)
    trial = TrialVerdict(
        trial=RECORD.trial.id,
        label=RECORD.trial.cell.label,
        seed=0,
        again=RECORD.trial.id,
        outcome="repeated",
        rung="bitwise",
        agreement=compare_evidence(evidence, evidence),
        differences=[],
        cause=None,
        failure=None,
        code={},
        seconds=1.0,
        source=SOURCE,
        result=RESULT,
    )
    verdict = ReproductionVerdict(
        subject="demo", demanded="fp64", rung="bitwise", outcome="repeated", made=1.7e9,
        version="0.1.0", commands=[], trials=[trial], seeds=[],
    )  # fmt: skip
    write_record(tmp_path / SOURCE, RECORD)
    write_record(tmp_path / RESULT, RECORD)
    bundle.write_verdict(tmp_path, verdict, "repeated\n")
    bundle.seal_bundle(tmp_path)
    return tmp_path


def test_a_whole_bundle_is_accepted(folder: Path) -> None:
    assert bundle.check(folder).outcome == "repeated"
    result = harness("reproduce", str(folder), "--check")
    assert (result.code, result.err) == (0, "")
    assert "repeated: bitwise equal, under the same conditions" in result.out


def test_a_bundle_has_no_key_to_what_its_records_withhold(folder: Path) -> None:
    key = SweepFolder((folder / RESULT).parent.parent).key_path
    control = folder / bundle.CONTROL_FOLDER / key.relative_to(folder / bundle.RESULTS_FOLDER)
    control.parent.mkdir(parents=True)
    for path in (key, control):
        path.write_text("00" * 32, encoding="utf-8")
    bundle.seal_bundle(folder)
    assert not key.exists()
    assert not control.exists()
    assert bundle.check(folder).outcome == "repeated"


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def edit_verdict(folder: Path) -> None:
    """Replace the verdict, with seals and manifest that fit."""
    content = json.loads((folder / bundle.VERDICT_FILE).read_text(encoding="utf-8"))
    content["trials"][0]["agreement"]["rung"] = "ulp"
    (folder / bundle.VERDICT_FILE).write_text(sealed_text(content), encoding="utf-8")
    bundle.seal_bundle(folder)


def replace_record(folder: Path) -> None:
    """Replace a record by one that ended with other parameters, with a manifest that fits."""
    assert RECORD.rank0 is not None
    other = replace(RECORD, rank0=replace(RECORD.rank0, parameter_digest="f" * 64))
    write_record(folder / RESULT, other)
    bundle.seal_bundle(folder)


def point_elsewhere(folder: Path) -> None:
    """Have the verdict name a file outside of the bundle."""
    content = json.loads((folder / bundle.VERDICT_FILE).read_text(encoding="utf-8"))
    content["trials"][0]["source"] = "../other.record.json"
    (folder / bundle.VERDICT_FILE).write_text(sealed_text(content), encoding="utf-8")
    bundle.seal_bundle(folder)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: flip(folder / SOURCE), f"{SOURCE}: found SHA-256"),
        (lambda folder: flip(folder / RESULT), f"{RESULT}: found SHA-256"),
        (lambda folder: flip(folder / bundle.TEXT_FILE), "verdict.md: found SHA-256"),
        (lambda folder: (folder / bundle.TEXT_FILE).unlink(), "verdict.md: missing"),
        (lambda folder: (folder / "more").touch(), "more: found a file that the bundle's manifest"),
        (lambda folder: (folder / "link").symlink_to("/etc/hostname"), "link: found a file that"),
        (lambda folder: flip(folder / bundle.MANIFEST_FILE), "manifest"),
        (lambda folder: (folder / bundle.MANIFEST_FILE).unlink(), "manifest.json"),
        (edit_verdict, "found rung ulp; allowed: bitwise"),
        (replace_record, "found rung bitwise; allowed: ulp"),
        (point_elsewhere, "found ../other.record.json; allowed: files of the bundle"),
    ],
)
def test_a_changed_bundle_is_refused(
    folder: Path, damage: Callable[[Path], object], message: str
) -> None:
    damage(folder)
    with pytest.raises(BadInput, match=re.escape(message)):
        bundle.check(folder)
    assert harness("reproduce", str(folder), "--check").code == 2
