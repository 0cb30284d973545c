"""What `harness bisect` makes of verdicts, over the commits of a real repository; no rank starts
here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.core.errors import BadInput, HarnessError, Inconclusive
from harness.core.worktree import Tree
from harness.gate import bisect as module
from harness.gate.arms import TrainingArm
from harness.gate.bisect import (
    BisectOptions,
    BisectOutcome,
    Finding,
    Judge,
    bisect,
    describe_commit,
)
from harness.gate.paired import Budget, PairedResult
from harness.statistics.sequential import SpeedVerdict
from harness.sweep.cluster import Profile, ValidityRules
from harness.sweep.sweep import load_sweep
from harness.view import gate as view
from tests.gate.test_paired import Machine, Simulated
from tests.support.commands import harness
from tests.support.repository import Repository

REAL_COMPARE = Judge.compare


def read(judge: Judge, good: Tree, tree: Tree, ends: Finding | None = None) -> Finding:
    """Take a commit for what its file `mark` says."""
    before, now = (
        (folder.path / "mark").read_text(encoding="utf-8").split()[0] for folder in (good, tree)
    )
    if now == "broken":
        raise HarnessError(f"{tree.name}: its ranks did not start")
    if now == "interrupts":
        raise KeyboardInterrupt
    verdict: SpeedVerdict = "inconclusive" if now == "noisy" else "same"
    if now == "slow" and before != "slow":
        verdict = "slower"
    measured = PairedResult(verdict=verdict, ratio=0.5 if now == "slow" else 1.0)
    return Finding(mark="bad" if verdict == "slower" else "good", measured=measured)


@pytest.fixture(autouse=True)
def reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Judge, "compare", read)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


def write(repository: Repository, words: str) -> None:
    """A commit for each word, that changes nothing else: `0`, `1`, … are their tags."""
    commits = ""
    parent = "refs/heads/main^0"
    for number, word in enumerate(words.split()):
        commits += (
            f"commit refs/heads/main\nmark :{number + 1}\ncommitter Test <test@localhost> now\n"
            f"data <<END\nnumber {number}\nEND\nfrom {parent}\n"
            f"M 100644 inline mark\ndata <<END\n{word} {number}\nEND\n"
            f"reset refs/tags/{number}\nfrom :{number + 1}\n"
        )
        parent = f":{number + 1}"
    repository.git("fast-import", "--quiet", "--date-format=now", sent=commits)
    repository.git("reset", "--quiet", "--hard")


def search(repository: Repository, good: str, bad: str, **asked: Any) -> BisectOutcome:
    options = BisectOptions(good=good, bad=bad, **asked)
    profile = Profile(device="cpu", validity=ValidityRules(contention=None))
    return bisect(load_sweep(repository.sweep), profile, options, lambda step: None)


def sign_head(repository: Repository) -> None:
    """Replace the last commit by one with a signature, which no key has made."""
    headers, message = repository.git("cat-file", "commit", "HEAD").split("\n\n", 1)
    signature = "gpgsig -----BEGIN SSH SIGNATURE-----\n -----END SSH SIGNATURE-----"
    signed = f"{headers}\n{signature}\n\n{message}\n"
    commit = repository.git("hash-object", "-t", "commit", "-w", "--stdin", sent=signed)
    repository.git("reset", "--quiet", "--hard", commit)


def subjects(found: BisectOutcome) -> list[str]:
    return sorted(one.subject for one in found.suspects)


def test_commits_are_read_where_git_shows_signatures(repository: Repository) -> None:
    write(repository, "fast slow")
    sign_head(repository)
    repository.git("config", "log.showSignature", "true")
    commit = describe_commit(repository.path, "HEAD")
    assert (commit.subject, commit.id) == ("number 1", repository.git("rev-parse", "HEAD"))


@pytest.mark.parametrize("first", [1, 4, 8])
def test_the_first_bad_commit_is_found_wherever_it_is(repository: Repository, first: int) -> None:
    write(repository, "fast " * first + "slow " * (9 - first))
    found = search(repository, "0", "8")
    assert subjects(found) == [f"number {first}"]
    assert found.exit_code == 0
    assert len(found.steps) <= 1 + 4  # BAD, and the logarithm of 8 commits


def test_what_cannot_be_tried_is_skipped_and_leaves_suspects(repository: Repository) -> None:
    write(repository, "fast fast broken broken slow slow")
    found = search(repository, "0", "5")
    assert subjects(found) == ["number 2", "number 3", "number 4"]
    assert (found.against_parent, found.exit_code) == (None, 3)
    assert view.bisect_view(found).lines[0] == "The first bad commit is one of these 3:"
    assert any("its ranks did not start" in str(step.finding.failure) for step in found.steps)


def test_a_merge_is_one_change_along_first_parents(repository: Repository) -> None:
    write(repository, "fast fast")
    repository.git("checkout", "--quiet", "-b", "side")
    (repository.path / "mark").write_text("slow\n", encoding="utf-8")
    repository.commit("on the side")
    repository.git("checkout", "--quiet", "main")
    repository.git("merge", "--quiet", "--no-ff", "--message", "the merge", "side")
    assert subjects(search(repository, "0", "main")) == ["the merge"]


@pytest.mark.parametrize("word", ["slow", "interrupts"])
def test_the_users_checkout_and_bisect_stay_as_they_are(repository: Repository, word: str) -> None:
    write(repository, f"fast fast {word} {word} slow")
    repository.git("bisect", "start", "3", "1")
    repository.write(0.5)
    (repository.path / "new").touch()
    asked = (["status"], ["bisect", "log"], ["worktree", "list"], ["for-each-ref"], ["diff"])
    before = [repository.git(*words) for words in asked]
    if word == "interrupts":
        with pytest.raises(KeyboardInterrupt):
            search(repository, "0", "4")
    else:
        assert subjects(search(repository, "0", "4")) == ["number 2"]
    assert [repository.git(*words) for words in asked] == before


def test_ends_between_which_there_is_nothing_to_find(repository: Repository) -> None:
    write(repository, "fast fast noisy broken")
    refusals: list[tuple[str, type[Exception], str]] = [
        (
            "1",
            BadInput,
            "^BAD 1 against GOOD 0: found as fast; allowed: a revision that is slower$",
        ),
        ("2", Inconclusive, "^BAD 2 against GOOD 0: 0 s of measuring gave no certain"),
        ("3", HarnessError, "its ranks did not start"),
    ]
    for bad, error, message in refusals:
        with pytest.raises(error, match=message):
            search(repository, "0", bad)


def test_losses_that_are_never_the_same_tell_nothing(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Judge, "compare", lambda *_: Finding(mark="bad", steps=20))
    write(repository, "fast slow")
    with pytest.raises(Inconclusive, match="GOOD 0: found other losses whenever it trains"):
        search(repository, "0", "1", compare_bits=True)


def test_a_commit_that_is_not_bad_against_its_parent_is_not_certain(repository: Repository) -> None:
    write(repository, "fast fast slow slow")
    found = search(repository, "0", "3")
    same = Finding(mark="good", measured=PairedResult(verdict="same"))
    doubted = BisectOutcome(**{**vars(found), "against_parent": same})
    assert doubted.exit_code == 3
    *_, against_parent, _ = map(str, view.bisect_view(doubted).lines)
    assert against_parent.startswith("against its parent: same, ")
    assert against_parent.endswith("; so it is not certain that this is the commit")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nope", "1"], "GOOD nope: no such revision"),
        (["0", "nope"], "BAD nope: no such revision"),
        (["0", "0"], "BAD 0: found the same commit as GOOD 0"),
        (["1", "0"], "GOOD 1: found no ancestor of BAD 0 (did you mean them the other way round?)"),
        (["0", "1", "--only", "cell=fast"], "--only 'cell=fast': found 'fast'; "),
    ],
)
def test_bad_input_is_one_line(repository: Repository, arguments: list[str], words: str) -> None:
    write(repository, "fast slow")
    found = harness("bisect", *arguments[:2], str(repository.sweep), *arguments[2:])
    assert found.code == 2
    assert found.err.count("\n") == 1
    assert words in found.err


def test_a_commit_is_measured_against_half_of_the_loss_between_the_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    budgets: list[Budget] = []

    def measure(*arguments: Any) -> PairedResult:
        budgets.extend(argument for argument in arguments if isinstance(argument, Budget))
        return PairedResult(verdict="inconclusive", ratio=0.89, low=0.8, high=1.1)

    monkeypatch.setattr(module, "measure", measure)
    sweep = load_sweep(Repository(tmp_path).sweep)
    judge = Judge(
        sweep=sweep,
        cell=sweep.cells[0],
        profile=Profile(device="cpu"),
        options=BisectOptions(good="0", bad="8"),
        alpha=0.01,
    )
    tree = Tree(name="a", top=Path(), path=Path())
    ends = Finding(mark="bad", measured=PairedResult(verdict="slower", ratio=0.8))
    REAL_COMPARE(judge, tree, tree)
    found = REAL_COMPARE(judge, tree, tree, ends)
    assert [budget.certain_share for budget in budgets] == [0.5, 0.0]
    assert [budget.min_effect for budget in budgets] == pytest.approx([0.01, 0.1])
    assert (found.mark, found.is_certain) == ("bad", False)


class Noisy:
    """Pairs of trees that are slower by what their file `mark` says, in per cent.

    Takes the place of `pair_starter`. A process is faster or slower by luck for as long as it
    lives, and one in ten by far more, as on a machine that others use.
    """

    machine = Machine(rng=np.random.default_rng(1), noise=0.0)
    started = 0  # pairs

    def __init__(self, sweep: Any, cell: Any, trees: Mapping[str, Tree], *_: object) -> None:
        self.trees = trees

    def __enter__(self) -> Noisy:
        return self

    def __exit__(self, *_: object) -> None: ...

    @contextmanager
    def pair(self, keys: Sequence[str]) -> Iterator[dict[str, TrainingArm]]:
        type(self).started += 1
        yield {key: Simulated(self.machine, key, self._factor(self.trees[key])) for key in keys}

    def _factor(self, tree: Tree) -> float:
        rng = self.machine.rng
        slower = float((tree.path / "mark").read_text(encoding="utf-8").split()[0])
        luck = rng.normal(0, 0.03) + (rng.random() < 0.1) * rng.exponential(0.1)
        return (1 + slower / 100) * math.exp(luck)


def test_eight_commits_of_which_one_is_slower_are_told_apart_in_noise(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Judge, "compare", REAL_COMPARE)
    monkeypatch.setattr("harness.gate.paired.pair_starter", Noisy)
    write(repository, "0 " * 4 + "27 " * 5)  # 27% more time: 21% slower
    found = search(repository, "0", "8", budget_seconds=30.0)
    assert subjects(found) == ["number 4"]
    assert found.exit_code == 0
    assert Noisy.started < 120  # pairs
