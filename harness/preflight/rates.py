"""The results of a learning-rate search, its suggestions, and the file that keeps them.

A short training raises the rate exponentially from step to step (Smith 2017, arXiv:1506.01186). The
loss first stays, then falls, and finally diverges. Two rates bound the useful range: the rate of the
steepest fall, which a whole training can use, and the rate of the lowest loss, beyond which training
would diverge. Smith and Topin (2017, arXiv:1708.07120) let a one-cycle schedule reach the upper
bound. A schedule that stays longer near its peak is given a rate in between.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated

import numpy as np

from harness.core.paths import SweepFolder, write_atomically
from harness.records.decode import FileFormat, decode_file
from harness.records.seal import sealed_text
from harness.records.series import Numbers
from harness.spec.cell import Cell
from workloads.options import Between

RATES_FILE = "rates.json"  # in the folder of the ranks that search
SCHEMA = "2.0"
SEARCH_FORMAT = FileFormat(
    name="learning-rate search",
    schema=SCHEMA,
    remedy="harness find-lr writes it again",
    is_sealed=True,
)
CURVE_FORMAT = FileFormat(name="rank's losses", is_sealed=True)
LOWEST, HIGHEST = 1e-7, 1.0  # the rates of the first and of the last step
# The standard deviation of the Gaussian that smooths losses, in powers of ten of the rate.
SMOOTHING = 0.15
# A loss this many times that of the start has diverged; larger ones would outweigh all others. See
# `divergence_limit` for losses that are not above 0.
DIVERGED = 4.0
START = 0.1  # the share of the steps whose mean loss is that of the start
MOST_BELOW_MINIMUM = 10.0  # one suggestion is the rate of the lowest loss divided by this

Rate = Annotated[float, Between(0)]


@dataclass(frozen=True, kw_only=True)
class RateCurve:
    """The losses of one seed, step by step, with the rates that they were computed at."""

    seed: int
    rates: Sequence[Rate]  # as of the axis `lr`, rising
    losses: Sequence[float]  # mean over ranks, finite
    diverged: bool  # whether it ended because the loss diverged, not at the highest rate
    current: Rate  # the rate that the cell trains with, at its schedule's peak
    # The mean of the schedule over its peak: 1 for a constant rate, 1/2 for one cycle.
    mean_factor: Annotated[float, Between(0, 1)] = 1.0

    @property
    def smoothed(self) -> Numbers:
        """Return the losses smoothed over neighbors on both sides, without a shift."""
        return smooth(np.asarray(self.losses), np.log10(np.asarray(self.rates)))

    @property
    def suggestion(self) -> Suggestion:
        """Return the rates that this seed suggests."""
        return suggest(np.asarray(self.rates), self.smoothed, self.mean_factor)


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """Rates that suit a training; None where the loss never fell."""

    peak: float | None  # of the cell's schedule
    steepest: float | None  # where the loss falls most per power of ten
    tenth: float | None  # a tenth of the rate at which it is lowest


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The suggestions of several seeds."""

    mean: float  # geometric
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class CellRates:
    """The curves of all seeds of a cell."""

    cell: Cell
    curves: Sequence[RateCurve]

    @property
    def peak(self) -> Spread | None:
        """Return the peak for the cell's schedule, over the seeds; None if the loss never fell."""
        return _spread([curve.suggestion.peak for curve in self.curves])

    @property
    def steepest(self) -> Spread | None:
        """Return where the loss falls most, over the seeds; None if it fell for none."""
        return _spread([curve.suggestion.steepest for curve in self.curves])

    @property
    def tenth(self) -> Spread | None:
        """Return a tenth of the rate of the lowest loss, over the seeds; None if it fell for none."""
        return _spread([curve.suggestion.tenth for curve in self.curves])


@dataclass(frozen=True, kw_only=True)
class RateSearch:
    """The learning-rate search of a sweep."""

    schema: str = SCHEMA
    sweep: str  # its name
    at: Annotated[float, Between(0)]  # when the last curve ended, seconds since the epoch
    cells: Sequence[CellRates]  # in the order of the sweep

    def of(self, cell: Cell) -> CellRates | None:
        """Return the rates of a cell, None if it was not searched."""
        for rates in self.cells:
            if rates.cell.id == cell.id:
                return rates
        return None


def rate_at(step: Numbers, steps: int) -> Numbers:
    """Return the rate of each of `steps` steps, from LOWEST to HIGHEST; `step` is counted from 0."""
    share = step / max(1, steps - 1)
    rates: Numbers = LOWEST * (HIGHEST / LOWEST) ** share
    return rates


def has_diverged(losses: Numbers, steps: int) -> bool:
    """Return whether the newest of some losses has diverged; `steps` are those of a whole search."""
    if len(losses) <= _start_steps(steps):
        return False
    return bool(losses[-1] > divergence_limit(losses, steps))


def divergence_limit(losses: Numbers, steps: int) -> float:
    """Return the loss above which a training has diverged: DIVERGED times that of the start.

    A loss that falls below 0, such as the negative logarithm of a density, is measured by how far it
    has fallen, which exceeds its start and does not depend on the position of 0.
    """
    # The rates of the first steps are too small to change the loss.
    start = float(np.mean(losses[: _start_steps(steps)]))
    scale = max(start, start - float(np.min(losses)))
    return start + (DIVERGED - 1) * scale


def _start_steps(steps: int) -> int:
    """Return how many of a search's steps are its start."""
    return max(1, round(START * steps))


def smooth(losses: Numbers, decades: Numbers) -> Numbers:
    """Return losses smoothed with a Gaussian of SMOOTHING; `decades` are log10 of their rates.

    Both have the shape (steps,). Diverged losses are clipped first.
    """
    from scipy.ndimage import gaussian_filter1d

    if len(losses) < 2:
        return losses
    capped = np.minimum(losses, divergence_limit(losses, len(losses)))
    step = (decades[-1] - decades[0]) / (len(decades) - 1)
    smoothed: Numbers = gaussian_filter1d(capped, SMOOTHING / step, mode="nearest")
    return smoothed


def suggest(rates: Numbers, smoothed: Numbers, mean_factor: float) -> Suggestion:
    """Return the suggestions of a smoothed curve, both of shape (steps,).

    `mean_factor` is that of the schedule. The peak is between the steepest and the lowest, in
    powers of ten as far as the mean of the schedule is below its peak.
    """
    lowest_step = int(np.argmin(smoothed)) if len(smoothed) else 0
    if lowest_step < 2:
        return Suggestion(peak=None, steepest=None, tenth=None)
    slopes = np.gradient(smoothed[: lowest_step + 1], np.log10(rates[: lowest_step + 1]))
    steepest, lowest = float(rates[int(np.argmin(slopes))]), float(rates[lowest_step])
    return Suggestion(
        peak=steepest * (lowest / steepest) ** (1 - mean_factor),
        steepest=steepest,
        tenth=lowest / MOST_BELOW_MINIMUM,
    )


def _spread(rates: Sequence[float | None]) -> Spread | None:
    """Return the geometric mean and the range of all known rates, None without any."""
    present = [rate for rate in rates if rate is not None]
    if not present:
        return None
    mean = math.exp(fmean(math.log(rate) for rate in present))
    return Spread(mean=mean, low=min(present), high=max(present))


def write_search(folder: SweepFolder, search: RateSearch) -> None:
    """Write a search, sealed."""
    write_atomically(folder.rates_path, sealed_text(asdict(search)))


def read_search(folder: SweepFolder) -> RateSearch | None:
    """Read the search of a sweep, None if there was none; raises BadFile."""
    if not folder.rates_path.exists():
        return None
    return decode_file(RateSearch, folder.rates_path, SEARCH_FORMAT)


def write_curve(path: Path, curve: RateCurve) -> None:
    """Write the curve of a trial, sealed."""
    write_atomically(path, sealed_text(asdict(curve)), durable=False)


def read_curve(path: Path) -> RateCurve:
    """Read the curve of a trial; raises BadFile."""
    return decode_file(RateCurve, path, CURVE_FORMAT)
