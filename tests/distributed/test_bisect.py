"""`harness bisect` on a user's repository, with real ranks of its commits in turn."""

from __future__ import annotations

import json

import pytest

from tests.support.commands import harness
from tests.support.repository import Repository
from tests.support.running import processes_below

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(1800)]

# Differences that stand out from whatever else the machine does, so that a few short pairs of processes suffice.
LOUD = ("--min-effect", "33%", "--budget", "8")
OTHER = (
    "\n\nMLP.optimizer, _adam = lambda self, model: _sgd(model), MLP.optimizer\n"
    "\n\ndef _sgd(model):\n    import torch\n\n    return torch.optim.SGD(model.parameters(), lr=0.1)\n"
)
BROKEN = "\n\nimport a_module_that_nobody_has\n"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    """Tags: good, other (losses), broken, mended, slow, last; the working tree is like none of them."""
    found = Repository(tmp_path_factory.mktemp("user") / "repository")
    found.git("tag", "good")
    history = [
        ("words", 0.0, "# a word\n"),
        ("other", 0.0, OTHER),
        ("broken", 0.0, OTHER + BROKEN),
        ("mended", 0.0, OTHER + "# mended\n"),
        ("slow", 1.5, OTHER),
        ("last", 1.5, OTHER + "# many more words\n"),
    ]
    for name, slower, more in history:
        found.write(slower, more)
        found.commit(name)
        found.git("tag", name)
    found.write(3.0)
    return found


def test_the_commit_that_made_it_slower_is_found_past_a_broken_one(repository: Repository) -> None:
    found = harness("bisect", "good", "last", str(repository.sweep), *LOUD)
    assert found.code == 0, found.err + found.out
    first, *_, against_parent, counts = found.out.splitlines()
    assert first == f"{repository.git('rev-parse', 'slow')} is the first bad commit"
    assert against_parent.startswith("against its parent: ")
    assert " slower (" in against_parent
    assert "against good" in counts
    assert "Bisecting: " in found.err
    assert "skip" in found.err
    assert "No module named 'a_module_that_nobody_has'" in found.err
    assert repository.git("worktree", "list").count("\n") == 0
    assert repository.git("status", "--short") == "M own.py"
    assert processes_below(repository.path) == []


def test_the_commit_that_changed_the_losses_is_found(repository: Repository) -> None:
    found = harness("bisect", "good", "mended", str(repository.sweep), "--bits", "--json")
    assert found.code == 0, found.err + found.out
    told = json.loads(found.out)
    assert [one["subject"] for one in told["suspects"]] == ["other"]
    assert told["against_parent"]["description"] == "other losses within 20 steps"


def test_an_end_that_fails_says_what_its_rank_said(repository: Repository) -> None:
    found = harness("bisect", "words", "broken", str(repository.sweep), "--bits")
    assert found.code == 1
    assert found.err.splitlines()[-1].startswith("harness: BAD broken against GOOD words: ")
    assert "No module named 'a_module_that_nobody_has'" in found.err
