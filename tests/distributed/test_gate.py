"""`harness gate`, `bisect` and `certify` on a user's repository, with real ranks of two revisions in turn."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from harness.gate import bisect, paired
from tests.support.commands import CommandResult, harness
from tests.support.repository import Repository
from tests.support.running import processes_below

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(1800)]

# Differences that stand out from whatever else the machine does, so that a few short pairs of
# processes suffice.
LOUD = ("--min-effect", "33%", "--budget", "3s")
# Next to other programs, 3 s do not always decide; a gate ends as soon as it has decided.
LOUDER = ("--min-effect", "90%", "--budget", "60s")
FAILS = """


def fail(self, model, batch):
    raise ValueError("the dog ate the model")


Slowed.loss = fail
"""
DRAWS = """

honest_loss = Slowed.loss


def loss(self, model, batch):
    import os

    return honest_loss(self, model, batch) * (1 + os.getpid() % 1000 / 1e5)


Slowed.loss = loss
"""
OTHER = """

honest_optimizer = Slowed.optimizer


def optimizer(self, model):
    optimizer = honest_optimizer(self, model)
    optimizer.param_groups[0]["lr"] *= 2
    return optimizer


Slowed.optimizer = optimizer
"""
KILLED = """

import os

if "RANK" in os.environ:
    os.kill(os.getpid(), 9)
"""
BROKEN = "\n\nimport a_module_that_nobody_has\n"


@pytest.fixture(autouse=True)
def short_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let arms start to count while they still become a little faster."""
    monkeypatch.setattr(paired, "WARM_UP_SECONDS", 0.1)


def gate(repository: Repository, *options: str) -> CommandResult:
    """Compare the working tree with the commit before."""
    return harness("gate", "--against", "HEAD", str(repository.sweep), *options)


def measured(ended: CommandResult) -> dict[str, Any]:
    """Return what a gate has measured of its only cell."""
    (cell,) = json.loads(ended.out)["cells"]
    return {**cell["measured"], "is_repeatable": cell["is_repeatable"]}


def test_a_side_that_fails_says_what_its_rank_said(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    repository.write(0.0, more=FAILS)
    repository.commit("broken")
    repository.write(0.0)
    ended = gate(repository, *LOUD)
    assert ended.code == 1
    assert "HEAD: rank 0 on" in ended.out
    assert "ValueError: the dog ate the model" in ended.out
    log = Path(ended.out.partition("; log: ")[2].split()[0])
    assert "the dog ate the model" in log.read_text(encoding="utf-8")
    shutil.rmtree(log.parents[1])


@pytest.mark.nightly
def test_a_side_that_is_killed_before_it_trains_is_told(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    repository.write(0.0, more=KILLED)
    repository.commit("killed")
    repository.write(0.0)
    ended = gate(repository, *LOUD)
    assert ended.code == 1
    assert re.search("HEAD: rank 0 (ended|did not start)", ended.out)


@pytest.mark.nightly
def test_a_slower_working_tree_fails_and_is_told_of_everywhere(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repository")
    repository.write(1.0)
    summary = tmp_path / "gate.md"
    ended = gate(repository, *LOUD, "--summary", str(summary))
    assert ended.code == 1, ended.err + ended.out
    headline, _, row, *_ = ended.out.splitlines()
    assert headline == "The gate of own fails: 1 of 1 cell failed"
    assert re.search(" -.*% .* slower ", row)
    assert summary.read_text(encoding="utf-8").startswith("### The gate of own fails")
    assert repository.git("worktree", "list").count("\n") == 0  # the other one is gone
    assert processes_below(tmp_path) == []


@pytest.mark.nightly
def test_the_same_code_passes_with_the_same_bits(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    for name in ("harness", "workloads"):  # folders of the user's hide nothing of ours
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('not ours')")
    repository.commit("folders that are called like ours")
    ended = gate(repository, *LOUDER, "--bits", "--json")
    assert ended.code == 0, ended.err + ended.out
    assert measured(ended)["same_bits"] is True
    assert measured(ended)["verdict"] == "same"


@pytest.mark.nightly
def test_other_losses_fail_where_bits_matter(tmp_path: Path) -> None:
    repository = Repository(tmp_path, matrix={"strategy": "ddp", "world_size": 2})
    repository.write(0.0, more=OTHER)
    ended = gate(repository, "--budget", "1s", "--bits", "--json")  # one pair shows the losses
    assert ended.code == 1
    assert measured(ended)["same_bits"] is False


@pytest.mark.nightly
def test_equal_code_that_is_not_deterministic_does_not_fail_for_its_bits(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    repository.write(0.0, more=DRAWS)
    repository.commit("draws")
    ended = gate(repository, *LOUDER, "--bits", "--json")
    assert ended.code == 3, ended.out
    assert (measured(ended)["same_bits"], measured(ended)["is_repeatable"]) == (False, False)


@pytest.mark.nightly
def test_a_bisection_finds_commits_past_a_broken_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that made it slower, and the one that changed the losses; the working tree is like none."""
    # The five comparisons share this error, so that each errs no more often than a gate does.
    monkeypatch.setattr(bisect, "ALPHA", 0.25)
    repository = Repository(tmp_path / "repository")
    repository.git("tag", "good")
    history = [
        ("words", 0.0, "# a word\n"),
        ("other", 0.0, OTHER),
        ("more", 0.0, OTHER + "# more words\n"),
        ("broken", 0.0, OTHER + BROKEN),
        ("mended", 0.0, OTHER + "# mended\n"),
        ("slow", 3.0, OTHER),
        ("last", 3.0, OTHER + "# many more words\n"),
    ]
    for name, slower, more in history:
        repository.write(slower, more)
        repository.commit(name)
        repository.git("tag", name)
    repository.write(6.0)
    sweep = str(repository.sweep)

    ended = harness("bisect", "words", "last", sweep, "--min-effect", "50%", "--budget", "10s")
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

    ended = harness("bisect", "good", "mended", sweep, "--bits", "--json")
    assert ended.code == 0, ended.err + ended.out
    outcome = json.loads(ended.out)
    assert [suspect["subject"] for suspect in outcome["suspects"]] == ["other"]
    assert outcome["against_parent"]["steps"] == 20


@pytest.mark.nightly
def test_comparisons_of_a_certificate_are_kept_and_gone_on_with(tmp_path: Path) -> None:
    repository, results = Repository(tmp_path / "repository"), tmp_path / "results"
    command = ["certify", str(repository.sweep), "--results", str(results), "--budget", "300ms"]
    done: list[Any] = []
    for count in (1, 2, 2):
        ended = harness(*command, "--comparisons", str(count))
        assert ended.code == 0, ended.err + ended.out
        (path,) = (results / "certificates").iterdir()
        comparisons = json.loads(path.read_text(encoding="utf-8"))["comparisons"]
        assert len(comparisons) == count
        assert comparisons[: len(done)] == done
        done = comparisons
    assert done[1]["ended"] > done[0]["ended"]
    assert done[1]["pairs"] >= 1
    assert processes_below(tmp_path) == []
