"""Planted effects are recovered, and terms that can't be separated are named."""

from __future__ import annotations

import itertools
import math
import tracemalloc
from collections.abc import Mapping

import numpy as np
import pytest

from harness.statistics.attribution import Attribution, Effect, TrialThroughput, attribute

AXES = {"execution": ("eager", "compile"), "precision": ("fp32", "bf16"), "workers": (0, 2, 4)}
NOISE = 0.01


def planted(levels: Mapping[str, object]) -> float:
    """Return log throughput: compile adds 20%, bf16 50%, both together another 10%, workers
    nothing.
    """
    compiled, half = levels["execution"] == "compile", levels["precision"] == "bf16"
    return math.log(1.2) * compiled + math.log(1.5) * half + math.log(1.1) * (compiled and half)


def trials(seed: int, blocks: int = 3, noise: float = NOISE) -> list[TrialThroughput]:
    """Return every cell in every block; blocks differ much in speed."""
    rng = np.random.default_rng(seed)
    cells = [dict(zip(AXES, levels, strict=True)) for levels in itertools.product(*AXES.values())]
    drift = rng.normal(0, 0.2, blocks)
    return [
        TrialThroughput(
            levels=levels, block=block, value=planted(levels) + drift[block] + rng.normal(0, noise)
        )
        for block in range(blocks)
        for levels in cells
    ]


def fit(points: list[TrialThroughput]) -> Attribution:
    """Return the attribution, which there must be."""
    attribution = attribute(points)
    assert attribution is not None
    return attribution


def effect(attribution: Attribution, **levels: object) -> Effect:
    """Return the effect of exactly these levels."""
    (effect,) = [effect for effect in attribution.effects if effect.levels == levels]
    return effect


def test_planted_effects_are_recovered() -> None:
    """A main effect is the mean over the other axes: half of the interaction adds to it, in logs."""
    result = fit(trials(0))
    compiled, half = effect(result, execution="compile"), effect(result, precision="bf16")
    both = effect(result, execution="compile", precision="bf16")
    assert compiled.ratio == pytest.approx(1.2 * math.sqrt(1.1), rel=0.02)
    assert half.ratio == pytest.approx(1.5 * math.sqrt(1.1), rel=0.02)
    assert both.ratio == pytest.approx(1.1, rel=0.03)
    assert both.reference == {"execution": "eager", "precision": "fp32"}
    assert max(compiled.p, half.p, both.p) < 0.001
    worker_effects = [effect for effect in result.effects if "workers" in effect.levels]
    assert len(worker_effects) == 2 + 2 + 2
    assert all(effect.p > 0.05 for effect in worker_effects)
    assert all(effect.low < 1 < effect.high for effect in worker_effects)
    assert result.unknown == []
    assert result.degrees_of_freedom == 36 - 1 - 2 - (1 + 1 + 2) - (1 + 2 + 2)
    assert result.deviation == pytest.approx(NOISE, rel=0.5)


def test_intervals_cover_the_planted_effects_at_least_as_often_as_they_claim() -> None:
    tries = 400
    truths = {("execution",): 1.2 * math.sqrt(1.1), ("execution", "precision"): 1.1}
    covered = 0
    for seed in range(tries):
        result = fit(trials(seed, blocks=2))
        for names, truth in truths.items():
            interval = effect(result, **{name: AXES[name][1] for name in names})
            covered += interval.low <= truth <= interval.high
    assert covered / (2 * tries) > 0.95 - 3.1 * math.sqrt(0.05 * 0.95 / tries)


def test_drift_from_block_to_block_is_no_effect_and_no_noise() -> None:
    assert fit(trials(1, noise=0.001)).deviation < 0.002


def test_axes_that_change_together_are_one_effect() -> None:
    speeds = {("single", 1): 1.0, ("ddp", 2): 1.5, ("fsdp2", 2): 1.3}
    zipped = []
    for block, precision, ranks in itertools.product((0, 1), ("fp32", "bf16"), speeds):
        levels = {"world_size": ranks[1], "strategy": ranks[0], "precision": precision}
        value = math.log(speeds[ranks]) + 0.001 * (block == 1) * (ranks[0] == "ddp")
        zipped.append(TrialThroughput(levels=levels, block=block, value=value))
    result = fit(zipped)
    assert result.unknown == [("world_size",)]
    assert effect(result, strategy="ddp").ratio == pytest.approx(1.5, rel=0.01)


def test_an_interaction_with_more_columns_than_points_is_never_made() -> None:
    levels = 80
    points = [
        TrialThroughput(
            levels={"lr": number % levels, "batch_size": number // 7 % levels}, block=0, value=0.0
        )
        for number in range(levels * 7)
    ]
    tracemalloc.start()
    result = fit(points)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert result.unknown == [("lr", "batch_size")]
    assert peak < len(points) * (levels - 1) ** 2 * 8 / 2  # bytes


def test_one_trial_of_each_of_two_cells_is_not_enough() -> None:
    points = [
        TrialThroughput(levels={"workers": number}, block=0, value=float(number))
        for number in (0, 2)
    ]
    assert attribute(points) is None


def test_an_interval_leaves_out_1_exactly_where_its_effect_is_certain() -> None:
    found = []
    for seed in range(100):
        for contribution in fit(trials(seed, blocks=2)).effects:
            leaves_out_1 = contribution.low > 1 or contribution.high < 1
            assert leaves_out_1 == contribution.is_certain
            found.append(contribution.is_certain)
    assert len(set(found)) == 2
