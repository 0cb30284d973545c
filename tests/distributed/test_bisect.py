"""`harness bisect` on a user's repository, with real ranks of its commits in turn."""

from __future__ import annotations

import json

import pytest

from harness.gate import bisect, paired
from tests.support.commands import harness
from tests.support.repository import Repository
from tests.support.running import processes_below

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(1800)]

# Differences that stand out from whatever else the machine does, so that a few short pairs of
# processes suffice.
LOUD = ("--min-effect", "50%", "--budget", "10s")
OTHER = (
    "\n\nMLP.optimizer, _adam = lambda self, model: _sgd(model), MLP.optimizer\n"
    "\n\ndef _sgd(model):\n    import torch\n\n    return torch.optim.SGD(model.parameters(), lr=0.1)\n"
)
BROKEN = "\n\nimport a_module_that_nobody_has\n"


@pytest.fixture(autouse=True)
def few_short_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let arms count while they still become a little faster, and fewer pairs decide.

    The five comparisons share this error, so that each errs no more often than a gate does.
    """
    monkeypatch.setattr(paired, "WARM_UP_SECONDS", 0.1)
    monkeypatch.setattr(bisect, "ALPHA", 0.25)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    """Tags: good, other (losses), broken, mended, slow, last; the working tree is like none of
    them.
    """
    ended = Repository(tmp_path_factory.mktemp("user") / "repository")
    ended.git("tag", "good")
    history = [
        ("words", 0.0, "# a word\n"),
        ("other", 0.0, OTHER),
        ("broken", 0.0, OTHER + BROKEN),
        ("mended", 0.0, OTHER + "# mended\n"),
        ("slow", 3.0, OTHER),
        ("last", 3.0, OTHER + "# many more words\n"),
    ]
    for name, slower, more in history:
        ended.write(slower, more)
        ended.commit(name)
        ended.git("tag", name)
    ended.write(6.0)
    return ended


@pytest.mark.nightly
def test_the_commit_that_made_it_slower_is_found_past_a_broken_one(repository: Repository) -> None:
    ended = harness("bisect", "words", "last", str(repository.sweep), *LOUD)
    assert ended.code == 0, ended.err + ended.out
    first, *_, against_parent, counts = ended.out.splitlines()
    assert first == f"{repository.git('rev-parse', 'slow')} is the first bad commit"
    assert against_parent.startswith("against its parent: ")
    assert "slower" in against_parent
    assert "against words" in counts
    assert "skip" in ended.err
    assert "No module named 'a_module_that_nobody_has'" in ended.err
    assert repository.git("worktree", "list").count("\n") == 0
    assert repository.git("status", "--short") == "M own.py"
    assert processes_below(repository.path) == []


@pytest.mark.nightly
def test_the_commit_that_changed_the_losses_is_found(repository: Repository) -> None:
    ended = harness("bisect", "good", "mended", str(repository.sweep), "--bits", "--json")
    assert ended.code == 0, ended.err + ended.out
    outcome = json.loads(ended.out)
    assert [suspect["subject"] for suspect in outcome["suspects"]] == ["other"]
    assert outcome["against_parent"]["steps"] == 20
