"""`harness check` as a user meets it: the manual's own example, in a process of its own."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from harness.core.paths import Results
from harness.preflight.report import (
    CheckFinding,
    ParameterNorms,
    Preflight,
    WorkloadReport,
    read_preflight,
    write_preflight,
)
from tests.support.commands import harness
from tests.support.pages import GUIDE, write_files
from tests.support.reports import HOSTILE, make_records, make_sweep, write_run


@pytest.mark.distributed
def test_the_mistakes_of_the_manuals_example_are_found(tmp_path: Path, results: Results) -> None:
    page = (GUIDE / "check.md").read_text(encoding="utf-8")
    write_files(page, tmp_path)
    options = ["--results", str(results.path)]
    ended = harness("check", str(tmp_path / "bug.yaml"), *options)
    assert (ended.code, ended.err) == (1, "")
    printed = re.sub(r"[\d.]+ s$", "… s", ended.out, flags=re.MULTILINE)
    assert printed in re.sub(r"[\d.]+ s$", "… s", page, flags=re.MULTILINE)
    kept = read_preflight(results.sweep_folder("bug").preflight_path)
    assert kept is not None
    checks = [finding.check for finding in kept.workloads[0].problems]
    assert checks == ["split", "layers", "device", "logits", "one batch"]


def make_preflight(*, problem: str = "") -> Preflight:
    """Return a pre-flight of a workload, with a problem if its text is given."""
    findings = [CheckFinding(check="loss", status="passed", measured="2.3")]
    if problem:
        finding = CheckFinding(
            check="labels", status="problem", measured=problem, advice="renumber"
        )
        findings.append(finding)
    norms = [ParameterNorms(name="head.weight", parameter=1.5, gradient=None)]
    workload = WorkloadReport(
        label="mlp", seed=0, device="cpu", seconds=1.0, findings=findings, norms=norms
    )
    return Preflight(sweep="demo", at=1.0, workloads=[workload])


def test_the_report_shows_what_was_found(results: Results, tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path)
    write_run(results, sweep, make_records(sweep))
    write_preflight(results.sweep_folder("demo").preflight_path, make_preflight(problem=HOSTILE))
    ended = harness("report", "demo", "--results", str(results.path))
    assert ended.code == 0
    text = Path(ended.out.strip()).read_text(encoding="utf-8")
    assert "1 found" in text
    assert "→ renumber" in text
    assert HOSTILE not in text


def test_a_damaged_file_is_named(results: Results, tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path)
    write_run(results, sweep, make_records(sweep))
    path = results.sweep_folder("demo").preflight_path
    write_preflight(path, make_preflight())
    changed = json.loads(path.read_text(encoding="utf-8")) | {"sweep": "another"}
    path.write_text(json.dumps(changed), encoding="utf-8")
    ended = harness("report", "demo", "--results", str(results.path))
    assert ended.code == 2
    assert str(path) in ended.err
    assert "harness check writes it again" in ended.err
