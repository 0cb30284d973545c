"""A rung, what was demanded and the conditions decide what a reproduction comes to."""

from __future__ import annotations

from typing import Any

import pytest

from harness.analysis.rungs import Agreement, RerunDifference, Rung
from harness.records.differences import Difference
from harness.reproduce.conditions import most_likely_cause
from harness.reproduce.reproduction import Outcome, TrialVerdict, outcome_of
from harness.view.reproduce import trial_line

FIRST = RerunDifference(subject="loss of rank 0", step=3, recorded="0.25", again="0.5")
TORCH = Difference("software.torch", "2.12.0", "2.13.0")
NUMPY = Difference("software.packages.numpy", "2.1.0", "2.2.0")


def agreement(rung: Rung | None, **changes: Any) -> Agreement:
    content = {
        "compared": ["loss of rank 0"],
        "has_series": True,
        "first_difference": None if rung == "bitwise" else FIRST,
        "max_relative": 0.25,
    }
    return Agreement(rung=rung, **{**content, **changes})


@pytest.mark.parametrize(
    ("rung", "demanded", "differences", "outcome"),
    [
        ("bitwise", "bitwise", [], "repeated"),
        ("bitwise", "rounding", [NUMPY], "reproduced"),
        ("rounding", "rounding", [NUMPY], "different"),  # no kernels are other ones, so it is none
        ("rounding", "rounding", [], "different"),
        ("rounding", "rounding", [TORCH], "reproduced"),
        ("rounding", "bitwise", [TORCH], "different"),
        (None, "bitwise", [TORCH], "different"),
        (None, "rounding", [TORCH], "different"),
        ("different", "rounding", [TORCH], "different"),
    ],
)
def test_outcomes(rung: Rung | None, demanded: Rung, differences: Any, outcome: Outcome) -> None:
    assert outcome_of(agreement(rung), demanded, differences) == outcome


def test_what_runs_in_double_precision_could_not_judge_is_inconclusive() -> None:
    unjudged = agreement(None, fp64_problem="other random numbers")
    assert outcome_of(unjudged, "rounding", [TORCH]) == "inconclusive"
    assert outcome_of(agreement(None), "rounding", [TORCH], "out of memory") == "inconclusive"
    random = agreement(None, fp64_problem="not deterministic")
    assert outcome_of(random, "rounding", [TORCH]) == "different"


def test_digests_alone_do_not_say_how_far_numbers_are_apart() -> None:
    bare = agreement(None, has_series=False)
    assert outcome_of(bare, "rounding", [TORCH]) == "inconclusive"
    assert outcome_of(bare, "rounding", []) == "different"


def test_the_likeliest_cause_depends_on_what_differs_first() -> None:
    order = RerunDifference(subject="order of the samples", step=None, recorded="a", again="b")
    torch = Difference("software.torch", "2.12.0", "2.13.0")
    batch = Difference("axes.batch_size", 32, 64)
    assert most_likely_cause([torch, batch], FIRST) == torch
    assert most_likely_cause([torch, batch], order) == batch
    assert most_likely_cause([torch], order) == torch
    assert most_likely_cause([torch], None) is None
    assert most_likely_cause([], FIRST) is None


def line(outcome: Outcome, rung: Rung | None, **changes: Any) -> str:
    content = {"agreement": agreement(rung), **changes}
    trial = TrialVerdict(
        trial="mlp-1-s0-r0", again="mlp-1-s0-r0", code="", outcome=outcome, rung=rung, **content
    )
    return trial_line(trial)


def test_a_verdict_is_one_line() -> None:
    assert line("repeated", "bitwise") == (
        "mlp-1-s0-r0: repeated: bitwise, under the same conditions"
    )
    assert line("reproduced", "rounding", differences=[NUMPY]) == (
        "mlp-1-s0-r0: reproduced: rounding (up to 0.25 relative), though software.packages.numpy differs"
    )
    assert line("different", None, differences=[NUMPY], cause=NUMPY) == (
        "mlp-1-s0-r0: different: beyond rounding errors (up to 0.25 relative); first in loss of"
        " rank 0 at step 3 (0.5, recorded 0.25); most likely because of software.packages.numpy"
        " (2.2.0, recorded 2.1.0)"
    )
    assert "so the trial is not deterministic, or" in line("different", None)
    random = agreement(None, fp64_problem="not deterministic")
    assert "runs in double precision can't judge it: not deterministic" in line(
        "different", None, agreement=random
    )
    unjudged = line("inconclusive", None, exact_failure="rank 0: out of memory")
    assert "; the run in double precision failed: rank 0: out of memory; " in unjudged
    assert line("failed", None, agreement=None, failure="rank 0: ValueError: no") == (
        "mlp-1-s0-r0: failed: rank 0: ValueError: no"
    )
