"""Names and versions of installed packages."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from harness.core.packages import installed_packages


def install(folder: Path, name: str, metadata: str | None) -> None:
    """Make the folder that says that a package is installed."""
    described = folder / f"{name}.dist-info"
    described.mkdir()
    if metadata is not None:
        (described / "METADATA").write_text(metadata, encoding="utf-8")


@pytest.mark.parametrize("library", ["importlib.metadata", "importlib_metadata"])
def test_a_package_whose_metadata_are_damaged_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    """With the backport too, which takes the place of Python's own once a package has loaded it."""
    found = pytest.importorskip(library).distributions
    monkeypatch.setattr(metadata, "distributions", lambda: found(path=[str(tmp_path)]))
    install(tmp_path, "whole-1.5", "Metadata-Version: 2.1\nName: whole\nVersion: 1.5\n")
    install(tmp_path, "lost-1.0", None)
    install(tmp_path, "cut-1.0", "Metadata-Version: 2.1\nName: cut\n")
    packages = installed_packages()
    assert packages == {"whole": "1.5"}


def test_of_two_with_the_same_name_the_imported_one_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    install(tmp_path, "torch-0.1", "Metadata-Version: 2.1\nName: torch\nVersion: 0.1\n")
    assert installed_packages()["torch"] == "0.1"
