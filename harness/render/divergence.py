"""Shows `harness diff`: where two trials diverge, how far apart the tensors are there, and a plot."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from harness.core.text import listed
from harness.records.trace import AFTER_MICRO_STEPS, PHASES, Mark
from harness.render.chart import (
    COLORS,
    INK,
    MARKERS,
    new_figure,
    plain_tick,
    style_axes,
)
from harness.render.console import TerminalConsole, print_json, show_table
from harness.render.format import MISSING
from harness.render.table import Table
from harness.reproduce.divergence import Divergence, RankMark, tensors_of
from harness.reproduce.recorded import PARAMETERS, RecordedDiff, unlike_record
from harness.reproduce.tracing import TraceDiff
from harness.reproduce.trajectory import Course, Distance
from harness.reproduce.values import TensorDifference
from harness.spec.cell import Cell, Trial, axis_names, axis_value

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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
        print_json(to_json(a, b, diff))
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


def to_json(a: Trial, b: Trial, diff: TraceDiff) -> dict[str, Any]:
    """Return a comparison of runs as JSON can hold it."""
    where = diff.tensors or diff.steps
    earliest = None
    if where.divergence is not None:
        earliest = entry_to_json(where.divergence.earliest)
    tensors = []
    for difference in diff.differences:
        sizes = {
            "elements": difference.elements,
            "differing": difference.differing,
            "largest_ulp": difference.largest_ulp,
            "largest_absolute": difference.largest_absolute,
            "largest_relative": difference.largest_relative,
        }
        tensors.append(entry_to_json(difference.at) | sizes)
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
        "tensors": tensors,
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


def show_recorded_diff(diff: RecordedDiff, *, as_json: bool) -> None:
    """Print where two recorded trials diverge."""
    if as_json:
        print_json(_recorded_to_json(diff))
        return
    console = TerminalConsole()
    trials = (diff.a.record.trial, diff.b.record.trial)
    for line in [*heading(*trials), *_record_lines(diff)]:
        console.print_text(line)
    again = diff.again
    if again is None:
        return
    for line in _rerun_lines(diff, again):
        console.print_text(line)
    show_differences(console, again.differences)


def _record_lines(diff: RecordedDiff) -> list[str]:
    """Return what the records say, as lines."""
    bounds = diff.bounds
    compared = bounds.comparison.compared
    divergence = bounds.comparison.divergence
    lines = other_tensors_lines(
        tensors_of(bounds.comparison.other_tensors_a), tensors_of(bounds.comparison.other_tensors_b)
    )
    if divergence is None:
        extent = "of losses, evaluations and the parameters at the end"
        if bounds.fingerprinted:
            extent = (
                f"of losses, evaluations and the fingerprints of {len(bounds.fingerprinted)} steps"
            )
        return [*lines, f"same in their records: {compared} digests {extent}"]
    if bounds.is_exact:
        trials = (diff.a.record.trial, diff.b.record.trial)
        names = list(dict.fromkeys(entry.mark.name for entry in divergence.together))
        return [
            *lines,
            moment_line(*trials, divergence),
            f"tensors: {listed(names, TENSORS_SHOWN)}",
        ]
    earlier = "nothing is known of the steps before"
    if bounds.equal_up_to:
        earlier = f"everything is the same up to step {bounds.equal_up_to}"
    mark = divergence.earliest.mark
    where = f"in {PARAMETERS}" if mark.name == PARAMETERS else f"at {moment(mark)}"
    return [*lines, f"by their records, they differ {where}; {earlier}"]


def _rerun_lines(diff: RecordedDiff, again: TraceDiff) -> list[str]:
    """Return what running both again has shown, as lines."""
    lines = []
    for name, unlike in _unlike_records(diff, again).items():
        if unlike is not None:
            step, phase = unlike
            trial = diff.a if name == "A" else diff.b
            lines.append(
                f"{name} did not compute again what it has recorded, first in step {step}, {phase};"
                f" harness reproduce {trial.record.trial.id} names what differs here"
            )
    trials = (diff.a.record.trial, diff.b.record.trial)
    if again.is_same and diff.bounds.comparison.divergence is not None:
        lines.append(
            "run again, both compute the same bits: what tells them apart is not in their settings"
        )
        return lines
    lines += [f"run again: {line}" for line in description(*trials, again)]
    return lines


def _unlike_records(diff: RecordedDiff, again: TraceDiff) -> dict[str, tuple[int, str] | None]:
    """Return for A and B the first fingerprint that the new run did not repeat, None for none."""
    run_a, run_b = again.overviews
    return {
        "A": unlike_record(diff.a, run_a.traces),
        "B": unlike_record(diff.b, run_b.traces),
    }


def _recorded_to_json(diff: RecordedDiff) -> dict[str, Any]:
    """Return what is known of two recorded trials as JSON can hold it."""
    trial_a, trial_b = diff.a.record.trial, diff.b.record.trial
    bounds, again = diff.bounds, diff.again
    divergence = bounds.comparison.divergence
    together = () if divergence is None else divergence.together
    recorded = {
        "compared": bounds.comparison.compared,
        "equal_up_to": bounds.equal_up_to,
        "is_exact": bounds.is_exact,
        "first": None if divergence is None else entry_to_json(divergence.earliest),
        "tensors": [entry_to_json(entry) for entry in together],
    }
    content: dict[str, Any] = {
        "a": {"trial": trial_a.id},
        "b": {"trial": trial_b.id},
        "same": diff.is_same,
        "recorded": recorded,
        "again": None,
    }
    if again is not None:
        content["again"] = to_json(trial_a, trial_b, again)
        content["unlike_record"] = _unlike_records(diff, again)
    return content


WIDTH, HEIGHT = 8.0, 6.0  # inches
MAX_TITLE = 80  # characters that fit
# Below it the axis is linear, so that the same bits, a distance of 0, can be drawn.
SMALLEST_RELATIVE = 1e-9
SMALLEST_ULP = 1


def draw_divergence(course: Course, title: str, first_step: int | None) -> Figure:
    """Return the figure: relative distances above, units in the last place below."""
    figure = new_figure(WIDTH, HEIGHT)
    upper, lower = figure.subplots(2, 1, sharex=True)
    style_axes(upper, shorten(title, MAX_TITLE, placeholder=" …"), "", "relative distance")
    style_axes(lower, "", "step", "distance in ULP")
    upper.set_yscale("symlog", linthresh=SMALLEST_RELATIVE)
    lower.set_yscale("symlog", linthresh=SMALLEST_ULP)
    for axes, name in ((upper, "relative"), (lower, "ulp")):
        axes.yaxis.set_major_formatter(plain_tick)
        _draw_distances(axes, course.losses, name, "loss", 0)
        _draw_distances(axes, course.parameters, name, "parameters", 1)
        axes.set_ylim(bottom=0)
        if first_step is not None:
            axes.axvline(first_step, color=INK, linestyle="--", linewidth=1)
    if first_step is not None:
        upper.annotate(
            f" step {first_step}",
            (first_step, 0.97),
            xycoords=("data", "axes fraction"),
            va="top",
            fontsize=8.5,
        )
    lower.legend(loc="upper left", fontsize=8.5, frameon=False)
    return figure


def _draw_distances(
    axes: Axes, distances: Sequence[Distance], name: str, label: str, number: int
) -> None:
    """Draw one row of distances: a line through every step, or markers at a few."""
    if not distances:
        return
    steps = [distance.step for distance in distances]
    values = [getattr(distance, name) for distance in distances]
    marker = MARKERS[number] if number else ""
    axes.plot(steps, values, color=COLORS[number], marker=marker, linewidth=1.2, label=label)
