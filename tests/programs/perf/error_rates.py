"""Measures how often the statistics are wrong, by simulation through the harness's own functions.

    python -m tests.programs.perf.error_rates            five minutes on one core
    python -m tests.programs.perf.error_rates --quick    a tenth of all traces: whether all of it runs

Every share has its 95% interval (Clopper and Pearson), and the random numbers are seeded.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from scipy.stats import binomtest

from harness.statistics.interval import mean_by_seed, mean_interval
from harness.statistics.sequential import confidence_sequence
from tests.programs.perf.results import Benchmark, Row, markdown
from tests.statistics.traces import DIFFERENCES, stop

LOOKS = 60
SEED = 31
ALPHA = 0.05
MIN_EFFECT = 0.01
SLOWDOWN = 0.02
SEQUENCES = 20_000  # of differences, for each kind
NOISES = (0.005, 0.01, 0.015, 0.02, 0.03)  # of a pair's log ratio, standard deviations
GATE_PAIRS = 30  # that a gate's budget has room for
CELLS = 20_000  # whose intervals are looked at, of each number of seeds and repeats
SEEDS_AND_REPEATS = ((2, 5), (3, 3), (5, 1))
SEED_SPREADS = (0.0, 1.0, 10.0)  # times the noise of a trial


def share(values: Any) -> str:
    """Return the share of true values, shape (tries,), as in `4.1% [3.8, 4.4]`."""
    count, tries = int(np.sum(values)), len(values)
    low, high = binomtest(count, tries).proportion_ci()
    return f"{count / tries:.1%} [{100 * low:.1f}, {100 * high:.1f}]"


def false_alarms(kind: str, rows: int) -> Row:
    """Return how often equal arms, whose differences have a mean of 0, are told apart."""
    values = DIFFERENCES[kind](np.random.default_rng([SEED, 1]), rows, LOOKS)
    low, high = confidence_sequence(values, ALPHA)
    is_excluded = (low > 0) | (high < 0)
    decisions = stop(0.02 * values / values.std(), MIN_EFFECT, ALPHA, one_sided=True)
    return {
        f"equal arms told apart in {LOOKS} looks at {ALPHA:.0%}": kind,
        "the interval excludes 0": share(np.any(is_excluded, axis=1)),
        "a gate says slower": share(decisions.sign == -1),
    }


def power(noise: float, rows: int) -> Row:
    """Return how soon a gate is done, for pairs whose log ratios are normal with this deviation."""
    equal = noise * np.random.default_rng([SEED, 2]).standard_normal((rows, LOOKS))
    slower = equal + math.log1p(-SLOWDOWN)
    found = stop(slower, MIN_EFFECT, ALPHA, one_sided=True)
    passed = stop(equal[:, :GATE_PAIRS], MIN_EFFECT, ALPHA, one_sided=True)
    return {
        f"noise of a pair, `--min-effect {MIN_EFFECT:.0%}`": f"{noise:.1%}",
        f"{SLOWDOWN:.0%} slower, found in {LOOKS}": share(found.sign == -1),
        "median pairs": f"{np.median(found.count):g}",
        f"equal, passed in {GATE_PAIRS}": share(passed.sign >= 0),
        "median pairs ": f"{np.median(passed.count):g}",
    }


def coverage(seeds: int, repeats: int, spread: float, rows: int) -> Row:
    """Return how often a cell's 95% interval has the mean over seeds, which differ by `spread`."""
    rng = np.random.default_rng([SEED, seeds, repeats])
    effects = rng.normal(0, spread, (rows, seeds, 1))
    values = (effects + rng.normal(0, 1, (rows, seeds, repeats))).reshape(rows, -1)
    seed_of_value = np.repeat(np.arange(seeds), repeats).tolist()
    covers = []
    for row in values.tolist():
        interval = mean_interval(list(mean_by_seed(row, seed_of_value).values()))
        assert interval.bounds is not None
        covers.append(interval.bounds[0] <= 0 <= interval.bounds[1])
    return {
        "a cell's trials": f"{seeds} seeds × {repeats} repeats",
        "spread of seeds": f"{spread:g} × the noise",
        "95% intervals that have the mean": share(covers),
    }


def main() -> None:
    """Simulate all of it, and leave the tables."""
    benchmark = Benchmark("statistics", __doc__)
    part = 10 if benchmark.is_quick else 1
    cells = itertools.product(SEEDS_AND_REPEATS, SEED_SPREADS)
    tables = [
        markdown([false_alarms(kind, SEQUENCES // part) for kind in DIFFERENCES]),
        markdown([power(noise, SEQUENCES // part) for noise in NOISES]),
        markdown([coverage(*trials, spread, CELLS // part) for trials, spread in cells]),
    ]
    benchmark.write("\n".join(tables))


if __name__ == "__main__":
    main()
