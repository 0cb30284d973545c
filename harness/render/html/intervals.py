"""The sections that show values with their intervals and verdicts.

Each is a list of groups, one for a workload, whose rows share a scale. Values, intervals and
verdicts are those of the model of results; here they only get a position and a badge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis.compare import MetricRow, unpaired_notes
from harness.analysis.cost import cost_to_goal, currency, epoch_cost
from harness.analysis.what_if import QUESTIONS, what_if
from harness.render import format as fmt
from harness.render.html.report import FASTEST, MAX_CELLS, Report, ReportCell
from harness.render.html.rows import NO_BADGE, Bounds, RatioScale, RowGroup, Scale
from harness.render.table import Styled
from harness.statistics.attribution import Effect
from harness.statistics.interval import Interval

MAX_EFFECTS = 40  # of axes, and of pairs of them: the largest
INTERACTION_NOTE = "how much more the first contributes with the second than without it; 1× is neither more nor less"
MAX_REMARKS = 10  # on cells that could not be compared, before the others are counted
RATIO_DIGITS = 2  # of ratios in a drawing, where more would not be visible


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """A ratio to draw, of throughputs, steps or costs."""

    label: str
    value: float
    bounds: Bounds | None  # None where too few values give no interval
    badge: Styled = NO_BADGE
    text: str = ""  # instead of the ratio and its interval


def speedups(report: Report) -> list[RowGroup]:
    """Return each cell's throughput against the reference of its workload.

    The reference itself has no row: it is the line at 1.
    """
    comparison = report.result.comparison
    if comparison is None:
        return []
    groups = []
    for workload, cells in report.shown.items():
        reference = report.result.reference(workload)
        ratios, rows = [], []
        for cell in cells:
            row = report.result.throughput_row(cell.cell)
            if row is not None:
                ratios.append(_ratio(cell.name, row))
                rows.append(row)
        if ratios and reference is not None:
            remarks = unpaired_notes(rows)
            note = "; ".join([f"1× is {report.name(reference.cell)}", *remarks])
            groups.append(_ratio_group(workload, ratios, note))
    return groups


def convergence(report: Report) -> list[RowGroup]:
    """Return each cell's steps to the goal against those of its reference, and what has none."""
    comparison = report.result.comparison
    if comparison is None or comparison.rules.goal is None:
        return []
    groups = []
    for workload, cells in report.shown.items():
        ratios = []
        for cell in cells:
            row = report.result.convergence_row(cell.cell)
            if row is not None:
                ratios.append(_ratio(cell.name, row))
        labels = {cell_result.cell.label for cell_result in report.result.workloads[workload]}
        censored = []
        for missing in comparison.missing:
            label, separator, _ = missing.partition(": steps to ")
            if separator and label in labels:
                censored.append(missing)
        reference = report.result.reference(workload)
        if ratios and reference is not None:
            note = "; ".join([f"1× is {report.name(reference.cell)}", *shortened(censored)])
            groups.append(_ratio_group(workload, ratios, note))
    return groups


def against(report: Report) -> list[RowGroup]:
    """Return each cell's throughput against the sweep or baseline that it is compared with.

    Cells have their full labels, because the other side may differ in any axis.
    """
    if report.against is None:
        return []
    name, comparison = report.against
    rows = [row for row in comparison.rows if row.is_throughput]
    if not rows:
        return []
    note = f"1× is {name}"
    if len(rows) > MAX_CELLS:
        note += f"; the {FASTEST} fastest of {len(rows):,} cells"
        rows = sorted(rows, key=lambda row: row.mean_b, reverse=True)[:FASTEST]
    ratios = [_ratio(row.b.cell.label, row) for row in rows]
    return [_ratio_group(name, ratios, note)]


def shortened(remarks: Sequence[str]) -> list[str]:
    """Return the first remarks, and how many more there are."""
    if len(remarks) <= MAX_REMARKS:
        return list(remarks)
    return [*remarks[:MAX_REMARKS], f"and {len(remarks) - MAX_REMARKS:,} more"]


def _ratio(label: str, row: MetricRow) -> Ratio:
    """Return the ratio of a row of a comparison."""
    verdict = row.verdict
    return Ratio(
        label=label,
        value=verdict.effect,
        bounds=fmt.shown_effect_bounds(verdict),
        badge=fmt.verdict_badge(row),
    )


def _ratio_group(title: str, ratios: Sequence[Ratio], note: str) -> RowGroup:
    """Return ratios on one logarithmic scale, with a line at 1.

    On it, half and double are equally far from 1.
    """
    bounds: list[float] = []
    for ratio in ratios:
        if ratio.bounds is not None:
            bounds += ratio.bounds
    scale = RatioScale([ratio.value for ratio in ratios], bounds)
    rows = []
    for ratio in ratios:
        text = ratio.text
        if not text:
            text = fmt.ratio(ratio.value, RATIO_DIGITS)
            if ratio.bounds is not None:
                low, high = ratio.bounds
                text += f" ({fmt.bounds(low, high, RATIO_DIGITS)})"
        rows.append(scale.span(ratio.label, ratio.value, ratio.bounds, text, ratio.badge))
    return RowGroup(
        title=title, rows=rows, ticks=scale.ticks(), mark=scale.position(1.0), note=note
    )


def what_ifs(report: Report) -> list[RowGroup]:
    """Return by how much each cell would be faster without one of its waits, by workload and wait.

    A wait that costs no cell anything that a text would show is left out.
    """
    groups = []
    for workload, cells in report.shown.items():
        answers = {cell.name: what_if(cell.done) for cell in cells}
        for question in QUESTIONS:
            ratios = []
            for name, answer in answers.items():
                if question in answer:
                    factor = answer[question]
                    bounds = fmt.shown_bounds(factor)
                    ratios.append(Ratio(label=name, value=factor.mean, bounds=bounds))
            if any(round(ratio.value, RATIO_DIGITS) > 1 for ratio in ratios):
                groups.append(_ratio_group(f"{workload}: {question}", ratios, "1× is as measured"))
    return groups


def contributions(report: Report) -> list[RowGroup]:
    """Return what each axis contributes, and what two axes contribute together.

    The two are separate groups, because 1 means another thing: that an axis makes no
    difference, or that two axes do not depend on each other.
    """
    groups = []
    for workload, attribution in report.result.attributions.items():
        main_effects, interactions = attribution.main_effects, attribution.interactions
        if main_effects:
            ratios = []
            for effect in main_effects[:MAX_EFFECTS]:
                levels = fmt.short_axis_levels(effect.levels)
                reference = fmt.short_axis_levels(effect.reference)
                label = f"{levels} against {reference}"
                ratios.append(_effect_ratio(label, effect, "faster", "slower"))
            notes = _largest_note(main_effects)
            for term in attribution.unknown:
                notes.append(f"{' and '.join(term)} cannot be separated from the other axes")
            groups.append(_ratio_group(workload, ratios, "; ".join(notes)))
        if interactions:
            ratios = []
            for effect in interactions[:MAX_EFFECTS]:
                label = fmt.short_axis_levels(effect.levels)
                ratios.append(_effect_ratio(label, effect, "more", "less"))
            notes = [INTERACTION_NOTE, *_largest_note(interactions)]
            groups.append(_ratio_group(f"{workload}: two axes together", ratios, "; ".join(notes)))
    return groups


def _largest_note(effects: Sequence[Effect]) -> list[str]:
    """Return that only the largest effects are shown, nothing where all are."""
    if len(effects) <= MAX_EFFECTS:
        return []
    return [f"the {MAX_EFFECTS} largest of {len(effects):,}"]


def _effect_ratio(label: str, effect: Effect, above: str, below: str) -> Ratio:
    """Return an effect to draw; `above` and `below` name a certain one above and below 1."""
    if not effect.is_certain:
        badge = Styled("not certain", "open")
    elif effect.ratio > 1:
        badge = Styled(above, "better")
    else:
        badge = Styled(below, "worse")
    return Ratio(label=label, value=effect.ratio, bounds=(effect.low, effect.high), badge=badge)


def accuracy(report: Report) -> list[RowGroup]:
    """Return each cell's target metric at the end, with verdicts against the reference.

    Cells that were never evaluated have no row.
    """
    groups = []
    for workload, cells in report.shown.items():
        evaluated: list[tuple[ReportCell, Interval]] = []
        for cell in cells:
            if cell.result.metric is not None:
                evaluated.append((cell, cell.result.metric))
        if evaluated:
            groups.append(_metric_group(report, workload, evaluated))
    return groups


def costs(report: Report) -> list[RowGroup]:
    """Return each cell's cost of an epoch, and with a goal that of the goal, by workload.

    A goal has no cost where a seed never reached it, or was interrupted on the way.
    """
    groups = []
    goal = report.result.goal
    for workload, cells in report.shown.items():
        for unit in sorted({currency(cell.result) or "" for cell in cells} - {""}):
            of_unit = [cell for cell in cells if currency(cell.result) == unit]
            epochs = [(cell, epoch_cost(cell.result)) for cell in of_unit]
            groups += _cost_groups(f"{workload}: {unit}/epoch", epochs)
            if goal is not None:
                reached = [(cell, cost_to_goal(cell.result, goal)) for cell in of_unit]
                groups += _cost_groups(f"{workload}: {unit} to {goal:g}", reached)
    return groups


def _cost_groups(title: str, costs: Sequence[tuple[ReportCell, Interval | None]]) -> list[RowGroup]:
    """Return the cells whose cost is known, against the first of them; nothing without any."""
    known = [(cell, cost) for cell, cost in costs if cost is not None]
    if not known:
        return []
    first_cell, first_cost = known[0]
    ratios = []
    for cell, cost in known:
        bounds = fmt.shown_bounds(cost)
        if bounds is not None:
            bounds = bounds[0] / first_cost.mean, bounds[1] / first_cost.mean
        value = cost.mean / first_cost.mean
        ratios.append(Ratio(label=cell.name, value=value, bounds=bounds, text=fmt.cost(cost)))
    return [_ratio_group(title, ratios, f"1× is {first_cell.name}")]


def _metric_group(
    report: Report, workload: str, evaluated: Sequence[tuple[ReportCell, Interval]]
) -> RowGroup:
    """Return the cells of a workload and their means on one scale, with a line at the first."""
    means = []
    bounds: list[float] = []
    for _, metric in evaluated:
        means.append(metric.mean)
        bounds += fmt.shown_bounds(metric) or ()
    scale = Scale(means, bounds)
    rows = []
    for cell, metric in evaluated:
        row = report.result.metric_row(cell.cell)
        badge = NO_BADGE if row is None else fmt.verdict_badge(row)
        text = fmt.metric(metric)
        rows.append(scale.span(cell.name, metric.mean, fmt.shown_bounds(metric), text, badge))
    first_cell = evaluated[0][0]
    target_name = "target metric"
    if first_cell.result.target is not None:
        target_name = first_cell.result.target.name
    return RowGroup(
        title=workload,
        rows=rows,
        ticks=scale.ticks(),
        mark=scale.position(means[0]),
        note=f"{target_name}; the line is {first_cell.name}",
    )
