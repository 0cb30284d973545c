"""Shows `harness diff`: where two trials diverge, and how far apart the tensors are there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from harness.records.trace import AFTER_MICRO_STEPS, PHASES, Mark
from harness.render.table import Table
from harness.render.terminal.console import TerminalConsole
from harness.render.terminal.table import show
from harness.reproduce.divergence import Divergence, RankMark, TraceComparison
from harness.reproduce.tracing import TraceDiff
from harness.reproduce.values import TensorDifference
from harness.spec.cell import Cell, Trial, axis_names

# What each phase computes, from what the phases before it have left.
WHAT_PHASES_DO = {
    "parameters": "the parameters are others before the step than after the last one",
    "buffers before": "the buffers are others before the step than after the last one",
    "samples": "the order asks for other samples",
    "data": "the samples are the same, and the batches have other values",
    "random": "the generators are in another state before the forward",
    "forward": "the forward computes another loss from the same batch",
    "buffers": "the forward computes the same loss, and leaves other buffers",
    "backward": "the backward computes other gradients from the same loss",
    "all-reduce": "the ranks' gradients are the same, and their mean is not",
    "optimizer settings": "the optimizer has another learning rate, or other settings",
    "optimizer state": "the optimizer makes another state from the same gradients",
    "optimizer": "the optimizer makes other parameters from the same gradients and state",
    "after_step": "the workload's after_step makes other parameters from the same ones",
    "workload state": "the parameters are the same, and the workload's own state is not",
    "evaluation": "the same parameters are evaluated differently",
}
TENSORS_SHOWN = 10


def show_diff(a: Trial, b: Trial, diff: TraceDiff, *, as_json: bool) -> None:
    """Print where two traced trials diverge."""
    if as_json:
        print(json.dumps(to_json(a, b, diff), indent=1))
        return
    console = TerminalConsole()
    print_lines(console, [*heading(a, b), *description(a, b, diff)])
    show_differences(console, diff.differences)


def print_lines(console: TerminalConsole, lines: Sequence[str]) -> None:
    """Print lines as they are."""
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)


def show_differences(console: TerminalConsole, differences: Sequence[TensorDifference]) -> None:
    """Print a table of the tensors that differ first, if their values are known."""
    if not differences:
        return
    table = Table(
        ["rank", "tensor", "elements", "differ", "largest ULP", "largest relative"],
        ["rank", "elements", "differ", "largest ULP", "largest relative"],
    )
    for difference in differences[:TENSORS_SHOWN]:
        table.add_row(*_row(difference))
    show(console, table)
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
        return [*lines, f"{subject}: {_coverage(steps)}"]
    where = diff.tensors or steps
    if where.divergence is None:
        return [
            *lines,
            f"they part in step {steps.divergence.earliest.mark.step}, and did not when that was run"
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
            lines.append(f"only {name} has: {listed(tensors)}")
    return lines


def listed(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    text = ", ".join(names[:TENSORS_SHOWN])
    hidden = len(names) - TENSORS_SHOWN
    return f"{text} and {hidden} more" if hidden > 0 else text


def moment_line(a: Trial, b: Trial, divergence: Divergence) -> str:
    """Return where two trials diverge, and what that means, as a line."""
    mark = divergence.earliest.mark
    explanation = WHAT_PHASES_DO[mark.phase]
    if mark.step == 1 and mark.phase in ("parameters", "buffers before"):
        explanation = f"the models begin with other {mark.phase.split()[0]}"
    is_other_number = a.cell.axes.world_size != b.cell.axes.world_size
    if is_other_number and mark.phase == "all-reduce":
        explanation = (
            "the mean gradients differ (with other numbers of ranks, what each rank computes"
            " before that can't be compared)"
        )
    noun = "rank" if len(divergence.ranks) == 1 else "ranks"
    ranks = ", ".join(map(str, divergence.ranks))
    return f"they part in {moment(mark)}, at {noun} {ranks}: {explanation}"


def differing_settings(a: Cell, b: Cell) -> list[str]:
    """Return the settings that two cells differ in, as `strategy (ddp, fsdp2)`."""
    differing = []
    for name in axis_names([a, b]):
        if a.level(name) != b.level(name):
            differing.append(f"{name} ({a.level(name)}, {b.level(name)})")
    if a.workload.identity != b.workload.identity:
        differing.append(f"workload ({a.workload.label}, {b.workload.label})")
    return differing


def _coverage(comparison: TraceComparison) -> str:
    """Return how much was compared."""
    text = f"{comparison.compared} moments of training and evaluation compared"
    only = comparison.only_a + comparison.only_b
    if only:
        text += f"; {only} that only one of them has were not"
    return text


def moment(mark: Mark) -> str:
    """Return when a mark was made, as `step 3, micro-step 2, forward`."""
    parts = [f"step {mark.step}"]
    if 1 < mark.micro_step < AFTER_MICRO_STEPS:
        parts.append(f"micro-step {mark.micro_step}")
    parts.append(mark.phase)
    return ", ".join(parts)


def _row(difference: TensorDifference) -> list[str]:
    """Return a row of the table of tensors."""
    ulp = "–" if difference.largest_ulp is None else f"{difference.largest_ulp:,}"
    relative = "–"
    if difference.largest_relative is not None:
        relative = f"{difference.largest_relative:.2g}"
    return [
        str(difference.at.rank),
        difference.at.mark.name,
        f"{difference.elements:,}",
        f"{difference.differing:,}",
        ulp,
        relative,
    ]


def to_json(a: Trial, b: Trial, diff: TraceDiff) -> dict[str, Any]:
    """Return a comparison of runs as JSON can hold it."""
    where = diff.tensors or diff.steps
    earliest = None
    if where.divergence is not None:
        earliest = entry_to_json(where.divergence.earliest)
    return {
        "a": {"cell": a.cell.id, "seed": a.seed},
        "b": {"cell": b.cell.id, "seed": b.seed},
        "settings": differing_settings(a.cell, b.cell),
        "same": diff.is_same,
        "only_a": list(diff.only_a),
        "only_b": list(diff.only_b),
        "moments_compared": diff.steps.compared,
        "phases": list(PHASES),
        "first": earliest,
        "tensors": [_difference_to_json(difference) for difference in diff.differences],
    }


def entry_to_json(entry: RankMark) -> dict[str, Any]:
    """Return a mark of a rank as JSON can hold it."""
    micro_step = entry.mark.micro_step
    return {
        "rank": entry.rank,
        "step": entry.mark.step,
        "micro_step": None if micro_step == AFTER_MICRO_STEPS else micro_step,
        "phase": entry.mark.phase,
        "tensor": entry.mark.name,
    }


def _difference_to_json(difference: TensorDifference) -> dict[str, Any]:
    """Return a tensor's difference as JSON can hold it."""
    return {
        **entry_to_json(difference.at),
        "elements": difference.elements,
        "differing": difference.differing,
        "largest_ulp": difference.largest_ulp,
        "largest_absolute": difference.largest_absolute,
        "largest_relative": difference.largest_relative,
    }
