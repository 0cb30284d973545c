"""What trials are launched from, as their records refer to it."""

from __future__ import annotations

import inspect
import shutil
from pathlib import Path

import pytest

from harness.core.paths import SweepFolder
from harness.launch.provenance import describe_launch
from tests.support.line import LineFit
from tests.support.sweeps import DIGITS, load


def test_a_damaged_package_is_not_among_the_installed_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "packages" / "lost-1.0.dist-info").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path / "packages")
    folder = SweepFolder(tmp_path / "sweep")
    launched = describe_launch(load(tmp_path), folder)
    pinned = folder.packages_path(launched.installed).read_text(encoding="utf-8").splitlines()
    assert any(pin.startswith("torch==") for pin in pinned)
    assert [pin for pin in pinned if "None" in pin] == []


def test_the_harness_is_not_taken_for_the_users_repository(tmp_path: Path) -> None:
    """Though it runs from a clone: in no repository, trials of built-in workloads have none either."""
    shutil.copy(inspect.getfile(LineFit), tmp_path / "fitted.py")
    own = {"fitted": {"uses": "fitted.py:LineFit"}}
    folder = SweepFolder(tmp_path / "sweep")
    for workloads in (DIGITS, own, {**own, **DIGITS}):
        assert describe_launch(load(tmp_path, workloads), folder).repository is None
