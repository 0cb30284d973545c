"""The sections that are tables: classes, parity and exported models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from harness.analysis.classes import (
    ClassScore,
    Mistake,
    class_scores,
    join_confusions,
    mistakes,
)
from harness.core.redaction import redact_text, secret_values
from harness.core.text import counted
from harness.records.record import Confusions
from harness.render import format as fmt
from harness.render import parity as parity_texts
from harness.render import serving
from harness.render.confusions import draw_confusions
from harness.render.html.plots import svg
from harness.render.html.report import Report, ReportCell
from harness.render.table import Table, TableGroup

MOST_CLASSES = 20  # that are listed: of more, those with the lowest F1
MOST_MISTAKES = 20  # that are listed where there are more classes


@dataclass(frozen=True, kw_only=True)
class Classes:
    """The classes of one workload, at the cell with the best target metric."""

    title: str
    note: str
    matrix: Markup
    tables: Sequence[Table]  # of few classes there is none of mistakes, as the matrix has them all


def classes(report: Report) -> list[Classes]:
    """Return the classes of each workload that is a classifier."""
    sections = []
    for workload, cells in report.workloads.items():
        best = report.result.most_accurate(workload)
        for cell in cells:
            if best is None or cell.cell.id != best.cell.id:
                continue
            confusions = join_confusions(cell.done)
            if confusions is not None:
                sections.append(_classes(workload, cell, confusions))
    return sections


def _classes(workload: str, cell: ReportCell, confusions: Confusions) -> Classes:
    """Return the classes of a workload, with all trials of a cell counted together."""
    count = len(confusions.classes)
    note = f"{cell.name}, {counted(len(cell.done), 'trial')} together"
    scores = class_scores(confusions)
    worst: Sequence[Mistake] = ()
    if count > MOST_CLASSES:
        # A class that occurs nowhere has no F1 and comes last.
        scores = sorted(scores, key=lambda score: 1.0 if score.f1 is None else score.f1)
        scores = scores[:MOST_CLASSES]
        worst = mistakes(confusions)[:MOST_MISTAKES]
        note += f"; below the matrix the {MOST_CLASSES} of {count} classes with the lowest F1, and the most"
        note += " frequent mistakes"
    tables = [_score_table(scores)]
    if worst:
        table = Table(["label", "taken for", "samples"])
        for mistake in worst:
            table.add_row(mistake.label, mistake.predicted, str(mistake.count))
        tables.append(table)
    # The page removes secrets from its texts; in the drawing, a name that is cut would hide one.
    secrets = secret_values()
    names = [redact_text(name, secrets) for name in confusions.classes]
    drawing = draw_confusions(replace(confusions, classes=names))
    return Classes(
        title=workload,
        note=note,
        matrix=svg(drawing, f"confusion matrix of {workload}"),
        tables=tables,
    )


def _score_table(scores: Sequence[ClassScore]) -> Table:
    """Return a row for each class with its scores in percent."""
    table = Table(["class", "precision", "recall", "F1", "support"])
    for score in scores:
        table.add_row(
            score.name,
            fmt.share(score.precision),
            fmt.share(score.recall),
            fmt.share(score.f1),
            f"{score.support:,}",
        )
    return table


def parity(report: Report) -> list[TableGroup]:
    """Return the cells that are compared with each reference, as `harness diff parity` measured them."""
    if report.parity is None:
        return []
    groups = []
    for reference in report.parity.references:
        groups.append(
            TableGroup(
                title=f"against {reference.cell.label}",
                about=parity_texts.reference_line(reference),
                tables=[parity_texts.parity_table(report.parity, reference)],
            )
        )
    return groups


def exports(report: Report) -> list[TableGroup]:
    """Return the models and the latencies of each trial that was exported."""
    groups = []
    for export in report.exports:
        hardware = export.hardware.cpu
        if export.device == "cuda" and export.hardware.gpus:
            hardware = export.hardware.gpus[0].name
        notes = [*serving.notes(export), f"on {hardware}"]
        tables = serving.export_tables(export)
        groups.append(TableGroup(title=export.trial, tables=tables, notes=notes))
    return groups
