"""`harness check` as a user meets it: the manual's own example, in a process of its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.commands import harness
from tests.support.pages import GUIDE, write_files


@pytest.mark.distributed
def test_the_mistakes_of_the_manuals_example_are_found(tmp_path: Path) -> None:
    page = (GUIDE / "before.md").read_text(encoding="utf-8")
    write_files(page, tmp_path)
    ended = harness("check", str(tmp_path / "bug.yaml"))
    assert (ended.code, ended.err) == (1, "")
    printed = re.sub(r"[\d.]+ s$", "… s", ended.out, flags=re.MULTILINE)
    assert printed in re.sub(r"[\d.]+ s$", "… s", page, flags=re.MULTILINE)
