"""How alike two executions are: the rungs of a ladder from the same bits to other results.

A rung holds for two trials if it holds for everything that both have recorded: the losses of every rank
at every step, the evaluations, digests of the order of samples and of the final parameters. Parameters
are too large to be recorded, so a trial that is compared with a reference leaves a few figures of each
tensor.

1. bitwise: the same bytes.
2. rounding: both are about as far from a run in double precision, so that rounding errors explain
   their difference. The factors are those that torch allows a compiled model
   (`torch._dynamo.utils.same`).
3. equivalent: the target metric over seeds differs by less than a margin (TOST), which
   `harness.statistics.verdict` tests.
4. different: none of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from harness.core.validation import finite
from harness.records.format import Amount, Number, Ordinal
from harness.records.record import Evaluation, Numbers, Record

Rung = Literal["bitwise", "rounding", "equivalent", "different"]
RUNGS: Sequence[Rung] = ("bitwise", "rounding", "equivalent", "different")  # most alike first
# The factors of `torch._dynamo.utils.same` on the smaller error: noise weighs more in few numbers.
FEW_NUMBERS = 1000
FACTOR = 2.0
FACTOR_OF_FEW = 3.0
# The distance from 1.0 to the next float, by torch's name of the type.
EPSILONS = {
    "float64": 2.0**-52,
    "float32": 2.0**-23,
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
}
# Of the coarsest type that losses and metrics are recorded in. Two runs in double precision with a larger
# relative distance are not exact enough.
FP32_EPSILON = EPSILONS["float32"]
HALF_TYPES = {"float16", "bfloat16"}

ORDER = "order of the samples"
PARAMETERS = "parameters at the end"
# With different kernels, this share of a row's scale is allowed in addition to the errors: kernels round
# initial parameters too, which the runs in double precision share. It is the tolerance of
# `torch._dynamo.utils.same`.
OTHER_KERNELS = 1e-4
# Why runs in double precision can't show rounding errors.
Fp64Problem = Literal["not deterministic", "other random numbers"]


def at_least(rung: Rung, demanded: Rung) -> bool:
    """Return whether a rung is the demanded one or one that is more alike."""
    return RUNGS.index(rung) <= RUNGS.index(demanded)


def lowest(rungs: Sequence[Rung]) -> Rung:
    """Return the rung that holds for all parts of a comparison; of no parts, `bitwise`."""
    return max(rungs, key=RUNGS.index, default="bitwise")


def floats_apart(bits_a: Numbers, bits_b: Numbers) -> Numbers:
    """Return how many floats are between those with the given bits, which are unsigned, as uint64.

    Floats of one sign are ordered as their bits are as integers, so their distance is that of the
    integers once those of negative numbers are mirrored (Dawson 2012, "Comparing Floating Point
    Numbers"). 0.0 and -0.0 are the same.
    """
    ordered_a = _ordered_bits(bits_a)
    ordered_b = _ordered_bits(bits_b)
    upper = np.maximum(ordered_a, ordered_b)
    lower = np.minimum(ordered_a, ordered_b)
    apart: Numbers = upper - lower
    return apart


def _ordered_bits(bits: Numbers) -> Numbers:
    """Return unsigned integers that are ordered as the floats with these bits are."""
    sign_bit = 8 * bits.dtype.itemsize - 1
    sign = np.uint64(1 << sign_bit)
    bits = bits.astype(np.uint64)
    is_negative = (bits & sign) != 0
    mirrored = sign - (bits ^ sign)
    ordered: Numbers = np.where(is_negative, mirrored, bits + sign)
    return ordered


def fp64_excess(
    error_a: float,
    error_b: float,
    *,
    is_noisy: bool,
    rounding: float,
) -> float:
    """Return the larger of two errors over what the fp64 rule allows: the rule holds up to 1.

    The errors are root mean squares against one run in double precision. The larger one may be
    `FACTOR` times the smaller, or `FACTOR_OF_FEW` times where noise weighs more, and `rounding` more, as
    the smaller may be 0 by chance; all are in the same unit. So it does not matter which of the two
    results is called the reference.
    """
    if not math.isfinite(error_a) or not math.isfinite(error_b):
        return math.inf
    smaller, larger = sorted((error_a, error_b))
    if larger == 0:
        return 0.0
    factor = FACTOR_OF_FEW if is_noisy else FACTOR
    allowed = factor * smaller + rounding
    return larger / allowed if allowed > 0 else math.inf


def fp64_repeats(error: float, scale: float) -> bool:
    """Return whether two runs in double precision agree well enough to judge others by them.

    `error` is the root mean square of their difference, `scale` that of the numbers themselves.
    """
    return error <= FP32_EPSILON * scale


def meets_fp64_rule(
    a: Numbers,
    b: Numbers,
    exact: Numbers,
    relative_rounding: float,
) -> bool:
    """Return whether rounding errors explain the difference of two rows, by the fp64 rule.

    `relative_rounding` is a share of the row's scale, the root mean square of `exact`. Rows of other
    lengths meet no rule.
    """
    if not a.shape == b.shape == exact.shape:
        return False
    excess = fp64_excess(
        root_mean_square(a - exact),
        root_mean_square(b - exact),
        is_noisy=exact.size < FEW_NUMBERS,
        rounding=relative_rounding * root_mean_square(exact),
    )
    return excess <= 1


def root_mean_square(values: Numbers) -> float:
    """Return the root of the mean square in fp64, 0 of nothing."""
    if not values.size:
        return 0.0
    with np.errstate(over="ignore"):  # infinite, then
        squares = np.square(values.astype(np.float64))
        return float(np.sqrt(np.mean(squares)))


@dataclass(frozen=True, kw_only=True)
class TensorDistance:
    """How far a tensor is from that of a reference, and both of them from a run in fp64."""

    step: Ordinal  # after which the tensor was kept, counted from 1
    name: str
    dtype: str  # of the trial's tensor, as torch calls it without `torch.`
    shape: Sequence[Number]
    differing: Number  # elements whose bits differ from the reference's
    # Root mean squares, None for what is no float and without a run in fp64. An error that is not
    # finite is None too, with `is_finite` false.
    error: Amount | None = None  # of the trial against fp64
    reference_error: Amount | None = None  # of the reference against fp64
    scale: Amount | None = None  # of the values in fp64 themselves
    is_finite: bool = True
    reference_dtype: str | None = None  # of the reference's tensor; None: the same type

    @property
    def excess(self) -> float | None:
        """Return the larger error over the allowed one: the rule holds up to 1. None without fp64.

        More is allowed where noise weighs more, in half precision and in small tensors, and one rounding
        of the coarser of both types at the scale of the values besides. Torch adds 1e-5, whatever the
        scale: made for outputs near 1, it would let pass any bias of 1e-6.
        """
        if not self.is_finite:
            return math.inf
        if self.error is None or self.reference_error is None or self.scale is None:
            return None
        dtypes = {self.dtype, self.reference_dtype or self.dtype}
        is_small = math.prod(self.shape) < FEW_NUMBERS
        has_half_type = not HALF_TYPES.isdisjoint(dtypes)
        epsilon = max(EPSILONS.get(dtype, 0.0) for dtype in dtypes)
        return fp64_excess(
            self.error,
            self.reference_error,
            is_noisy=is_small or has_half_type,
            rounding=epsilon * self.scale,
        )

    @property
    def is_within_fp64_rule(self) -> bool:
        """Return whether the error is allowed. What is no float must be the same."""
        if self.differing == 0:
            return True
        return self.excess is not None and self.excess <= 1

    @property
    def repeats_exactly(self) -> bool:
        """Return whether this is the distance of two runs in fp64 that can judge others.

        The reference is the one in fp64 as well then.
        """
        if self.differing == 0:
            return True
        if self.error is None or self.scale is None:
            return False
        return fp64_repeats(self.error, self.scale)

    @property
    def severity(self) -> tuple[float, float]:
        """Return what distances are ordered by; what is no float may not differ at all."""
        if self.dtype not in EPSILONS:
            return math.inf, math.inf
        differing_share = self.differing / math.prod(self.shape)
        return self.excess or 0.0, differing_share


def tensor_rung(*, same_bits: bool, distances: Sequence[TensorDistance]) -> Rung | None:
    """Return the highest rung that tensors reach, None where they reach none: seeds decide then.

    `same_bits` is whether all digests that were compared are the same. `distances` are those of all
    tensors that were kept along the trajectory, each of which has to meet the rule; without any,
    `rounding` can't be shown.
    """
    if same_bits and all(distance.differing == 0 for distance in distances):
        return "bitwise"
    if distances and all(distance.is_within_fp64_rule for distance in distances):
        return "rounding"
    return None


def worst_distance(distances: Sequence[TensorDistance]) -> TensorDistance | None:
    """Return the tensor that decides the rung: the one farthest beyond what the fp64 rule allows.

    Without a run in fp64, it is the one of which the largest share differs. None where none differs.
    """
    differing = [distance for distance in distances if distance.differing]
    return max(differing, key=lambda distance: distance.severity, default=None)


@dataclass(frozen=True, kw_only=True)
class Row:
    """The numbers that a trial has recorded of one subject."""

    steps: Numbers  # optimizer steps done then, ascending, shape (values,)
    values: Numbers  # shape (values,)

    def text_at(self, step: int) -> str:
        """Return the value of a step with all of its digits, `none` where there is none."""
        values = self.values[self.steps == step].tolist()
        return str(values[0]) if values else "none"


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What a trial has recorded of what it has computed."""

    order: str | None  # a digest of the order of its samples
    parameters: str  # and one of its parameters at the end
    random: Mapping[str, str]  # digests of the random generators in the end, by the rank and step
    rows: Mapping[str, Row]  # by the subject, in the order in which a step computes them


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
    has_series: bool  # whether numbers were compared
    first_difference: RerunDifference | None = None
    # The largest distance of two numbers as a share of the larger one; None without numbers, and where
    # one is infinite or NaN.
    max_relative: float | None = None
    fp64_problem: Fp64Problem | None = None  # None too where nothing ran in double precision


def evidence_of_record(record: Record) -> Evidence:
    """Return the evidence in a complete record; raises ValueError for an incomplete one."""
    if record.rank0 is None or not record.is_complete:
        raise ValueError(f"{record.trial.id} is {record.status}")
    random, rows = {}, {}
    for result in record.ranks:
        if result.loss is None:
            continue
        if result.random_digest is not None:
            steps = len(result.loss)
            random[f"rank {result.rank} after step {steps}"] = result.random_digest
        # A script may report no losses, or only those of some steps; the others are NaN.
        reported = np.flatnonzero(~np.isnan(result.loss))
        if len(reported):
            losses = Row(steps=reported + 1, values=result.loss[reported])
            rows[f"loss of rank {result.rank}"] = losses
    for name, row in _metric_rows(record.rank0.evaluations).items():
        rows[f"evaluation's {name}"] = row
    return Evidence(
        order=record.order_digest,
        parameters=record.rank0.parameter_digest,
        random=random,
        rows=rows,
    )


def _metric_rows(evaluations: Sequence[Evaluation]) -> dict[str, Row]:
    """Return the row of each metric of some evaluations, by its name."""
    metrics: dict[str, dict[int, float]] = {}
    for evaluation in evaluations:
        for name, value in evaluation.all_metrics.items():
            by_step = metrics.setdefault(name, {})
            by_step[evaluation.step] = float(value)
    rows = {}
    for name, by_step in metrics.items():
        steps = np.array(list(by_step))
        values = np.array(list(by_step.values()))
        rows[name] = Row(steps=steps, values=values)
    return rows


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
    rows = [name for name in recorded.rows if name in again.rows]
    steps: dict[str, int] = {}  # the first that differs, by the subject
    gaps = []
    for name in rows:
        row, row_again = recorded.rows[name], again.rows[name]
        step = _first_difference(row, row_again)
        if step is not None:
            steps[name] = step
        gaps.append(_largest_relative_gap(row, row_again))
    fp64_problem = _find_fp64_problem(again, exact)
    difference = _describe_first(recorded, again, steps)
    rung: Rung | None = None
    if difference is None:
        rung = "bitwise"
    elif difference.subject == ORDER:
        rung = "different"  # no rounding changes it
    elif steps and exact and fp64_problem is None:  # digests do not show how much differs
        least_rounding = OTHER_KERNELS if has_other_kernels else FP32_EPSILON
        if _are_rounding_errors(recorded, again, exact[0], least_rounding):
            rung = "rounding"
    compared = [*rows, PARAMETERS]
    if recorded.order and again.order:
        compared.insert(0, ORDER)
    return Agreement(
        rung=rung,
        compared=compared,
        has_series=bool(rows),
        first_difference=difference,
        max_relative=finite(max(gaps, default=None)),
        fp64_problem=fp64_problem,
    )


def _describe_first(
    recorded: Evidence,
    again: Evidence,
    steps: Mapping[str, int],
) -> RerunDifference | None:
    """Return the first difference in the order of computation, None if there is none.

    `steps` has the first step at which a row differs.
    """
    if recorded.order and again.order and recorded.order != again.order:
        return RerunDifference(
            subject=ORDER,
            step=None,
            recorded=recorded.order,
            again=again.order,
        )
    if steps:
        first = min(steps, key=steps.__getitem__)
        return RerunDifference(
            subject=first,
            step=steps[first],
            recorded=recorded.rows[first].text_at(steps[first]),
            again=again.rows[first].text_at(steps[first]),
        )
    if recorded.parameters != again.parameters:
        return RerunDifference(
            subject=PARAMETERS,
            step=None,
            recorded=recorded.parameters,
            again=again.parameters,
        )
    return None


def _first_difference(a: Row, b: Row) -> int | None:
    """Return the first step at which two rows have other bits, None if there is none.

    A number that only one of them has is a difference.
    """
    steps, in_a, in_b = np.intersect1d(a.steps, b.steps, return_indices=True)
    differ = _differ(a.values[in_a], b.values[in_b])
    only_one_has = np.setxor1d(a.steps, b.steps)
    differing = np.concatenate([steps[differ], only_one_has])
    if not len(differing):
        return None
    return int(differing.min())


def _differ(a: Numbers, b: Numbers) -> Numbers:
    """Return whether numbers differ in their bits, each, as NaN and -0.0 do."""
    if a.dtype != b.dtype:
        return np.ones(len(a), dtype=bool)
    unsigned = f"u{a.dtype.itemsize}"
    differing: Numbers = a.view(unsigned) != b.view(unsigned)
    return differing


def _find_fp64_problem(again: Evidence, exact: Sequence[Evidence]) -> Fp64Problem | None:
    """Return why two runs in double precision can't show rounding errors, None if they can.

    Noise that differs from run to run would look like rounding errors of any size, and so would
    random numbers that depend on the precision.
    """
    if not exact:
        return None
    first, second = exact
    for name, row in first.rows.items():
        control = second.rows.get(name)
        if control is None or control.values.shape != row.values.shape:
            return "not deterministic"
        error = root_mean_square(row.values - control.values)
        scale = root_mean_square(row.values)
        if not fp64_repeats(error, scale):
            return "not deterministic"
    for name, digest in first.random.items():  # a run that went on drew more
        if again.random.get(name, digest) != digest:
            return "other random numbers"
    return None


def _largest_relative_gap(a: Row, b: Row) -> float:
    """Return the largest distance as a share of the larger number; infinite for numbers of other steps."""
    if not np.array_equal(a.steps, b.steps):
        return math.inf
    values_a = a.values.astype(np.float64)
    values_b = b.values.astype(np.float64)
    scales = np.maximum(np.abs(values_a), np.abs(values_b))
    with np.errstate(invalid="ignore"):  # infinities, whose distance is not a number
        gaps = np.abs(values_a - values_b)
        shares = np.zeros_like(gaps)
        np.divide(gaps, scales, out=shares, where=scales > 0)
    known_shares = np.nan_to_num(shares, nan=np.inf)
    return float(known_shares.max(initial=0))


def _are_rounding_errors(
    recorded: Evidence,
    again: Evidence,
    exact: Evidence,
    least_rounding: float,
) -> bool:
    """Return whether rounding errors explain the differences of all rows of numbers.

    `least_rounding` is allowed by the fp64 rule in any case, a share of a row's scale. A row of few
    numbers, such as the accuracy of one evaluation, may be exact by chance: so each is allowed the
    error of all numbers of the trial together.
    """
    rows = [name for name in recorded.rows if name in again.rows]
    error = _relative_error(recorded, exact, rows)
    error_again = _relative_error(again, exact, rows)
    rounding = max(min(error, error_again), least_rounding)
    for name in rows:
        a, b = recorded.rows[name], again.rows[name]
        if not np.array_equal(a.steps, b.steps):
            return False  # numbers of other steps do not correspond to each other
        if not _differ(a.values, b.values).any():
            continue
        if name not in exact.rows:
            return False
        # A run in double precision has no rule for stopping, so it may have gone on after the trial ended.
        exact_values = exact.rows[name].values[: len(a.values)]
        if not meets_fp64_rule(a.values, b.values, exact_values, rounding):
            return False
    return True


def _relative_error(trial: Evidence, exact: Evidence, rows: Sequence[str]) -> float:
    """Return the root mean square of a trial's errors, each over the scale of its row."""
    errors = []
    for name in rows:
        values = trial.rows[name].values
        if name not in exact.rows:
            continue
        exact_values = exact.rows[name].values[: len(values)]
        if len(exact_values) < len(values):
            continue
        scale = root_mean_square(exact_values)
        if scale > 0:
            errors.append((values - exact_values) / scale)
    if not errors:
        return 0.0
    return root_mean_square(np.concatenate(errors))
