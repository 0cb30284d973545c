"""A rung, what was demanded and the conditions decide what a reproduction comes to."""

from __future__ import annotations

from typing import Any

import pytest

from harness.analysis.evidence import Agreement, RerunDifference
from harness.analysis.rungs import Rung
from harness.records.differences import Difference
from harness.render.reproduction import markdown, remedies, verdict_line
from harness.reproduce.conditions import most_likely_cause
from harness.reproduce.verdict import (
    CodeUsed,
    Outcome,
    ReproductionVerdict,
    TrialVerdict,
    outcome_of,
    overall,
    overall_rung,
    rung_with_seeds,
    seed_verdict,
)
from tests.support.results import make_result

FIRST = RerunDifference(subject="loss of rank 0", step=3, recorded="0.25", again="0.5")
NUMPY = Difference("software.packages.numpy", "2.1.0", "2.2.0")
SEED = Difference("seed", 0, 1)


def agreement(rung: Rung | None, **changes: Any) -> Agreement:
    content = {
        "compared": ["loss of rank 0"],
        "differing": [] if rung == "bitwise" else ["loss of rank 0"],
        "has_series": True,
        "first_difference": None if rung == "bitwise" else FIRST,
        "max_ulp": 3,
        "max_relative": 0.25,
    }
    return Agreement(rung=rung, **{**content, **changes})


@pytest.mark.parametrize(
    ("rung", "demanded", "differences", "outcome"),
    [
        ("bitwise", "bitwise", [], "repeated"),
        ("bitwise", "equivalent", [NUMPY], "reproduced"),
        ("ulp", "bitwise", [], "different"),
        ("ulp", "fp64", [NUMPY], "reproduced"),
        ("fp64", "ulp", [], "different"),
        (None, "bitwise", [], "different"),
        (None, "fp64", [], "different"),
        (None, "equivalent", [], "inconclusive"),  # one seed shows nothing
        ("equivalent", "equivalent", [], "repeated"),
        ("equivalent", "fp64", [], "different"),
        ("different", "equivalent", [], "different"),
    ],
)
def test_outcomes(rung: Rung | None, demanded: Rung, differences: Any, outcome: Outcome) -> None:
    assert outcome_of(agreement(rung), rung, demanded, differences) == outcome


def test_what_runs_in_double_precision_could_not_judge_is_inconclusive() -> None:
    unjudged = agreement(None, fp64_problem="other random numbers")
    assert outcome_of(unjudged, None, "fp64", []) == "inconclusive"
    assert outcome_of(agreement(None), None, "fp64", [], "out of memory") == "inconclusive"
    # More seeds make it no worse.
    known = agreement("equivalent")
    assert outcome_of(known, "equivalent", "fp64", [], "out of memory") == "inconclusive"
    random = agreement(None, fp64_problem="not deterministic")
    assert outcome_of(random, None, "fp64", []) == "different"


def test_digests_alone_do_not_say_how_far_numbers_are_apart() -> None:
    assert outcome_of(agreement(None, has_series=False), None, "fp64", []) == "inconclusive"


def test_the_worst_trial_decides() -> None:
    assert overall(["repeated", "reproduced"]) == "reproduced"
    assert overall(["repeated", "inconclusive", "different"]) == "different"
    assert overall_rung(["bitwise", "fp64"]) == "fp64"
    assert overall_rung(["bitwise", None]) is None


@pytest.mark.parametrize(
    ("shift", "rung"), [(0.0001, "equivalent"), (0.2, "different"), (0.009, None)]
)
def test_seeds_decide_where_numbers_do_not(shift: float, rung: Rung | None) -> None:
    recorded = [0.9, 0.91, 0.905, 0.895, 0.9]
    again = [metric + shift * (1 + 0.3 * (-1) ** seed) for seed, metric in enumerate(recorded)]
    a = make_result([1.0] * 5, metrics=recorded)
    b = make_result([1.0] * 5, metrics=again, bits="b")
    verdict = seed_verdict(a, b, 0.01)
    assert verdict is not None
    assert verdict.seeds == 5
    assert rung_with_seeds(agreement(None), verdict) == rung
    assert rung_with_seeds(agreement("ulp"), verdict) == "ulp"


def test_the_likeliest_cause_depends_on_what_differs_first() -> None:
    order = RerunDifference(subject="order of the samples", step=None, recorded="a", again="b")
    torch = Difference("software.torch", "2.12.0", "2.13.0")
    batch = Difference("axes.batch_size", 32, 64)
    assert most_likely_cause([torch, batch], FIRST) == torch
    assert most_likely_cause([torch, batch], order) == batch
    assert most_likely_cause([torch], order) == torch
    assert most_likely_cause([torch], None) is None
    assert most_likely_cause([], FIRST) is None


def make_verdict(outcome: Outcome, rung: Rung | None, **changes: Any) -> ReproductionVerdict:
    trial = TrialVerdict(
        **{
            "trial": "mlp-0123456789-s0-r0",
            "label": "mlp eager fp32 single w0 b64 t1",
            "seed": 0,
            "again": "mlp-0123456789-s0-r0",
            "outcome": outcome,
            "rung": rung,
            "agreement": agreement(rung),
            "differences": [],
            "cause": None,
            "failure": None,
            "code": {"harness": CodeUsed(choice="here", reason="the same as recorded")},
            "seconds": 2.0,
            "source": "recorded/a.record.json",
            "result": "results/runs/demo/a/record.json",
            **changes,
        }
    )
    return ReproductionVerdict(
        subject="demo",
        demanded="fp64",
        rung=rung,
        outcome=outcome,
        made=1.7e9,
        version="0.1.0",
        commands=["harness reproduce demo"],
        trials=[trial],
        seeds=[],
    )


def test_a_verdict_is_one_line() -> None:
    assert verdict_line(make_verdict("repeated", "bitwise")) == (
        "repeated: bitwise equal, under the same conditions"
    )
    assert verdict_line(make_verdict("reproduced", "ulp", differences=[NUMPY])) == (
        "reproduced: within 3 ULP, though software.packages.numpy differs"
    )
    assert verdict_line(make_verdict("different", None, differences=[NUMPY], cause=NUMPY)) == (
        "not reproduced: other numbers (up to 0.25 relative); first in loss of rank 0 at step 3 (0.5,"
        " recorded 0.25); most likely because of software.packages.numpy (2.2.0, recorded 2.1.0)"
    )
    judged = verdict_line(make_verdict("different", None, exact="a", control="b"))
    assert judged.startswith(
        "not reproduced: beyond rounding errors (up to 0.25 relative); first in"
    )
    assert judged.endswith("and runs here agree, so what differs is not recorded")
    assert "so the trial is not deterministic, or" in verdict_line(make_verdict("different", None))
    random = agreement(None, fp64_problem="not deterministic")
    assert verdict_line(make_verdict("different", None, agreement=random, exact="a")) == (
        "not reproduced: other numbers (up to 0.25 relative); two runs in double precision differ by"
        " more than rounding errors, so the trial is not deterministic; first in loss of rank 0 at"
        " step 3 (0.5, recorded 0.25)"
    )
    unjudged = make_verdict("inconclusive", None, exact_failure="rank 0: out of memory")
    assert "; the run in double precision failed: rank 0: out of memory; " in verdict_line(unjudged)
    failed = make_verdict("failed", None, agreement=None, failure="rank 0: ValueError: no")
    assert verdict_line(failed) == "failed: mlp-0123456789-s0-r0: rank 0: ValueError: no"


def test_the_text_of_a_bundle_has_conditions_and_commands() -> None:
    text = markdown(make_verdict("different", None, differences=[NUMPY], cause=NUMPY))
    assert "| software.packages.numpy | 2.1.0 | 2.2.0 |" in text
    assert "pip install numpy==2.1.0" in text
    assert "harness reproduce demo" in text


def test_what_commands_can_bring_back_is_a_command() -> None:
    found = [
        NUMPY,
        Difference("variables.MKL_CBWR", "AVX2", None),
        Difference("variables.ATEN_CPU_CAPABILITY", None, "default"),
        Difference("variables.NCCL_SECRET", "[redacted]", None),
        SEED,
    ]
    assert remedies(found) == [
        "pip install numpy==2.1.0",
        "export MKL_CBWR=AVX2",
        "unset ATEN_CPU_CAPABILITY",
    ]


def test_a_value_of_somebody_elses_bundle_is_no_command() -> None:
    found = [
        Difference("variables.XLA_FLAGS", "--a --b; rm x", None),
        Difference("software.packages.numpy", "2.1.0; rm x", "2.2.0"),
        Difference("software.packages.--index-url=http://e/x", "1", None),
        Difference("software.packages.-r", "1", None),
        Difference("variables.A\nrm", "1", None),
        Difference("variables.B", "x\nrm y", None),
    ]
    assert remedies(found) == [
        "pip install 'numpy==2.1.0; rm x'",
        "export 'XLA_FLAGS=--a --b; rm x'",
    ]
