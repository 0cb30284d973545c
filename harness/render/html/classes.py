"""The section that shows classes: precision, recall and F1 of each, and what is taken for what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis.classes import (
    ClassScore,
    Mistake,
    class_scores,
    join_confusions,
    matrix,
    mistakes,
)
from harness.core.text import counted
from harness.records.record import Confusions
from harness.render import format as fmt
from harness.render.chart import COLORS
from harness.render.html.report import Report, ReportCell
from harness.render.html.rows import tint

MOST_CLASSES = 20  # whose matrix is shown, and that are listed: of more, those with the lowest F1
MOST_MISTAKES = 20  # that are listed where there is no matrix


@dataclass(frozen=True, kw_only=True)
class ClassRow:
    """The scores of a class as texts."""

    name: str
    precision: str
    recall: str
    f1: str
    support: str


@dataclass(frozen=True, kw_only=True)
class MatrixRow:
    """The samples of one class, by what they were taken for."""

    name: str
    fields: Sequence[tuple[str, str]]  # a count, empty for none, and its color


@dataclass(frozen=True, kw_only=True)
class Classes:
    """The classes of one workload, at the cell with the best target metric."""

    title: str
    note: str
    rows: Sequence[ClassRow]
    matrix: Sequence[MatrixRow]  # empty for many classes
    mistakes: Sequence[Mistake]  # empty where there is a matrix


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
    has_matrix = count <= MOST_CLASSES
    if not has_matrix:
        scores = sorted(scores, key=_lowest_f1_first)[:MOST_CLASSES]
        note += f"; the {MOST_CLASSES} of {count} classes with the lowest F1, and the most frequent mistakes"
    rows = [_row(score) for score in scores]
    if has_matrix:
        return Classes(
            title=workload, note=note, rows=rows, matrix=_matrix(confusions), mistakes=()
        )
    worst = mistakes(confusions)[:MOST_MISTAKES]
    return Classes(title=workload, note=note, rows=rows, matrix=(), mistakes=worst)


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


def _matrix(confusions: Confusions) -> list[MatrixRow]:
    """Return the confusion matrix, each count shaded by its share of the row's class."""
    rows = []
    for index, counts in enumerate(matrix(confusions)):
        total = max(1, sum(counts))
        fields = []
        for column, count in enumerate(counts):
            color = COLORS[0] if column == index else COLORS[1]
            fields.append((f"{count:,}" if count else "", tint(color, count / total)))
        rows.append(MatrixRow(name=confusions.classes[index], fields=fields))
    return rows
