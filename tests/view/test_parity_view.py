"""What is said of a cell's rung, and of what is missing for one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.analysis.parity import CellParity
from harness.statistics.estimate import paired
from harness.statistics.verdict import Metric, Question, judge
from harness.view import parity as texts
from harness.view.value import Styled
from tests.support.parity import DISTANCE, make_parity


def cell(**changes: Any) -> CellParity:
    return make_parity(**changes).cells[0]


@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ({"tensor_rung": "rounding"}, Styled("rounding", "better")),
        ({}, Styled("can't tell", "open")),
        ({"failure": "it failed"}, Styled("failed", "failed")),
        ({"by_design": ["lr"]}, Styled("by design", "open")),
    ],
)
def test_labels(changes: dict[str, Any], label: Styled) -> None:
    assert texts.rung_badge(cell(**changes)) == label


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "1×"),
        ({"error": 4.2e-6}, "4.2×"),
        ({"error": 4.2e-1}, "420,000×"),
        ({"error": 2e-9, "reference_error": 0.0}, "2e-09"),
        ({"error": None, "is_finite": False}, "not finite"),
        ({"error": None, "reference_error": None}, None),
    ],
)
def test_errors_are_multiples_of_the_references(changes: dict[str, Any], text: str | None) -> None:
    assert texts.relative_error(replace(DISTANCE, **changes)) == text


def test_seeds() -> None:
    metric = Metric(name="accuracy", higher_is_better=True, relative=False, min_effect=0.01)
    estimate = paired([0.0005, -0.0005])
    (verdict,) = judge([Question(metric=metric, estimate=estimate, mean_a=0.9, mean_b=0.9)])
    text = texts.over_seeds(cell(seeds=verdict))
    assert text == "accuracy +0.0000 (-0.0032 to +0.0032) in 2 seeds"
    assert texts.over_seeds(cell(seeds=verdict, tensor_rung="rounding")) is None
    assert texts.over_seeds(cell()) == "needs records of 2 seeds or more"


def test_a_reference_that_can_not_be_trusted_says_so() -> None:
    reference = make_parity().references[0]
    against = f"against {reference.cell.label}, "
    assert texts.reference_line(reference) == f"{against}twice the same bits"
    first = cell().first_difference
    shaky = replace(reference, control=first, fp64_problem="rank 0: out of memory")
    text = texts.reference_line(shaky)
    assert f"{against}not deterministic: run twice, it diverges in step 1, all-reduce;" in text
    assert text.endswith("nothing was compared with fp64: rank 0: out of memory")
