"""Shows `harness diff`: where two trials diverge, and how far apart the tensors are there."""

from __future__ import annotations

from collections.abc import Sequence

from harness.core.text import listed
from harness.records.trace import AFTER_MICRO_STEPS, Mark
from harness.render.console import TerminalConsole, print_json, show_table
from harness.render.format import MISSING
from harness.render.table import Table
from harness.reproduce.divergence import Divergence
from harness.reproduce.tracing import RecordedDiff, TraceDiff
from harness.reproduce.values import TensorDifference
from harness.spec.cell import Cell, Trial, axis_names, axis_value

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


def show_diff(a: Trial, b: Trial, diff: TraceDiff, *, as_json: bool) -> None:
    """Print where two traced trials diverge."""
    if as_json:
        print_json({"a": a, "b": b, "settings": differing_settings(a.cell, b.cell), "diff": diff})
        return
    console = TerminalConsole()
    for line in [*heading(a, b), *description(a, b, diff)]:
        console.print_text(line)
    show_differences(console, diff.differences)


def show_differences(console: TerminalConsole, differences: Sequence[TensorDifference]) -> None:
    """Print a table of the tensors that differ first, if their values are known."""
    if not differences:
        return
    table = Table(
        ["rank", "tensor", "elements", "differ", "largest ULP", "largest relative"],
        ["rank", "elements", "differ", "largest ULP", "largest relative"],
    )
    for difference in differences[:TENSORS_SHOWN]:
        ulp = MISSING if difference.largest_ulp is None else f"{difference.largest_ulp:,}"
        relative = MISSING
        if difference.largest_relative is not None:
            relative = f"{difference.largest_relative:.2g}"
        table.add_row(
            str(difference.at.rank),
            difference.at.mark.name,
            f"{difference.elements:,}",
            f"{difference.differing:,}",
            ulp,
            relative,
        )
    show_table(console, table)
    hidden = len(differences) - TENSORS_SHOWN
    if hidden > 0:
        console.print(f"and {hidden} more; --json lists all")


def heading(a: Trial, b: Trial) -> list[str]:
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
    lines = other_tensors_lines(diff.only_a, diff.only_b)
    if steps.divergence is None:
        subject = "same bits of the tensors that both have" if lines else "same bits"
        coverage = f"{steps.compared} moments of training and evaluation compared"
        only = steps.only_a + steps.only_b
        if only:
            coverage += f"; {only} that only one of them has were not"
        return [*lines, f"{subject}: {coverage}"]
    unmatched = diff.first_unmatched
    if unmatched is not None and unmatched.moment <= steps.divergence.earliest.mark.moment:
        # What follows is computed from other tensors, whichever of them both have.
        return [
            *lines,
            f"they diverge in {moment(unmatched)}: only one of them has a gradient of {unmatched.name}",
        ]
    where = diff.tensors or steps
    if where.divergence is None:
        return [
            *lines,
            f"they diverge in step {steps.divergence.earliest.mark.step}, and did not when that was run"
            " once more: one of them is not deterministic",
        ]
    return [
        *lines,
        moment_line(a, b, where.divergence),
        f"before that, {steps.divergence.agreeing} of {steps.compared} moments are the same",
    ]


def other_tensors_lines(only_a: Sequence[str], only_b: Sequence[str]) -> list[str]:
    """Return which tensors only one of two trials has, a line for each that has any."""
    lines = []
    for name, tensors in (("A", only_a), ("B", only_b)):
        if tensors:
            lines.append(f"only {name} has: {listed(tensors, TENSORS_SHOWN)}")
    return lines


def moment_line(a: Trial, b: Trial, divergence: Divergence) -> str:
    """Return where two trials diverge, and what that means, as a line."""
    mark = divergence.earliest.mark
    explanation = WHAT_PHASES_DO[mark.phase]
    if mark.step == 1 and mark.phase in ("parameters", "buffers before"):
        explanation = f"the models begin with other {mark.phase.split()[0]}"
    if mark.phase == "all-reduce" and a.cell.axes.world_size == b.cell.axes.world_size == 1:
        explanation = (
            "the backward computes the same gradients, and they are changed before the optimizer"
        )
    is_other_number = a.cell.axes.world_size != b.cell.axes.world_size
    if is_other_number and mark.phase == "all-reduce":
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
    for name in axis_names([a, b]):
        if a.level(name) != b.level(name):
            levels = f"{axis_value(a.level(name))}, {axis_value(b.level(name))}"
            differing.append(f"{name} ({levels})")
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


def show_recorded_diff(diff: RecordedDiff, *, as_json: bool) -> None:
    """Print where two recorded trials diverge."""
    if as_json:
        print_json(diff)
        return
    console = TerminalConsole()
    for line in [*heading(diff.a.trial, diff.b.trial), *_record_lines(diff)]:
        console.print_text(line)
    if diff.again is not None:
        show_differences(console, diff.again.differences)


def _record_lines(diff: RecordedDiff) -> list[str]:
    """Return what the records say, and what running both again has shown, as lines."""
    first = diff.agreement.first_difference
    again = diff.again
    if first is None or again is None:
        return [f"same in their records: {', '.join(diff.agreement.compared)}"]
    where = "" if first.step is None else f" at step {first.step}"
    lines = [f"by their records, they differ in {first.subject}{where}"]
    if again.is_same:
        lines.append(
            "run again, both compute the same bits: what tells them apart is not in their settings"
        )
        return lines
    return lines + [f"run again: {line}" for line in description(diff.a.trial, diff.b.trial, again)]
