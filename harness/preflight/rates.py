"""The results of a learning-rate search, and its suggestions.

A short training raises the rate exponentially from step to step (Smith 2017, arXiv:1506.01186). The
loss first stays, then falls, and finally diverges. Two rates bound the useful range: the rate of the
steepest fall, which a whole training can use, and the rate of the lowest loss, beyond which training
would diverge. Smith and Topin (2017, arXiv:1708.07120) let a one-cycle schedule reach the upper
bound. A schedule that stays longer near its peak is given a rate in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Annotated

import numpy as np

from harness.core.paths import write_atomically
from harness.records.format import FileFormat, decode_file, sealed_text
from harness.records.record import Numbers
from workloads.settings import Between

RATES_FILE = "rates.json"  # in the folder of the ranks that search
CURVE_FORMAT = FileFormat(name="rank's losses", is_sealed=True)
LOWEST, HIGHEST = 1e-7, 1.0  # the rates of the first and of the last step
# The standard deviation of the Gaussian that smooths losses, in powers of ten of the rate.
SMOOTHING = 0.15
# A loss that has risen above its start by so many times its scale has diverged.
DIVERGED = 3.0
START = 0.1  # the share of the steps whose mean loss is that of the start

Rate = Annotated[float, Between(0)]


@dataclass(frozen=True, kw_only=True)
class RateCurve:
    """The losses of one seed, step by step, with the rates that they were computed at."""

    rates: Sequence[Rate]  # as of the axis `lr`, rising
    losses: Sequence[float]  # mean over ranks, finite
    current: Rate  # the rate that the cell trains with, at its schedule's peak
    # The mean of the schedule over its peak: 1 for a constant rate, 1/2 for one cycle.
    mean_factor: Annotated[float, Between(0, 1)] = 1.0

    @property
    def suggestion(self) -> float | None:
        """Return the peak of the schedule that suits the training, None if the loss never fell.

        It is between the steepest and the lowest, in powers of ten as far as the mean of the schedule is
        below its peak.
        """
        if len(self.losses) < 3:
            return None
        smoothed = smooth(self.losses, self.rates)
        lowest_step = int(np.argmin(smoothed))
        if lowest_step < 2:
            return None
        falling = slice(lowest_step + 1)
        powers_of_ten = np.log10(self.rates[falling])
        slopes = np.gradient(smoothed[falling], powers_of_ten)
        steepest = self.rates[int(np.argmin(slopes))]
        lowest = self.rates[lowest_step]
        return float(steepest * (lowest / steepest) ** (1 - self.mean_factor))


@dataclass(frozen=True, kw_only=True)
class CellRates:
    """The curves of all seeds of a cell."""

    label: str
    curves: Sequence[RateCurve]

    @property
    def suggestions(self) -> list[float]:
        """Return what the seeds suggest, in rising order."""
        rates = [curve.suggestion for curve in self.curves]
        return sorted(rate for rate in rates if rate is not None)

    @property
    def suggested(self) -> float | None:
        """Return the geometric mean of what the seeds suggest, None if the loss fell for none."""
        return geometric_mean(self.suggestions) if self.suggestions else None


def has_diverged(losses: Sequence[float], steps: int) -> bool:
    """Return whether the newest of some losses has diverged; `steps` are those of a whole search."""
    if len(losses) <= _start_steps(steps):
        return False
    return losses[-1] > divergence_limit(losses, steps)


def divergence_limit(losses: Sequence[float], steps: int) -> float:
    """Return the loss above which a training of `steps` has diverged.

    A loss that falls below 0, such as the negative logarithm of a density, is measured by how far it
    has fallen, which exceeds its start and does not depend on the position of 0.
    """
    # The rates of the first steps are too small to change the loss.
    first_losses = losses[: _start_steps(steps)]
    start = float(np.mean(first_losses))
    return start + DIVERGED * max(start, start - min(losses))


def _start_steps(steps: int) -> int:
    """Return how many of a search's steps are its start."""
    return max(1, round(START * steps))


def smooth(losses: Sequence[float], rates: Sequence[float]) -> Numbers:
    """Return losses smoothed with a Gaussian of SMOOTHING, shape (steps,); diverged ones are clipped."""
    from scipy.ndimage import gaussian_filter1d

    values = np.asarray(losses, dtype=np.float64)
    if len(values) < 2:
        return values
    limit = divergence_limit(losses, len(values))
    capped = np.minimum(values, limit)
    powers_of_ten = np.log10(rates[-1] / rates[0])
    step = powers_of_ten / (len(rates) - 1)
    smoothed: Numbers = gaussian_filter1d(capped, SMOOTHING / step, mode="nearest")
    return smoothed


def write_curve(path: Path, curve: RateCurve) -> None:
    """Write the curve of a trial, sealed."""
    write_atomically(path, sealed_text(asdict(curve)), durable=False)


def read_curve(path: Path) -> RateCurve:
    """Read the curve of a trial; raises BadFile."""
    return decode_file(RateCurve, path, CURVE_FORMAT)
