"""Shows `harness diff`: where two trials diverge, and how far apart the tensors are there; and what came of a
reproduction.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.analysis.cells import differing_axes
from harness.analysis.rungs import RerunDifference
from harness.core.errors import one_line
from harness.core.text import counted, listed
from harness.records.differences import shown
from harness.records.trace import AFTER_MICRO_STEPS, Mark
from harness.reproduce.divergence import Divergence
from harness.reproduce.reproduction import ReproductionVerdict, TrialVerdict
from harness.reproduce.rerun import Prepared
from harness.reproduce.tracing import TraceDiff
from harness.reproduce.values import TensorDifference
from harness.sweep.cell import Cell, Trial, axis_value
from harness.view.value import LOOKS, Styled, Value
from harness.view.view import Table, View

# What each phase computes, from what the phases before it have left.
WHAT_PHASES_DO = {
    "parameters": "the parameters changed between the last step and this one",
    "buffers before": "the buffers changed between the last step and this one",
    "samples": "the order asks for other samples",
    "data": "the samples are the same, and the batches have other values",
    "random": "the generators are in another state before the forward",
    "forward": "the forward computes another loss from the same batch",
    "buffers": "the forward computes the same loss, and leaves other buffers",
    "backward": "the backward computes other gradients from the same loss",
    "all-reduce": "the ranks' gradients are the same, and their mean is not",
    "optimizer settings": "the optimizer has another learning rate, or other settings",
    "optimizer state": (
        "the optimizer's state is another one: it was changed since the last step, or the optimizer makes"
        " another one from the same gradients and settings"
    ),
    "optimizer": (
        "the optimizer makes other parameters from the same gradients, settings and state"
    ),
    "after_step": "the workload's after_step makes other parameters from the same ones",
    "workload state": "the parameters are the same, and the workload's own state is not",
    "evaluation": "the same parameters are evaluated otherwise, or with buffers changed since the forward",
}
TENSORS_SHOWN = 10
LONGEST_VALUE = 50  # characters of a value in the table of conditions; verdict.json has all


def diff_view(a: Trial, b: Trial, diff: TraceDiff) -> View:
    """Return where two traced trials diverge; exit code 1 if they do."""
    settings = differing_settings(a.cell, b.cell)
    return View(
        result={"a": a, "b": b, "settings": settings, "diff": diff},
        heading=[*_names(a, b), *description(a, b, diff)],
        tables=[_differences_table(diff.differences)],
        exit_code=int(not diff.is_same),
    )


def _at_step(difference: RerunDifference) -> str:
    """Return at which step recorded values differ, nothing for what no step has."""
    return "" if difference.step is None else f" at step {difference.step}"


def _differences_table(differences: Sequence[TensorDifference]) -> Table:
    """Return a table of the tensors that differ first, as far as their values are known."""
    table = Table(
        ["rank", "tensor", "elements", "differ", "largest ULP", "largest relative"],
        {
            "rank": "count",
            "elements": "count",
            "differ": "count",
            "largest ULP": "count",
            "largest relative": "number",
        },
        title=f"{counted(len(differences), 'tensor')} differ there first",
    )
    for difference in differences[:TENSORS_SHOWN]:
        table.add_row(
            difference.at.rank,
            difference.at.mark.name,
            difference.elements,
            difference.differing,
            difference.largest_ulp,
            difference.largest_relative,
        )
    return table


def _names(a: Trial, b: Trial) -> list[str]:
    """Return which two trials are compared, and the settings that they differ in, as lines."""
    lines = [
        f"A  {a.cell.id}  {a.cell.label}, seed {a.seed}",
        f"B  {b.cell.id}  {b.cell.label}, seed {b.seed}",
    ]
    settings = differing_settings(a.cell, b.cell)
    if settings:
        lines.append(f"they differ in {', '.join(settings)}")
    return lines


def description(a: Trial, b: Trial, diff: TraceDiff) -> list[str]:
    """Return where two traced trials diverge, as lines."""
    steps = diff.steps
    lines = []
    if diff.only_a:
        lines.append(f"only A has: {listed(diff.only_a, TENSORS_SHOWN)}")
    if diff.only_b:
        lines.append(f"only B has: {listed(diff.only_b, TENSORS_SHOWN)}")
    if steps.divergence is None:
        subject = "same bits"
        if lines:
            subject = "same bits of the tensors that both have"
        coverage = f"{steps.compared} moments of training and evaluation compared"
        uncompared = steps.only_a + steps.only_b
        if uncompared:
            coverage += f"; {uncompared} that only one of them has were not"
        return [*lines, f"{subject}: {coverage}"]
    earliest = steps.divergence.earliest.mark
    unmatched = diff.first_unmatched
    if unmatched is not None and unmatched.moment <= earliest.moment:
        # What follows is computed from other tensors, whichever of them both have.
        lines.append(
            f"they diverge in {moment(unmatched)}: only one of them has a gradient of {unmatched.name}"
        )
        return lines
    detailed = diff.tensors or steps
    if detailed.divergence is None:
        lines.append(
            f"they diverge in step {earliest.step}, and did not when that was run once more: one of"
            " them is not deterministic"
        )
        return lines
    lines.append(_divergence_line(a, b, detailed.divergence))
    agreeing = steps.divergence.agreeing
    lines.append(f"before that, {agreeing} of {steps.compared} moments are the same")
    return lines


def _divergence_line(a: Trial, b: Trial, divergence: Divergence) -> str:
    """Return where two trials diverge, and what that means, as a line."""
    mark = divergence.earliest.mark
    ranks_a = a.cell.axes.world_size
    ranks_b = b.cell.axes.world_size
    explanation = WHAT_PHASES_DO[mark.phase]
    if mark.step == 1 and mark.phase in ("parameters", "buffers before"):
        explanation = f"the models begin with other {mark.phase.split()[0]}"
    if mark.phase == "all-reduce" and ranks_a == ranks_b == 1:
        explanation = (
            "the backward computes the same gradients, and they are changed before the optimizer"
        )
    if mark.phase == "all-reduce" and ranks_a != ranks_b:
        explanation = (
            "the mean gradients differ (with other numbers of ranks, what each rank computes"
            " before that can't be compared)"
        )
    noun = "rank" if len(divergence.ranks) == 1 else "ranks"
    ranks = ", ".join(map(str, divergence.ranks))
    return f"they diverge in {moment(mark)}, at {noun} {ranks}: {explanation}"


def differing_settings(a: Cell, b: Cell) -> list[str]:
    """Return the settings that two cells differ in, as `strategy (ddp, fsdp2)`."""
    differing = []
    for axis in differing_axes(a, b):
        levels = axis_value(a.level(axis)), axis_value(b.level(axis))
        differing.append(f"{axis} ({', '.join(levels)})")
    if a.workload.identity != b.workload.identity:
        differing.append(f"workload ({a.workload.label}, {b.workload.label})")
    return differing


def moment(mark: Mark) -> str:
    """Return when a mark was made, as `step 3, micro-step 2, forward`."""
    parts = [f"step {mark.step}"]
    if 1 < mark.micro_step < AFTER_MICRO_STEPS:
        parts.append(f"micro-step {mark.micro_step}")
    parts.append(mark.phase)
    return ", ".join(parts)


def code_lines(prepared: Sequence[Prepared]) -> list[str]:
    """Return which code runs, each once, and what to know where it is not that of this checkout."""
    sources = list(dict.fromkeys(entry.source for entry in prepared))
    lines = [f"code of the workload: {source.choice} ({source.reason})" for source in sources]
    if any(source.choice == "recorded" for source in sources):
        lines.append(
            "the code that the record names runs with your rights: reproduce records of people whose"
            " code you would run"
        )
    return lines


def verdict_view(verdict: ReproductionVerdict, folder: Path) -> View:
    """Return the conditions that differ, what came of each trial, and where the records are."""
    conditions = {}  # an ordered set
    lines: list[Value] = []
    for trial in verdict.trials:
        lines.append(Styled(trial_line(trial), LOOKS[trial.outcome]))
        conditions.update(dict.fromkeys(trial.differences))
    lines.append(f"records: {folder}")
    table = Table(["condition", "recorded", "here"])
    for condition in conditions:
        recorded = one_line(shown(condition.a), LONGEST_VALUE)
        here = one_line(shown(condition.b), LONGEST_VALUE)
        table.add_row(condition.field, recorded, here)
    return View(
        result=verdict,
        tables=[table],
        lines=lines,
        exit_code=verdict.exit_code,
    )


def trial_line(trial: TrialVerdict) -> str:
    """Return what a trial that ran again comes to, in one line."""
    start = f"{trial.trial}: {trial.outcome}: "
    agreement = trial.agreement
    if agreement is None:
        return f"{start}{trial.failure}"
    text = f"{start}{_rung_text(trial)}"
    if trial.outcome in ("repeated", "reproduced"):
        if not trial.differences:
            return f"{text}, under the same conditions"
        subject = f"{trial.differences[0].field} differs"
        if len(trial.differences) > 1:
            subject = f"{len(trial.differences)} conditions differ"
        return f"{text}, though {subject}"
    if trial.exact_failure is not None:
        text += f"; the run in double precision failed: {trial.exact_failure}"
    elif agreement.fp64_problem is not None:
        text += f"; runs in double precision can't judge it: {agreement.fp64_problem}"
    difference = agreement.first_difference
    if difference is not None:
        again = shown(difference.again)
        recorded = shown(difference.recorded)
        text += (
            f"; first in {difference.subject}{_at_step(difference)} ({again}, recorded {recorded})"
        )
    cause = _cause_text(trial)
    if cause:
        text += f"; {cause}"
    return text


def _rung_text(trial: TrialVerdict) -> str:
    """Return the rung of a trial, with how far its numbers are apart."""
    agreement = trial.agreement
    assert agreement is not None
    if trial.rung == "bitwise":
        return "bitwise"
    if not agreement.has_series or agreement.max_relative == 0:
        return "digests differ, and no recorded number does"
    text = str(trial.rung or "beyond rounding errors")
    if agreement.max_relative:
        text += f" (up to {agreement.max_relative:.2g} relative)"
    return text


def _cause_text(trial: TrialVerdict) -> str:
    """Return what most likely explains a difference, such as `numpy (2.2.0, recorded 2.1.0)`."""
    cause = trial.cause
    if trial.rung == "rounding" and not trial.differences:
        return "nothing that chooses kernels differs, so these are no rounding errors"
    if cause is not None:
        here = shown(cause.b)
        recorded = shown(cause.a)
        return f"most likely because of {cause.field} ({here}, recorded {recorded})"
    if trial.agreement is None or trial.agreement.fp64_problem is not None:
        return ""
    return (
        "no recorded condition differs, so the trial is not deterministic, or what differs is not"
        " recorded"
    )
