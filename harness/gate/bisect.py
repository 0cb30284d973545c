"""`harness bisect GOOD BAD`: finds the commit that made a cell slower, or changed its losses.

Every commit is measured against both ends and never against its neighbors. So the question is the same
for each commit, and a series of small regressions can't hide between neighbors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from harness.core.errors import BadInput, HarnessError, Inconclusive
from harness.core.scratch import ScratchFolder
from harness.core.worktree import Tree, checked_out, find_repository
from harness.gate.history import Bisection, Commit, Mark, describe_commit, resolve_ends
from harness.gate.judge import BisectFinding, Judge, LossJudge, SpeedJudge, TrainingSetup
from harness.spec.cell import Cell
from harness.spec.cluster import Profile
from harness.spec.sweep import Sweep
from harness.statistics.verdict import ALPHA


@dataclass(frozen=True, kw_only=True)
class BisectOptions:
    """The options of `harness bisect`, with the defaults of the command line."""

    good: str  # a revision
    bad: str  # a revision
    min_effect: float = 0.01  # smallest change of throughput that matters, a fraction
    budget_seconds: float = 30.0  # of measuring, for each commit
    compare_bits: bool = False  # whether to look for other losses instead of speed
    first_parent: bool = False  # whether a merge is one change
    order_seed: int | None = None  # of the random order of arms, to repeat a run


@dataclass(frozen=True, kw_only=True)
class Step:
    """A commit that was tried against the ends."""

    commit: Commit
    finding: BisectFinding
    remaining: str  # git's message about the commits left to try


@dataclass(frozen=True, kw_only=True)
class BisectOutcome:
    """The result of a bisect.

    It has the first bad commit, or several suspects if commits between them could not be tried.
    """

    options: BisectOptions
    cell: Cell
    steps: Sequence[Step]
    suspects: Sequence[Commit]  # the first bad commit is one of them
    against_parent: BisectFinding | None  # the only suspect against its own parent

    @property
    def exit_code(self) -> int:
        """0 for a commit that is bad against its own parent too, else 3."""
        if self.against_parent is not None and self.against_parent.mark == "bad":
            return 0
        return 3

    @property
    def uncertain_steps(self) -> list[Step]:
        """The commits for which only the more likely of good and bad is known."""
        return [step for step in self.steps if not step.finding.is_certain]

    def count_marked(self, mark: Mark) -> int:
        """Return how many commits have this mark."""
        return sum(step.finding.mark == mark for step in self.steps)


class BisectListener(Protocol):
    """Shows the progress of a bisect."""

    def on_comparison_start(self, comparison: str) -> None:
        """Two revisions will be compared, as in `1a2b3c4 against v1.0`."""

    def on_progress(self, text: str) -> None:
        """The comparison has progressed, as described by the text."""

    def on_step_end(self, step: Step) -> None:
        """A commit has been tried and marked in git."""


def bisect(
    sweep: Sweep,
    cell: Cell,
    profile: Profile,
    options: BisectOptions,
    inside: Path,
    listener: BisectListener,
) -> BisectOutcome:
    """Find the first bad commit of the repository that contains the path `inside`.

    A commit between the ends that fails is skipped; an uncertain one gets the more likely mark, and
    the commit that is found must be bad against its own parent too. Raises BadInput if BAD is not
    bad, Inconclusive if that is uncertain, HarnessError if an end fails.
    """
    repository = find_repository(inside)
    good, bad = resolve_ends(repository, options.good, options.bad)
    setup = TrainingSetup(
        cell=cell,
        seed=sweep.seeds[0],
        base=sweep.base_folder,
        profile=profile,
        on_progress=listener.on_progress,
    )
    with (
        ScratchFolder("bisect") as scratch,
        _check_out(repository, scratch.path, good) as reference,
        _check_out(repository, scratch.path, bad) as bad_tree,
    ):
        search = _Search(repository, scratch.path, options, listener, reference, bad_tree)
        git = Bisection(reference.path, good.id, bad.id, first_parent=options.first_parent)
        judge_of_ends = make_judge(options, setup, comparisons=2 + git.commit_count.bit_length())
        listener.on_comparison_start(f"{options.bad} against {options.good}")
        finding = compare_ends(judge_of_ends, reference, bad_tree, options)
        judge = judge_of_ends.narrowed(finding)
        if options.compare_bits and judge.compare(reference, reference).mark == "bad":
            raise Inconclusive(
                f"GOOD {options.good}: found other losses whenever it trains, so comparing losses proves nothing"
            )
        search.add_step(Step(commit=bad, finding=finding, remaining=git.remaining))
        search.narrow_down(judge, git)
        suspects = [describe_commit(repository, suspect) for suspect in git.suspects]
        against_parent = None
        if len(suspects) == 1:
            judge_of_parent = judge if options.compare_bits else judge_of_ends
            against_parent = search.compare_with_parent(judge_of_parent, suspects[0])
    return BisectOutcome(
        options=options,
        cell=cell,
        steps=search.steps,
        suspects=suspects,
        against_parent=against_parent,
    )


def make_judge(
    options: BisectOptions, setup: TrainingSetup, comparisons: int
) -> SpeedJudge | LossJudge:
    """Return the judge of the ends.

    An error in any comparison misleads the whole search, so they share ALPHA.
    """
    if options.compare_bits:
        return LossJudge(setup=setup, seconds=options.budget_seconds)
    return SpeedJudge(
        setup=setup,
        min_effect=options.min_effect,
        seconds=options.budget_seconds,
        alpha=ALPHA / comparisons,
        rng=np.random.default_rng(options.order_seed),
    )


class _Search:
    """Compares commits of one repository with its ends, and keeps the steps.

    `reference` is GOOD and `bad_tree` is BAD, both checked out until the search ends.
    """

    def __init__(
        self,
        repository: Path,
        folder: Path,
        options: BisectOptions,
        listener: BisectListener,
        reference: Tree,
        bad_tree: Tree,
    ) -> None:
        self.repository = repository
        self.folder = folder  # where commits are checked out
        self.options = options
        self.listener = listener
        self.reference = reference
        self.bad_tree = bad_tree
        self.steps: list[Step] = []

    def add_step(self, step: Step) -> None:
        """Keep a step and show it to the listener."""
        self.steps.append(step)
        self.listener.on_step_end(step)

    def narrow_down(self, judge: Judge, git: Bisection) -> None:
        """Try the commits that git selects until it names suspects.

        Each has its own checkout, without files of other commits.
        """
        while not git.suspects:
            commit = describe_commit(self.repository, git.next_commit)
            self.listener.on_comparison_start(f"{commit.short} between the ends")
            with _check_out(self.repository, self.folder, commit) as tree:
                finding = finding_or_skip(
                    partial(judge.classify, self.reference, tree, self.bad_tree)
                )
            git.mark(finding.mark)
            self.add_step(Step(commit=commit, finding=finding, remaining=git.remaining))

    def compare_with_parent(self, judge: Judge, commit: Commit) -> BisectFinding:
        """Return the finding on a commit against its own parent.

        So far it is only known to be nearer to BAD; that its parent is not may be a measurement
        error.
        """
        self.listener.on_comparison_start(f"{commit.short} against its parent")
        parent = describe_commit(self.repository, f"{commit.id}^")
        with (
            _check_out(self.repository, self.folder / "parent", parent) as a,
            # BAD may be the suspect, and is checked out already.
            _check_out(self.repository, self.folder / "suspect", commit) as b,
        ):
            return finding_or_skip(partial(judge.compare, a, b))


def compare_ends(
    judge: Judge, good: Tree, bad: Tree, options: BisectOptions, kind: str = "revision"
) -> BisectFinding:
    """Return the finding on BAD against GOOD; `kind` is the noun for both in messages.

    Raises BadInput if BAD is not bad, Inconclusive if that is uncertain, HarnessError if one of them
    fails.
    """
    context = f"BAD {options.bad} against GOOD {options.good}"
    try:
        finding = judge.compare(good, bad)
    except HarnessError as error:
        raise HarnessError(f"{context}: {error}") from None
    if finding.mark == "skip":
        raise Inconclusive(
            f"{context}: {finding.description}; allow more time (--budget) or use a quieter machine"
        )
    if finding.mark == "good":
        change = "computes other losses" if options.compare_bits else "is slower"
        raise BadInput(f"{context}: {finding.description}; allowed: a {kind} that {change}")
    return finding


def finding_or_skip(find: Callable[[], BisectFinding]) -> BisectFinding:
    """Return the finding on a commit; one that fails is skipped, because a commit may be broken."""
    try:
        return find()
    except HarnessError as error:
        return BisectFinding(mark="skip", description=f"failed: {error}")


def _check_out(repository: Path, folder: Path, commit: Commit) -> AbstractContextManager[Tree]:
    """Check a commit out at its own path, so that Python's caches have nothing of other commits."""
    return checked_out(repository, commit.short, folder / commit.short)
