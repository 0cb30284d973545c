"""What a gate makes of what two revisions have learned; nothing is trained here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from harness.analysis.result import CellResult, aggregate
from harness.gate.accuracy import TrainedCell, choose_seeds, judge_accuracy
from harness.gate.against import CellOutcome, Conditions, GateOptions, GateOutcome
from harness.gate.paired import PairedResult
from harness.records.record import TargetMetric
from harness.render import gate as view
from tests.factories import make_cell, make_record

CELL = make_cell()
GOOD = [0.951, 0.949, 0.950, 0.952, 0.948]


def learned(metrics: Sequence[float], name: str, target: str = "accuracy") -> CellResult:
    """A cell with a trial for each metric; no two revisions end with the same bits."""
    (result,) = aggregate([make_record(CELL, seed=seed) for seed in range(len(metrics))])
    trials = []
    for trial, metric in zip(result.trials, metrics, strict=True):
        digest = f"{name}{trial.seed}"
        trials.append(replace(trial, metric=metric, parameter_digest=digest))
    higher_is_better = target != "loss"
    chosen = TargetMetric(name=target, higher_is_better=higher_is_better)
    return replace(result, target=chosen, trials=trials)


def trained(before: Sequence[float], now: Sequence[float], target: str = "accuracy") -> TrainedCell:
    return TrainedCell(before=learned(before, "a", target), now=learned(now, "b", target))


@pytest.mark.parametrize(
    ("now", "outcome"),
    [
        ([0.951, 0.950, 0.949, 0.952, 0.949], "same"),
        ([0.921, 0.919, 0.920, 0.922, 0.918], "worse"),
        ([0.981, 0.979, 0.980, 0.982, 0.978], "better"),
        ([0.971, 0.949, 0.950, 0.972, 0.948], "not worse"),  # better or the same, not worse
        ([0.991, 0.909, 0.950, 0.912, 0.988], "inconclusive"),
    ],
)
def test_a_loss_fails_and_only_what_rules_one_out_passes(now: list[float], outcome: str) -> None:
    (result,) = judge_accuracy([trained(GOOD, now)], margin=0.01)
    assert result.outcome == outcome
    assert result.seeds == 5
    lower = [1 - metric for metric in now]
    (turned,) = judge_accuracy([trained([1 - good for good in GOOD], lower, "loss")], margin=0.01)
    assert turned.outcome == outcome


def test_two_revisions_of_another_metric_do_not_compare() -> None:
    cell = TrainedCell(before=learned(GOOD, "a"), now=learned(GOOD, "b", "loss"))
    (result,) = judge_accuracy([cell], margin=0.01)
    assert result.outcome == "failed"


def test_one_cell_that_failed_takes_no_verdict_from_the_others() -> None:
    cells = [
        TrainedCell(failure="HEAD: seed 0: ValueError: no"),
        trained(GOOD, GOOD),
        trained(GOOD, [0.5] * 5),
    ]
    outcomes = [result.outcome for result in judge_accuracy(cells, margin=0.01)]
    assert outcomes == ["failed", "same", "worse"]


def test_seeds_are_those_of_the_sweep_and_then_others() -> None:
    assert choose_seeds([3, 1, 4, 1], 2) == [3, 1]
    assert choose_seeds([1], 4) == [1, 0, 2, 3]


@pytest.mark.parametrize(
    ("now", "code", "words"),
    [
        ([0.5, 0.51, 0.49, 0.5, 0.5], 1, "worse accuracy: 0.9500 → 0.5000, -0.4500 (-0."),
        ([0.991, 0.909, 0.950, 0.912, 0.988], 3, "inconclusive accuracy: 0.9500 → 0.9500, +0.0000"),
        (GOOD, 0, ""),
    ],
)
def test_what_was_learned_decides_and_is_said(now: list[float], code: int, words: str) -> None:
    (result,) = judge_accuracy([trained(GOOD, now)], margin=0.01)
    same = PairedResult(verdict="same", ratio=1.0, low=0.99, high=1.01, a_rate=1.0, b_rate=1.0)
    outcome = GateOutcome(
        options=GateOptions(revision="main", accuracy_seeds=5),
        conditions=Conditions(hardware="CPU", torch="2", certificate="none"),
        commit="c0ffee" * 6,
        cells=[CellOutcome(cell=CELL, measured=same, accuracy=result)],
    )
    assert outcome.exit_code == code
    assert words in "\n".join(view.lines(outcome))
    assert ("<failure" in view.junit(outcome, "a")) is (code == 1)


@pytest.mark.nightly
def test_the_interval_beside_an_outcome_never_contradicts_it() -> None:
    rng = np.random.default_rng(29)
    outcomes: Counter[str] = Counter()
    for _ in range(100):
        cells = []
        for _ in range(rng.integers(1, 6)):
            before, now = rng.normal(0.9, 10 ** rng.uniform(-3.5, -1.5), (2, 5))
            cells.append(trained(before.tolist(), (now + rng.choice([0, 0.01, -0.03])).tolist()))
        for result in judge_accuracy(cells, margin=0.01):
            assert result.low is not None
            assert result.high is not None
            outcomes[result.outcome] += 1
            rules_out_a_loss = result.low > -0.01
            says = {
                "better": result.low > 0,
                "worse": result.high < 0,
                "same": rules_out_a_loss and result.high < 0.01,
                "not worse": rules_out_a_loss,
                "inconclusive": not rules_out_a_loss,
            }
            assert says[result.outcome], result
    assert len(outcomes) == 5
