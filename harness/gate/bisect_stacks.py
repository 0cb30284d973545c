"""`harness bisect GOOD BAD --stacks`: finds the first of a list of stacks under which a cell is slower.

The stacks are those of the sweep's key `stacks`, in its order, from GOOD to BAD. They are searched as
`git bisect` searches commits, with the same judges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Protocol

from harness.core.errors import BadInput
from harness.gate.bisect import BisectOptions, compare_ends, finding_or_skip, make_judge
from harness.gate.history import Mark
from harness.gate.judge import BisectFinding, TrainingSetup
from harness.gate.paired import FRESH_PAIRS_PER_BUDGET
from harness.gate.stacks import changed_packages, check_declared, stack_trees, under_stack
from harness.spec.cell import Cell
from harness.spec.cluster import Profile
from harness.spec.sweep import Sweep


@dataclass(frozen=True, kw_only=True)
class StackStep:
    """A stack that was measured against the ends."""

    stack: str
    finding: BisectFinding


@dataclass(frozen=True, kw_only=True)
class StackBisectOutcome:
    """The result of a bisect over stacks."""

    options: BisectOptions
    cell: Cell
    steps: Sequence[StackStep]  # in the order in which they were measured, BAD first
    suspects: Sequence[str]  # the first bad stack is one of them
    previous: str  # the last good stack
    # The packages in which each suspect differs from the stack before it.
    package_changes: Sequence[Sequence[str]]
    against_previous: BisectFinding | None  # of the only suspect

    @property
    def exit_code(self) -> int:
        """0 for a stack that is bad against the one before it too, else 3."""
        if self.against_previous is not None and self.against_previous.mark == "bad":
            return 0
        return 3


class StackListener(Protocol):
    """Shows the progress of a bisect over stacks."""

    def on_comparison_start(self, comparison: str) -> None:
        """Two stacks will be compared, as in `t212 against t211`."""

    def on_progress(self, text: str) -> None:
        """The comparison has progressed, as described by the text."""

    def on_stack_end(self, name: str, finding: BisectFinding) -> None:
        """A stack has been measured."""


class StackBisection:
    """Narrows down which of a list of stacks is the first bad one; the ends are known."""

    def __init__(self, names: Sequence[str]) -> None:
        """Search `names`, of which the first is good and the last is bad."""
        self.names = names
        self.good, self.bad = 0, len(names) - 1
        self.skipped: set[int] = set()

    @property
    def untried(self) -> list[int]:
        """Return the numbers of the stacks between the ends that may still be tried."""
        between = range(self.good + 1, self.bad)
        return [number for number in between if number not in self.skipped]

    @property
    def next_stack(self) -> str | None:
        """Return the stack to try, the nearest to the middle; None where none is left."""
        middle = (self.good + self.bad) / 2
        if not self.untried:
            return None
        return self.names[min(self.untried, key=lambda number: abs(number - middle))]

    def mark(self, name: str, mark: Mark) -> None:
        """Narrow the search by the mark of a stack."""
        number = self.names.index(name)
        if mark == "skip":
            self.skipped.add(number)
        elif mark == "good":
            self.good = number
        else:
            self.bad = number

    @property
    def suspects(self) -> Sequence[str]:
        """Return the stacks after the last good one, up to the first that is known to be bad."""
        return self.names[self.good + 1 : self.bad + 1]

    @property
    def last_good(self) -> str:
        """Return the last stack that is known to be good."""
        return self.names[self.good]


def bisect_stacks(
    sweep: Sweep, cell: Cell, profile: Profile, options: BisectOptions, listener: StackListener
) -> StackBisectOutcome:
    """Find the first bad stack of a sweep between the stacks GOOD and BAD.

    An uncertain stack gets the more likely mark; one that fails is skipped. Raises BadInput for ends
    that the sweep does not declare in this order, for a stack that ranks can't run under and for a
    BAD that is not bad, Inconclusive if that is uncertain, HarnessError if an end fails.
    """
    names = stacks_between(sweep, options.good, options.bad)
    cells = [under_stack(sweep, [cell], name, "GOOD")[0] for name in names]
    trees = stack_trees(sweep, cells, profile)
    setup = TrainingSetup(
        cell=cells[0],
        seed=sweep.seeds[0],
        base=sweep.base_folder,
        profile=profile,
        on_progress=listener.on_progress,
        pairs=FRESH_PAIRS_PER_BUDGET,
    )
    judge_of_ends = make_judge(options, setup, comparisons=2 + len(names).bit_length())
    good, bad = trees[options.good], trees[options.bad]
    listener.on_comparison_start(f"{options.bad} against {options.good}")
    finding = compare_ends(judge_of_ends, good, bad, options, "stack")
    listener.on_stack_end(options.bad, finding)
    steps = [StackStep(stack=options.bad, finding=finding)]
    judge = judge_of_ends.narrowed(finding)
    bisection = StackBisection(names)
    while (name := bisection.next_stack) is not None:
        listener.on_comparison_start(f"{name} between the ends")
        finding = finding_or_skip(partial(judge.classify, good, trees[name], bad))
        bisection.mark(name, finding.mark)
        listener.on_stack_end(name, finding)
        steps.append(StackStep(stack=name, finding=finding))
    against_previous = None
    suspects = bisection.suspects
    if len(suspects) == 1:
        listener.on_comparison_start(f"{suspects[0]} against {bisection.last_good}")
        judge_of_last = judge if options.compare_bits else judge_of_ends
        previous, suspect = trees[bisection.last_good], trees[suspects[0]]
        against_previous = finding_or_skip(partial(judge_of_last.compare, previous, suspect))
    before = [bisection.last_good, *suspects]
    changes = []
    for earlier, later in pairwise(before):
        changes.append(changed_packages(trees[earlier], trees[later]))
    return StackBisectOutcome(
        options=options,
        cell=cell,
        steps=steps,
        suspects=suspects,
        previous=bisection.last_good,
        package_changes=changes,
        against_previous=against_previous,
    )


def stacks_between(sweep: Sweep, good: str, bad: str) -> list[str]:
    """Return the names from GOOD to BAD in the order of the sweep; raises BadInput for other ends."""
    check_declared(sweep, good, "GOOD")
    check_declared(sweep, bad, "BAD")
    names = list(sweep.stacks)
    start, end = names.index(good), names.index(bad)
    if start >= end:
        raise BadInput(
            f"BAD {bad}: found no later stack than GOOD {good} in {sweep.source}; allowed: one that"
            " the key stacks declares after it"
        )
    return names[start : end + 1]
