"""Measures how soon `harness trend` finds a change and how often it is wrong, by simulation.

    python -m tests.programs.perf.trend                          five minutes on one core
    python -m tests.programs.perf.trend --quick                  a tenth of all series: whether it runs
    python -m tests.programs.perf.trend --otava ENV/bin/python   Apache Otava on the same series, an hour

Every share has its 95% interval, and the random numbers are seeded. Figures and tables are left in
results/bench, for the guide's page on trends (`python -m tests.programs.perf.guide --tables trend`); a
quick run leaves them in build/bench. Otava needs an environment that has it: `pip install apache-otava`.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path

import numpy as np

from harness.analysis.trend import NIGHTS_A_YEAR, SIZE_CONFIDENCE
from harness.core.paths import write_atomically
from harness.core.text import counted
from harness.statistics.change import Change, find_changes
from tests.programs.perf.error_rates import QUICK_FOLDER, Share, share
from tests.programs.perf.results import FOLDER, Conditions, Watch, write_results
from tests.statistics.traces import Numbers

SEED = 31
CELLS = 50
THRESHOLD = float(NIGHTS_A_YEAR * CELLS)
NIGHTS = 90  # of a history with a step in its middle
MIN_EFFECT = 0.01
NOISE = 0.05  # of one trial, standard deviation of log throughput
STEP = 0.02
CELL_YEARS = 500  # without a step, of each kind of noise
HISTORIES = 200  # with a step, of each noise
SIZES = (0.015, 0.02, 0.04)  # of steps
PAIR_NOISES = (
    0.005,
    0.01,
    0.02,
    0.05,
)  # of a trial over its control's, standard deviation of the log
TRIALS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # of a night
MOST = 0.8  # of the histories, in which a step is to be found
OTAVA_CELL_YEARS = 10
OTAVA_HISTORIES = 20
NEAR = 5  # nights; Otava reports a change again at another place as it gets longer

# Looks every night, as a nightly job does. In: series and the smallest change; out: for each series the
# changes as [night, place], of which those near an earlier one are the same.
OTAVA = """
import json, sys
from importlib.metadata import version
from otava.analysis import compute_change_points

given = json.load(sys.stdin)
found = []
for series in given["series"]:
    changes = []
    for night in range(given["first"], len(series)):
        points, _ = compute_change_points(series[: night + 1], min_magnitude=given["min_effect"])
        for point in points:
            if all(abs(int(point.index) - place) > given["near"] for _, place in changes):
                changes.append([night, int(point.index)])
    found.append(changes)
print(json.dumps({"version": version("apache-otava"), "found": found}))
"""


def normal(rng: np.random.Generator, rows: int, nights: int) -> Numbers:
    """Return independent normal nights."""
    return rng.standard_normal((rows, nights))


def correlated(correlation: float) -> Callable[[np.random.Generator, int, int], Numbers]:
    """Return what makes nights that are like their neighbors, as a machine drifts."""

    def make(rng: np.random.Generator, rows: int, nights: int) -> Numbers:
        values = rng.standard_normal((rows, nights))
        for night in range(1, nights):
            news = math.sqrt(1 - correlation**2) * values[:, night]
            values[:, night] = correlation * values[:, night - 1] + news
        return values

    return make


def with_control(rng: np.random.Generator, rows: int, nights: int) -> Numbers:
    """Return the ratio of two cells on one machine that drifts, each with noise of its own."""
    drift = correlated(0.95)(rng, rows, nights)
    cell = drift + 0.5 * rng.standard_normal((rows, nights))
    return cell - (drift + 0.5 * rng.standard_normal((rows, nights)))


# Deviations of equal nights, relative to their noise.
KINDS: Mapping[str, Callable[[np.random.Generator, int, int], Numbers]] = {
    "normal": normal,
    "heavy tails, t with 2 degrees of freedom": lambda rng, rows, nights: rng.standard_t(
        2, (rows, nights)
    ),
    "skewed, lognormal": lambda rng, rows, nights: rng.lognormal(size=(rows, nights)),
    "neighbors correlated, AR(1) 0.3": correlated(0.3),
    "neighbors correlated, AR(1) 0.6": correlated(0.6),
    "a machine that drifts, AR(1) 0.95": correlated(0.95),
    "the same, divided by a control": with_control,
}


@dataclass(frozen=True, kw_only=True)
class Rate:
    """How many false changes were found in so many years of a cell."""

    count: int
    years: int

    def __str__(self) -> str:
        """Return false changes a year over `CELLS` cells: `0.4 [0.1, 1.2]`, with Poisson bounds."""
        from scipy.special import gammaincinv

        scale = CELLS / self.years
        low = float(gammaincinv(self.count, 0.025)) if self.count else 0.0
        high = float(gammaincinv(self.count + 1, 0.975))
        return f"{self.count * scale:.1f} [{low * scale:.1f}, {high * scale:.1f}]"


@dataclass(frozen=True, kw_only=True)
class EqualNights:
    """False changes of cells that never changed, looked at every night for a year."""

    kind: str
    harness: Rate
    otava: Rate | None = None


def equal_nights(kind: str, years: int, otava: Otava | None) -> EqualNights:
    """Simulate cells that never changed."""
    series = NOISE * KINDS[kind](np.random.default_rng([SEED, 1]), years, NIGHTS_A_YEAR)
    count = sum(len(find_changes(list(row), THRESHOLD, MIN_EFFECT)) for row in series)
    result = EqualNights(kind=kind, harness=Rate(count=count, years=years))
    if otava is None:
        return result
    some = series[:OTAVA_CELL_YEARS]
    false = sum(len(changes) for changes in otava.look(some))
    return replace(result, otava=Rate(count=false, years=len(some)))


@dataclass(frozen=True, kw_only=True)
class Found:
    """How often and how soon a step was found, by nights after it."""

    found: Share
    median: float  # nights until then, of those that were found

    def __str__(self) -> str:
        """Return the share, and the median where most were found."""
        if self.found.count * 2 < self.found.tries:
            return str(self.found)
        return f"{self.found}, {self.median:g} nights"


def found_after(seen: Sequence[int | None], step_at: int) -> Found:
    """Return how soon a step was found, from the night of each history that found it, if any."""
    nights = [night - step_at + 1 for night in seen if night is not None]
    return Found(
        found=share([night is not None for night in seen]),
        median=float(np.median(nights)) if nights else math.inf,
    )


@dataclass(frozen=True, kw_only=True)
class Stepped:
    """A step of `STEP` down in the middle of a history."""

    trials: int | None  # of a night, each with `NOISE`; None for a control's noise
    noise: float  # of a night
    nights: int  # of the history
    harness: Found
    least: float  # nights that any test with the same false alarms needs on average, about
    covers_when_seen: Share  # the interval of its size, in the night that found it
    covers_at_end: Share  # and at the end of the history
    otava: Found | None = None


def stepped(
    trials: int | None, noise: float, nights: int, rows: int, otava: Otava | None
) -> Stepped:
    """Simulate histories of one cell of `CELLS` that slowed down."""
    step_at = nights // 2
    series = noise * np.random.default_rng([SEED, 2]).standard_normal((rows, nights))
    series[:, step_at:] += math.log1p(-STEP)
    seen: list[int | None] = []
    when_seen: list[bool] = []
    at_end: list[bool] = []
    for row in series:
        change = _after(find_changes(list(row), THRESHOLD, MIN_EFFECT), step_at)
        seen.append(None if change is None else change.seen)
        if change is not None:
            at_end.append(_covers(change))
            first = find_changes(list(row[: change.seen + 1]), THRESHOLD, MIN_EFFECT)[-1]
            when_seen.append(_covers(first))
    result = Stepped(
        trials=trials,
        noise=noise,
        nights=nights,
        harness=found_after(seen, step_at),
        least=math.log(THRESHOLD) * 2 * (noise / STEP) ** 2,
        covers_when_seen=share(when_seen),
        covers_at_end=share(at_end),
    )
    if otava is None:
        return result
    by_otava: list[int | None] = []
    for changes in otava.look(series[:OTAVA_HISTORIES], step_at):
        after = [night for night, place in changes if place >= step_at - NEAR]
        by_otava.append(after[0] if after else None)
    return replace(result, otava=found_after(by_otava, step_at))


def _after(changes: Sequence[Change], step_at: int) -> Change | None:
    """Return the first change that was seen once the step was there."""
    return next((change for change in changes if change.seen >= step_at), None)


def _covers(change: Change) -> bool:
    """Return whether the interval of a change's size has the step in it."""
    low, high = change.estimate.interval(SIZE_CONFIDENCE)
    return low <= math.log1p(-STEP) <= high


@dataclass(frozen=True, kw_only=True)
class Needed:
    """How many trials a night find a step in most histories."""

    size: float  # of the step
    noise: float  # of a trial over its control's
    trials: int | None  # None if `TRIALS` has not enough
    found: Found  # with so many, or with the most

    def __str__(self) -> str:
        """Return `12, after 9 nights`."""
        if self.trials is None:
            return f"more than {TRIALS[-1]}"
        return f"{self.trials}, after {self.found.median:g} nights"


def needed(size: float, noise: float, rows: int) -> Needed:
    """Simulate histories of one cell of `CELLS` that slowed down, with more and more trials a night."""
    step_at = NIGHTS // 2
    for trials in TRIALS:
        rng = np.random.default_rng([SEED, 3])
        series = noise / math.sqrt(trials) * rng.standard_normal((rows, NIGHTS))
        series[:, step_at:] += math.log1p(-size)
        seen: list[int | None] = []
        for row in series:
            change = _after(find_changes(list(row), THRESHOLD, MIN_EFFECT), step_at)
            seen.append(None if change is None else change.seen)
        found = found_after(seen, step_at)
        if found.found.count >= MOST * rows:
            return Needed(size=size, noise=noise, trials=trials, found=found)
    return Needed(size=size, noise=noise, trials=None, found=found)


class Otava:
    """Apache Otava, in the environment of another interpreter."""

    def __init__(self, python: Path) -> None:
        self.python = python
        self.version = ""

    def look(self, series: Numbers, first: int = 10) -> list[list[tuple[int, int]]]:
        """Return the changes of each series as night and place, looking every night from `first` on."""
        given = {
            "series": np.exp(series).tolist(),
            "first": first,
            "min_effect": MIN_EFFECT,
            "near": NEAR,
        }
        done = subprocess.run(
            [self.python, "-c", OTAVA],
            input=json.dumps(given),
            capture_output=True,
            text=True,
            check=True,
        )
        answer = json.loads(done.stdout)
        self.version = answer["version"]
        found: list[list[tuple[int, int]]] = answer["found"]
        return found


def tables(
    equal: Sequence[EqualNights],
    steps: Sequence[Stepped],
    trials_needed: Sequence[Needed],
    otava: Otava | None,
    conditions: Conditions,
) -> str:
    """Return the three tables as Markdown, with what they were made with."""
    lines = [
        f"False changes a year over {CELLS} cells that never changed, looking every night, of"
        f" {equal[0].harness.years:,} years of a cell each"
        + (f" (Otava: {OTAVA_CELL_YEARS})" if otava else "")
        + ":",
        "",
        "| nights | `harness trend` |" + (" Otava |" if otava else ""),
        "| --- | ---: |" + (" ---: |" if otava else ""),
    ]
    for entry in equal:
        row = f"| {entry.kind} | {entry.harness} |"
        lines.append(row if entry.otava is None else f"{row} {entry.otava} |")
    lines += [
        "",
        f"{STEP:.0%} slower from the middle of a history on, one of {CELLS} cells, of"
        f" {steps[0].harness.found.tries:,} histories each"
        + (f" (Otava: {OTAVA_HISTORIES})" if otava else "")
        + "; the median is over those that were found:",
        "",
        "| a night | its noise | history | found | the least possible | size covered when found | at the end |"
        + (" Otava |" if otava else ""),
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |" + (" ---: |" if otava else ""),
    ]
    for step in steps:
        name = "a quiet machine, or a control"
        if step.trials is not None:
            name = f"{counted(step.trials, 'trial')} with {NOISE:.0%} noise"
        row = (
            f"| {name} | {step.noise:.1%} | {step.nights} nights | {step.harness}"
            f" | {step.least:.0f} nights | {step.covers_when_seen} | {step.covers_at_end} |"
        )
        lines.append(row if step.otava is None else f"{row} {step.otava} |")
    lines += [
        "",
        f"Trials a night of a cell, with as many of its control in the same blocks, that find a step in {MOST:.0%} of"
        f" {trials_needed[0].found.found.tries:,} histories of {NIGHTS} nights, one of {CELLS} cells, and the median"
        " night of those:",
        "",
        "| noise of a trial over its control's | "
        + " | ".join(f"{size:.1%} slower" for size in SIZES)
        + " |",
        "| ---: |" + " ---: |" * len(SIZES),
    ]
    for noise in PAIR_NOISES:
        entries = [str(entry) for entry in trials_needed if entry.noise == noise]
        lines.append(f"| {noise:.1%} | {' | '.join(entries)} |")
    made_with = f"numpy {version('numpy')}"
    if otava is not None:
        made_with += f", Apache Otava {otava.version}"
    lines += ["", f"{conditions.date}, {conditions.commit}, {made_with}; seed {SEED}."]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Simulate all of it, and leave figures and tables."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.programs.perf.trend", description=__doc__
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of all series")
    parser.add_argument("--otava", type=Path, help="the Python of an environment with Apache Otava")
    options = parser.parse_args()
    part = 10 if options.quick else 1
    otava = Otava(options.otava) if options.otava else None
    noises: list[tuple[int | None, float]] = [(None, 0.01), (None, 0.005)]
    noises[:0] = [(count, NOISE / math.sqrt(count)) for count in (1, 5, 10, 20)]
    with Watch() as watch:
        equal = [equal_nights(kind, CELL_YEARS // part, otava) for kind in KINDS]
        steps = []
        for nights in (NIGHTS, NIGHTS_A_YEAR):
            for trials, noise in noises:
                steps.append(stepped(trials, noise, nights, HISTORIES // part, otava))
        trials_needed = []
        for noise in PAIR_NOISES:
            for size in SIZES:
                trials_needed.append(needed(size, noise, HISTORIES // part))
    conditions = watch.conditions()
    figures = {
        "equal_nights": [asdict(entry) for entry in equal],
        "steps": [asdict(step) for step in steps],
        "trials_needed": [asdict(entry) for entry in trials_needed],
    }
    folder = QUICK_FOLDER if options.quick else FOLDER
    path = write_results("trend", figures, conditions, folder=folder)
    text = tables(equal, steps, trials_needed, otava, conditions)
    write_atomically(path.with_suffix(".md"), text)
    print(text)


if __name__ == "__main__":
    main()
