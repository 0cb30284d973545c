"""`harness certify` and the forkserver, with real ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.core.errors import HarnessError
from harness.core.worktree import Tree
from harness.gate.paired import Budget, measure
from harness.sweep.cluster import Profile
from harness.sweep.sweep import load_sweep
from tests.support.commands import harness
from tests.support.repository import Repository
from tests.support.running import processes_below

pytestmark = pytest.mark.distributed


@pytest.mark.nightly
def test_comparisons_are_kept_and_gone_on_with(tmp_path: Path) -> None:
    repository, results = Repository(tmp_path / "repository"), str(tmp_path / "results")
    command = (
        "certify",
        str(repository.sweep),
        "--results",
        results,
        "--budget",
        "300ms",
    )
    first = harness(*command, "--comparisons", "1")
    assert first.code == 0, first.err + first.out
    (path,) = (tmp_path / "results" / "certificates").iterdir()
    (before,) = json.loads(path.read_text(encoding="utf-8"))["comparisons"]
    assert harness(*command, "--comparisons", "2").code == 0
    again, more = json.loads(path.read_text(encoding="utf-8"))["comparisons"]
    assert again == before
    assert more["ended"] > before["ended"]
    assert more["pairs"] >= 1
    assert harness(*command, "--comparisons", "2").code == 0
    content = json.loads(path.read_text(encoding="utf-8"))
    assert content["comparisons"] == [again, more]
    assert processes_below(tmp_path) == []


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("raise ImportError('no such module')", "no such module"),
        ("import os; os.kill(os.getpid(), 9)", "b: rank 0 (ended|did not start)"),
    ],
)
def test_a_rank_that_fails_before_it_trains_is_told(wrong: str, words: str, tmp_path: Path) -> None:
    repository, other = Repository(tmp_path / "a"), Repository(tmp_path / "b")
    other.write(0.0, more=f"\n\n{wrong}\n")
    trees = {
        key: Tree(name=key, top=repository.path, path=user.path)
        for key, user in (("a", repository), ("b", other))
    }
    sweep = load_sweep(repository.sweep)
    budget = Budget(min_effect=0.5, seconds=1.0, alpha=0.05)
    with pytest.raises(HarnessError, match=words):
        measure(sweep, sweep.cells[0], trees, Profile(device="cpu"), budget)
