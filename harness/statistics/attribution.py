"""Attribution: what each axis buys, and what two of them buy together, by least squares on log throughput."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from harness.statistics.verdict import ALPHA, holm

Numbers = NDArray[np.float64]
Levels = Mapping[str, Hashable]


@dataclass(frozen=True, kw_only=True)
class Point:
    """One trial: its cell's axes, the block that it ran in, the logarithm of its throughput."""

    levels: Levels
    block: Hashable
    value: float


@dataclass(frozen=True, kw_only=True)
class Effect:
    """What levels of one axis or two buy against the reference ones, as a ratio of throughputs.

    Of one axis: averaged over all levels of the others. Of two: the ratio of what the first level buys with the second
    to what it buys with the second's reference; 1 says that they do not interact.
    """

    levels: Levels
    reference: Levels
    ratio: float
    low: float
    high: float
    p: float  # corrected by Holm over all effects

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
    """`unknown` are the terms that the cells can't tell from others, as where two axes always change together."""

    effects: Sequence[Effect]
    unknown: Sequence[tuple[str, ...]]
    deviation: float  # of a trial about the model, relative
    degrees_of_freedom: int

    @property
    def main_effects(self) -> list[Effect]:
        """The effects of single axes, the largest first."""
        effects = [effect for effect in self.effects if effect.is_main]
        return sorted(effects, key=lambda effect: -effect.magnitude)

    @property
    def interactions(self) -> list[Effect]:
        """The interactions of two axes, the largest first."""
        effects = [effect for effect in self.effects if not effect.is_main]
        return sorted(effects, key=lambda effect: -effect.magnitude)


def attribute(points: Sequence[Point], *, confidence: float = 0.95) -> Attribution | None:
    """Main effects and two-way interactions of the axes that vary, with blocks taken out; None where no degree of
    degrees_of_freedom is left for an error. A level's reference is the first of its axis in the order of the points.

    The model is log throughput = mean + block + axes + pairs of axes + noise, in sum-to-zero coding, in which the main
    effect of an axis is its mean effect over all levels of the others (Montgomery, Design and Analysis of Experiments).
    What three axes do together counts as noise.
    """
    axes = {
        name: list(dict.fromkeys(point.levels[name] for point in points))
        for name in points[0].levels
    }
    axes = {name: levels for name, levels in axes.items() if len(levels) > 1}
    blocks = list(dict.fromkeys(point.block for point in points))
    codes = {
        name: _code([point.levels[name] for point in points], levels)
        for name, levels in axes.items()
    }
    matrix = np.column_stack(
        [np.ones(len(points)), _code([point.block for point in points], blocks)]
    )
    # An axis with more levels first: one that says less of the same is then the unknown one.
    singles = [(name,) for name in sorted(axes, key=lambda name: -len(axes[name]))]
    spans: dict[tuple[str, ...], slice] = {}
    unknown: list[tuple[str, ...]] = []
    for term in [*singles, *itertools.combinations(axes, 2)]:
        if any((name,) in unknown for name in term):
            continue
        columns = _product([codes[name] for name in term])
        wider = np.column_stack([matrix, columns])
        if np.linalg.matrix_rank(wider) < wider.shape[1]:
            unknown.append(term)
            continue
        spans[term] = slice(matrix.shape[1], wider.shape[1])
        matrix = wider
    degrees_of_freedom = len(points) - matrix.shape[1]
    if degrees_of_freedom < 1:
        return None
    values = np.asarray([point.value for point in points])
    weights = np.linalg.lstsq(matrix, values, rcond=None)[0]
    deviation = math.sqrt(float(((values - matrix @ weights) ** 2).sum()) / degrees_of_freedom)
    shape = np.linalg.inv(matrix.T @ matrix) * deviation**2
    effects = [
        _effect(
            axes, term, levels, weights[span], shape[span, span], degrees_of_freedom, confidence
        )
        for term, span in spans.items()
        for levels in itertools.product(*(axes[name][1:] for name in term))
    ]
    corrected = holm([effect.p for effect in effects])
    effects = [
        Effect(**{**effect.__dict__, "p": p}) for effect, p in zip(effects, corrected, strict=True)
    ]
    return Attribution(
        effects=effects,
        unknown=unknown,
        deviation=math.expm1(deviation),
        degrees_of_freedom=degrees_of_freedom,
    )


def _code(found: Sequence[Hashable], levels: Sequence[Hashable]) -> Numbers:
    """(points, levels - 1): a level's own column is 1, and all are -1 at the first level."""
    return np.stack([_row(levels, level) for level in found])


def _row(levels: Sequence[Hashable], level: Hashable) -> Numbers:
    place = levels.index(level)
    return np.full(len(levels) - 1, -1.0) if place == 0 else np.eye(len(levels) - 1)[place - 1]


def _product(codes: Sequence[Numbers]) -> Numbers:
    """The columns of an axis, or the products of every two columns of two."""
    if len(codes) == 1:
        return codes[0]
    products: Numbers = np.einsum("pi,pj->pij", codes[0], codes[1]).reshape(len(codes[0]), -1)
    return products


def _effect(
    axes: Mapping[str, list[Hashable]],
    term: tuple[str, ...],
    levels: tuple[Hashable, ...],
    weights: Numbers,
    shape: Numbers,
    degrees_of_freedom: int,
    confidence: float,
) -> Effect:
    contrast = np.ones(1)  # the outer product of the axes' own: level less reference
    for name, level in zip(term, levels, strict=True):
        own = _row(axes[name], level) - _row(axes[name], axes[name][0])
        contrast = np.asarray(np.kron(contrast, own), dtype=np.float64)
    value, error = float(contrast @ weights), math.sqrt(float(contrast @ shape @ contrast))
    half = float(stdtrit(degrees_of_freedom, (1 + confidence) / 2)) * error
    p = 2 * float(stdtr(degrees_of_freedom, -abs(value) / error)) if error else float(value == 0)
    return Effect(
        levels=dict(zip(term, levels, strict=True)),
        reference={name: axes[name][0] for name in term},
        ratio=math.exp(value),
        low=math.exp(value - half),
        high=math.exp(value + half),
        p=p,
    )
