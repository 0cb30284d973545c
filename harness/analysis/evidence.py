"""Compares two executions of one trial: how alike they are, and where they first differ.

A record has the losses of every rank at every step, the evaluations, digests of the order of samples
and of the final parameters and random generators. Each is a series by its subject, such as `loss of rank 0`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from harness.analysis.rungs import (
    FP32_EPSILON,
    UNSIGNED,
    Rung,
    fp64_repeats,
    meets_fp64_rule,
    root_mean_square,
)
from harness.records.record import Numbers, RankResult, Record
from harness.records.trace import PHASES

ORDER = "order of the samples"
PARAMETERS = "parameters at the end"
BEFORE_ALL = 0  # the step of digests taken before training
AFTER_ALL = 1 << 62  # the step of digests and metrics taken after it
FORWARD = PHASES.index("forward")  # of a step, in which losses are computed
EVALUATION = PHASES.index("evaluation")

# With different kernels, this share of a row's scale is allowed in addition to the errors: kernels round
# initial parameters too, which the runs in double precision share. It is the tolerance of
# `torch._dynamo.utils.same`.
OTHER_KERNELS = 1e-4
RANDOM = "random generators of "  # prefix of their subjects, which decide no rung of their own
# Why runs in double precision can't show rounding errors.
Fp64Problem = Literal["not deterministic", "other random numbers"]


@dataclass(frozen=True, kw_only=True)
class Series:
    """What a trial has recorded of one subject."""

    steps: Numbers  # optimizer steps done then, ascending, shape (values,)
    values: Numbers  # numbers, or digests as text, shape (values,)
    phase: int  # of a step, in which they are computed, by its number in PHASES

    @property
    def has_numbers(self) -> bool:
        """Whether its values are numbers, and not digests."""
        return self.values.dtype.kind == "f"

    def text_at(self, step: int) -> str:
        """Return the value of a step with all of its digits, `none` where there is none."""
        values = self.values[self.steps == step].tolist()
        if not values:
            return "none"
        return repr(values[0]) if self.has_numbers else str(values[0])


Evidence = Mapping[str, Series]  # by subject


@dataclass(frozen=True, kw_only=True)
class RerunDifference:
    """The first difference of two executions, in the order of computation."""

    subject: str  # the loss of a rank, a metric or a digest
    step: int | None  # optimizer steps done then; None for a subject without steps
    recorded: str
    again: str


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How alike two executions of one trial are."""

    # The rung that holds for everything compared; None if it is unknown, because numbers are far apart
    # and the allowed distance is unknown.
    rung: Rung | None
    compared: Sequence[str]  # subjects that both have recorded
    differing: Sequence[str]  # the compared subjects that differ
    has_series: bool  # whether numbers were compared
    first_difference: RerunDifference | None = None
    # The largest distance of two numbers as a share of the larger one; None without numbers, and where
    # one is infinite or NaN.
    max_relative: float | None = None
    fp64_problem: Fp64Problem | None = None  # None too where nothing ran in double precision


def evidence_of_record(record: Record) -> Evidence:
    """Return the evidence in a complete record; raises ValueError for an incomplete one."""
    if record.rank0 is None or record.summary is None:
        raise ValueError(f"{record.trial.id} is {record.status}")
    evidence = {PARAMETERS: _series({AFTER_ALL: record.rank0.parameter_digest}, EVALUATION)}
    if record.order_digest is not None:
        evidence[ORDER] = _series({BEFORE_ALL: record.order_digest}, 0)
    for result in record.ranks:
        evidence |= _of_rank(result)
    metrics: dict[str, dict[int, float]] = {}
    for evaluation in record.rank0.evaluations:
        for name, value in evaluation.all_metrics.items():
            metrics.setdefault(name, {})[evaluation.step] = float(value)
    for name, values in metrics.items():
        evidence[f"evaluation's {name}"] = _series(values, EVALUATION)
    return evidence


def _of_rank(result: RankResult) -> dict[str, Series]:
    """Return the losses of a rank, and the digest of its random generators."""
    evidence = {}
    if result.loss is not None:
        if result.random_digest is not None:
            drawn = _series({len(result.loss): result.random_digest}, EVALUATION)
            evidence[f"{RANDOM}rank {result.rank}"] = drawn
        # A script may report no losses, or only those of some steps; the others are NaN.
        reported = np.flatnonzero(~np.isnan(result.loss))
        if len(reported):
            losses = Series(steps=reported + 1, values=result.loss[reported], phase=FORWARD)
            evidence[f"loss of rank {result.rank}"] = losses
    return evidence


def _series(values: Mapping[int, Any], phase: int) -> Series:
    """Return values by their steps as a series."""
    return Series(steps=np.array([*values]), values=np.array([*values.values()]), phase=phase)


def compare_evidence(
    recorded: Evidence,
    again: Evidence,
    exact: Sequence[Evidence] = (),
    *,
    has_other_kernels: bool = False,
) -> Agreement:
    """Return how alike two executions are in everything that both have recorded.

    `exact` are two more executions in double precision, the second one as a control of the first;
    without them, nothing is within the fp64 rule. `has_other_kernels` is whether the conditions
    differ in something that decides how operations round.
    """
    common = [name for name in recorded if name in again]
    compared = [name for name in common if not name.startswith(RANDOM)]
    differing: dict[str, int] = {}  # the first step that differs, by the subject
    for name in compared:
        step = _first_difference(recorded[name], again[name])
        if step is not None:
            differing[name] = step
    rows = [name for name in compared if recorded[name].has_numbers]
    gaps = [_largest_relative_gap(recorded[name], again[name]) for name in rows]
    finite_gaps = [gap for gap in gaps if gap is not None]
    fp64_problem = _find_fp64_problem(again, exact)
    rung: Rung | None = "bitwise"
    if differing:
        usable = exact[0] if exact and fp64_problem is None else None
        rung = _rung(recorded, again, usable, differing, has_other_kernels=has_other_kernels)
    first = min(differing, key=lambda name: (differing[name], recorded[name].phase), default=None)
    return Agreement(
        rung=rung,
        compared=compared,
        differing=list(differing),
        has_series=bool(rows),
        first_difference=None
        if first is None
        else _describe(first, differing[first], recorded, again),
        max_relative=max(finite_gaps, default=None) if len(finite_gaps) == len(gaps) else None,
        fp64_problem=fp64_problem,
    )


def _rung(
    recorded: Evidence,
    again: Evidence,
    exact: Evidence | None,
    differing: Mapping[str, int],
    *,
    has_other_kernels: bool,
) -> Rung | None:
    """Return the rung of two executions that differ, None where it is not known.

    `differing` has the first step that differs, by the subject; `exact` is a run in double precision.
    """
    if ORDER in differing:  # which no rounding changes
        return "different"
    if exact is None or not any(recorded[name].has_numbers for name in differing):
        return None  # digests show that something differs, but not how much
    least_rounding = OTHER_KERNELS if has_other_kernels else FP32_EPSILON
    if _are_rounding_errors(recorded, again, exact, least_rounding):
        return "rounding"
    return None


def _first_difference(a: Series, b: Series) -> int | None:
    """Return the first step at which two series have other bits, None if there is none.

    A number that only one of them has is a difference.
    """
    steps, in_a, in_b = np.intersect1d(a.steps, b.steps, return_indices=True)
    differing = steps[_differ(a.values[in_a], b.values[in_b])]
    if a.has_numbers:
        differing = np.concatenate([differing, np.setxor1d(a.steps, b.steps)])
    return int(differing.min()) if len(differing) else None


def _differ(a: Numbers, b: Numbers) -> Numbers:
    """Return whether values differ, each; of floats in their bits, as NaN and -0.0 do."""
    if a.dtype.kind == b.dtype.kind == "f":
        if a.dtype != b.dtype:
            return np.ones(len(a), dtype=bool)
        a, b = a.view(UNSIGNED[a.dtype.itemsize]), b.view(UNSIGNED[b.dtype.itemsize])
    differing: Numbers = a != b
    return differing


def _find_fp64_problem(again: Evidence, exact: Sequence[Evidence]) -> Fp64Problem | None:
    """Return why two runs in double precision can't show rounding errors, None if they can.

    Noise that differs from run to run would look like rounding errors of any size, and so would
    random numbers that depend on the precision.
    """
    if not exact:
        return None
    first, second = exact
    for name, row in first.items():
        control = second.get(name)
        if not row.has_numbers:
            continue
        if control is None or control.values.shape != row.values.shape:
            return "not deterministic"
        error = root_mean_square(row.values - control.values)
        if not fp64_repeats(error, root_mean_square(row.values)):
            return "not deterministic"
    random = [name for name in again if name.startswith(RANDOM) and name in first]
    if any(_first_difference(again[name], first[name]) is not None for name in random):
        return "other random numbers"
    return None


def _largest_relative_gap(a: Series, b: Series) -> float | None:
    """Return the largest distance as a share of the larger number.

    None if it is not finite, and for numbers of other steps.
    """
    if not np.array_equal(a.steps, b.steps):
        return None
    values_a, values_b = a.values.astype(np.float64), b.values.astype(np.float64)
    scales = np.maximum(np.abs(values_a), np.abs(values_b))
    with np.errstate(invalid="ignore"):  # infinities, whose distance is not a number
        gaps = np.abs(values_a - values_b)
        relative = np.divide(gaps, scales, out=np.zeros_like(gaps), where=scales > 0)
    largest = float(relative.max(initial=0))
    return largest if np.isfinite(largest) else None


def _are_rounding_errors(
    recorded: Evidence, again: Evidence, exact: Evidence, least_rounding: float
) -> bool:
    """Return whether rounding errors explain the differences of all rows of numbers.

    `least_rounding` is allowed by the fp64 rule in any case, a share of a row's scale. A row of few
    numbers, such as the accuracy of one evaluation, may be exact by chance: so each is allowed the
    error of all numbers of the trial together.
    """
    rows = [name for name in recorded if name in again and recorded[name].has_numbers]
    errors = [_relative_error(trial, exact, rows) for trial in (recorded, again)]
    rounding = max(min(errors), least_rounding)
    for name in rows:
        a, b = recorded[name], again[name]
        if not np.array_equal(a.steps, b.steps):
            return False  # numbers of other steps do not correspond to each other
        if not _differ(a.values, b.values).any():
            continue
        # A run in double precision has no rule for stopping, so it may have gone on after the trial ended.
        if name not in exact:
            return False
        if not meets_fp64_rule(a.values, b.values, exact[name].values[: len(a.values)], rounding):
            return False
    return True


def _relative_error(trial: Evidence, exact: Evidence, rows: Sequence[str]) -> float:
    """Return the root mean square of a trial's errors, each over the scale of its row."""
    errors = []
    for name in rows:
        row = trial[name].values
        if name not in exact or len(exact[name].values) < len(row):
            continue
        exact_row = exact[name].values[: len(row)]
        scale = root_mean_square(exact_row)
        if scale > 0:
            errors.append((row - exact_row) / scale)
    return root_mean_square(np.concatenate(errors)) if errors else 0.0


def _describe(name: str, step: int, recorded: Evidence, again: Evidence) -> RerunDifference:
    """Return the description of a difference."""
    return RerunDifference(
        subject=name,
        step=None if step in (BEFORE_ALL, AFTER_ALL) else step,
        recorded=recorded[name].text_at(step),
        again=again[name].text_at(step),
    )
