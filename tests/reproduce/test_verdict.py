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
    ("found", "demanded", "differences", "outcome"),
    [
        (agreement("bitwise"), "bitwise", [], "repeated"),
        (agreement("bitwise"), "rounding", [NUMPY], "reproduced"),
        (agreement("rounding"), "rounding", [NUMPY], "different"),  # no kernels are other ones
        (agreement("rounding"), "rounding", [], "different"),
        (agreement("rounding"), "rounding", [TORCH], "reproduced"),
        (agreement("rounding"), "bitwise", [TORCH], "different"),
        (agreement(None), "bitwise", [TORCH], "different"),
        (agreement(None), "rounding", [TORCH], "different"),
        (agreement("different"), "rounding", [TORCH], "different"),
        # What runs in double precision could not judge.
        (agreement(None, fp64_problem="other random numbers"), "rounding", [TORCH], "inconclusive"),
        (agreement(None, fp64_problem="not deterministic"), "rounding", [TORCH], "different"),
        # Digests alone do not say how far numbers are apart.
        (agreement(None, has_series=False), "rounding", [TORCH], "inconclusive"),
        (agreement(None, has_series=False), "rounding", [], "different"),
    ],
)
def test_outcomes(found: Agreement, demanded: Rung, differences: Any, outcome: Outcome) -> None:
    assert outcome_of(found, demanded, differences) == outcome


def test_a_failed_run_in_double_precision_judges_nothing() -> None:
    assert outcome_of(agreement(None), "rounding", [TORCH], "out of memory") == "inconclusive"


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
    content = {"agreement": agreement(rung), "outcome": outcome, "rung": rung, **changes}
    return trial_line(TrialVerdict(trial="mlp-1-s0-r0", again="mlp-1-s0-r0", code="", **content))


def test_a_verdict_is_one_line() -> None:
    assert line("repeated", "bitwise").endswith(": repeated: bitwise, under the same conditions")
    reproduced = line("reproduced", "rounding", differences=[NUMPY])
    assert "rounding (up to 0.25 relative), though software.packages.numpy differs" in reproduced
    different = line("different", None, differences=[NUMPY], cause=NUMPY)
    assert "; first in loss of rank 0 at step 3 (0.5, recorded 0.25); most likely" in different
    assert different.endswith("because of software.packages.numpy (2.2.0, recorded 2.1.0)")
    assert "so the trial is not deterministic, or" in line("different", None)
    random = line("different", None, agreement=agreement(None, fp64_problem="not deterministic"))
    assert "runs in double precision can't judge it: not deterministic" in random
    unjudged = line("inconclusive", None, exact_failure="rank 0: out of memory")
    assert "; the run in double precision failed: rank 0: out of memory; " in unjudged
    failed = line("failed", None, agreement=None, failure="rank 0: ValueError: no")
    assert failed == "mlp-1-s0-r0: failed: rank 0: ValueError: no"
