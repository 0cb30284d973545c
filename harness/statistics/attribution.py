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
Axes = Mapping[str, Sequence[Hashable]]  # axis -> all its values, the reference first
# Of the sum of the squares of some columns: a smaller eigenvalue is 0 with rounding errors.
RANK_TOLERANCE = 1e-10

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
    def is_main(self) -> bool:
        """Whether this is the effect of one axis, not the interaction of two."""
        return len(self.levels) == 1

    @property
    def is_certain(self) -> bool:
        """Whether it is significant, over all effects together."""
        return self.p <= ALPHA

    @property
    def magnitude(self) -> float:
        """Its size regardless of direction: halving and doubling are both 2."""
        return max(self.ratio, 1 / self.ratio)


@dataclass(frozen=True, kw_only=True)
class Attribution:
    """The effects of a workload's axes, and how well the model describes its trials."""

    effects: Sequence[Effect]  # of single axes, then of every two
    unknown: Sequence[Term]  # terms that the cells can't separate, as where axes change together
    deviation: float  # of a trial from the model, as a fraction of its throughput
    degrees_of_freedom: int  # trials that are left over to estimate the deviation

    @property
    def largest_first(self) -> list[Effect]:
        """All effects, sorted by their magnitude."""
        return sorted(self.effects, key=lambda effect: -effect.magnitude)

    @property
    def interactions(self) -> list[Effect]:
        """The interactions of two axes, the largest first."""
        return [effect for effect in self.largest_first if not effect.is_main]


@dataclass(frozen=True, kw_only=True)
class _Design:
    """The columns of the linear model."""

    axes: Axes  # those that vary
    matrix: Numbers  # X, shape (points, columns)
    products: Numbers  # X' X, shape (columns, columns)
    columns: Mapping[Term, slice]  # where the columns of a term are
    unknown: Sequence[Term]  # terms left out because other columns say the same


@dataclass(frozen=True, kw_only=True)
class _Contrast:
    """The logarithm of an effect, as it was estimated."""

    levels: Levels
    reference: Levels
    value: float
    standard_error: float


@dataclass(frozen=True, kw_only=True)
class _Fit:
    """The least squares solution of a design."""

    weights: Numbers  # (columns,)
    covariance: Numbers  # of the weights, (columns, columns)
    deviation: float  # of the residuals
    degrees_of_freedom: int  # points less columns


def attribute(points: Sequence[TrialThroughput]) -> Attribution | None:
    """Return main effects and two-way interactions of the axes that vary, with blocks taken out.

    A level's reference is the first of its axis in the order of the points. Interactions of three
    axes or more are part of the noise: sweeps rarely have trials enough to tell. Returns None where
    no degree of freedom is left to estimate an error.
    """
    from threadpoolctl import threadpool_limits  # here, as most commands attribute nothing

    # Threads that wait for each other take several times as long as one does matrices this small.
    with threadpool_limits(1, user_api="blas"):
        design = _design(points)
        fit = _fit(design, np.asarray([point.value for point in points]))
    if fit is None:
        return None
    contrasts = []
    for term in design.columns:
        contrasts += _contrasts_of_term(design, fit, term)
    return Attribution(
        effects=_effects(contrasts, fit.degrees_of_freedom),
        unknown=design.unknown,
        deviation=math.expm1(fit.deviation),
        degrees_of_freedom=fit.degrees_of_freedom,
    )


def _effects(contrasts: Sequence[_Contrast], degrees_of_freedom: int) -> list[Effect]:
    """Return the effects, with p-values and Student's intervals corrected by Holm over all of them.

    Many levels are tested at once, and one of them would be significant by luck. An interval leaves
    out 1 exactly where its effect is certain.
    """
    p_values = []
    for contrast in contrasts:
        p = float(contrast.value == 0)  # where the model fits exactly
        if contrast.standard_error:
            t = -abs(contrast.value) / contrast.standard_error
            p = 2 * student_probability(degrees_of_freedom, t)
        p_values.append(p)
    effects = []
    for contrast, test in zip(contrasts, correct_by_holm(p_values, ALPHA), strict=True):
        quantile = student_quantile(degrees_of_freedom, 1 - test.level / 2)
        half_width = quantile * contrast.standard_error
        effects.append(
            Effect(
                levels=contrast.levels,
                reference=contrast.reference,
                ratio=exp(contrast.value),
                low=exp(contrast.value - half_width),
                high=exp(contrast.value + half_width),
                p=test.p,
            )
        )
    return effects


def _design(points: Sequence[TrialThroughput]) -> _Design:
    """Return the model of these points, with every term that they can separate from the others.

    Terms are added one at a time. One whose columns do not raise the rank of the matrix by their
    number says what earlier columns say already: its effect can't be estimated.
    """
    axes = _varying_axes(points)
    codes = {}
    for axis, levels in axes.items():
        codes[axis] = _code([point.levels[axis] for point in points], levels)
    blocks = [point.block for point in points]
    block_code = _code(blocks, list(dict.fromkeys(blocks)))
    matrix = np.column_stack([np.ones(len(points)), block_code])
    products = matrix.T @ matrix
    columns: dict[Term, slice] = {}
    unknown: list[Term] = []
    for term in _terms(axes):
        if any((axis,) in unknown for axis in term):
            continue  # an interaction of an axis whose own effect is unknown
        of_axes = [codes[axis] for axis in term]
        # Before they are made: those of two axes with many levels each would fill the memory.
        added_count = math.prod(code.shape[1] for code in of_axes)
        if matrix.shape[1] + added_count > len(points):
            unknown.append(term)
            continue
        added = _interaction(of_axes)
        cross, added_products = matrix.T @ added, added.T @ added
        if not _are_independent(products, cross, added_products):
            unknown.append(term)
            continue
        columns[term] = slice(matrix.shape[1], matrix.shape[1] + added.shape[1])
        matrix = np.column_stack([matrix, added])
        products = np.block([[products, cross], [cross.T, added_products]])
    return _Design(axes=axes, matrix=matrix, products=products, columns=columns, unknown=unknown)


def _are_independent(products: Numbers, cross: Numbers, added_products: Numbers) -> bool:
    """Return whether columns Z are independent of each other and of those of X, of full rank.

    Takes X' X, X' Z and Z' Z. The columns are independent if no combination of them vanishes once
    their part within the span of X is taken out, that is if the smallest eigenvalue of

        Z' Z - Z' X (X' X)^-1 X' Z

    is not 0. For many points that is much faster than the singular values of all columns. Codes are
    whole numbers, so that Z' Z is exact, and an eigenvalue is either of rounding errors or far from
    them.
    """
    remaining = added_products - cross.T @ np.linalg.solve(products, cross)
    smallest = np.linalg.eigvalsh(remaining)[0]
    return bool(smallest > RANK_TOLERANCE * np.trace(added_products))


def _varying_axes(points: Sequence[TrialThroughput]) -> dict[str, list[Hashable]]:
    """Return the levels of each axis that has several, in order of appearance."""
    axes = {}
    for axis in points[0].levels:
        levels = list(dict.fromkeys(point.levels[axis] for point in points))
        if len(levels) > 1:
            axes[axis] = levels
    return axes


def _terms(axes: Axes) -> list[Term]:
    """Return the single axes, then every two of them.

    Axes with more levels come first: where two can't be separated, the one that says less is then
    the unknown one.
    """
    terms: list[Term] = []
    for axis in sorted(axes, key=lambda name: -len(axes[name])):
        terms.append((axis,))
    terms.extend(itertools.combinations(axes, 2))
    return terms


def _fit(design: _Design, values: Numbers) -> _Fit | None:
    """Return the least squares solution, None where no degree of freedom is left.

    With the design X, n points and k columns, the residuals' variance and the weights' covariance:

        s^2 = |y - X w|^2 / (n - k),    Cov(w) = s^2 (X' X)^-1.
    """
    matrix = design.matrix
    degrees_of_freedom = matrix.shape[0] - matrix.shape[1]
    if degrees_of_freedom < 1:
        return None
    scale = np.asarray(np.linalg.inv(design.products), dtype=np.float64)
    weights = scale @ (matrix.T @ values)
    weights += scale @ (matrix.T @ (values - matrix @ weights))  # of the rounding errors
    squares = float(((values - matrix @ weights) ** 2).sum())
    deviation = math.sqrt(squares / degrees_of_freedom)
    return _Fit(
        weights=weights,
        covariance=scale * deviation**2,
        deviation=deviation,
        degrees_of_freedom=degrees_of_freedom,
    )


def _contrasts_of_term(design: _Design, fit: _Fit, term: Term) -> list[_Contrast]:
    """Return the effect of all levels of a term's axes against the references of the axes.

    Each is a contrast c of the term's weights w, c'w, with the standard error sqrt(c' Cov(w) c).
    """
    columns = design.columns[term]
    reference = {axis: design.axes[axis][0] for axis in term}
    # The differences of codes from their references', shape (effects, columns). For two axes they are
    # the outer products of the axes' differences, flattened as `_interaction` flattens their columns.
    contrasts: Numbers = np.ones((1, 1))
    for axis in term:
        codes = _code(design.axes[axis], design.axes[axis])
        contrasts = np.asarray(np.kron(contrasts, codes[1:] - codes[0]), dtype=np.float64)
    values = contrasts @ fit.weights[columns]
    variances = ((contrasts @ fit.covariance[columns, columns]) * contrasts).sum(axis=1)
    found = []
    levels_of_axes = [design.axes[axis][1:] for axis in term]  # without the references
    combinations = itertools.product(*levels_of_axes)
    for levels, value, variance in zip(combinations, values, variances, strict=True):
        found.append(
            _Contrast(
                levels=dict(zip(term, levels, strict=True)),
                reference=reference,
                value=float(value),
                standard_error=math.sqrt(variance),
            )
        )
    return found


def _code(values: Sequence[Hashable], levels: Sequence[Hashable]) -> Numbers:
    """Return the sum-to-zero code of each value, shape (values, levels - 1).

    In this code the columns of an axis add up to zero over its levels, which makes the model's mean
    the mean over all levels and a main effect the mean effect over the other axes.
    """
    columns = len(levels) - 1
    # A row for each level: the first is -1 in every column, every other is 1 in one column.
    rows = np.vstack([np.full(columns, -1.0), np.eye(columns)])
    numbers = {level: number for number, level in enumerate(levels)}
    codes: Numbers = rows[[numbers[value] for value in values]]
    return codes


def _interaction(codes: Sequence[Numbers]) -> Numbers:
    """Return the columns of one axis, or the products of every two columns of two axes."""
    if len(codes) == 1:
        return codes[0]
    left, right = codes
    products: Numbers = np.einsum("pi,pj->pij", left, right).reshape(len(left), -1)
    return products
