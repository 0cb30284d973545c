"""Git runs without the repository's own programs, and not for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core import git
from harness.core.errors import HarnessError
from harness.core.git import run_git
from tests.support.repository import Repository


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


def write_hook(repository: Repository, name: str, program: str) -> None:
    hook = repository.path / ".git" / "hooks" / name
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\n{program}\n", encoding="utf-8")
    hook.chmod(0o755)


def test_hooks_do_not_run(repository: Repository, tmp_path: Path) -> None:
    write_hook(repository, "post-checkout", f"touch {tmp_path / 'ran'}")
    tree = tmp_path / "tree"
    assert run_git(repository.path, "worktree", "add", "--detach", str(tree)).returncode == 0
    assert tree.is_dir()
    assert not (tmp_path / "ran").exists()


def test_nor_does_the_monitor_of_files(repository: Repository, tmp_path: Path) -> None:
    monitor = tmp_path / "monitor"
    monitor.write_text(f"#!/bin/sh\ntouch {tmp_path / 'ran'}\n", encoding="utf-8")
    monitor.chmod(0o755)
    repository.git("config", "core.fsmonitor", str(monitor))
    assert run_git(repository.path, "status").returncode == 0
    assert not (tmp_path / "ran").exists()


def test_a_command_that_hangs_is_ended_and_named(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git, "TIMEOUT", 0.5)
    repository.git("config", "alias.hang", "!sleep 600")
    with pytest.raises(
        HarnessError,
        match=r"^waited 0\.5 s for `git`, which was ended; look whether `git hang` ends in /",
    ):
        run_git(repository.path, "hang")


def test_without_git_it_fails_as_a_shell_does(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    assert run_git(repository.path, "status").returncode == 127
