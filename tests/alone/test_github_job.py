"""GitHub's job as users copy it, and a change that is small for a machine with neighbors."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree.ElementTree import parse

import pytest

from tests.support.ci_files import Repository, bash, github_step

STEP = 0.04  # seconds, slept rather than computed


@pytest.mark.distributed
def test_githubs_job_fails_a_pull_request_that_trains_five_percent_slower(tmp_path: Path) -> None:
    repository = Repository(tmp_path, slower=0.05, step=STEP)
    repository.merge()
    done = bash(github_step("Measure"), tmp_path)
    assert done.returncode == 1, done.stderr + done.stdout
    *_, verdict, advice = done.stdout.splitlines()
    assert verdict == "The gate fails: 1 of 1 cell."
    assert advice.startswith("next  harness explain base . sweep.yaml --revisions --cell spiral-")
    summary = (tmp_path / "gate.md").read_text(encoding="utf-8")
    assert summary.startswith("### Training speed of spiral: fails: 1 of 1 cell")
    # Whichever of the two measurements is certain first: neighbors disturb either.
    assert re.search(r"% slower (as a whole )?than base \(", summary)
    suite = parse(tmp_path / "gate.xml").getroot()
    assert suite.get("tests") == "1"
    assert suite.find("testcase/failure") is not None
