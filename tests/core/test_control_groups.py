"""The kernel's counts of processes that it killed for want of memory are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core import control_groups


@pytest.fixture
def mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(control_groups, "MOUNT", tmp_path)
    monkeypatch.setattr(control_groups, "GROUP_OF_THIS_PROCESS", tmp_path / "groups")
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("groups", "file", "content"),
    [
        ("0::/a.slice/b", "a.slice/b/memory.events", "low 0\noom 9\noom_kill 3\n"),
        ("0::/", "memory.events", "oom_kill 3\noom_group_kill 1\n"),
        ("0::/of/the/host", "memory.events", "oom_kill 3\n"),
    ],
    ids=["v2", "v2 root", "container"],
)
def test_kills_are_counted(mount: Path, groups: str, file: str, content: str) -> None:
    write(mount / "groups", groups)
    assert control_groups.oom_kills() == 0
    write(mount / file, content)
    assert control_groups.oom_kills() == 3


def test_what_cannot_be_read_counts_nothing(mount: Path) -> None:
    assert control_groups.oom_kills() == 0
    write(mount / "groups", "0::/")
    write(mount / "memory.events", "oom_kill many\n")
    assert control_groups.oom_kills() == 0
