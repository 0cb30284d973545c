"""`make demo`, with a program in the place of `harness` that only ends."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.tree import TOP


@pytest.mark.parametrize(("code", "is_well"), [(0, True), (1, False), (2, False), (3, True)])
def test_the_demo_ends_well_unless_a_trial_failed(tmp_path: Path, code: int, is_well: bool) -> None:
    """A busy machine disturbs trials (exit code 3), which is no error of a newcomer."""
    program = tmp_path / "harness"
    program.write_text(f"#!/bin/sh\nexit {code}\n", encoding="utf-8")
    program.chmod(0o755)
    ended = subprocess.run(
        ["make", "-o", "setup", "demo", f"BIN={tmp_path}"],
        cwd=TOP,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode == 0) == is_well
    assert ("were disturbed" in ended.stdout) == (code == 3)
    assert ("harness ui" in ended.stdout) == is_well
