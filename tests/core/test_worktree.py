"""Worktrees of other revisions: none stays behind, and what they import is theirs."""

from __future__ import annotations

import shutil
from pathlib import Path

from harness.core.import_path import ROOT
from harness.core.scratch import ScratchFolder
from harness.core.worktree import Tree, checked_out
from tests.support.repository import Repository


def test_a_worktree_of_a_process_that_was_killed_is_forgotten(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repository")
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


def test_only_a_tree_of_the_harness_itself_may_replace_it(tmp_path: Path) -> None:
    users = Tree(name="main", top=tmp_path, path=tmp_path / "other")
    assert users.own_packages == {"harness": str(ROOT), "workloads": str(ROOT)}
    assert Tree(name="main", top=ROOT, path=tmp_path / "other").own_packages == {}
