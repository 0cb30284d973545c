"""The report as one HTML page: every section that has data, and what the other sections need.

The page is a single file without a script and without an address, so that it can be mailed, kept
with a result and printed. `SECTIONS` lists what is on it; to add a section, add a row there and, if
none fits, a macro to templates/kinds.html.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup

from harness.analysis.cells import shown_seeds
from harness.analysis.compare import CellComparison
from harness.analysis.result import UNRECORDED
from harness.core.text import counted
from harness.hardware.roofline import machine_of
from harness.preflight.report import WorkloadReport
from harness.records.environment import Environment
from harness.render import format as fmt
from harness.render.findings import findings, too_few_notes
from harness.render.html import intervals, origin, plots, sections
from harness.render.html.report import FASTEST, Report, ReportCell
from harness.render.html.template import fill
from harness.render.preflight import norm_table
from harness.render.roofline import describe_shares, draw_roofline, roofline_cells
from harness.render.table import Table

ABOUT_CURVES = (
    "means over trials, with their range where lines are few, up to where the first of them ended;"
    " cells with equal values share a line"
)


@dataclass(frozen=True, kw_only=True)
class Section:
    """A section of the page: where its content comes from, and how it is shown.

    A section without content is not shown. It is listed at the end of the page, with what it needs.
    """

    id: str  # its anchor in the page
    title: str  # {metric} stands for the name of the target metric
    kind: str  # the macro in templates/kinds.html that shows the content
    build: Callable[[Report], Any]  # returns the content, something false without data
    about: str = ""  # how to read the content, in a line below the title
    needs: str = ""  # the data that the section needs


def render(report: Report) -> str:
    """Return the page."""
    shown: list[tuple[Section, Any]] = []
    lacking: list[Section] = []
    for section in _sections(report):
        content = section.build(report)
        if content:
            shown.append((section, content))
        else:
            lacking.append(section)
    return fill(
        "report.html",
        sweep=report.sweep,
        overview=_overview(report),
        shown=shown,
        lacking=lacking,
    )


def _overview(report: Report) -> list[tuple[str, str]]:
    """Return the terms at the top of the page with their values.

    They say how much was measured, when and on what. Times are in UTC, so that the page does not
    depend on who writes it.
    """
    started = min(record.started for record in report.records)
    ended = max(record.ended for record in report.records)
    moment = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(started))
    workloads = counted(len(report.workloads), "workload")
    seeds = counted(len(shown_seeds(report.sweep, report.records)), "seed")
    repeats = counted(report.repeats, "repeat")
    environments = [record.environment for record in report.records if record.environment]
    # A dict keeps the order in which the machines were used.
    hardware = dict.fromkeys(_describe_hardware(environment) for environment in environments)
    per_cell = [f"{seeds}, {repeats}", *too_few_notes(report.result.cells)]
    cells = f"{len(report.cells):,} of {workloads}"
    if report.omitted_count:
        cells += (
            f"; rows are of the {FASTEST} fastest of a workload and of its reference;"
            f" harness show {report.sweep.name} has all"
        )
    return [
        ("cells", cells),
        ("trials", _trial_counts(report)),
        ("per cell", "; ".join(per_cell)),
        ("measured", f"{moment}, in {fmt.duration(ended - started)}"),
        ("on", "; ".join(hardware) or "unknown hardware"),
    ]


def _trial_counts(report: Report) -> str:
    """Return how many trials have which status: `10 done, 1 failed, 1 not run`."""
    counts = fmt.counts(record.status for record in report.records)
    unrecorded = sum(cell.left_out.get(UNRECORDED, 0) for cell in report.result.cells)
    if unrecorded:
        counts += f", {unrecorded} not run"
    if report.unreadable_count:
        counts += f", {report.unreadable_count} left out because their records can't be read"
    if report.other_code_count:
        counts += f", {report.other_code_count} left out because their workload had other code"
    return counts


def _describe_hardware(environment: Environment) -> str:
    """Return what a trial ran on: `Xeon, 32 cores, 8 × H100`.

    Cores are those that the process may use, which a scheduler may have limited.
    """
    hardware = environment.hardware
    parts = [hardware.cpu, f"{hardware.usable_cores} cores"]
    gpus = Counter(gpu.name for gpu in hardware.gpus)
    parts += [f"{count} × {name}" for name, count in gpus.items()]
    return ", ".join(parts)


def _plots_by(
    plot: Callable[[str, Sequence[ReportCell]], plots.Plot | None],
) -> Callable[[Report], list[plots.Plot]]:
    """Return a function that draws a plot for each workload that has the data for it."""

    def build(report: Report) -> list[plots.Plot]:
        drawn = []
        for workload, cells in report.shown.items():
            workload_plot = plot(workload, cells)
            if workload_plot is not None:
                drawn.append(workload_plot)
        return drawn

    return build


def _steps(report: Report) -> list[tuple[str, list[plots.StepTimeDrawing]]]:
    """Return the step times of each workload's cells, by the workload's label.

    Cells without enough measured steps are left out.
    """
    groups = []
    for workload, cells in report.shown.items():
        rows = []
        for cell in cells:
            row = plots.step_times(cell)
            if row is not None:
                rows.append(row)
        if rows:
            groups.append((workload, rows))
    return groups


def _rooflines(report: Report) -> list[tuple[str, Markup]]:
    """Return a text and a drawing for each measured machine that some trials ran on.

    The text says how close to the roof each workload came. A machine is measured by `harness peak`,
    before or after the sweep has run.
    """
    rooflines = []
    for machine in report.machines.values():
        on_machine = []
        for record in report.records:
            if record.status == "done" and machine_of(record, report.machines) is machine:
                on_machine.append(record)
        cells = roofline_cells(report.sweep, on_machine, machine)
        if cells:
            figure = draw_roofline(report.sweep.name, cells, machine)
            rooflines.append((describe_shares(cells), plots.svg(figure, "roofline")))
    return rooflines


def _preflight(report: Report) -> list[tuple[WorkloadReport, Table]]:
    """Return the findings of `harness check` on each workload, with the norms of its parameters."""
    if report.preflight is None:
        return []
    return [(workload, norm_table(workload.norms)) for workload in report.preflight.workloads]


def _sections(report: Report) -> list[Section]:
    """Return the sections of the page in order.

    Titles have the name of the target metric, of several those of all. The comparison with another sweep
    or a baseline follows the comparison within the sweep.
    """
    ordered = []
    targets = dict.fromkeys(record.rank0.target.name for record in report.records if record.rank0)
    metric = " and ".join(targets) or "target metric"
    for section in SECTIONS:
        title = section.title.format(metric=metric)
        ordered.append(replace(section, title=f"{title[0].upper()}{title[1:]}"))
        if section.id == "speedups" and report.against is not None:
            ordered.append(_against_section(*report.against))
    return ordered


def _against_section(name: str, comparison: CellComparison) -> Section:
    """Return the section that compares the sweep with another one or with a baseline.

    What the two differ in, such as other code, is said above the numbers.
    """
    remarks = [f"other {difference}" for difference in comparison.differences]
    remarks += intervals.shortened(comparison.missing)
    remarks += comparison.notes
    return Section(
        id="against",
        title=f"Against {name}",
        kind="spans",
        build=intervals.against,
        about="; ".join(remarks),
        needs="cells that both have measured",
    )


# All sections but the one that `_against_section` makes, in the order of the page: first what was
# found, then the evidence for it, last where it comes from.
SECTIONS = (
    Section(
        id="summary",
        title="Summary",
        kind="findings",
        build=lambda report: findings(report.result, report.name),
        needs="a done trial with enough steps to be measured",
    ),
    Section(
        id="matrix",
        title="Throughput",
        kind="matrix",
        build=sections.matrices,
        about="mean throughput in samples/s (steps/s of scripts that report no samples), and the"
        " ratio to the first measured cell of the workload; blue is faster, orange slower. The ratio"
        " is that of the speedups below, which weighs trials equally, so that it can differ from the"
        " ratio of two means that vary much.",
        needs="a measured cell",
    ),
    Section(
        id="speedups",
        title="Speedups",
        kind="spans",
        build=intervals.speedups,
        about="each cell against the first measured cell of its workload. An interval is that of the"
        " test behind its verdict: of 95% confidence for a change and of 90% for the same, wider for"
        " more cells, because they give chance more tries. A hollow dot has no interval; an arrow"
        " marks an interval that is cut off.",
        needs="two measured cells of one workload",
    ),
    Section(
        id="axes",
        title="Contribution of each axis",
        kind="spans",
        build=intervals.contributions,
        about="least squares on log throughput: each axis averaged over the others, then pairs of"
        " axes",
        needs="cells that differ in two axes, or more seeds or repeats",
    ),
    Section(
        id="accuracy",
        title="Final {metric}",
        kind="spans",
        build=intervals.accuracy,
        about="the target metric at the end, averaged over seeds, with 95% intervals",
        needs="an evaluation",
    ),
    Section(
        id="convergence",
        title="Convergence",
        kind="spans",
        build=intervals.convergence,
        about="steps until the target metric reaches the goal, against the reference, in pairs of"
        " seeds, with the intervals that the verdicts rest on; fewer is faster. A seed that never reached"
        " it makes a cell inconclusive.",
        needs="a goal that cells of one workload reached: harness report SWEEP --to-reach VALUE",
    ),
    Section(
        id="cost",
        title="Cost",
        kind="spans",
        build=intervals.costs,
        about="of an epoch of steady steps, and with --to-reach from the first step until the target"
        " metric reaches the goal, evaluations included: geometric means with 95% intervals, at the"
        " price of a rank's hour in the cluster profile",
        needs="price_per_hour in the cluster profile, such as price_per_hour: 2.49 USD",
    ),
    Section(
        id="stopping",
        title="Early stopping",
        kind="bars",
        build=sections.stopping,
        about="epochs that were trained, averaged over trials, and what ended them. Trials of"
        " different lengths compare in throughput, which is that of their steady steps, and in the"
        " metric that each ended with.",
        needs="stop: {patience: 2} in the sweep file, and a validation set",
    ),
    Section(
        id="curves",
        title="Training loss",
        kind="plots",
        build=_plots_by(plots.loss_plot),
        about=ABOUT_CURVES,
        needs="a done trial with losses, which a script reports with harness.report",
    ),
    Section(
        id="evaluations",
        title="{metric} during training",
        kind="plots",
        build=_plots_by(plots.metric_plot),
        about=ABOUT_CURVES,
        needs="several evaluations per trial, such as evaluate: {steps: N} in the sweep file",
    ),
    Section(
        id="steps",
        title="Step times",
        kind="steps",
        build=_steps,
        about="left: the first trial step by step, with its steady state shaded; right: the"
        " distribution of all trials' steady steps",
        needs="a trial with enough steps to be measured",
    ),
    Section(
        id="step-phases",
        title="Time by phase of a step",
        kind="bars",
        build=sections.step_phases,
        about="shares of the measured steps' time over all ranks",
        needs="a measured cell",
    ),
    Section(
        id="what-if",
        title="What if",
        kind="spans",
        build=intervals.what_ifs,
        about="by what throughput would be multiplied without a wait for data, if the slowest rank took as"
        " long as the others, and if communication took no time: from the recorded phases, geometric means"
        " over trials with 95% intervals",
        needs="a measured cell",
    ),
    Section(
        id="trial-phases",
        title="Time by phase of a trial",
        kind="bars",
        build=sections.trial_phases,
        about="seconds, of the rank that took longest",
        needs="a done trial",
    ),
    Section(
        id="nodes",
        title="Nodes",
        kind="tables",
        build=sections.nodes,
        about="the speed of a node compared with the others, without communication, in pairs of blocks that"
        " they shared or else by blocks of their own; the intervals hold together",
        needs="two blocks on each of several nodes",
    ),
    Section(
        id="scaling",
        title="Scaling",
        kind="bars",
        build=sections.scaling,
        about="against the same settings on the fewest ranks",
        needs="cells that differ in world_size",
    ),
    Section(
        id="roofline",
        title="Roofline",
        kind="roofline",
        build=_rooflines,
        needs="harness peak, which measures what the machine can do",
    ),
    Section(
        id="memory",
        title="Memory",
        kind="bars",
        build=sections.memory,
        about="the most memory that training took at a rank",
        needs="trials whose memory could be read",
    ),
    Section(
        id="energy",
        title="Energy",
        kind="bars",
        build=sections.energy,
        about="joules per sample, summed over all GPUs",
        needs="GPUs with an energy counter, and trials of several seconds",
    ),
    Section(
        id="failures",
        title="Failed and invalid trials",
        kind="troubles",
        build=origin.troubles,
        about="not part of any number above",
        needs="a trial that failed; every trial that has run is done",
    ),
    Section(
        id="parity",
        title="Parity",
        kind="tables",
        build=sections.parity,
        about="how alike the cells compute, each compared with a reference, from the highest rung:"
        " bitwise, n ULP, the fp64 rule, equivalent over seeds, different",
        needs="harness parity",
    ),
    Section(
        id="rates",
        title="Learning rates",
        kind="plots",
        build=plots.rate_plots,
        about="the loss of a short training whose rate rises, smoothed, a line for each seed; the"
        " suggestions with their range over seeds",
        needs="harness find-lr SWEEP",
    ),
    Section(
        id="exports",
        title="Exported models",
        kind="tables",
        build=sections.exports,
        about="each compared with eager mode over the whole test set",
        needs="harness export TRIAL --to FORMAT",
    ),
    Section(
        id="preflight",
        title="Pre-flight",
        kind="preflight",
        build=_preflight,
        about="mistakes that were looked for in each workload, with a few samples and before training",
        needs="harness check",
    ),
    Section(
        id="environment",
        title="Environment",
        kind="environment",
        build=origin.environment,
        needs="a done trial",
    ),
    Section(
        id="reproduce",
        title="How to reproduce",
        kind="recipe",
        build=origin.recipe,
    ),
)
