"""What trials are launched from, as their records refer to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.paths import SweepFolder
from harness.launch.provenance import describe_launch
from tests.support.sweeps import load


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
