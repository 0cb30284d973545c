"""`harness bisect GOOD BAD`: finds the commit that made a cell slower, or changed its losses.

A binary search over the commits between the ends, along first parents. Every commit is compared with
GOOD, and never with its neighbor, so a series of small regressions can't hide between neighbors. It is
bad if it is slower by at least half of the loss between the ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.core.errors import BadInput, HarnessError, Inconclusive
from harness.core.progress import progress_of, report_progress
from harness.core.scratch import ScratchFolder
from harness.core.worktree import Tree, checked_out, find_repository, resolve_commit, run_git
from harness.gate.against import repository_folder
from harness.gate.paired import Budget, PairedResult, measure
from harness.gate.pairs import compare_losses
from harness.launch.hold import hold_machine
from harness.statistics.verdict import ALPHA
from harness.sweep.cell import Cell
from harness.sweep.cluster import Profile
from harness.sweep.sweep import Sweep

FORMAT = "%H%x00%h%x00%an <%ae>%x00%aI%x00%s"  # of `git show`: the fields of a `Commit`, in order
CERTAIN_SHARE = 0.5  # of the loss between the ends
Mark = Literal["good", "bad", "skip"]


@dataclass(frozen=True, kw_only=True)
class Commit:
    """A commit, as git shows it."""

    id: str
    short: str  # as much of the id as is unambiguous
    author: str
    date: str  # ISO 8601
    subject: str


@dataclass(frozen=True, kw_only=True)
class BisectOptions:
    """The options of `harness bisect`, with the defaults of the command line."""

    good: str  # a revision
    bad: str  # a revision
    min_effect: float = 0.01  # smallest change of throughput that matters, a fraction
    budget_seconds: float = 30.0  # of measuring, for each commit
    compare_bits: bool = False  # whether to look for other losses instead of speed


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a comparison of two revisions found about the later one."""

    mark: Mark  # `skip`: it could not be judged
    measured: PairedResult | None = None  # its speed, if that was compared
    steps: int | None = None  # that were trained to compare losses
    failure: str | None = None

    @property
    def is_certain(self) -> bool:
        """Whether the mark is more than the likelier of good and bad."""
        return self.measured is None or self.measured.verdict != "inconclusive"

    @property
    def ratio(self) -> float | None:
        """The throughput of the later revision over that of the other, None if it was not measured."""
        return None if self.measured is None else self.measured.ratio


@dataclass(frozen=True, kw_only=True)
class Step:
    """A commit that was compared with GOOD."""

    commit: Commit
    finding: Finding


@dataclass(frozen=True, kw_only=True)
class BisectOutcome:
    """The result of a bisect.

    It has the first bad commit, or several suspects if commits between them could not be tried.
    """

    options: BisectOptions
    cell: Cell
    steps: Sequence[Step]
    suspects: Sequence[Commit]  # the first bad commit is one of them
    against_parent: Finding | None  # the only suspect against its own parent

    @property
    def exit_code(self) -> int:
        """0 for a commit that is certainly bad against its own parent too, else 3."""
        parent = self.against_parent
        if parent is None or parent.mark != "bad" or not parent.is_certain:
            return 3
        return 0


@dataclass(frozen=True, kw_only=True)
class Judge:
    """Tells good commits from bad ones by training a cell of both in turn."""

    sweep: Sweep
    cell: Cell
    profile: Profile
    options: BisectOptions
    alpha: float  # the allowed chance of an error in a comparison

    def compare(self, good: Tree, tree: Tree, ends: Finding | None = None) -> Finding:
        """Return what is found of a tree; `ends` is the finding on BAD, once that is known.

        Raises HarnessError if a rank fails.
        """
        trees = {"a": good, "b": tree}
        if self.options.compare_bits:
            return self._compare_losses(trees, ends)
        return self._compare_speed(trees, ends)

    def _compare_losses(self, trees: Mapping[str, Tree], ends: Finding | None) -> Finding:
        """Train the ends until their losses differ, and other commits as many steps."""
        is_same, steps = compare_losses(
            self.sweep,
            self.cell,
            trees,
            self.profile,
            seconds=self.options.budget_seconds,
            max_steps=None if ends is None else ends.steps,
        )
        return Finding(mark="good" if is_same else "bad", steps=steps)

    def _compare_speed(self, trees: Mapping[str, Tree], ends: Finding | None) -> Finding:
        """Measure the ends until half of the loss of throughput between them is certain.

        Other commits are measured against half of that loss.
        """
        min_effect = self.options.min_effect
        certain_share = CERTAIN_SHARE
        if ends is not None and ends.ratio is not None:
            min_effect = (1 - ends.ratio) / 2
            certain_share = 0.0
        budget = Budget(
            min_effect=min_effect,
            seconds=self.options.budget_seconds,
            alpha=self.alpha,
            certain_share=certain_share,
        )
        measured = measure(self.sweep, self.cell, trees, self.profile, budget)
        is_slower = measured.verdict == "slower"
        if measured.verdict == "inconclusive":
            # One commit near the middle does not end the search: the likelier mark is taken, and the
            # commit that is found is compared with its parent.
            ratio = measured.ratio or 1
            is_slower = ratio < 1 - min_effect
        return Finding(mark="bad" if is_slower else "good", measured=measured)


def bisect(
    sweep: Sweep,
    profile: Profile,
    options: BisectOptions,
    on_step: Callable[[Step], None],
) -> BisectOutcome:
    """Find the first bad commit after GOOD up to BAD for the sweep's only cell.

    A commit that fails is skipped; an uncertain one gets the more likely mark, and the commit that is
    found must be bad against its own parent too. `on_step` gets each commit that was compared. Raises
    BadInput for a sweep of several cells and if BAD is not bad, Inconclusive if that is uncertain,
    HarnessError if an end fails.
    """
    cell = only_cell(sweep)
    repository = find_repository(repository_folder(sweep))
    commits = commits_between(repository, options.good, options.bad)
    judge = Judge(
        sweep=sweep,
        cell=cell,
        profile=profile,
        options=options,
        # An error in any comparison misleads the whole search, so they share ALPHA.
        alpha=ALPHA / (2 + len(commits).bit_length()),
    )
    steps: list[Step] = []
    with (
        hold_machine(profile, f"measuring commits for {sweep.name}"),
        ScratchFolder("bisect") as scratch,
        checked_out(repository, options.good, scratch.path / "good") as good,
    ):

        def compare(index: int, ends: Finding | None) -> Finding:
            """Check a commit out, and return what is found of it against GOOD.

            BAD, without `ends`, has to be bad; any other commit may fail.
            """
            commit = describe_commit(repository, commits[index])
            # At its own path, so that Python's caches have nothing of other commits.
            with (
                progress_of(f"{commit.short} against {options.good}"),
                checked_out(repository, commit.id, scratch.path / commit.id) as tree,
            ):
                report_progress("starting")
                if ends is None:
                    finding = _compare_ends(judge, good, tree)
                else:
                    finding = _try(judge, good, tree, ends)
            step = Step(commit=commit, finding=finding)
            steps.append(step)
            on_step(step)
            return finding

        ends = compare(len(commits) - 1, None)
        indices = find_suspects(len(commits), lambda index: compare(index, ends).mark)
        suspects = [describe_commit(repository, commits[index]) for index in indices]
        against_parent = None
        if len(suspects) == 1:
            (suspect,) = suspects
            against_parent = _compare_with_parent(judge, repository, scratch.path, suspect)
    return BisectOutcome(
        options=options,
        cell=cell,
        steps=steps,
        suspects=suspects,
        against_parent=against_parent,
    )


def only_cell(sweep: Sweep) -> Cell:
    """Return the only cell of a sweep; raises BadInput for one that has several."""
    if len(sweep.cells) == 1:
        return sweep.cells[0]
    cell_id = sweep.cells[0].id
    raise BadInput(
        f"{sweep.source}: found {len(sweep.cells)} cells; allowed: one, as with --only cell={cell_id}"
    )


def find_suspects(count: int, try_commit: Callable[[int], Mark]) -> range:
    """Return the indices of the commits that may be the first bad one of `count`, the last of them bad.

    It is one commit unless commits next to it are skipped.
    """
    last_good, first_bad = -1, count - 1
    skipped: set[int] = set()
    while True:
        between = range(last_good + 1, first_bad)
        untried = [index for index in between if index not in skipped]
        if not untried:
            return range(last_good + 1, first_bad + 1)
        middle = untried[len(untried) // 2]
        mark = try_commit(middle)
        if mark == "good":
            last_good = middle
        elif mark == "bad":
            first_bad = middle
        else:
            skipped.add(middle)


def _compare_ends(judge: Judge, good: Tree, bad: Tree) -> Finding:
    """Return the finding on BAD against GOOD.

    Raises BadInput if BAD is not bad, Inconclusive if that is uncertain, HarnessError if one of them
    fails.
    """
    options = judge.options
    context = f"BAD {options.bad} against GOOD {options.good}"
    try:
        finding = judge.compare(good, bad)
        is_repeatable = True
        if options.compare_bits:
            is_repeatable = judge.compare(good, good).mark == "good"
    except HarnessError as error:
        raise HarnessError(f"{context}: {error}") from None
    if not is_repeatable:
        raise Inconclusive(
            f"GOOD {options.good}: found other losses whenever it trains, so comparing losses proves"
            " nothing"
        )
    measured = finding.measured
    if measured is not None and not finding.is_certain:
        raise Inconclusive(
            f"{context}: {measured.seconds:.0f} s of measuring gave no certain difference; allow more"
            " time (--budget) or use a quieter machine"
        )
    if finding.mark == "good":
        found, allowed = "as fast", "is slower"
        if options.compare_bits:
            found, allowed = "the same losses", "computes other losses"
        raise BadInput(f"{context}: found {found}; allowed: a revision that {allowed}")
    return finding


def _try(judge: Judge, good: Tree, tree: Tree, ends: Finding | None) -> Finding:
    """Return the finding on a commit; one that fails is skipped, because a commit may be broken."""
    try:
        return judge.compare(good, tree, ends)
    except HarnessError as error:
        return Finding(mark="skip", failure=str(error))


def _compare_with_parent(judge: Judge, repository: Path, folder: Path, commit: Commit) -> Finding:
    """Return the finding on a commit against its own parent.

    So far it is only known to be bad against GOOD; that its parent is not may be an error.
    """
    with (
        progress_of(f"{commit.short} against its parent"),
        checked_out(repository, f"{commit.id}^", folder / "parent") as parent,
        checked_out(repository, commit.id, folder / "suspect") as suspect,
    ):
        return _try(judge, parent, suspect, None)


def describe_commit(repository: Path, revision: str) -> Commit:
    """Return the commit of a revision, which must exist."""
    # Under `log.showSignature`, git would say before the format what it thinks of a signature.
    options = ("--no-show-signature", "--no-patch", f"--format={FORMAT}")
    shown = run_git(repository, "show", *options, revision).stdout
    commit_id, short, author, date, subject = shown.strip().split("\0")
    return Commit(id=commit_id, short=short, author=author, date=date, subject=subject)


def commits_between(repository: Path, good: str, bad: str) -> Sequence[str]:
    """Return the ids of the commits after GOOD up to BAD, in their order; a merge is one change.

    Raises BadInput unless GOOD is an ancestor of BAD.
    """
    good_id = resolve_commit(repository, good, "GOOD")
    bad_id = resolve_commit(repository, bad, "BAD")
    if good_id == bad_id:
        raise BadInput(
            f"BAD {bad}: found the same commit as GOOD {good}; allowed: a descendant of it"
        )
    if not _is_ancestor(repository, good_id, bad_id):
        hint = ""
        if _is_ancestor(repository, bad_id, good_id):
            hint = " (did you mean them the other way round?)"
        raise BadInput(
            f"GOOD {good}: found no ancestor of BAD {bad}{hint}; allowed: an ancestor of BAD"
        )
    options = ("--first-parent", "--reverse")
    listed = run_git(repository, "rev-list", *options, f"{good_id}..{bad_id}").stdout
    return listed.split()


def _is_ancestor(repository: Path, ancestor: str, descendant: str) -> bool:
    """Return whether one commit is an ancestor of another, or the same commit."""
    done = run_git(repository, "merge-base", "--is-ancestor", ancestor, descendant)
    return done.returncode == 0
