"""Planted effects are found again, and what can't be told is not told."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import numpy as np
import pytest

from harness.statistics.attribution import Attribution, Effect, Point, attribute

AXES = {"execution": ("eager", "compile"), "precision": ("fp32", "bf16"), "workers": (0, 2, 4)}
NOISE = 0.01


def planted(levels: Mapping[str, object]) -> float:
    """Compile buys 20%, bf16 50%, both together another 10%; workers nothing."""
    compiled, half = levels["execution"] == "compile", levels["precision"] == "bf16"
    return math.log(1.2) * compiled + math.log(1.5) * half + math.log(1.1) * (compiled and half)


def trials(seed: int, blocks: int = 3, noise: float = NOISE) -> list[Point]:
    """Every cell in every block, whose speeds differ by much."""
    rng = np.random.default_rng(seed)
    cells = [dict(zip(AXES, levels, strict=True)) for levels in itertools.product(*AXES.values())]
    drift = rng.normal(0, 0.2, blocks)
    return [
        Point(
            levels=levels, block=block, value=planted(levels) + drift[block] + rng.normal(0, noise)
        )
        for block in range(blocks)
        for levels in cells
    ]


def found(points: list[Point]) -> Attribution:
    attribution = attribute(points)
    assert attribution is not None
    return attribution


def effect(attribution: Attribution, **levels: object) -> Effect:
    (one,) = [one for one in attribution.effects if one.levels == levels]
    return one


def test_planted_effects_are_recovered() -> None:
    """A main effect is the mean over the others' levels: half of the interaction adds to it, on the log scale."""
    result = found(trials(0))
    compiled, half = effect(result, execution="compile"), effect(result, precision="bf16")
    both = effect(result, execution="compile", precision="bf16")
    assert compiled.ratio == pytest.approx(1.2 * math.sqrt(1.1), rel=0.02)
    assert half.ratio == pytest.approx(1.5 * math.sqrt(1.1), rel=0.02)
    assert both.ratio == pytest.approx(1.1, rel=0.03)
    assert (both.reference, max(compiled.p, half.p, both.p) < 0.001) == (
        {"execution": "eager", "precision": "fp32"},
        True,
    )
    others = [one for one in result.effects if "workers" in one.levels]
    assert len(others) == 2 + 2 + 2
    assert all(one.p > 0.05 and one.low < 1 < one.high for one in others)
    assert (result.unknown, result.degrees_of_freedom) == (
        [],
        36 - 1 - 2 - (1 + 1 + 2) - (1 + 2 + 2),
    )
    assert result.deviation == pytest.approx(NOISE, rel=0.5)


def test_intervals_hold_the_planted_effects_as_often_as_they_say() -> None:
    tries = 400
    truths = {("execution",): 1.2 * math.sqrt(1.1), ("execution", "precision"): 1.1}
    held = 0
    for seed in range(tries):
        result = found(trials(seed, blocks=2))
        for names, truth in truths.items():
            one = effect(result, **{name: AXES[name][1] for name in names})
            held += one.low <= truth <= one.high
    assert abs(held / (2 * tries) - 0.95) < 3.1 * math.sqrt(0.05 * 0.95 / tries)


def test_drift_from_block_to_block_is_no_effect_and_no_noise() -> None:
    assert found(trials(1, noise=0.001)).deviation < 0.002


def test_axes_that_change_together_are_told_as_one() -> None:
    zipped = [
        Point(
            levels={
                "world_size": 1 if levels == "single" else 2,
                "strategy": levels,
                "precision": precision,
            },
            block=block,
            value=math.log({"single": 1, "ddp": 1.5, "fsdp2": 1.3}[levels])
            + 0.001 * (block == 1) * (levels == "ddp"),
        )
        for block in (0, 1)
        for levels in ("single", "ddp", "fsdp2")
        for precision in ("fp32", "bf16")
    ]
    result = found(zipped)
    assert result.unknown == [("world_size",)]
    assert effect(result, strategy="ddp").ratio == pytest.approx(1.5, rel=0.01)


def test_one_trial_of_each_of_two_cells_tells_nothing() -> None:
    points = [Point(levels={"workers": number}, block=0, value=float(number)) for number in (0, 2)]
    assert attribute(points) is None
