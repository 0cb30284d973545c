"""A learning-rate search: what it suggests of known curves, and what it trains."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR

from harness.preflight.rate_worker import (
    Diverged,
    UntilDivergence,
    mean_schedule_factor,
    raise_rates,
)
from harness.preflight.rates import (
    HIGHEST,
    LOWEST,
    CellRates,
    RateCurve,
    divergence_limit,
    has_diverged,
)
from tests.support.commands import harness
from tests.support.line import LineFit, Options
from tests.support.running import line_sweep, local_profile
from tests.support.training import make_assignment, make_trainer
from workloads.settings import Settings

STEPS = 200


def make_curve_of(steepest: float, lowest: float, seed: int = 0, noise: float = 0.02) -> RateCurve:
    """Return a curve that falls most at one rate, is lowest at another and then diverges."""
    decades = np.linspace(math.log10(LOWEST), math.log10(HIGHEST), STEPS)
    falling = 1.0 / (1.0 + np.exp(6 * (decades - math.log10(steepest))))
    rising = np.exp(3 * (decades - math.log10(lowest)) - 2)
    losses = 0.3 + 2 * falling + rising + np.random.default_rng(seed).normal(0, noise, STEPS)
    return RateCurve(rates=(10**decades).tolist(), losses=losses.tolist(), current=1e-3)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("mean_factor", "peak"), [(1.0, 1e-3), (0.5, 10**-2.5), (0.0, 1e-2)])
def test_the_peak_is_higher_the_less_a_schedule_has_of_it(
    seed: int, mean_factor: float, peak: float
) -> None:
    """Of a curve that falls most at 1e-3, and is lowest at about 1e-2."""
    curve = replace(make_curve_of(1e-3, 1e-2, seed), mean_factor=mean_factor)
    assert curve.suggestion == pytest.approx(peak, rel=0.6)


class FrozenLayer(LineFit):
    """Trains the last layer only."""

    def optimizer(self, model: nn.Module) -> Optimizer:
        *frozen, weight, bias = model.parameters()
        optimizer = SGD(frozen, lr=0.0)
        optimizer.add_param_group({"params": [weight, bias], "lr": 0.1})
        return optimizer


class LateStart(LineFit):
    def schedule(self, optimizer: Optimizer, steps: int) -> LambdaLR:
        return LambdaLR(optimizer, lambda step: 0.0)


ONE_CYCLE = Options(one_cycle=True)


@pytest.mark.parametrize(
    ("workload", "mean_factor"),
    [
        (LineFit(Options(), Settings()), 1.0),
        (LineFit(ONE_CYCLE, Settings()), 0.5),
        (FrozenLayer(ONE_CYCLE, Settings()), 0.5),
        (LateStart(ONE_CYCLE, Settings()), 1.0),
    ],
)
def test_the_mean_of_a_schedule_is_seen_and_training_begins_as_before(
    tmp_path: Path, workload: LineFit, mean_factor: float
) -> None:
    """A rate of zero is no peak."""
    trainer = make_trainer(make_assignment(steps=300), workload, tmp_path)
    before = [dict(group) for group in trainer.parts.optimizer.param_groups]
    assert mean_schedule_factor(trainer.parts) == pytest.approx(mean_factor, abs=0.01)
    assert trainer.parts.optimizer.param_groups == before


def test_a_loss_that_only_rises_suggests_nothing() -> None:
    rising = replace(make_curve_of(1e-3, 1e-2), losses=(1 + np.arange(STEPS) / 10).tolist())
    assert rising.suggestion is None
    assert CellRates(label="line", curves=[rising]).suggested is None


@pytest.mark.parametrize("offset", [0.0, 2.0, 3.0, 20.0])
def test_a_loss_below_zero_has_not_diverged_until_it_has_risen(offset: float) -> None:
    """From 2.3 down to 0.3 and up again, less the offset; the suggestion does not depend on it."""
    above_zero = make_curve_of(1e-3, 1e-2)
    losses = [loss - offset for loss in above_zero.losses]
    steps = range(1, STEPS)
    diverged_at = next(step for step in steps if has_diverged(losses[:step], STEPS))
    assert diverged_at > int(np.argmin(losses))
    curve = replace(above_zero, losses=losses[:diverged_at], rates=above_zero.rates[:diverged_at])
    assert curve.suggestion == pytest.approx(1e-3, rel=0.5)


def test_a_loss_above_zero_has_diverged_at_four_times_its_start() -> None:
    assert divergence_limit([2.0] * 20 + [0.5] * 20, STEPS) == 8.0


def test_the_suggestion_is_the_mean_over_the_seeds() -> None:
    curves = [make_curve_of(1e-4, 1e-3, 0), make_curve_of(1e-2, 1e-1, 1)]
    cell = CellRates(label="line", curves=curves)
    assert cell.suggested == pytest.approx(1e-3, rel=0.5)
    assert cell.suggestions[0] < 2e-4
    assert cell.suggestions[1] > 5e-3


def run_search(folder: Path, **axes: Any) -> tuple[RateCurve, list[float]]:
    """Search in this process; return the curve and the rates that the optimizer had."""
    assignment = make_assignment(steps=STEPS, **axes)
    trainer = make_trainer(assignment, LineFit(Options(), Settings()), folder)
    current, scale = raise_rates(trainer.parts)
    used: list[float] = []
    trainer.parts.optimizer.register_step_pre_hook(
        lambda optimizer, *_: used.append(float(optimizer.param_groups[0]["lr"]))
    )
    hooks = UntilDivergence(trainer.parts, scale)
    trainer.hooks = hooks
    with suppress(Diverged):
        trainer.run()
    assert trainer.state.evaluations == []
    count = len(hooks.losses)
    return RateCurve(rates=hooks.rates[:count], losses=hooks.losses, current=current), used


@pytest.mark.parametrize(
    "axes",
    [{}, {"lr": 0.5}, {"lr_scaling": "linear", "batch_size": 64}, {"precision": "fp16", "batch_size": 4}],
)  # fmt: skip
def test_every_step_is_trained_at_its_rate(tmp_path: Path, axes: dict[str, Any]) -> None:
    curve, used = run_search(tmp_path, **axes)
    factor = 2.0 if "lr_scaling" in axes else 1.0
    if axes.get("precision") != "fp16":  # which leaves out the first steps
        assert [rate * factor for rate in curve.rates] == pytest.approx(used)
    assert curve.rates[0] == pytest.approx(LOWEST)
    assert curve.current == pytest.approx(axes.get("lr", 1e-2))


def test_the_current_rate_of_torchs_one_cycle_is_its_peak(tmp_path: Path) -> None:
    class OneCycle(LineFit):
        def schedule(self, optimizer: Optimizer, steps: int) -> OneCycleLR:
            return OneCycleLR(optimizer, max_lr=0.5, total_steps=steps)

    trainer = make_trainer(make_assignment(steps=STEPS), OneCycle(Options(), Settings()), tmp_path)
    assert raise_rates(trainer.parts)[0] == pytest.approx(0.5)
    (group,) = trainer.parts.optimizer.param_groups
    assert group["lr"] == pytest.approx(LOWEST)


def test_a_search_in_fp16_suggests_what_one_in_fp32_does(tmp_path: Path) -> None:
    suggestions = []
    for precision in ("fp32", "fp16"):
        curve, _ = run_search(tmp_path / precision, precision=precision, batch_size=32)
        assert curve.suggestion is not None
        suggestions.append(curve.suggestion)
    assert suggestions[1] == pytest.approx(suggestions[0], rel=0.5)


def test_it_ends_once_the_loss_diverges(tmp_path: Path) -> None:
    curve, _ = run_search(tmp_path, lr_scaling="linear", batch_size=128)
    assert len(curve.losses) < STEPS
    assert curve.rates[-1] < HIGHEST
    assert curve.suggestion is not None
    assert 1e-4 < curve.suggestion < curve.rates[-1]


@pytest.mark.distributed
def test_the_command_searches_under_the_cells_own_strategy(tmp_path: Path) -> None:
    axes = {"strategy": "ddp", "world_size": 2, "lr": 0.1}
    path = line_sweep(tmp_path, {"line": {"axes": axes}})
    options = ["--seeds", "1", "--cluster", str(local_profile(tmp_path)), "--json"]
    ended = harness("find-lr", str(path), *options)
    assert (ended.code, ended.err) == (0, ""), ended.err
    (cell,) = json.loads(ended.out)
    assert cell["label"].startswith("line eager fp32 ddp×2")
    assert 1e-4 < cell["suggested"] < 1
