"""Shows `harness bisect`: a line for each commit when it has been measured, then the culprit.

The lines of single commits go to stderr and the result to stdout, in the form of `git bisect`, so
that scripts that read one can read the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from rich.markup import escape

from harness.gate.bisect import BisectOutcome, Finding, Mark, Step
from harness.render.ci import printable
from harness.render.console import TerminalConsole, styled
from harness.render.gate import describe_change, describe_cost
from harness.render.table import Look

COUNTED: Mapping[Mark, str] = {"good": "good", "bad": "bad", "skip": "skipped"}  # marks
LOOKS: Mapping[str, Look] = {"bad": "worse", "good": "better", "skip": "open"}  # by a mark


def show_step(step: Step) -> None:
    """Print a commit with its mark on stderr, so that stdout has nothing but the result."""
    mark = styled(f"{step.finding.mark:<4}", LOOKS[step.finding.mark])
    finding = escape(_describe(step.finding))
    subject = f"[dim]{escape(step.commit.subject)}[/]"
    console = TerminalConsole(stderr=True)
    console.print_markup(f"{mark}  {step.commit.short}  {finding}  {subject}")


def _describe(finding: Finding) -> str:
    """Return what a comparison found, in words."""
    if finding.failure is not None:
        return f"failed: {printable(finding.failure)}"
    if finding.measured is None:
        losses = "the same losses" if finding.mark == "good" else "other losses"
        return f"{losses} within {finding.steps} steps"
    measured = finding.measured
    text = f"{measured.verdict}, {describe_change(measured)}, {describe_cost(measured)}"
    return text if finding.is_certain else f"{text}: the likelier is {finding.mark}"


def show(outcome: BisectOutcome) -> None:
    """Print the result; subjects of commits are escaped, as they may have any character."""
    console = TerminalConsole()
    for line in lines(outcome):
        console.print_text(line)


def lines(outcome: BisectOutcome) -> list[str]:
    """Return the first bad commit as `git bisect` prints it, or all that it may be.

    The last line says how many commits were measured, against which, and with what result.
    """
    marks = Counter(step.finding.mark for step in outcome.steps)
    counts = ", ".join(f"{marks[mark]} {word}" for mark, word in COUNTED.items())
    last_line = f"{outcome.cell.label}; each commit against {outcome.options.good}: {counts}"
    # Only a single suspect is measured against its parent.
    if outcome.against_parent is None:
        suspects = [f"  {suspect.short} {suspect.subject}" for suspect in outcome.suspects]
        return [f"The first bad commit is one of these {len(suspects)}:", *suspects, last_line]
    (commit,) = outcome.suspects
    doubt = ""
    # Where it is not bad against its parent, several commits may have made the cell slower, each by
    # too little to be certain.
    if outcome.exit_code:
        doubt = "; so it is not certain that this is the commit"
    return [
        f"{commit.id} is the first bad commit",
        f"Author: {commit.author}",
        f"Date:   {commit.date}",
        "",
        f"    {commit.subject}",
        "",
        f"against its parent: {_describe(outcome.against_parent)}{doubt}",
        last_line,
    ]
