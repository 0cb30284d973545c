"""Measures how often the statistics are wrong, by simulation through the harness's own functions.

    python -m tests.programs.perf.error_rates            a minute on one core
    python -m tests.programs.perf.error_rates --quick    a tenth of all traces: whether all of it runs

Every share has its 95% interval (Clopper and Pearson), and the random numbers are seeded. Figures and
tables are left in results/bench. A quick run leaves them in build/bench.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.stats import binomtest

from harness.core.paths import write_atomically
from harness.statistics.sequential import (
    confidence_sequence,
    normal_half_width,
    running_moments,
)
from tests.programs.perf.results import FOLDER, Conditions, Watch, write_results
from tests.statistics.traces import DIFFERENCES, Numbers, stop
from tests.support.tree import TOP

QUICK_FOLDER = TOP / "build" / "bench"
LOOKS = 60
SEED = 31
ALPHA = 0.05
MIN_EFFECT = 0.01
SLOWDOWN = 0.02
SEQUENCES = 20_000  # of differences, for each kind
NOISES = (0.005, 0.01, 0.015, 0.02, 0.03)  # of a pair's log ratio, standard deviations
GATE_PAIRS = 30  # that a gate's budget has room for
RACES = 500  # of equal cells, for each kind of noise
RACE_CELLS, RACE_BLOCKS = 8, 20
AXIS_EFFECT = 0.35  # of a level on the logarithm of throughput, standard deviation
RACE_NOISES = (0.02, 0.05, 0.1)


@dataclass(frozen=True, kw_only=True)
class Share:
    """How many of independent tries have a property."""

    count: int
    tries: int

    def __str__(self) -> str:
        """Return `4.1% [3.8, 4.4]`, or a dash without tries."""
        if not self.tries:
            return "–"
        low, high = binomtest(self.count, self.tries).proportion_ci()
        return f"{self.count / self.tries:.1%} [{100 * low:.1f}, {100 * high:.1f}]"


def share(values: Any) -> Share:
    """Return the share of true values, shape (tries,)."""
    return Share(count=int(np.sum(values)), tries=len(values))


@dataclass(frozen=True, kw_only=True)
class FalseAlarms:
    """How often equal arms are told apart within `LOOKS` looks."""

    differences: str
    ever_excluded: Share  # the interval leaves out no difference at some look
    gate_says_slower: Share  # the gate's one-sided decision, of pairs with a deviation of 2%
    by_normal_bounds: Share  # as `ever_excluded`, without what widens the interval


def false_alarms(kind: str, rows: int) -> FalseAlarms:
    """Simulate equal arms, whose differences have a mean of 0."""
    values = DIFFERENCES[kind](np.random.default_rng([SEED, 1]), rows, LOOKS)
    low, high = confidence_sequence(values, ALPHA)
    is_excluded = (low > 0) | (high < 0)
    is_out = np.abs(running_moments(values).mean) > normal(values)
    decisions = stop(0.02 * values / values.std(), MIN_EFFECT, ALPHA, one_sided=True)
    return FalseAlarms(
        differences=kind,
        ever_excluded=share(np.any(is_excluded, axis=1)),
        gate_says_slower=share(decisions.sign == -1),
        by_normal_bounds=share(np.any(is_out, axis=1)),
    )


def normal(values: Numbers) -> Numbers:
    """Return half the widths of the sequence that is exact for independent normal values."""
    n = np.arange(1.0, values.shape[-1] + 1)
    return normal_half_width(n, running_moments(values).squares, ALPHA)


@dataclass(frozen=True, kw_only=True)
class Power:
    """How soon a gate is done, for pairs with a deviation of `noise`."""

    noise: float
    found: Share  # how often a slowdown of `SLOWDOWN` is found within `LOOKS` pairs
    pairs: float  # the median until then
    pairs_of_normal_bounds: float  # the median of the sequence that normal values alone would need
    passed: Share  # how often equal arms pass within `GATE_PAIRS` pairs
    pairs_to_pass: float  # the median until then; of those that don't, `GATE_PAIRS`


def power(noise: float, rows: int) -> Power:
    """Simulate arms of which one is slower, and equal ones, with normal noise."""
    equal = noise * np.random.default_rng([SEED, 2]).standard_normal((rows, LOOKS))
    slower = equal + math.log1p(-SLOWDOWN)
    found = stop(slower, MIN_EFFECT, ALPHA, one_sided=True)
    passed = stop(equal[:, :GATE_PAIRS], MIN_EFFECT, ALPHA, one_sided=True)
    mean = running_moments(slower).mean
    by_normal = (mean + normal(slower) < 0) & (mean <= math.log1p(-MIN_EFFECT))
    first = np.where(by_normal.any(axis=1), by_normal.argmax(axis=1) + 1, LOOKS)
    return Power(
        noise=noise,
        found=share(found.sign == -1),
        pairs=float(np.median(found.count)),
        pairs_of_normal_bounds=float(np.median(first)),
        passed=share(passed.sign >= 0),
        pairs_to_pass=float(np.median(passed.count)),
    )


def tables(
    alarms: Sequence[FalseAlarms],
    powers: Sequence[Power],
    conditions: Conditions,
) -> str:
    """Return the tables as Markdown, with what they were made with."""
    lines = [
        f"Equal arms told apart within {LOOKS} looks at {ALPHA:.0%}, of {alarms[0].ever_excluded.tries:,}"
        " sequences each:",
        "",
        "| differences | the interval excludes 0 | a gate says slower | by normal bounds alone |",
        "| --- | ---: | ---: | ---: |",
    ]
    for alarm in alarms:
        lines.append(
            f"| {alarm.differences} | {alarm.ever_excluded} | {alarm.gate_says_slower}"
            f" | {alarm.by_normal_bounds} |"
        )
    lines += [
        "",
        f"Pairs that a gate with `--min-effect {MIN_EFFECT:.0%}` needs, of {powers[0].found.tries:,} each:",
        "",
        f"| noise of a pair | {SLOWDOWN:.0%} slower, found in {LOOKS} | median pairs |"
        f" by normal bounds alone | equal, passed in {GATE_PAIRS} | median pairs |",
        "| ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in powers:
        lines.append(
            f"| {row.noise:.1%} | {row.found} | {row.pairs:g} | {row.pairs_of_normal_bounds:g}"
            f" | {row.passed} | {row.pairs_to_pass:g} |"
        )
    packages = conditions.packages
    lines += [
        "",
        f"{conditions.date}, {conditions.commit}, numpy {packages.get('numpy')}; seed {SEED}.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Simulate all of it, and leave figures and tables."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.programs.perf.error_rates", description=__doc__
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of all traces")
    is_quick = parser.parse_args().quick
    part = 10 if is_quick else 1
    with Watch() as watch:
        alarms = [false_alarms(kind, SEQUENCES // part) for kind in DIFFERENCES]
        powers = [power(noise, SEQUENCES // part) for noise in NOISES]
    conditions = watch.conditions()
    figures = {
        "false_alarms": [asdict(alarm) for alarm in alarms],
        "power": [asdict(row) for row in powers],
    }
    folder = QUICK_FOLDER if is_quick else FOLDER
    path = write_results("statistics", figures, conditions, folder=folder)
    text = tables(alarms, powers, conditions)
    write_atomically(path.with_suffix(".md"), text)
    print(text)


if __name__ == "__main__":
    main()
