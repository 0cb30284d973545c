"""Shows `harness diff`: where two trials diverge, and how far apart the tensors are there."""

from __future__ import annotations

from collections.abc import Sequence

from harness.core.text import counted, listed
from harness.records.trace import AFTER_MICRO_STEPS, Mark
from harness.reproduce.divergence import Divergence
from harness.reproduce.tracing import RecordedDiff, TraceDiff
from harness.reproduce.values import TensorDifference
from harness.sweep.cell import Cell, Trial, axis_names, axis_value
from harness.view.value import Kind, Value
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


def diff_view(a: Trial, b: Trial, diff: TraceDiff) -> View:
    """Return where two traced trials diverge."""
    settings = differing_settings(a.cell, b.cell)
    return View(
        result={"a": a, "b": b, "settings": settings, "diff": diff},
        heading=[*_names(a, b), *description(a, b, diff)],
        tables=[_differences_table(diff.differences)],
    )


def recorded_diff_view(diff: RecordedDiff) -> View:
    """Return what the records of two trials say, and what running both again has shown."""
    a, b = diff.a.trial, diff.b.trial
    first, again = diff.agreement.first_difference, diff.again
    heading: list[Value] = [*_names(a, b)]
    tables = []
    if first is None or again is None:
        heading.append(f"same in their records: {', '.join(diff.agreement.compared)}")
    else:
        where = "" if first.step is None else f" at step {first.step}"
        heading.append(f"by their records, they differ in {first.subject}{where}")
        heading += [f"run again: {line}" for line in description(a, b, again)]
        tables.append(_differences_table(again.differences))
    return View(result=diff, heading=heading, tables=tables)


def _differences_table(differences: Sequence[TensorDifference]) -> Table:
    """Return a table of the tensors that differ first, as far as their values are known."""
    columns = ["rank", "tensor", "elements", "differ", "largest ULP", "largest relative"]
    kinds: dict[str, Kind] = dict.fromkeys(columns, "count")
    title = f"{counted(len(differences), 'tensor')} differ there first"
    table = Table(columns, {**kinds, "tensor": "text", "largest relative": "number"}, title)
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
    for name, tensors in (("A", diff.only_a), ("B", diff.only_b)):
        if tensors:
            lines.append(f"only {name} has: {listed(tensors, TENSORS_SHOWN)}")
    if steps.divergence is None:
        subject = "same bits of the tensors that both have" if lines else "same bits"
        coverage = f"{steps.compared} moments of training and evaluation compared"
        uncompared = steps.only_a + steps.only_b
        if uncompared:
            coverage += f"; {uncompared} that only one of them has were not"
        return [*lines, f"{subject}: {coverage}"]
    unmatched = diff.first_unmatched
    if unmatched is not None and unmatched.moment <= steps.divergence.earliest.mark.moment:
        # What follows is computed from other tensors, whichever of them both have.
        only = f"only one of them has a gradient of {unmatched.name}"
        return [*lines, f"they diverge in {moment(unmatched)}: {only}"]
    where = diff.tensors or steps
    if where.divergence is None:
        step = steps.divergence.earliest.mark.step
        return [
            *lines,
            f"they diverge in step {step}, and did not when that was run once more: one of them is not"
            " deterministic",
        ]
    return [
        *lines,
        _divergence_line(a, b, where.divergence),
        f"before that, {steps.divergence.agreeing} of {steps.compared} moments are the same",
    ]


def _divergence_line(a: Trial, b: Trial, divergence: Divergence) -> str:
    """Return where two trials diverge, and what that means, as a line."""
    mark = divergence.earliest.mark
    ranks_a, ranks_b = a.cell.axes.world_size, b.cell.axes.world_size
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
