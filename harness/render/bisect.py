"""Shows `harness bisect`: a line for each commit when it has been measured, then the culprit.

The lines of single commits go to stderr and the result to stdout, in the form of `git bisect`, so
that scripts that read one can read the other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Self

from rich.markup import escape

from harness.core.text import listed
from harness.gate.bisect import BisectOutcome, Step
from harness.gate.bisect_stacks import StackBisectOutcome
from harness.gate.history import Commit
from harness.gate.judge import BisectFinding
from harness.render.console import TerminalConsole, styled
from harness.render.format import MOST_PACKAGES
from harness.render.table import Look

LOOKS: Mapping[str, Look] = {"bad": "worse", "good": "better", "skip": "open"}  # by a mark


class BisectView:
    """Shows a bisection on stderr while it runs, so that stdout has nothing but its result.

    It is the listener of `harness.gate.bisect`. What is going on now is next to a spinner, and what
    is known already in lines above it, which stay.
    """

    def __init__(self) -> None:
        self.console = TerminalConsole(stderr=True)
        # Redrawn rarely: this process shares the machine with what it measures.
        self.status = self.console.status("starting", refresh_per_second=2)
        self.comparison = ""  # which revisions are being measured

    def __enter__(self) -> Self:
        """Start the spinner."""
        self.status.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the spinner, also after an error, which is printed below."""
        self.status.stop()

    def on_comparison_start(self, comparison: str) -> None:
        """Show which revisions will be measured."""
        self.comparison = comparison
        self.on_progress("starting")

    def on_progress(self, text: str) -> None:
        """Show how far the comparison is."""
        self.status.update(escape(f"{self.comparison}: {text}"))

    def on_step_end(self, step: Step) -> None:
        """Print a commit with its mark, and how much git says is left."""
        subject = f"[dim]{escape(step.commit.subject)}[/]"
        self.console.print_markup(
            f"{_describe_finding(step.commit.short, step.finding)}  {subject}"
        )
        if step.remaining:
            self.console.print_text(step.remaining, "quiet")

    def on_stack_end(self, name: str, finding: BisectFinding) -> None:
        """Print a stack with its mark."""
        self.console.print_markup(_describe_finding(escape(name), finding))


def _describe_finding(name: str, finding: BisectFinding) -> str:
    """Return what was found of a commit or a stack, in Rich's markup."""
    mark = styled(f"{finding.mark:<4}", LOOKS[finding.mark])
    return f"{mark}  {name}  {escape(finding.description)}"


def stack_lines(outcome: StackBisectOutcome) -> list[str]:
    """Return the first bad stack with what is other there, or all that it may be."""
    ends = f"{outcome.options.good} and {outcome.options.bad}"
    summary = f"{outcome.cell.label}; each stack against {ends}"
    if outcome.against_previous is None:
        lines = [f"The first bad stack is one of these {len(outcome.suspects)}:"]
        for name, changes in zip(outcome.suspects, outcome.package_changes, strict=True):
            lines.append(f"  {name}: {listed(changes, MOST_PACKAGES)}")
        return [*lines, summary]
    (name,), (changes,) = outcome.suspects, outcome.package_changes
    doubt = ""
    if outcome.against_previous.mark != "bad":
        doubt = "; so it is not certain that this is the stack"
    return [
        f"{name} is the first bad stack",
        f"packages that differ, {outcome.previous} → {name}: {listed(changes, MOST_PACKAGES)}",
        f"against {outcome.previous}: {outcome.against_previous.description}{doubt}",
        summary,
    ]


def stacks_as_json(outcome: StackBisectOutcome) -> str:
    """Return all of the outcome of a bisect over stacks as JSON."""
    content = asdict(outcome)
    content["cell"], content["label"] = outcome.cell.id, outcome.cell.label
    return json.dumps({"exit_code": outcome.exit_code, **content}, indent=1, allow_nan=False)


def show(outcome: BisectOutcome | StackBisectOutcome, *, stderr: bool = False) -> None:
    """Print the result; subjects of commits are escaped, as they may have any character."""
    console = TerminalConsole(stderr=stderr)
    shown = lines(outcome) if isinstance(outcome, BisectOutcome) else stack_lines(outcome)
    for line in shown:
        console.print_text(line)


def lines(outcome: BisectOutcome) -> list[str]:
    """Return the first bad commit as `git bisect` prints it, or all that it may be.

    The last line says how many commits were measured, against which, and with what result.
    """
    good, bad, skipped = (outcome.count_marked(mark) for mark in ("good", "bad", "skip"))
    ends = outcome.options.good
    if not outcome.options.compare_bits:
        ends += f" and {outcome.options.bad}"
    steps = (
        f"{outcome.cell.label}; each commit against {ends}:"
        f" {good} good, {bad} bad, {skipped} skipped"
    )
    if outcome.uncertain_steps:
        steps += f"; of {len(outcome.uncertain_steps)} the likelier was taken"
    # Only a single suspect is measured against its parent.
    if outcome.against_parent is None:
        suspects: list[str] = []
        for suspect in outcome.suspects:
            reason = _reason_of_skip(outcome, suspect)
            suspects.append(f"  {suspect.short} {suspect.subject}{reason}")
        return [f"The first bad commit is one of these {len(suspects)}:", *suspects, steps]
    (commit,) = outcome.suspects
    doubt = ""
    # It was bad against GOOD. Where it is not so against its parent, several commits may have made
    # the cell slower, each by too little to be certain.
    if outcome.against_parent.mark != "bad":
        doubt = "; so it is not certain that this is the commit"
    return [
        f"{commit.id} is the first bad commit",
        f"Author: {commit.author}",
        f"Date:   {commit.date}",
        "",
        f"    {commit.subject}",
        "",
        f"against its parent: {outcome.against_parent.description}{doubt}",
        steps,
    ]


def _reason_of_skip(outcome: BisectOutcome, commit: Commit) -> str:
    """Return why a commit was skipped, after a colon; empty if it was not."""
    for step in outcome.steps:
        if step.commit == commit and step.finding.mark == "skip":
            return f": {step.finding.description}"
    return ""


def as_json(outcome: BisectOutcome | StackBisectOutcome) -> str:
    """Return all of the outcome as JSON, with commits by their full ids."""
    if isinstance(outcome, StackBisectOutcome):
        return stacks_as_json(outcome)
    against_parent = outcome.against_parent
    steps = []  # in the order in which they were measured
    for step in outcome.steps:
        steps.append({"commit": asdict(step.commit), "finding": asdict(step.finding)})
    content = {
        "exit_code": outcome.exit_code,
        "options": asdict(outcome.options),
        "cell": outcome.cell.id,
        "label": outcome.cell.label,
        "suspects": [asdict(commit) for commit in outcome.suspects],
        "against_parent": None if against_parent is None else asdict(against_parent),
        "steps": steps,
    }
    return json.dumps(content, indent=1, allow_nan=False)
