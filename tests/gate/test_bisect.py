"""What `harness bisect` makes of verdicts, over the commits of a real repository; no rank starts
here.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest

from harness.core.errors import BadInput, HarnessError, Inconclusive
from harness.core.paths import Results
from harness.gate import bisect as module
from harness.gate import judge as judging
from harness.gate.bisect import BisectOptions, BisectOutcome, bisect
from harness.gate.judge import Finding, SpeedJudge, TrainingSetup
from harness.gate.paired import Budget, PairedResult, SpeedVerdict
from harness.gate.worktree import Tree
from harness.records.store import write_spec
from harness.render.terminal import bisect as view
from harness.spec.cluster import Profile
from harness.spec.sweep import load_sweep
from tests.factories import make_cell
from tests.support.commands import harness
from tests.support.repository import Repository


class Reading:
    """Takes a commit for what its file `mark` says."""

    def __call__(self, a: Tree, b: Tree) -> Finding:
        before, now = (
            (tree.path / "mark").read_text(encoding="utf-8").split()[0] for tree in (a, b)
        )
        if now == "broken":
            raise HarnessError(f"{b.name}: its ranks did not start")
        if now == "interrupts":
            raise KeyboardInterrupt
        return Finding(
            mark="good" if now == before else "skip" if now == "noisy" else "bad", description=now
        )

    def narrowed(self, bad: Finding) -> Self:
        return self


class Heard:
    def on_comparison_start(self, what: str) -> None: ...

    def on_progress(self, words: str) -> None: ...

    def on_step_end(self, step: module.Step) -> None: ...


@pytest.fixture(autouse=True)
def read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "make_judge", lambda asked, bench, comparisons: Reading())


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


def write(repository: Repository, words: str) -> None:
    """A commit for each word, that changes nothing else: `0`, `1`, … are their tags."""
    for number, word in enumerate(words.split()):
        (repository.path / "mark").write_text(f"{word} {number}\n", encoding="utf-8")
        repository.commit(f"number {number}")
        repository.git("tag", str(number))


def search(repository: Repository, good: str, bad: str, **asked: Any) -> BisectOutcome:
    sweep = load_sweep(repository.sweep)
    what = BisectOptions(good=good, bad=bad, **asked)
    return bisect(sweep, sweep.cells[0], Profile(device="cpu"), what, repository.path, Heard())


def subjects(found: BisectOutcome) -> list[str]:
    return sorted(one.subject for one in found.suspects)


@pytest.mark.parametrize("first", [1, 4, 8])
def test_the_first_bad_commit_is_found_wherever_it_is(repository: Repository, first: int) -> None:
    write(repository, "fast " * first + "slow " * (9 - first))
    found = search(repository, "0", "8")
    assert subjects(found) == [f"number {first}"]
    assert found.exit_code == 0
    assert len(found.steps) <= 1 + 4  # BAD, and the logarithm of 8 commits


def test_what_cannot_be_tried_is_skipped_and_leaves_suspects(repository: Repository) -> None:
    write(repository, "fast fast broken noisy slow slow")
    found = search(repository, "0", "5")
    assert subjects(found) == ["number 2", "number 3", "number 4"]
    assert (found.against_parent, found.exit_code) == (None, 3)
    first, *listed, _ = view.lines(found)
    assert first == "The first bad commit is one of these 3:"
    assert any("its ranks did not start" in line for line in listed)


def test_broken_commits_elsewhere_do_no_harm(repository: Repository) -> None:
    write(repository, "fast fast slow slow broken slow slow slow")
    assert subjects(search(repository, "0", "7")) == ["number 2"]


def test_a_merge_is_one_change_along_first_parents(repository: Repository) -> None:
    write(repository, "fast fast")
    repository.git("checkout", "--quiet", "-b", "side")
    (repository.path / "mark").write_text("slow\n", encoding="utf-8")
    repository.commit("on the side")
    repository.git("checkout", "--quiet", "main")
    repository.git("merge", "--quiet", "--no-ff", "--message", "the merge", "side")
    assert subjects(search(repository, "0", "main")) == ["on the side"]
    assert subjects(search(repository, "0", "main", first_parent=True)) == ["the merge"]


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
    with pytest.raises(
        BadInput, match=r"^BAD 1 against GOOD 0: fast; allowed: a revision that is slower$"
    ):
        search(repository, "0", "1")
    with pytest.raises(Inconclusive, match=r"^BAD 2 against GOOD 0: noisy; allow more time"):
        search(repository, "0", "2")
    with pytest.raises(HarnessError, match="its ranks did not start"):
        search(repository, "0", "3")


def test_losses_that_are_never_the_same_tell_nothing(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        Reading, "__call__", lambda self, a, b: Finding(mark="bad", description="other losses")
    )
    write(repository, "fast slow")
    with pytest.raises(Inconclusive, match="GOOD 0: found other losses whenever it trains"):
        search(repository, "0", "1", compare_bits=True)


def test_a_commit_that_is_not_bad_against_its_parent_is_not_certain(repository: Repository) -> None:
    write(repository, "fast fast slow slow")
    found = search(repository, "0", "3")
    doubted = BisectOutcome(
        **{
            **vars(found),
            "against_parent": Finding(mark="good", description="as fast, to within 1.0%"),
        }
    )
    assert doubted.exit_code == 3
    assert "against its parent: as fast, to within 1.0%; so it is not certain" in "\n".join(
        view.lines(doubted)
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nope", "1"], "GOOD nope: no such revision"),
        (["0", "nope"], "BAD nope: no such revision"),
        (["0", "0"], "BAD 0: found the same commit as GOOD 0"),
        (["1", "0"], "GOOD 1: found no ancestor of BAD 0 (did you mean them the other way round?)"),
        (["0", "1", "--cell", "slowed"], "--cell slowed: no such cell in"),
    ],
)
def test_bad_input_is_one_line(repository: Repository, arguments: list[str], words: str) -> None:
    write(repository, "fast slow")
    found = harness("bisect", *arguments[:2], str(repository.sweep), *arguments[2:])
    assert found.code == 2
    assert found.err.count("\n") == 1
    assert words in found.err


def test_a_cell_is_looked_for_among_sweeps_that_have_run(
    repository: Repository, tmp_path: Path
) -> None:
    write(repository, "fast slow slow")
    sweep = load_sweep(repository.sweep)
    results = Results(tmp_path / "results")
    write_spec(sweep, results.sweep_folder(sweep.name))
    more = ("--results", str(results.path))
    found = harness("bisect", "0", "2", "--cell", sweep.cells[0].id, "--json", *more)
    assert found.code == 0, found.err
    told = json.loads(found.out)
    assert [one["subject"] for one in told["suspects"]] == ["number 1"]
    assert [step["commit"]["subject"] for step in told["steps"]] == ["number 2", "number 1"]
    wrong = harness("bisect", "0", "2", "--cell", sweep.cells[0].id[:-1], *more)
    assert wrong.code == 2
    assert f"did you mean '{sweep.cells[0].id}'?" in wrong.err


class TestSlower:
    def judge(
        self, monkeypatch: pytest.MonkeyPatch, *words: SpeedVerdict
    ) -> tuple[SpeedJudge, list[Budget]]:
        """One for which measuring gives these words, and the budgets that it measured with."""
        left, budgets = list(words), []

        def measure(
            cell: Any, seed: int, trees: Any, base: Path, profile: Any, budget: Budget, *_: object
        ) -> PairedResult:
            budgets.append(budget)
            return PairedResult(verdict=left.pop(0), ratio=0.81, low=0.8, high=0.82)

        monkeypatch.setattr(judging, "measure", measure)
        bench = TrainingSetup(
            cell=make_cell(),
            seed=0,
            base=Path(),
            profile=Profile(device="cpu"),
            on_progress=lambda words: None,
        )
        return SpeedJudge(
            setup=bench, min_effect=0.01, seconds=5.0, alpha=0.01, rng=np.random.default_rng(0)
        ), budgets

    def test_what_cannot_be_told_is_measured_longer_once(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tree = Tree(name="a", top=Path(), path=Path())
        judge, budgets = self.judge(
            monkeypatch, "inconclusive", "slower", "inconclusive", "inconclusive", "faster"
        )
        assert [judge(tree, tree).mark for _ in range(3)] == ["bad", "skip", "good"]
        assert [budget.seconds for budget in budgets] == [5.0, 15.0, 5.0, 15.0, 5.0]

    def test_what_is_certainly_not_slower_is_good_however_fast(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tree = Tree(name="a", top=Path(), path=Path())
        judge, budgets = self.judge(monkeypatch, "inconclusive")
        found = replace(judge, min_effect=0.25)(tree, tree)
        assert (found.mark, len(budgets)) == ("good", 1)
        assert found.description == "not slower by 25.0% (-20.0% to -18.0%)"

    def test_between_the_ends_half_of_the_certain_loss_is_the_line(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tree = Tree(name="a", top=Path(), path=Path())
        judge, _ = self.judge(monkeypatch, "slower")
        found = judge(tree, tree)
        assert found.description == "19.0% slower (-20.0% to -18.0%)"
        assert 1 - judge.narrowed(found).min_effect == pytest.approx(math.sqrt(0.82))
