"""Searches a learning rate, with the cell's strategy, precision and batch size.

This is the task `find-lr` of `harness.training.worker`. Ranks read FOLDER/trial.json; rank 0 writes
FOLDER/rates.json in addition to its result.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch.optim.lr_scheduler import LambdaLR

from harness.core.errors import NonFiniteLoss
from harness.core.paths import TrialFolder
from harness.preflight.rates import RATES_FILE, RateCurve, has_diverged, rate_at, write_curve
from harness.records.record import RankResult
from harness.records.series import Numbers
from harness.training.build import TrialParts, build_trial
from harness.training.entry import joined, load_workload
from harness.training.optimization import lr_factor, simulate_rates
from harness.training.ranks import Ranks
from harness.training.state import TrainingState
from harness.training.train import Hooks, Segment, Trainer

SEGMENT_STEPS = 10  # at most, between two checks for divergence


class Diverged(Exception):
    """The loss has diverged, at every rank."""


class UntilDivergence(Hooks):
    """Trains without evaluations until the loss diverges.

    Under fp16, the rate does not rise in a step that is skipped, because the loss scale was too large
    for its gradients. A segment says how many of its steps were skipped and not which, so it is one step.
    """

    def __init__(self, parts: TrialParts) -> None:
        self._parts = parts
        self._segment_steps = 1 if parts.axes.precision == "fp16" else SEGMENT_STEPS
        self._risen = 0  # how often the rate has risen
        self.is_skipped: list[bool] = []  # of each step, whether fp16 skipped it

    def before_segment(self, state: TrainingState, stop: int) -> int:
        """Return the step up to which to train before the next check."""
        return min(stop, state.step + self._segment_steps)

    def after_segment(self, state: TrainingState, segment: Segment) -> None:
        """Raise Diverged at all ranks if the mean loss over them has."""
        schedule = self._parts.train_step.schedule
        assert schedule is not None
        self.is_skipped += [schedule.last_epoch == self._risen] * len(segment.losses)
        self._risen = schedule.last_epoch
        losses = mean_losses(self._parts, state)
        is_over = losses is not None and has_diverged(losses, self._parts.total_steps)
        if self._parts.mesh.broadcast_from_rank_0(is_over):
            raise Diverged

    def should_evaluate(self, state: TrainingState) -> bool:
        """Return False: an evaluation at such rates shows nothing."""
        return False


def search_rates(
    folder: TrialFolder, ranks: Ranks, entered: RankResult, state: TrainingState
) -> RankResult:
    """Train at rising rates, and write the losses; return a result without measurements."""
    with joined(folder, ranks) as (assignment, mesh):
        parts = build_trial(assignment, load_workload(assignment), folder, mesh, state)
        mean_factor = mean_schedule_factor(parts)
        current = raise_rates(parts)
        hooks = UntilDivergence(parts)
        trainer = Trainer(parts, state, hooks)
        diverged = False
        try:
            trainer.run()
        except (Diverged, NonFiniteLoss):
            diverged = True
        losses = mean_losses(parts, state)
        if losses is not None:
            rates, taken = rates_of_losses(losses, hooks.is_skipped, parts.total_steps)
            curve = RateCurve(
                seed=assignment.trial.seed,
                rates=rates.tolist(),
                losses=taken.tolist(),
                diverged=diverged,
                current=current,
                mean_factor=mean_factor,
            )
            write_curve(folder.path / RATES_FILE, curve)
        del parts, trainer, hooks  # the process group ends after them
    return entered


def mean_schedule_factor(parts: TrialParts) -> float:
    """Return the mean of a trial's rate over its peak, and leave the optimizer as it was.

    It is that of the group of parameters with the highest peak: a rate of 0 may freeze others.
    The schedule is stepped through without training, for the number of steps of the search. It is
    assumed to depend only on the share of steps done.
    """
    schedule, optimizer = parts.schedule, parts.optimizer
    if schedule is None:
        return 1.0
    rates = max(simulate_rates(optimizer, lambda: schedule, parts.total_steps), key=max)
    peak = max(rates)
    if peak == 0:  # the schedule rises after more steps than the search has
        return 1.0
    return float(np.mean(rates) / peak)


def raise_rates(parts: TrialParts) -> float:
    """Make a trial's rate rise with each step, and return the rate that it would have had.

    Rates are those of the axis `lr`: before they are scaled by the batch size. Groups of parameters
    keep the ratios of their rates.
    """
    optimizer = parts.optimizer
    # LambdaLR multiplies `initial_lr`, which torch's OneCycleLR begins at, far below its peak `max_lr`.
    initial_rates, peak_rates = [], []
    for group in optimizer.param_groups:
        initial_rates.append(float(group.get("initial_lr", group["lr"])))
        peak_rates.append(float(group.get("max_lr", initial_rates[-1])))
    scaling = lr_factor(parts.workload, parts.axes)
    initial = max(initial_rates) / scaling
    steps = parts.total_steps

    def factor(step: int) -> float:
        """Return the factor of the workload's rates at a step, counted from 0."""
        return float(rate_at(np.asarray(step), steps)) / initial

    parts.train_step.schedule = LambdaLR(optimizer, factor)
    return max(peak_rates) / scaling


def mean_losses(parts: TrialParts, state: TrainingState) -> Numbers | None:
    """Return the losses so far at rank 0, mean over ranks, shape (steps,); None at other ranks."""
    gathered = parts.mesh.gather(list(state.losses))
    if not gathered:
        return None
    means: Numbers = np.mean(np.asarray(gathered, dtype=np.float64), axis=0)
    return means


def rates_of_losses(
    losses: Numbers, is_skipped: Sequence[bool], steps: int
) -> tuple[Numbers, Numbers]:
    """Return the rates at which losses were computed, and these, both of shape (taken steps,).

    They end before the first loss that is not finite. The loss of a step that fp16 skipped is left out:
    its rate is that of the next one. `steps` are those of a whole search. `is_skipped` may be shorter
    than `losses` by the steps of the last segment, in which training failed.
    """
    is_taken = np.ones(len(losses), dtype=bool)
    is_taken[: len(is_skipped)] = ~np.asarray(is_skipped, dtype=bool)
    is_bad = ~np.isfinite(losses)
    if is_bad.any():
        is_taken[int(is_bad.argmax()) :] = False
    taken = losses[is_taken]
    return rate_at(np.arange(len(taken)), steps), taken
