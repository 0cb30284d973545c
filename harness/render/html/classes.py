"""The section that shows classes: precision, recall and F1 of each, and what is taken for what."""

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
from harness.render.confusions import draw_confusions
from harness.render.html.plots import svg
from harness.render.html.report import Report, ReportCell

MOST_CLASSES = 20  # that are listed: of more, those with the lowest F1
MOST_MISTAKES = 20  # that are listed where there are more classes


@dataclass(frozen=True, kw_only=True)
class ClassRow:
    """The scores of a class as texts."""

    name: str
    precision: str
    recall: str
    f1: str
    support: str


@dataclass(frozen=True, kw_only=True)
class Classes:
    """The classes of one workload, at the cell with the best target metric."""

    title: str
    note: str
    matrix: Markup
    rows: Sequence[ClassRow]
    mistakes: Sequence[Mistake]  # empty for few classes, whose matrix has them all


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
        scores = sorted(scores, key=_lowest_f1_first)[:MOST_CLASSES]
        worst = mistakes(confusions)[:MOST_MISTAKES]
        note += f"; below the matrix the {MOST_CLASSES} of {count} classes with the lowest F1, and the most"
        note += " frequent mistakes"
    drawing = draw_confusions(_without_secrets(confusions))
    return Classes(
        title=workload,
        note=note,
        matrix=svg(drawing, f"confusion matrix of {workload}"),
        rows=[_row(score) for score in scores],
        mistakes=worst,
    )


def _without_secrets(confusions: Confusions) -> Confusions:
    """Return counts whose names of classes hold no secret: a name that is cut would hide it."""
    secrets = secret_values()
    names = [redact_text(name, secrets) for name in confusions.classes]
    return replace(confusions, classes=names)


def _lowest_f1_first(score: ClassScore) -> float:
    """Return the key by which classes are sorted; one that occurs nowhere comes last."""
    return 1.0 if score.f1 is None else score.f1


def _row(score: ClassScore) -> ClassRow:
    """Return a class's scores in percent."""
    return ClassRow(
        name=score.name,
        precision=fmt.share(score.precision),
        recall=fmt.share(score.recall),
        f1=fmt.share(score.f1),
        support=f"{score.support:,}",
    )
