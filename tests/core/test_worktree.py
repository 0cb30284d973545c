"""Git runs none of a repository's own programs, and worktrees of other revisions don't stay behind."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from harness.core import worktree
from harness.core.errors import HarnessError
from harness.core.import_path import ROOT
from harness.core.scratch import ScratchFolder
from harness.core.worktree import Tree, checked_out, run_git
from tests.support.repository import Repository


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


def write_hook(repository: Repository, name: str, program: str) -> Path:
    hook = repository.path / ".git" / "hooks" / name
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\n{program}\n", encoding="utf-8")
    hook.chmod(0o755)
    return hook


def test_neither_hooks_nor_the_monitor_of_files_run(repository: Repository, tmp_path: Path) -> None:
    write_hook(repository, "post-checkout", f"touch {tmp_path / 'ran'}")
    monitor = write_hook(repository, "monitor", f"touch {tmp_path / 'ran'}")
    repository.git("config", "core.fsmonitor", str(monitor))
    tree = tmp_path / "tree"
    assert run_git(repository.path, "worktree", "add", "--detach", str(tree)).returncode == 0
    assert run_git(repository.path, "status").returncode == 0
    assert tree.is_dir()
    assert not (tmp_path / "ran").exists()


def test_a_command_that_hangs_is_ended_and_named(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one without git fails as it does in a shell."""
    monkeypatch.setattr(worktree, "TIMEOUT", 0.5)
    repository.git("config", "alias.hang", "!sleep 600")
    named = r"^waited 0\.5 s for `git`, which was ended; look whether `git hang` ends in /"
    with pytest.raises(HarnessError, match=named):
        run_git(repository.path, "hang")
    monkeypatch.setenv("PATH", "")
    assert run_git(repository.path, "status").returncode == 127


def test_a_worktree_of_a_process_that_was_killed_is_forgotten(
    repository: Repository, tmp_path: Path
) -> None:
    killed = ScratchFolder("gate", tmp_path)
    mine = tmp_path / "mine"
    repository.git("worktree", "add", "--detach", "--lock", str(killed.path / "tree"))
    repository.git("worktree", "add", "--detach", str(mine))
    killed.remove()
    shutil.rmtree(mine)  # on a disk that is not mounted now, for example
    with (
        ScratchFolder("gate", tmp_path) as scratch,
        checked_out(repository.path, "HEAD", scratch.path / "tree") as tree,
    ):
        assert (tree.path / "own.py").exists()
    listed = repository.git("worktree", "list", "--porcelain")
    paths = [line for line in listed.splitlines() if line.startswith("worktree ")]
    assert paths == [f"worktree {repository.path}", f"worktree {mine}"]


def test_a_hook_may_check_out_another_revision(repository: Repository, tmp_path: Path) -> None:
    """Git gives hooks the index of the commit that is being made, which stays as it is."""
    repository.write(0.5)
    repository.commit("second")
    program = (
        "from pathlib import Path; from harness.core.worktree import checked_out;"
        f"tree = checked_out(Path(), 'HEAD~1', Path({str(tmp_path / 'tree')!r}));"
        "assert 'SLOWER = 0.0' in (tree.__enter__().path / 'own.py').read_text();"
        "tree.__exit__(None, None, None)"
    )
    write_hook(repository, "pre-commit", f'PYTHONPATH={ROOT} {sys.executable} -c "{program}"')
    repository.write(0.7)
    repository.git("commit", "--all", "--quiet", "--message", "third")
    assert "SLOWER = 0.7" in repository.git("show", "HEAD:own.py")


def test_only_a_tree_of_the_harness_itself_may_replace_it(tmp_path: Path) -> None:
    users = Tree(name="main", top=tmp_path, path=tmp_path / "other")
    assert users.own_packages == {"harness": str(ROOT), "workloads": str(ROOT)}
    assert Tree(name="main", top=ROOT, path=tmp_path / "other").own_packages == {}


def test_what_git_has_not_is_in_every_worktree(repository: Repository, tmp_path: Path) -> None:
    """A script reads its data by a relative path there, too."""
    (repository.path / "data").mkdir()
    (repository.path / "data/numbers.txt").write_text("1 2 3")
    (repository.path / "own.txt").write_text("of no revision")
    (repository.path / "later.py").write_text("code")
    with (repository.path / ".gitignore").open("a") as file:
        file.write("data/\n")
    with checked_out(repository.path, "HEAD", tmp_path / "tree") as tree:
        assert (tree.path / "data/numbers.txt").read_text() == "1 2 3"
        assert (tree.path / "own.txt").exists()
        assert not (tree.path / "later.py").exists(), "code is that of the revision"
    assert (repository.path / "data/numbers.txt").exists()
