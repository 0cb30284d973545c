"""A learning-rate search: what it suggests of known curves, and what it trains."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR

from harness.core.paths import Results
from harness.preflight.rate_worker import (
    Diverged,
    UntilDivergence,
    mean_losses,
    mean_schedule_factor,
    raise_rates,
    rates_of_losses,
)
from harness.preflight.rates import (
    HIGHEST,
    LOWEST,
    CellRates,
    RateCurve,
    Suggestion,
    divergence_limit,
    has_diverged,
    rate_at,
    read_search,
    suggest,
)
from harness.render.preflight import plot_lines
from tests.factories import make_cell
from tests.support.commands import harness
from tests.support.line import LineFit, Options
from tests.support.running import line_sweep, local_profile
from tests.support.training import make_assignment, make_trainer
from workloads.options import Settings

STEPS = 200


def make_curve_of(steepest: float, lowest: float, seed: int = 0, noise: float = 0.02) -> RateCurve:
    """Return a curve that falls most at one rate, is lowest at another and then diverges."""
    rates = rate_at(np.arange(STEPS), STEPS)
    decades = np.log10(rates)
    falling = 1.0 / (1.0 + np.exp(6 * (decades - math.log10(steepest))))
    rising = np.exp(3 * (decades - math.log10(lowest)) - 2)
    losses = 0.3 + 2 * falling + rising + np.random.default_rng(seed).normal(0, noise, STEPS)
    return RateCurve(
        seed=seed, rates=rates.tolist(), losses=losses.tolist(), diverged=False, current=1e-3
    )


@pytest.mark.parametrize("seed", range(5))
def test_the_suggestions_are_where_the_curve_says(seed: int) -> None:
    suggestion = make_curve_of(1e-3, 1e-2, seed).suggestion
    assert suggestion.steepest == pytest.approx(1e-3, rel=0.5)
    assert suggestion.tenth == pytest.approx(1e-3, rel=0.6)


@pytest.mark.parametrize(("mean_factor", "peak"), [(1.0, 1e-3), (0.5, 10**-2.5), (0.0, 1e-2)])
def test_the_peak_is_higher_the_less_a_schedule_has_of_it(mean_factor: float, peak: float) -> None:
    rates = 10.0 ** np.arange(-5, 1)
    smoothed = np.array([3.0, 2.9, 1.5, 0.2, 2.0, 9.0])  # falls most at 1e-3, is lowest at 1e-2
    suggestion = suggest(rates, smoothed, mean_factor)
    assert suggestion.peak == pytest.approx(peak)
    assert (suggestion.steepest, suggestion.tenth) == pytest.approx((1e-3, 1e-3))


@pytest.mark.parametrize(
    ("options", "mean_factor"),
    [(Options(), 1.0), (Options(one_cycle=True), 0.5)],
)
def test_the_mean_of_a_schedule_is_seen_and_training_begins_as_before(
    tmp_path: Path, options: Options, mean_factor: float
) -> None:
    trainer = make_trainer(make_assignment(steps=300), LineFit(options, Settings()), tmp_path)
    (group,) = trainer.parts.optimizer.param_groups
    before = dict(group)
    assert mean_schedule_factor(trainer.parts) == pytest.approx(mean_factor, abs=0.01)
    assert group == before


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


@pytest.mark.parametrize(("workload_class", "mean_factor"), [(FrozenLayer, 0.5), (LateStart, 1.0)])
def test_a_rate_of_zero_is_no_peak(
    tmp_path: Path, workload_class: type[LineFit], mean_factor: float
) -> None:
    trainer = make_trainer(
        make_assignment(steps=300), workload_class(Options(one_cycle=True), Settings()), tmp_path
    )
    assert mean_schedule_factor(trainer.parts) == pytest.approx(mean_factor, abs=0.01)


def test_a_loss_that_only_rises_suggests_nothing() -> None:
    rates = rate_at(np.arange(STEPS), STEPS)
    losses = (1 + np.arange(STEPS) / 10).tolist()
    curve = RateCurve(seed=0, rates=rates.tolist(), losses=losses, diverged=True, current=1e-3)
    assert curve.suggestion == Suggestion(peak=None, steepest=None, tenth=None)
    rates_of_cell = CellRates(cell=make_cell(), curves=[curve])
    assert (rates_of_cell.peak, rates_of_cell.steepest, rates_of_cell.tenth) == (None, None, None)


@pytest.mark.parametrize("offset", [0.0, 2.0, 3.0, 20.0])
def test_a_loss_below_zero_has_not_diverged_until_it_has_risen(offset: float) -> None:
    """From 2.3 down to 0.3 and up again, less the offset; the suggestions do not depend on it."""
    above_zero = make_curve_of(1e-3, 1e-2)
    losses = np.asarray(above_zero.losses) - offset
    steps = np.arange(1, STEPS + 1)
    diverged_at = [step for step in steps if has_diverged(losses[:step], STEPS)]
    lowest = int(np.argmin(losses))
    assert diverged_at
    assert diverged_at[0] > lowest
    curve = replace(above_zero, losses=losses[: diverged_at[0]].tolist(), diverged=True)
    assert curve.suggestion.steepest == pytest.approx(1e-3, rel=0.5)
    assert curve.suggestion.tenth == pytest.approx(1e-3, rel=0.6)


def test_a_loss_above_zero_has_diverged_at_four_times_its_start() -> None:
    losses = np.array([2.0] * 20 + [0.5] * 20)
    assert divergence_limit(losses, STEPS) == 8.0


def test_the_spread_is_over_the_seeds() -> None:
    rates = CellRates(
        cell=make_cell(), curves=[make_curve_of(1e-4, 1e-3, 0), make_curve_of(1e-2, 1e-1, 1)]
    )
    assert rates.steepest is not None
    assert rates.steepest.mean == pytest.approx(1e-3, rel=0.5)
    assert rates.steepest.low < 2e-4 < 5e-3 < rates.steepest.high


def test_the_plot_is_a_line_of_text_for_each_height() -> None:
    lines = plot_lines(CellRates(cell=make_cell(), curves=[make_curve_of(1e-3, 1e-2)]))
    assert len(lines) == 12
    assert lines[0].lstrip().startswith("2.3 │••••")
    assert lines[-1].split() == [f"1e{power}" for power in range(-7, 0)] + ["1e0"]
    mark = lines[-2].index("◆")  # of a constant rate, whose peak is the steepest
    assert abs(mark - 10 - 40) <= 2  # of 1e-3, four powers of ten from the left


def run_search(folder: Path, **axes: Any) -> tuple[RateCurve, list[float]]:
    """Search in this process; return the curve and the rates that the optimizer had."""
    trainer = make_trainer(
        make_assignment(steps=STEPS, **axes), LineFit(Options(), Settings()), folder
    )
    parts, state = trainer.parts, trainer.state
    current = raise_rates(parts)
    used: list[float] = []
    parts.optimizer.register_step_pre_hook(
        lambda optimizer, *_: used.append(float(optimizer.param_groups[0]["lr"]))
    )
    hooks = UntilDivergence(parts)
    trainer.hooks = hooks
    diverged = False
    try:
        trainer.run()
    except Diverged:
        diverged = True
    losses = mean_losses(parts, state)
    assert losses is not None
    assert state.evaluations == []
    rates, taken = rates_of_losses(losses, hooks.is_skipped, STEPS)
    curve = RateCurve(
        seed=0, rates=rates.tolist(), losses=taken.tolist(), diverged=diverged, current=current
    )
    return curve, used


@pytest.mark.parametrize(
    "axes",
    [
        {},
        {"lr": 0.5},
        {"lr_scaling": "linear", "batch_size": 64},
        {"precision": "fp16", "batch_size": 4},
        {"precision": "fp16", "batch_size": 32},
    ],
)
def test_every_step_is_trained_at_its_rate(tmp_path: Path, axes: dict[str, Any]) -> None:
    curve, used = run_search(tmp_path, **axes)
    factor = 2.0 if "lr_scaling" in axes else 1.0
    assert [rate * factor for rate in curve.rates] == pytest.approx(used)
    assert curve.rates[0] == pytest.approx(LOWEST)
    assert curve.current == pytest.approx(axes.get("lr", 1e-2))


def test_the_current_rate_of_torchs_one_cycle_is_its_peak(tmp_path: Path) -> None:
    class OneCycle(LineFit):
        def schedule(self, optimizer: Optimizer, steps: int) -> OneCycleLR:
            return OneCycleLR(optimizer, max_lr=0.5, total_steps=steps)

    trainer = make_trainer(make_assignment(steps=STEPS), OneCycle(Options(), Settings()), tmp_path)
    assert raise_rates(trainer.parts) == pytest.approx(0.5)
    (group,) = trainer.parts.optimizer.param_groups
    assert group["lr"] == pytest.approx(LOWEST)


def test_steps_that_fp16_skips_are_left_out() -> None:
    """Whether at the start, where the loss scale is too large, or where the training diverges."""
    losses = np.array([9.0, 8.0, 7.0, 6.0, 5.0, np.nan, 4.0])
    rates, taken = rates_of_losses(losses, [True, False, False, True], 11)
    assert taken.tolist() == [8.0, 7.0, 5.0]
    assert rates.tolist() == rate_at(np.arange(3), 11).tolist()


def test_a_search_in_fp16_suggests_what_one_in_fp32_does(tmp_path: Path) -> None:
    """Also where the first steps are skipped, which have no rate of their own."""
    steepest = []
    for precision in ("fp32", "fp16"):
        curve, _ = run_search(tmp_path / precision, precision=precision, batch_size=32)
        assert curve.suggestion.steepest is not None
        steepest.append(curve.suggestion.steepest)
    assert steepest[1] == pytest.approx(steepest[0], rel=0.5)


def test_it_ends_once_the_loss_diverges(tmp_path: Path) -> None:
    curve, _ = run_search(tmp_path, lr_scaling="linear", batch_size=128)
    assert curve.diverged
    assert len(curve.losses) < STEPS
    assert curve.rates[-1] < HIGHEST
    suggestion = curve.suggestion
    assert suggestion.steepest is not None
    assert suggestion.tenth is not None
    assert 1e-4 < suggestion.steepest < curve.rates[-1]


@pytest.mark.distributed
def test_the_command_searches_under_the_cells_own_strategy(tmp_path: Path) -> None:
    path = line_sweep(
        tmp_path,
        {"line": {"axes": {"strategy": "ddp", "world_size": 2, "lr": 0.1}}},
    )
    profile = local_profile(tmp_path)
    options = ["--cluster", str(profile), "--results", str(tmp_path / "results")]
    ended = harness("find-lr", str(path), "--seeds", "1", "--steps", "100", *options)
    assert (ended.code, ended.err) == (0, ""), ended.err
    assert "line eager fp32 ddp×2" in ended.out
    search = read_search(Results(tmp_path / "results").sweep_folder("line"))
    assert search is not None
    (curve,) = search.cells[0].curves
    assert curve.diverged
    assert f"{curve.suggestion.steepest:.2g}" in ended.out


def test_two_lengths_are_refused(tmp_path: Path) -> None:
    path = line_sweep(tmp_path, {"line": {}})
    ended = harness("find-lr", str(path), "--steps", "100", "--epochs", "1")
    assert ended.code == 2
    assert "--epochs: found 1 and --steps 100; allowed: one of them" in ended.err
