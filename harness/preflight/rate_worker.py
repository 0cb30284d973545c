"""Searches a learning rate, with the cell's strategy, precision and batch size.

This is the task `find-lr` of `harness.training.worker`. Ranks read FOLDER/trial.json; rank 0 writes
FOLDER/rates.json in addition to its result.
"""

from __future__ import annotations

import math
from contextlib import suppress

import numpy as np
from torch.optim.lr_scheduler import LambdaLR

from harness.core.errors import NonFiniteLoss
from harness.core.paths import TrialFolder
from harness.preflight.rates import (
    HIGHEST,
    LOWEST,
    RATES_FILE,
    RateCurve,
    has_diverged,
    write_curve,
)
from harness.records.record import RankResult
from harness.training.build import TrialParts
from harness.training.entry import joined
from harness.training.model import lr_factor, make_optimizer, simulate_rates
from harness.training.ranks import Ranks, broadcast_from_rank_0, gather
from harness.training.state import TrainingState
from harness.training.train import Hooks, Segment, Trainer


class Diverged(Exception):
    """The loss has diverged, at every rank."""


class UntilDivergence(Hooks):
    """Trains step by step until the loss diverges."""

    evaluates = False  # at such rates it would show nothing

    def __init__(self, parts: TrialParts, scale: float) -> None:
        self._parts = parts
        self._scale = scale  # of the rates of the optimizer's first group
        self.rates: list[float] = []  # as of the axis `lr`, of each step
        self.losses: list[float] = []  # of each step, mean over ranks

    def before_segment(self, state: TrainingState, stop: int) -> int:
        """Note the rate of the next step, which is a segment of its own."""
        first_group = self._parts.optimizer.param_groups[0]
        rate = float(first_group["lr"]) / self._scale
        if self.rates and rate == self.rates[-1]:  # fp16 has skipped the step before
            del self.rates[-1:], self.losses[-1:]
        self.rates.append(rate)
        return state.step + 1

    def after_segment(self, state: TrainingState, segment: Segment) -> None:
        """Note the loss; raises Diverged at all ranks if the mean over them has."""
        gathered = gather(state.series["loss"][-1])
        loss = float(np.mean(gathered)) if gathered else math.nan
        is_over = True
        if math.isfinite(loss):
            self.losses.append(loss)
            is_over = has_diverged(self.losses, self._parts.total_steps)
        if broadcast_from_rank_0(is_over):
            raise Diverged


def search_rates(
    folder: TrialFolder,
    ranks: Ranks,
    entered: RankResult,
    state: TrainingState,
) -> RankResult:
    """Train at rising rates, and write the losses; return a result without measurements."""
    with joined(folder, ranks) as (assignment, workload, mesh):
        parts = TrialParts(assignment, workload, folder, mesh, state)
        mean_factor = mean_schedule_factor(parts)
        current, scale = raise_rates(parts)
        hooks = UntilDivergence(parts, scale)
        trainer = Trainer(parts, state, hooks)
        with suppress(Diverged, NonFiniteLoss):
            trainer.run()
        if ranks.rank == 0:
            count = len(hooks.losses)
            curve = RateCurve(
                rates=hooks.rates[:count],
                losses=hooks.losses,
                current=current,
                mean_factor=mean_factor,
            )
            write_curve(folder.path / RATES_FILE, curve)
        del parts, trainer, hooks  # the process group ends after them
    return entered


def mean_schedule_factor(parts: TrialParts) -> float:
    """Return the mean of a trial's rate over its peak.

    It is that of the group of parameters with the highest peak: a rate of 0 may freeze others.
    The schedule is stepped through without training, for the number of steps of the search. It is
    assumed to depend only on the share of steps done.
    """
    optimizer = make_optimizer(parts.workload, parts.model, parts.axes)  # with its first rates
    rates_of_groups = simulate_rates(parts.workload, optimizer, parts.total_steps)
    rates = max(rates_of_groups, key=max)
    peak = max(rates)
    if peak == 0:  # the schedule rises after more steps than the search has
        return 1.0
    return float(np.mean(rates) / peak)


def raise_rates(parts: TrialParts) -> tuple[float, float]:
    """Make a trial's rate rise with each step.

    Returns the rate of the axis `lr` that it would have had, before it is scaled by the batch size, and the
    optimizer's rate over that of the axis. Groups of parameters keep the ratios of their rates.
    """
    optimizer = parts.optimizer
    # LambdaLR multiplies `initial_lr`, which torch's OneCycleLR begins at, far below its peak `max_lr`.
    initial_rates = []
    peak_rates = []
    for group in optimizer.param_groups:
        initial_rate = float(group.get("initial_lr", group["lr"]))
        peak_rate = float(group.get("max_lr", initial_rate))
        initial_rates.append(initial_rate)
        peak_rates.append(peak_rate)
    scaling = lr_factor(parts.workload, parts.axes)
    initial = max(initial_rates) / scaling
    steps = parts.total_steps

    def factor(step: int) -> float:
        """Return the factor of the workload's rates at a step, counted from 0."""
        share = step / max(1, steps - 1)
        rate: float = LOWEST * (HIGHEST / LOWEST) ** share
        return rate / initial

    parts.train_step.schedule = LambdaLR(optimizer, factor)
    return max(peak_rates) / scaling, initial_rates[0] / initial
