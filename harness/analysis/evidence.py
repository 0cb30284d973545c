"""What two executions of one trial have left to be compared, how alike it is, and where it parts.

A record has the losses of every rank at every step, the evaluations, digests of the samples' order
and of the parameters at the end, and fingerprints of the steps that its sweep names. A baseline has
the first two digests and the last metric only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np

from harness.analysis.result import TrialResult
from harness.analysis.rungs import (
    FP32_EPSILON,
    MAX_ULP,
    Rung,
    first_difference,
    fp64_repeats,
    largest_ulp,
    lowest,
    meets_fp64_rule,
    root_mean_square,
    same_bytes,
)
from harness.records.record import Evaluation, RankFingerprints, RankResult, Record
from harness.records.series import Numbers
from harness.records.trace import PHASES

N = TypeVar("N", int, float)

ORDER = "order of the samples"
PARAMETERS = "parameters at the end"
LAST_METRIC = "metric at the end"
BEFORE_ALL = 0  # the step of what is decided before training
AFTER_ALL = 1 << 62  # and of what is known after it
FORWARD = PHASES.index("forward")  # of a step, in which losses are computed
EVALUATION = PHASES.index("evaluation")

# What is allowed beside the errors where kernels may differ, a share of a row's scale: initial
# parameters are rounded by them too, which runs in double precision here share. It is the tolerance
# of `torch._dynamo.utils.same`.
OTHER_KERNELS = 1e-4
RANDOM = "fingerprint of random "  # how the subjects of generators' states begin
# Why runs in double precision say nothing of rounding errors.
Fp64Problem = Literal["not deterministic", "other random numbers"]
Moment = tuple[int, int]  # the step, counted from 1, and the phase of it, by its number in PHASES


@dataclass(frozen=True, kw_only=True)
class NumberSeries:
    """Numbers that a trial has left, one after the other."""

    steps: Sequence[int]  # optimizer steps done when each was computed
    numbers: Numbers  # shape (steps,)
    phase: int = EVALUATION  # of a step, in which they are computed


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What one execution of a trial has computed, as far as it was recorded."""

    digests: Mapping[tuple[Moment, str], str]  # by when they were taken, and what they are of
    rows: Mapping[str, NumberSeries]  # by what they are of: losses by rank, metrics by name


@dataclass(frozen=True, kw_only=True)
class RerunDifference:
    """The first that differs of two executions, in the order in which it was computed."""

    subject: str  # what it is of: the loss of a rank, a metric, a digest
    step: int | None  # optimizer steps done then; None for what has no step
    recorded: str
    again: str


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How alike two executions of one trial are."""

    # The rung that holds for everything compared; None where that can't be told, because numbers
    # are far apart and nothing says how far they may be.
    rung: Rung | None
    compared: Sequence[str]  # what both have left
    differing: Sequence[str]  # of these
    has_series: bool  # whether more numbers than one metric were compared
    first_difference: RerunDifference | None = None
    max_ulp: int | None = None  # the largest distance of two numbers; None without numbers
    # The same as a share of the larger number; None too where one is infinite or NaN.
    max_relative: float | None = None
    fp64_problem: Fp64Problem | None = None  # None too where nothing ran in double precision


def evidence_of_record(record: Record) -> Evidence:
    """Return what a complete record holds; raises ValueError for one that is not complete."""
    if record.rank0 is None or record.order_digest is None:
        raise ValueError(f"{record.trial.id} is {record.status}")
    digests = _digests(record.order_digest, record.rank0.parameter_digest)
    for result in record.ranks:
        if result.fingerprints is not None:
            digests |= _fingerprints(result.rank, result.fingerprints)
    rows = _losses(record.ranks) | _metrics(record.rank0.evaluations) | _last_metric(record)
    return Evidence(digests=digests, rows=rows)


def _losses(ranks: Sequence[RankResult]) -> dict[str, NumberSeries]:
    """Return the losses of each rank at each step."""
    rows = {}
    for result in ranks:
        if result.loss is not None:
            losses = result.loss.unpack()
            steps = range(1, len(losses) + 1)
            rows[f"loss of rank {result.rank}"] = NumberSeries(
                steps=steps, numbers=losses, phase=FORWARD
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


def _last_metric(record: Record) -> dict[str, NumberSeries]:
    """Return the target metric at the end, which baselines have too."""
    if record.summary is None or record.summary.final_metric is None:
        return {}
    return _metric_row(record.summary.final_metric)


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
            digests[(fingerprint.step, number), f"fingerprint of {phase} at rank {rank}"] = digest
    return digests


def _metric_row(metric: float) -> dict[str, NumberSeries]:
    """Return the target metric at the end as a row of one number."""
    return {
        LAST_METRIC: NumberSeries(steps=[AFTER_ALL], numbers=np.array([metric], dtype=np.float64))
    }


def evidence_of_baseline(trial: TrialResult) -> Evidence:
    """Return what a baseline holds of a trial."""
    digests = _digests(trial.order_digest, trial.parameter_digest)
    rows = {} if trial.metric is None else _metric_row(trial.metric)
    return Evidence(digests=digests, rows=rows)


def compare_evidence(
    recorded: Evidence,
    again: Evidence,
    exact: Sequence[Evidence] = (),
    *,
    has_other_kernels: bool = False,
) -> Agreement:
    """Return how alike two executions are in everything that both have left.

    `exact` are two more, in double precision, the second one as a control of the first; without
    them, nothing is within the fp64 rule. `has_other_kernels` is whether the conditions differ in
    what decides how operations round.
    """
    fp64_problem = _find_fp64_problem(again, exact)
    is_exact = bool(exact) and fp64_problem is None
    common = [key for key in recorded.digests if key in again.digests]
    unequal = [key for key in common if recorded.digests[key] != again.digests[key]]
    rows = [name for name in recorded.rows if name in again.rows]
    unequal_rows = _unequal_rows(recorded, again, rows)
    distances = [_distance(recorded.rows[name], again.rows[name]) for name in rows]
    return Agreement(
        rung=_rung(
            recorded,
            again,
            exact[0] if is_exact else None,
            rows,
            OTHER_KERNELS if has_other_kernels else FP32_EPSILON,
            is_equal=not unequal and not unequal_rows,
        ),
        compared=_subjects(common, rows),
        differing=_subjects(unequal, unequal_rows),
        has_series=_has_series(rows),
        first_difference=_earliest_difference(recorded, again, unequal, unequal_rows),
        max_ulp=_largest([distance.ulp for distance in distances]),
        max_relative=_largest([distance.relative for distance in distances]),
        fp64_problem=fp64_problem,
    )


def _find_fp64_problem(again: Evidence, exact: Sequence[Evidence]) -> Fp64Problem | None:
    """Return why two runs in double precision say nothing of rounding errors, None if they do.

    Noise that is drawn otherwise in each run would pass for rounding errors of any size, and so
    would random numbers that are drawn otherwise in another precision.
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


def _unequal_rows(recorded: Evidence, again: Evidence, rows: Sequence[str]) -> list[str]:
    """Return which rows have other bits."""
    return [
        name
        for name in rows
        if not same_bytes(recorded.rows[name].numbers, again.rows[name].numbers)
    ]


def _subjects(digests: Sequence[tuple[Moment, str]], rows: Sequence[str]) -> list[str]:
    """Return what digests and rows are of, each once."""
    return list(dict.fromkeys([*(subject for _, subject in digests), *rows]))


def _has_series(rows: Sequence[str]) -> bool:
    """Return whether there are more numbers than one metric."""
    return any(name != LAST_METRIC for name in rows)


@dataclass(frozen=True, kw_only=True)
class _Distance:
    """How far two rows are apart; None for rows of other lengths."""

    ulp: int | None
    relative: float | None


def _distance(recorded: NumberSeries, again: NumberSeries) -> _Distance:
    """Return how far two rows are apart."""
    a, b = recorded.numbers, again.numbers
    ulp = largest_ulp(a, b)
    if ulp is None:
        return _Distance(ulp=None, relative=None)
    scales = np.maximum(np.abs(a), np.abs(b)).astype(np.float64)
    with np.errstate(invalid="ignore"):  # infinities, whose distance is not a number
        gaps = np.abs(a.astype(np.float64) - b.astype(np.float64))
        relative = np.divide(gaps, scales, out=np.zeros_like(gaps), where=scales > 0)
    largest = float(relative.max(initial=0))
    return _Distance(ulp=ulp, relative=largest if np.isfinite(largest) else None)


def _largest(values: Sequence[N | None]) -> N | None:
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
) -> Rung | None:
    """Return the rung that holds for everything that was compared.

    `least_rounding` is allowed by the fp64 rule in any case, a share of a row's scale.
    """
    if is_equal:
        return "bitwise"
    if not _has_series(rows):
        return None  # digests say that something differs, and nothing how far
    rungs: list[Rung] = ["ulp"]  # of digests alone: what numbers there are decide
    rows = [name for name in rows if name != LAST_METRIC]  # which a series has too
    rounding = 0.0
    if exact is not None:
        rounding = min(_relative_error(trial, exact, rows) for trial in (recorded, again))
    for name in rows:
        exact_row = exact.rows.get(name) if exact is not None else None
        exact_numbers = None if exact_row is None else exact_row.numbers
        rung = _rung_of_row(
            recorded.rows[name].numbers,
            again.rows[name].numbers,
            exact_numbers,
            max(rounding, least_rounding),
        )
        if rung is None:
            return None
        rungs.append(rung)
    return lowest(rungs)


def _relative_error(trial: Evidence, exact: Evidence, rows: Sequence[str]) -> float:
    """Return the root mean square of a trial's errors, each over the scale of its row.

    A row of few numbers may be exact by chance, such as the accuracy of one evaluation. So each is
    allowed what the trial's numbers as a whole are off.
    """
    errors = []
    for name in rows:
        row, exact_row = trial.rows[name].numbers, exact.rows.get(name)
        if exact_row is None or exact_row.numbers.shape != row.shape:
            continue
        scale = root_mean_square(exact_row.numbers)
        if scale > 0:
            errors.append((row - exact_row.numbers) / scale)
    return root_mean_square(np.concatenate(errors)) if errors else 0.0


def _rung_of_row(
    recorded: Numbers, again: Numbers, exact: Numbers | None, relative_rounding: float
) -> Rung | None:
    """Return the rung of one row, None where it is lower than `fp64`."""
    if same_bytes(recorded, again):
        return "bitwise"
    distance = largest_ulp(recorded, again)
    if distance is not None and distance <= MAX_ULP:
        return "ulp"
    if exact is not None and meets_fp64_rule(recorded, again, exact, relative_rounding):
        return "fp64"
    return None


def _earliest_difference(
    recorded: Evidence,
    again: Evidence,
    unequal: Sequence[tuple[Moment, str]],
    unequal_rows: Sequence[str],
) -> RerunDifference | None:
    """Return the earliest of what differs, None if nothing does."""
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
    """Return where two rows that differ do so first, and when that was computed."""
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
    """Return a number with all of its digits, `none` after the end."""
    if index >= len(row.numbers):
        return "none"
    return repr(row.numbers[index].item())
