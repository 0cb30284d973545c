"""Compares two executions of one trial: how alike they are, and where they first differ.

A record has the losses of every rank at every step, the evaluations, digests of the order of samples
and of the final parameters, and fingerprints of the steps that its sweep names. A baseline has only
the two digests and the last metric.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from harness.analysis.rungs import (
    FP32_EPSILON,
    Rung,
    first_difference,
    fp64_repeats,
    lowest,
    meets_fp64_rule,
    root_mean_square,
    same_bytes,
)
from harness.records.record import Evaluation, Numbers, RankFingerprints, RankResult, Record
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
# Phases whose digests rounding can't change, as nothing that is computed decides them.
INPUT_PHASES = ("samples", "data", "random", "optimizer settings")
INITIAL_PARAMETERS = (1, PHASES.index("parameters"))  # the moment of those of the first step
FINGERPRINT = "fingerprint of "  # prefix of the subjects of fingerprinted steps
RANDOM = f"{FINGERPRINT}random "  # prefix of the subjects of random generators
# Why runs in double precision can't show rounding errors.
Fp64Problem = Literal["not deterministic", "other random numbers"]
Moment = tuple[int, int]  # the step, counted from 1, and the phase of it, by its number in PHASES


@dataclass(frozen=True, kw_only=True)
class NumberSeries:
    """A series of numbers that a trial has recorded."""

    steps: Sequence[int]  # optimizer steps done when each number was computed
    numbers: Numbers  # shape (steps,)
    phase: int = EVALUATION  # of a step, in which they are computed


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The recorded results of one execution of a trial."""

    digests: Mapping[tuple[Moment, str], str]  # by moment and subject
    rows: Mapping[str, NumberSeries]  # by subject: losses by rank, metrics by name


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
    digests = _digests(record.order_digest, record.rank0.parameter_digest)
    for result in record.ranks:
        if result.fingerprints is not None:
            digests |= _fingerprints(result.rank, result.fingerprints)
    rows = _losses(record.ranks) | _metrics(record.rank0.evaluations)
    return Evidence(digests=digests, rows=rows)


def _losses(ranks: Sequence[RankResult]) -> dict[str, NumberSeries]:
    """Return the losses of each rank at each step that has one."""
    rows = {}
    for result in ranks:
        if result.loss is not None:
            losses = result.loss
            # A script may report no losses, or only those of some steps; the others are NaN.
            reported = ~np.isnan(losses)
            if not reported.any():
                continue
            steps = (np.flatnonzero(reported) + 1).tolist()
            rows[f"loss of rank {result.rank}"] = NumberSeries(
                steps=steps, numbers=losses[reported], phase=FORWARD
            )
    return rows


def _metrics(evaluations: Sequence[Evaluation]) -> dict[str, NumberSeries]:
    """Return each metric at each evaluation that has it."""
    values: dict[str, list[tuple[int, float]]] = {}
    for evaluation in evaluations:
        for name, value in evaluation.all_metrics.items():
            values.setdefault(name, []).append((evaluation.step, value))
    rows = {}
    for name, points in values.items():
        steps, numbers = zip(*points, strict=True)
        rows[f"evaluation's {name}"] = NumberSeries(
            steps=steps, numbers=np.array(numbers, dtype=np.float64)
        )
    return rows


def _digests(order: str | None, parameters: str) -> dict[tuple[Moment, str], str]:
    """Return the digests of a whole trial."""
    digests = {((AFTER_ALL, EVALUATION), PARAMETERS): parameters}
    if order is not None:
        digests[(BEFORE_ALL, 0), ORDER] = order
    return digests


def _fingerprints(rank: int, fingerprints: RankFingerprints) -> dict[tuple[Moment, str], str]:
    """Return the digests of the steps of one rank that its sweep names."""
    digests = {}
    for fingerprint in fingerprints.steps:
        for phase, digest in fingerprint.digests.items():
            number = PHASES.index(phase) if phase in PHASES else len(PHASES)
            digests[(fingerprint.step, number), f"{FINGERPRINT}{phase} at rank {rank}"] = digest
    return digests


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
    fp64_problem = _find_fp64_problem(again, exact)
    common = [key for key in recorded.digests if key in again.digests]
    unequal = [key for key in common if recorded.digests[key] != again.digests[key]]
    rows = [name for name in recorded.rows if name in again.rows]
    unequal_rows = []
    gaps: list[float | None] = []  # as a share of the larger number
    for name in rows:
        numbers, again_numbers = recorded.rows[name].numbers, again.rows[name].numbers
        has_same_steps = list(recorded.rows[name].steps) == list(again.rows[name].steps)
        if not has_same_steps or not same_bytes(numbers, again_numbers):
            unequal_rows.append(name)
        gaps.append(_largest_relative_gap(numbers, again_numbers) if has_same_steps else None)
    inputs = [key for key in unequal if _is_input(key, has_other_kernels=has_other_kernels)]
    rung = _rung(
        recorded,
        again,
        exact[0] if exact and fp64_problem is None else None,
        rows,
        OTHER_KERNELS if has_other_kernels else FP32_EPSILON,
        is_equal=not unequal and not unequal_rows,
        has_equal_numbers=not unequal_rows,
        has_other_inputs=bool(inputs),
    )
    return Agreement(
        rung=rung,
        compared=_subjects(common, rows),
        differing=_subjects(unequal, unequal_rows),
        has_series=bool(rows),
        first_difference=_earliest_difference(recorded, again, unequal, unequal_rows),
        max_relative=_largest(gaps),
        fp64_problem=fp64_problem,
    )


def _is_input(key: tuple[Moment, str], *, has_other_kernels: bool) -> bool:
    """Return whether a digest is of what a step is given: rounding errors change none of it.

    Initial parameters are given too, but other kernels may round them otherwise.
    """
    (step, phase), subject = key
    if subject == ORDER:
        return True
    if step == AFTER_ALL or not subject.startswith(FINGERPRINT):
        return False
    if phase < len(PHASES) and PHASES[phase] in INPUT_PHASES:
        return True
    return (step, phase) == INITIAL_PARAMETERS and not has_other_kernels


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
        if control is None or control.numbers.shape != row.numbers.shape:
            return "not deterministic"
        error = root_mean_square(row.numbers - control.numbers)
        if not fp64_repeats(error, root_mean_square(row.numbers)):
            return "not deterministic"
    for key, digest in again.digests.items():
        if key[1].startswith(RANDOM) and first.digests.get(key, digest) != digest:
            return "other random numbers"
    return None


def _subjects(digests: Sequence[tuple[Moment, str]], rows: Sequence[str]) -> list[str]:
    """Return the subjects of digests and rows, each once."""
    return list(dict.fromkeys([*(subject for _, subject in digests), *rows]))


def _largest_relative_gap(a: Numbers, b: Numbers) -> float | None:
    """Return the largest distance as a share of the larger number, None if it is not finite."""
    scales = np.maximum(np.abs(a), np.abs(b)).astype(np.float64)
    with np.errstate(invalid="ignore"):  # infinities, whose distance is not a number
        gaps = np.abs(a.astype(np.float64) - b.astype(np.float64))
        relative = np.divide(gaps, scales, out=np.zeros_like(gaps), where=scales > 0)
    largest = float(relative.max(initial=0))
    return largest if np.isfinite(largest) else None


def _largest(values: Sequence[float | None]) -> float | None:
    """Return the largest value, None if one is unknown or there are none."""
    available = [value for value in values if value is not None]
    if len(available) < len(values) or not values:
        return None
    return max(available)


def _rung(
    recorded: Evidence,
    again: Evidence,
    exact: Evidence | None,
    rows: Sequence[str],
    least_rounding: float,
    *,
    is_equal: bool,
    has_equal_numbers: bool,
    has_other_inputs: bool,
) -> Rung | None:
    """Return the rung that holds for everything that was compared.

    `least_rounding` is allowed by the fp64 rule in any case, a share of a row's scale.
    """
    if is_equal:
        return "bitwise"
    if has_other_inputs:
        return "different"
    if not rows or has_equal_numbers:
        return None  # digests show that something differs, but not how much
    rungs: list[Rung] = []
    rounding = 0.0
    if exact is not None:
        rounding = min(_relative_error(trial, exact, rows) for trial in (recorded, again))
    for name in rows:
        if list(recorded.rows[name].steps) != list(again.rows[name].steps):
            return None  # numbers of other steps do not correspond to each other
        numbers = recorded.rows[name].numbers
        rung = _rung_of_row(
            numbers,
            again.rows[name].numbers,
            None if exact is None else _exact_numbers(exact, name, len(numbers)),
            max(rounding, least_rounding),
        )
        if rung is None:
            return None
        rungs.append(rung)
    return lowest(rungs)


def _relative_error(trial: Evidence, exact: Evidence, rows: Sequence[str]) -> float:
    """Return the root mean square of a trial's errors, each over the scale of its row.

    A row of few numbers, such as the accuracy of one evaluation, may be exact by chance. So each row
    is allowed the error of all numbers of the trial together.
    """
    errors = []
    for name in rows:
        row = trial.rows[name].numbers
        exact_numbers = _exact_numbers(exact, name, len(row))
        if exact_numbers is None or exact_numbers.shape != row.shape:
            continue
        scale = root_mean_square(exact_numbers)
        if scale > 0:
            errors.append((row - exact_numbers) / scale)
    return root_mean_square(np.concatenate(errors)) if errors else 0.0


def _exact_numbers(exact: Evidence, name: str, count: int) -> Numbers | None:
    """Return the first numbers of a row in double precision, None if there is no such row.

    A run in double precision has no rule for stopping, so it may have gone on after the trial ended.
    """
    row = exact.rows.get(name)
    return None if row is None else row.numbers[:count]


def _rung_of_row(
    recorded: Numbers, again: Numbers, exact: Numbers | None, relative_rounding: float
) -> Rung | None:
    """Return the rung of one row, None where it is lower than `rounding`."""
    if same_bytes(recorded, again):
        return "bitwise"
    if exact is not None and meets_fp64_rule(recorded, again, exact, relative_rounding):
        return "rounding"
    return None


def _earliest_difference(
    recorded: Evidence,
    again: Evidence,
    unequal: Sequence[tuple[Moment, str]],
    unequal_rows: Sequence[str],
) -> RerunDifference | None:
    """Return the earliest difference, None if there is none."""
    candidates = [_row_difference(name, recorded, again) for name in unequal_rows]
    for moment, subject in unequal:
        step = moment[0]
        difference = RerunDifference(
            subject=subject,
            step=None if step in (BEFORE_ALL, AFTER_ALL) else step,
            recorded=recorded.digests[moment, subject],
            again=again.digests[moment, subject],
        )
        candidates.append((moment, difference))
    if not candidates:
        return None
    return min(candidates, key=lambda candidate: candidate[0])[1]


def _row_difference(
    name: str, recorded: Evidence, again: Evidence
) -> tuple[Moment, RerunDifference]:
    """Return the moment and the description of the first difference of two rows."""
    before, now = recorded.rows[name], again.rows[name]
    index = first_difference(before.numbers, now.numbers) or 0
    steps = before.steps if index < len(before.steps) else now.steps
    step = steps[index]
    difference = RerunDifference(
        subject=name,
        step=None if step == AFTER_ALL else step,
        recorded=_number_at(before, index),
        again=_number_at(now, index),
    )
    return (step, before.phase), difference


def _number_at(row: NumberSeries, index: int) -> str:
    """Return a number with all of its digits, `none` after the end of the row."""
    if index >= len(row.numbers):
        return "none"
    return repr(row.numbers[index].item())
