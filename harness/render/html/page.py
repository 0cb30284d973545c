"""The page put together: every section that has data, and for the others what would bring them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from harness.analysis.compare import Side
from harness.core.paths import Results, SweepFolder, write_atomically
from harness.hardware.machine import Machine
from harness.hardware.roofline import machine_of
from harness.records.environment import scrub, secrets
from harness.records.record import Record
from harness.render.format import duration
from harness.render.html import intervals, origin, plots, sections
from harness.render.html.facts import Facts, gather
from harness.render.html.findings import findings
from harness.render.html.steps import steps_of
from harness.render.terminal.roofline import (
    describe_shares,
    draw_roofline,
    roofline_cells,
    with_measured_peaks,
)
from harness.spec.sweep import Sweep

CURVES = "means over trials, with their range where lines are few; cells with the very same values share a line"


@dataclass(frozen=True, kw_only=True)
class Section:
    """`kind` is the template's word for how it is shown; without content, `otherwise` says what would bring it."""

    id: str
    title: str
    kind: str
    content: Any
    about: str = ""
    otherwise: str = ""


def write(
    path: Path,
    results: Results,
    sweep: Sweep,
    records: Sequence[Record],
    against: Side | None = None,
) -> None:
    """The report of a sweep that has run; the same bytes for the same records. Raises BadInput if there are none."""
    records, machines = with_measured_peaks(records, results)
    facts = gather(results, sweep, records, against)
    write_atomically(
        path, render(facts, _sections(facts, results.sweep_folder(sweep.name), machines))
    )


def render(facts: Facts, found: Sequence[Section]) -> str:
    """Everything from records is escaped; secrets of this environment and credentials in URLs are cut out."""
    loader = jinja2.PackageLoader("harness.render.html")
    templates = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True,
                                   lstrip_blocks=True)  # fmt: skip
    text = templates.get_template("report.html").render(
        sweep=facts.sweep,
        overview=_overview(facts),
        shown=[section for section in found if section.content],
        lacking=[section for section in found if not section.content],
        style=Markup(loader.get_source(templates, "report.css")[0]),
    )
    hidden = secrets()
    return scrub(text, [*hidden, *(str(escape(secret)) for secret in hidden)])


def _overview(facts: Facts) -> list[tuple[str, str]]:
    counts = Counter(record.status for record in facts.records)
    counts_words = ", ".join(f"{count} {status}" for status, count in counts.items())
    unrecorded = origin.missing(facts)
    began, ended = min(r.started for r in facts.records), max(r.ended for r in facts.records)
    hardware = dict.fromkeys(_hardware(record) for record in facts.records if record.rank0)
    seeds, repeats = len(facts.sweep.seeds), facts.sweep.repeats
    return [
        (
            "cells",
            f"{len(facts.cells)} of {len(facts.workloads)} workload{'s' if len(facts.workloads) > 1 else ''}",
        ),
        ("trials", counts_words + (f", {unrecorded} not run" if unrecorded else "")),
        (
            "a cell",
            f"{seeds} seed{'s' if seeds > 1 else ''}, {repeats} repeat{'s' if repeats > 1 else ''}",
        ),
        ("measured", f"{_moment(began)}, in {duration(ended - began)}"),
        ("on", "; ".join(hardware) or "unknown hardware"),
    ]


def _hardware(record: Record) -> str:
    found: Mapping[str, Any] = record.rank0.environment.get("hardware", {}) if record.rank0 else {}
    gpus = Counter(gpu.get("name") for gpu in found.get("gpus", []))
    return ", ".join(
        [
            f"{found.get('cpu')}, {found.get('usable_cores')} cores",
            *(f"{n} × {g}" for g, n in gpus.items()),
        ]
    )


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


def _sections(facts: Facts, folder: SweepFolder, machines: Mapping[str, Machine]) -> list[Section]:
    groups = facts.workloads.items()
    steps = [
        (label, found)
        for label, cells in groups
        if (found := [s for c in cells if (s := steps_of(c))])
    ]
    return [
        Section(id="summary", title="What won", kind="findings", content=findings(facts),
                otherwise="takes a trial that is done and has steps enough to be measured"),
        Section(id="matrix", title="The matrix", kind="heat", content=sections.heat(facts),
                about="samples/s, and the ratio to the first cell of the workload; blue is faster, orange slower",
                otherwise="takes a measured cell"),
        Section(id="speedups", title="Speed-ups", kind="spans", content=intervals.speedups(facts),
                about="each cell against the first of its workload, with 95% intervals over trials; a verdict takes"
                " more, as chance has as many tries as there are cells; a hollow dot has no interval, one with an arrow"
                " goes on",
                otherwise="take two measured cells of one workload"),
        *_against(facts),
        Section(id="axes", title="What each axis buys", kind="spans", content=intervals.bought(facts),
                about="least squares on log throughput: an axis in the mean over the others, then two axes together",
                otherwise="takes cells that differ in two axes, or more seeds or repeats"),
        Section(id="accuracy", title="Accuracy", kind="spans", content=intervals.accuracy(facts),
                about="the target metric at the end, in the mean over trials with 95% intervals",
                otherwise="takes an evaluation"),
        Section(id="curves", title="Loss", kind="plots", content=_plots(facts, plots.loss_plot),
                about=CURVES, otherwise="takes a trial that is done"),
        Section(id="evaluations", title="Accuracy while training", kind="plots",
                content=_plots(facts, plots.metric_plot), about=CURVES,
                otherwise="takes several evaluations a trial, as by evaluate: {steps: N} in the sweep file"),
        Section(id="steps", title="Step times", kind="steps", content=steps,
                about="left the first trial, step by step, steady state shaded; right all trials' steady steps",
                otherwise="take a trial with steps enough to be measured"),
        Section(id="step-phases", title="Where a step goes", kind="bars", content=sections.step_phases(facts),
                about="shares of the measured steps' time over all ranks", otherwise="takes a measured cell"),
        Section(id="trial-phases", title="Where a trial goes", kind="bars", content=sections.trial_phases(facts),
                about="seconds, of the rank that took longest", otherwise="takes a trial that is done"),
        Section(id="scaling", title="Scaling", kind="bars", content=sections.scaling(facts),
                about="against the same settings on the fewest ranks",
                otherwise="takes cells that differ in world_size"),
        Section(id="roofline", title="Roofline", kind="roofline", content=_rooflines(facts, machines),
                otherwise="takes harness peak, which measures what the machine can do"),
        Section(id="memory", title="Memory", kind="bars", content=sections.memory(facts),
                about="the most that training took at a rank", otherwise="takes trials whose memory could be read"),
        Section(id="energy", title="Energy", kind="bars", content=sections.energy(facts),
                about="joules a sample, of all GPUs",
                otherwise="takes GPUs with an energy counter, and trials of some seconds"),
        Section(id="failures", title="Failed and invalid", kind="troubles", content=origin.troubles(facts, folder),
                about="no part of any number above", otherwise="none: every trial that has run is done"),
        Section(id="environment", title="Environment", kind="environment", content=origin.environment(facts),
                otherwise="takes a trial that is done"),
        Section(id="reproduce", title="How to reproduce", kind="recipe", content=origin.recipe(facts, folder)),
    ]  # fmt: skip


def _against(facts: Facts) -> list[Section]:
    if facts.against is None:
        return []
    name, comparison = facts.against
    told = [
        *(f"other {one}" for one in comparison.differences),
        *comparison.missing,
        *comparison.notes,
    ]
    return [
        Section(id="against", title=f"Against {name}", kind="spans", content=intervals.against(facts),
                about="; ".join(told), otherwise="takes cells that both have measured")
    ]  # fmt: skip


def _plots(facts: Facts, plot: Any) -> list[plots.Plot]:
    found = (plot(label, cells) for label, cells in facts.workloads.items())
    return [one for one in found if one is not None]


def _rooflines(facts: Facts, machines: Mapping[str, Machine]) -> list[tuple[str, Markup]]:
    """A drawing for each machine that some trials ran on and that was measured."""
    done = [record for record in facts.records if record.status == "done"]
    found = []
    for machine in machines.values():
        own = [record for record in done if machine_of(record, machines) is machine]
        if cells := roofline_cells(facts.sweep, own, machine):
            found.append(
                (
                    describe_shares(cells),
                    plots.svg(draw_roofline(facts.sweep.name, cells, machine), "roofline"),
                )
            )
    return found
