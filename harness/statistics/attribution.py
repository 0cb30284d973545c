"""Attribution: the effect of each axis, and the interactions of two axes.

The model is linear in log throughput and fitted by least squares, so that effects are ratios:

    log throughput = mean + block + axes + pairs of axes + noise,

in sum-to-zero coding. There the main effect of an axis is its mean effect over all levels of the
other axes (Montgomery, Design and Analysis of Experiments, chapter 5). What three axes do together
counts as noise.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.statistics.interval import exp, student_probability, student_quantile
from harness.statistics.verdict import ALPHA, correct_by_holm

Numbers = NDArray[np.float64]
Levels = Mapping[str, Hashable]  # axis -> one of its values
Term = tuple[str, ...]  # the one or two axes whose effect a part of the model describes


@dataclass(frozen=True, kw_only=True)
class TrialThroughput:
    """One trial."""

    levels: Levels  # the axes of its cell
    block: Hashable  # the block that it ran in, whose other trials share its drift
    value: float  # the logarithm of its throughput


@dataclass(frozen=True, kw_only=True)
class Effect:
    """The effect of levels of one or two axes, as a ratio of throughputs.

    Of one axis: against its reference level, averaged over all levels of the others. Of two: the
    ratio of the first level's effect with the second level to its effect with the second's
    reference; 1 means that they do not interact.
    """

    levels: Levels  # of one axis or of two
    reference: Levels  # of the same axes
    ratio: float  # of throughputs
    low: float  # the lower bound of the ratio's interval
    high: float  # and the upper one
    p: float  # of the claim that the ratio is not 1, corrected by Holm over all effects

    @property
    def is_certain(self) -> bool:
        """Whether it is significant, over all effects together."""
        return self.p <= ALPHA


@dataclass(frozen=True, kw_only=True)
class Attribution:
    """The effects of a workload's axes, and how well the model describes its trials."""

    effects: Sequence[Effect]  # of single axes, then of every two
    unknown: Sequence[Term]  # terms that the cells can't separate, as where axes change together
    deviation: float  # of a trial from the model, as a fraction of its throughput
    degrees_of_freedom: int  # trials that are left over to estimate the deviation


def attribute(points: Sequence[TrialThroughput]) -> Attribution | None:
    """Return main effects and two-way interactions of the axes that vary, with blocks taken out.

    A level's reference is the first of its axis in the order of the points. Interactions of three
    axes or more are part of the noise: sweeps rarely have trials enough to tell. With the columns X
    of the model, n points and k columns, least squares give weights w with

        s^2 = |y - X w|^2 / (n - k),    Cov(w) = s^2 (X' X)^-1,

    and an effect c'w, a difference of the codes of two levels, has the standard error
    sqrt(c' Cov(w) c). Returns None where no degree of freedom is left to estimate an error.
    """
    axes = _varying_axes(points)
    matrix, columns, unknown = _model(points, axes)
    degrees_of_freedom = matrix.shape[0] - matrix.shape[1]
    if degrees_of_freedom < 1:
        return None
    values = np.asarray([point.value for point in points])
    inverse = np.linalg.inv(matrix.T @ matrix)
    scale = np.asarray(inverse, dtype=np.float64)
    weights = scale @ (matrix.T @ values)
    residuals = values - matrix @ weights
    weights += scale @ (matrix.T @ residuals)  # of the rounding errors
    residuals = values - matrix @ weights
    variance = (residuals**2).sum() / degrees_of_freedom
    deviation = math.sqrt(variance)
    levels, estimates, errors = [], [], []
    for term, place in columns.items():
        contrasts = _contrasts([axes[axis] for axis in term])
        scaled = contrasts @ scale[place, place]
        variances = (scaled * contrasts).sum(axis=1)
        estimates += (contrasts @ weights[place]).tolist()
        errors += (np.sqrt(variances) * deviation).tolist()
        compared_levels = [axes[axis][1:] for axis in term]
        for chosen in itertools.product(*compared_levels):
            levels.append(dict(zip(term, chosen, strict=True)))
    reference = {axis: of_axis[0] for axis, of_axis in axes.items()}
    return Attribution(
        effects=_effects(levels, reference, estimates, errors, degrees_of_freedom),
        unknown=unknown,
        deviation=math.expm1(deviation),
        degrees_of_freedom=degrees_of_freedom,
    )


def _effects(
    levels: Sequence[Levels],
    reference: Levels,
    estimates: Sequence[float],
    errors: Sequence[float],
    degrees_of_freedom: int,
) -> list[Effect]:
    """Return the effects, with p-values and Student's intervals corrected by Holm over all of them.

    Many levels are tested at once, and one of them would be significant by luck. An interval leaves
    out 1 exactly where its effect is certain.
    """
    p_values = _p_values(estimates, errors, degrees_of_freedom)
    tests = correct_by_holm(p_values)
    effects = []
    rows = zip(levels, estimates, errors, tests, strict=True)
    for chosen, estimate, error, test in rows:
        quantile = student_quantile(degrees_of_freedom, 1 - test.level / 2)
        half_width = quantile * error
        effect = Effect(
            levels=chosen,
            reference={axis: reference[axis] for axis in chosen},
            ratio=exp(estimate),
            low=exp(estimate - half_width),
            high=exp(estimate + half_width),
            p=test.p,
        )
        effects.append(effect)
    return effects


def _p_values(
    estimates: Sequence[float],
    errors: Sequence[float],
    degrees_of_freedom: int,
) -> list[float]:
    """Return the two-sided p-value of each estimate by Student's t test, before any correction."""
    p_values = []
    for estimate, error in zip(estimates, errors, strict=True):
        p = float(estimate == 0)  # where the model fits exactly
        if error:
            t = -abs(estimate) / error
            p = 2 * student_probability(degrees_of_freedom, t)
        p_values.append(p)
    return p_values


def _varying_axes(points: Sequence[TrialThroughput]) -> dict[str, list[Hashable]]:
    """Return the levels of each axis that has several, in order of appearance."""
    axes = {}
    for axis in points[0].levels:
        of_points = [point.levels[axis] for point in points]
        levels = list(dict.fromkeys(of_points))
        if len(levels) > 1:
            axes[axis] = levels
    return axes


def _model(
    points: Sequence[TrialThroughput],
    axes: Mapping[str, Sequence[Hashable]],
) -> tuple[Numbers, dict[Term, slice], list[Term]]:
    """Return the columns of the model, those of each term, and the terms that can't be told apart.

    Terms are added one at a time. One whose columns do not raise the rank of the matrix by their
    number says what earlier columns say already: its effect can't be estimated. Axes with more levels
    come first: where two can't be separated, the one that says less is then the unknown one.
    """
    codes = {}
    for axis, levels in axes.items():
        of_points = [point.levels[axis] for point in points]
        codes[axis] = _code(of_points, levels)
    blocks = [point.block for point in points]
    different_blocks = list(dict.fromkeys(blocks))
    block_code = _code(blocks, different_blocks)
    mean = np.ones(len(points))
    matrix = np.column_stack([mean, block_code])
    columns: dict[Term, slice] = {}
    unknown: list[Term] = []
    by_levels = sorted(axes, key=lambda name: -len(axes[name]))
    terms: list[Term] = [(axis,) for axis in by_levels]
    for term in [*terms, *itertools.combinations(axes, 2)]:
        if any((axis,) in unknown for axis in term):
            continue  # an interaction of an axis whose own effect is unknown
        of_axes = [codes[axis] for axis in term]
        width = math.prod(code.shape[1] for code in of_axes)
        start = matrix.shape[1]
        end = start + width
        # Before columns are made: those of two axes with many levels each would fill the memory.
        if end > len(points):
            unknown.append(term)
            continue
        extended = np.column_stack([matrix, _products(of_axes)])
        # Codes are whole numbers, so their products are exact; and their rank is soon found.
        gram = extended.T @ extended
        if np.linalg.matrix_rank(gram, hermitian=True) < end:
            unknown.append(term)
            continue
        columns[term] = slice(start, end)
        matrix = extended
    return matrix, columns, unknown


def _contrasts(levels_of_axes: Sequence[Sequence[Hashable]]) -> Numbers:
    """Return the code of each level less its reference's, shape (effects, columns of the term).

    For two axes these are the products of the axes' differences, in the order of `_products`.
    """
    contrasts: Numbers = np.ones((1, 1))
    for levels in levels_of_axes:
        codes = _code(levels, levels)
        differences = codes[1:] - codes[0]
        products = np.kron(contrasts, differences)
        contrasts = np.asarray(products, dtype=np.float64)
    return contrasts


def _code(values: Sequence[Hashable], levels: Sequence[Hashable]) -> Numbers:
    """Return the sum-to-zero code of each value, shape (values, levels - 1).

    In this code the columns of an axis add up to zero over its levels, which makes the model's mean
    the mean over all levels and a main effect the mean effect over the other axes.
    """
    columns = len(levels) - 1
    # A row for each level: the first is -1 in every column, every other is 1 in one column.
    first = np.full(columns, -1.0)
    rows = np.vstack([first, np.eye(columns)])
    numbers = {level: number for number, level in enumerate(levels)}
    row_of_value = [numbers[value] for value in values]
    codes: Numbers = rows[row_of_value]
    return codes


def _products(codes: Sequence[Numbers]) -> Numbers:
    """Return the columns of one axis, or the products of every two columns of two axes."""
    if len(codes) == 1:
        return codes[0]
    left, right = codes
    products = np.einsum("pi,pj->pij", left, right)
    columns: Numbers = products.reshape(len(left), -1)
    return columns
