"""What a classifier gets right and wrong of each class: precision, recall, F1 and the mistakes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from harness.records.record import Confusions, Record


@dataclass(frozen=True, kw_only=True)
class ClassScore:
    """How well one class is told from the others."""

    name: str
    precision: float | None  # of the samples that were taken for it; None if there were none
    recall: float | None  # of its samples; None if the test set has none
    f1: float | None  # 2 TP / (2 TP + FP + FN); None if the class occurs nowhere
    support: int  # samples of it in the test set


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """How often samples of one class were taken for another."""

    label: str
    predicted: str
    count: int


def class_scores(confusions: Confusions) -> list[ClassScore]:
    """Return the scores of all classes, in their order."""
    scores = []
    for index, name in enumerate(confusions.classes):
        support, predicted = confusions.support[index], confusions.predicted[index]
        correct = confusions.correct[index]
        scores.append(
            ClassScore(
                name=name,
                precision=_ratio(correct, predicted),
                recall=_ratio(correct, support),
                f1=_ratio(2 * correct, support + predicted),
                support=support,
            )
        )
    return scores


def mistakes(confusions: Confusions) -> list[Mistake]:
    """Return the mistakes that a record lists, the most frequent first."""
    names = confusions.classes
    return [
        Mistake(label=names[label], predicted=names[predicted], count=count)
        for label, predicted, count in confusions.mistakes
    ]


def matrix(confusions: Confusions) -> list[list[int]]:
    """Return how often samples of each class (a row) were taken for each (a column)."""
    size = len(confusions.classes)
    counts = [[0] * size for _ in range(size)]
    for index, correct in enumerate(confusions.correct):
        counts[index][index] = correct
    for label, predicted, count in confusions.mistakes:
        counts[label][predicted] = count
    return counts


def join_confusions(records: Sequence[Record]) -> Confusions | None:
    """Return the counts of several trials together, None where they have none or other classes."""
    reports = [record.rank0 for record in records if record.rank0 is not None]
    parts = [report.confusions for report in reports if report.confusions is not None]
    if not parts or any(part.classes != parts[0].classes for part in parts):
        return None
    counts: Counter[tuple[int, int]] = Counter()
    for part in parts:
        for label, predicted, count in part.mistakes:
            counts[label, predicted] += count
    mistakes = [(label, predicted, count) for (label, predicted), count in counts.most_common()]
    support = _sums([part.support for part in parts])
    predictions = _sums([part.predicted for part in parts])
    correct = _sums([part.correct for part in parts])
    return Confusions(
        classes=parts[0].classes,
        support=support,
        predicted=predictions,
        correct=correct,
        mistakes=tuple(mistakes),
        omitted=sum(part.omitted for part in parts),
    )


def _sums(rows: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return the sum of each column."""
    return tuple(sum(column) for column in zip(*rows, strict=True))


def _ratio(part: int, whole: int) -> float | None:
    """Return the share of a part, None of nothing."""
    return part / whole if whole else None
