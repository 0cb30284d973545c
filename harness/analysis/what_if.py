"""Estimates how much faster a cell would be without one of its waits, from the phases that its trials recorded.

Ranks wait for each other in communication, so a step takes T at all of them. Let d be the mean share of
T that ranks wait for data, c the mean share in communication, n their number, and s the share of T that
the others, in the mean, wait for the slowest. The slowest rank then communicates for c - s (n - 1) / n
of T, and computes in the remainder. So throughput would be multiplied by

- 1 / (1 - d) without a wait for data,
- 1 / (1 - s) if the slowest rank took as long as the mean of the others,
- 1 / (1 - c + s (n - 1) / n) if communication took no time.

Each is an upper bound in one way: what is taken off one phase may come back as a wait in another one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from harness.records.record import Record
from harness.statistics.interval import Interval, geometric_mean_interval
from harness.statistics.trials import independent_values

NO_DATA_WAIT = "no wait for data"
NO_SLOWEST_RANK = "no slowest rank"
FREE_COMMUNICATION = "free communication"
QUESTIONS = (NO_DATA_WAIT, NO_SLOWEST_RANK, FREE_COMMUNICATION)


def what_if(records: Sequence[Record]) -> dict[str, Interval]:
    """Return by what throughput would be multiplied, by question, from a cell's trials that are done.

    Each is a geometric mean over trials with its 95% interval; repeats of a seed count once. A question
    that a trial's phases don't answer is left out.
    """
    ratios: dict[str, list[float]] = {}
    seeds: dict[str, list[int]] = {}
    for record in records:
        for question, share in _saved_shares(record).items():
            if share < 1:
                ratios.setdefault(question, []).append(-math.log1p(-share))
                seeds.setdefault(question, []).append(record.trial.seed)
    answers = {}
    for question in QUESTIONS:
        if question in ratios:
            logs = independent_values(ratios[question], seeds[question])
            answers[question] = geometric_mean_interval(list(map(math.exp, logs)))
    return answers


def _saved_shares(record: Record) -> dict[str, float]:
    """Return the share of a trial's step that each question takes off."""
    summary = record.summary
    if summary is None:
        return {}
    saved = {}
    if "data_wait" in summary.shares:
        saved[NO_DATA_WAIT] = summary.shares["data_wait"]
    if summary.slowest is not None:
        ranks = record.trial.cell.axes.world_size
        skew = summary.slowest.skew
        saved[NO_SLOWEST_RANK] = skew
        at_slowest = summary.shares["communication"] - skew * (ranks - 1) / ranks
        saved[FREE_COMMUNICATION] = max(0.0, at_slowest)
    return saved
