"""What `harness bisect` makes of verdicts, over the commits of a real repository; no rank starts
here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest

from harness.core.errors import BadInput, HarnessError, Inconclusive
from harness.core.paths import Results
from harness.core.worktree import Tree
from harness.gate import bisect as module
from harness.gate import judge as judging
from harness.gate.arms import ArmTurn, TrainingArm
from harness.gate.bisect import BisectOptions, BisectOutcome, bisect
from harness.gate.history import resolve_ends
from harness.gate.judge import BisectFinding, SpeedJudge, TrainingSetup, classify
from harness.gate.paired import Budget, PairedResult
from harness.records.store import write_spec
from harness.render import bisect as view
from harness.spec.cluster import Profile
from harness.spec.sweep import load_sweep
from tests.factories import make_cell
from tests.support.commands import harness
from tests.support.repository import Repository

REAL_MAKE_JUDGE = module.make_judge


class Reading:
    """Takes a commit for what its file `mark` says."""

    def classify(self, good: Tree, tree: Tree, bad: Tree) -> BisectFinding:
        return self.compare(good, tree)

    def compare(self, a: Tree, b: Tree) -> BisectFinding:
        before, now = (
            (tree.path / "mark").read_text(encoding="utf-8").split()[0] for tree in (a, b)
        )
        if now == "broken":
            raise HarnessError(f"{b.name}: its ranks did not start")
        if now == "interrupts":
            raise KeyboardInterrupt
        return BisectFinding(
            mark="good" if now == before else "skip" if now == "noisy" else "bad", description=now
        )

    def narrowed(self, bad: BisectFinding) -> Self:
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
    sweep = load_sweep(repository.sweep)
    what = BisectOptions(good=good, bad=bad, **asked)
    return bisect(sweep, sweep.cells[0], Profile(device="cpu"), what, repository.path, Heard())


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
    good, bad = resolve_ends(repository.path, "HEAD~1", "HEAD")
    assert (good.subject, bad.subject) == ("number 0", "number 1")
    assert bad.id == repository.git("rev-parse", "HEAD")


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
        Reading, "compare", lambda self, a, b: BisectFinding(mark="bad", description="other losses")
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
            "against_parent": BisectFinding(mark="good", description="as fast, to within 1.0%"),
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
        (["0", "1", "--cell", "fast"], "--cell fast: no such cell in"),
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
    wrong = harness("bisect", "0", "2", "--cell", f"{sweep.cells[0].id}0", *more)
    assert wrong.code == 2
    assert f"did you mean '{sweep.cells[0].id}'?" in wrong.err


def test_bad_itself_may_be_the_first_bad_commit(repository: Repository) -> None:
    write(repository, "fast fast slow")
    assert subjects(search(repository, "0", "2")) == ["number 2"]


def speed_judge(**changes: Any) -> SpeedJudge:
    """A judge that has nothing to train."""
    setup = TrainingSetup(
        cell=make_cell(),
        seed=0,
        base=Path(),
        profile=Profile(device="cpu"),
        on_progress=lambda words: None,
    )
    judge = SpeedJudge(
        setup=setup, min_effect=0.01, seconds=5.0, alpha=0.01, rng=np.random.default_rng(0)
    )
    return replace(judge, **changes)


TREE = Tree(name="a", top=Path(), path=Path())


def test_an_end_that_is_certainly_not_slower_is_good_however_fast(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured = PairedResult(
        verdict="inconclusive", ratio=0.81, low=0.8, high=0.82, whole_turns_pass=True
    )
    monkeypatch.setattr(judging, "measure", lambda *_: measured)
    found = speed_judge(min_effect=0.25).compare(TREE, TREE)
    assert found.mark == "good"
    assert found.description == "not slower by 25.0% (-20.0% to -18.0%)"


def test_an_end_whose_whole_turns_may_be_slower_is_not_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its undisturbed steps are as fast, but a few others may not be."""
    measured = PairedResult(verdict="inconclusive", ratio=1.0, low=0.999, high=1.001)
    monkeypatch.setattr(judging, "measure", lambda *_: measured)
    found = speed_judge(min_effect=0.01).compare(TREE, TREE)
    assert found.mark == "skip"


def test_the_ends_are_measured_until_half_of_the_loss_is_certain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    budgets: list[Budget] = []

    def measure(*arguments: Any) -> PairedResult:
        budgets.extend(argument for argument in arguments if isinstance(argument, Budget))
        return PairedResult(verdict="slower", ratio=0.81, low=0.8, high=0.82)

    monkeypatch.setattr(judging, "measure", measure)
    found = speed_judge().compare(TREE, TREE)
    assert (found.mark, found.description) == ("bad", "19.0% slower (-20.0% to -18.0%)")
    assert [budget.certain_share for budget in budgets] == [0.5]


def test_an_end_that_is_slower_as_a_whole_only_is_looked_at_as_a_whole() -> None:
    whole = PairedResult(
        verdict="slower",
        by_whole_turns=True,
        ratio=1.0,
        high=1.01,
        whole_ratio=0.9,
        whole_high=0.95,
    )
    fast = PairedResult(verdict="slower", ratio=0.9, high=0.95, whole_ratio=0.9, whole_high=0.95)
    for measured, expected in ((whole, True), (fast, False)):
        finding = BisectFinding(mark="bad", description="", measurement=measured)
        assert speed_judge().narrowed(finding).by_whole_turns is expected


class Noisy:
    """Pairs of trees that are slower by what their file `mark` says, in per cent.

    Takes the place of `PairStarter`. A process is faster or slower by `luck` for as long as it
    lives, and one in ten by far more, as on a machine that others use.
    """

    rng = np.random.default_rng(0)
    luck = 0.03
    started = 0  # pairs

    def __init__(self, cell: Any, seed: int, trees: Mapping[str, Tree], *_: object) -> None:
        self.trees = trees

    def __enter__(self) -> Noisy:
        return self

    def __exit__(self, *_: object) -> None: ...

    @contextmanager
    def pair(self, keys: Sequence[str]) -> Iterator[dict[str, TrainingArm]]:
        type(self).started += 1
        yield {key: NoisyArm(self._step_seconds(self.trees[key])) for key in keys}

    def _step_seconds(self, tree: Tree) -> float:
        slower = float((tree.path / "mark").read_text(encoding="utf-8").split()[0])
        luck = self.rng.normal(0, self.luck) + (self.rng.random() < 0.1) * self.rng.exponential(0.1)
        return 0.005 * (1 + slower / 100) * math.exp(luck)


class NoisyArm(TrainingArm):
    def __init__(self, step_seconds: float) -> None:
        super().__init__("a tree", Path("log"))
        self.step_seconds = step_seconds

    def train(self, steps: int) -> ArmTurn:
        seconds = [self.step_seconds] * steps
        total = sum(seconds)
        return ArmTurn(seconds=seconds, reported=[total], elapsed=[total], delay=0.0, losses="")


@pytest.fixture
def noisy(monkeypatch: pytest.MonkeyPatch) -> type[Noisy]:
    """Real judges, on a machine that is made up."""
    monkeypatch.setattr(module, "make_judge", REAL_MAKE_JUDGE)
    monkeypatch.setattr(judging, "PairStarter", Noisy)
    monkeypatch.setattr("harness.gate.paired.PairStarter", Noisy)
    monkeypatch.setattr(Noisy, "rng", np.random.default_rng(1))
    monkeypatch.setattr(Noisy, "started", 0)
    return Noisy


@pytest.mark.parametrize("first", [1, 4, 8])
def test_eight_commits_of_which_one_is_slower_are_told_apart_in_noise(
    repository: Repository, noisy: type[Noisy], first: int
) -> None:
    write(repository, "0 " * first + "27 " * (9 - first))  # 27% more time: 21% slower
    found = search(repository, "0", "8", budget_seconds=30.0, order_seed=0)
    assert subjects(found) == [f"number {first}"]
    assert found.exit_code == 0
    assert found.count_marked("skip") == 0
    assert noisy.started * 2.5 < 300  # seconds, with starting


def test_of_many_small_regressions_one_is_named_and_no_commit_is_skipped(
    repository: Repository, noisy: type[Noisy]
) -> None:
    """A commit in the very middle belongs to neither end for certain: the likelier is taken."""
    write(repository, "0 3 6 9 12 15 18 21 24")
    found = search(repository, "0", "8", budget_seconds=30.0, order_seed=0)
    assert found.count_marked("skip") == 0
    assert len(found.suspects) == 1
    assert 3 <= int(found.suspects[0].subject.split()[1]) <= 6


@pytest.mark.nightly
def test_a_commit_that_is_uncertain_gets_the_likelier_class(noisy: type[Noisy]) -> None:
    """Simulated classifications of commits at an end are right as often as they say."""
    rng = np.random.default_rng(2)
    wrong, uncertain = 0, 0
    for number in range(60):
        slow = number % 2
        factors = {"good": 1.0, "revision": 1 + 0.08 * slow, "bad": 1.08}

        @contextmanager
        def pair(
            keys: Sequence[str], factors: Mapping[str, float] = factors
        ) -> Iterator[dict[str, TrainingArm]]:
            yield {
                key: NoisyArm(0.005 * factors[key] * math.exp(rng.normal(0, 0.05))) for key in keys
            }

        budget = Budget(min_effect=0.01, seconds=3.0, alpha=0.01)
        found = classify(make_cell(), pair, budget, rng, by_whole_turns=False)
        wrong += found.is_bad != bool(slow)
        uncertain += not found.is_certain
        assert found.is_certain is False or found.is_bad is bool(slow)
    assert uncertain > 15
    assert wrong < 6
