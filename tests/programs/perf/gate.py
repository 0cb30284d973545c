"""How soon `harness gate` finds what is slower: `python -m tests.programs.perf.gate`.

Each try is a whole gate of one cell; nothing else should run meanwhile. The slower side spins in every
step for so much of the time that its steps take anyway, about a millisecond. How often equal code is
told apart is what `harness certify` measures.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
from scipy.stats import binomtest

from harness.core.worktree import Tree
from harness.gate.paired import Budget, PairedResult, measure
from harness.statistics.verdict import ALPHA
from harness.sweep.cluster import Profile
from harness.sweep.sweep import load_sweep
from tests.programs.perf.results import Benchmark, Row, markdown
from tests.support.repository import Repository

SMALL = {"uses": "own.py:Slowed", "data": {"source": "digits"}, "options": {"hidden": []}}
CASES = [(0.02, 10.0), (0.05, 2.0), (0.025, 30.0)]  # how much slower, and seconds of measuring
TRIES = 20  # of each case
MIN_EFFECT = 0.01


def try_case(slower: float, seconds: float, tries: int, folder: Path) -> list[PairedResult]:
    """Measure a workload against itself, the second slower by this share, so many times."""
    keys = {"workloads": {"own": SMALL}, "matrix": {"batch_size": 16}}
    before, now = Repository(folder / "before", **keys), Repository(folder / "now", **keys)
    now.write(slower)
    trees = {
        "a": Tree(name="before", top=before.path, path=before.path),
        "b": Tree(name="now", top=before.path, path=now.path),
    }
    sweep = load_sweep(before.sweep)
    budget = Budget(min_effect=MIN_EFFECT, seconds=seconds, alpha=ALPHA)
    results = []
    for number in range(tries):
        result = measure(sweep, sweep.cells[0], trees, Profile(device="cpu"), budget)
        results.append(result)
        change = (result.ratio or 1) - 1
        spent = f"{result.seconds:4.1f} s, {result.pairs} pairs"
        print(f"  {number + 1:3}  {result.verdict:12} {change:+.2%}  {spent}", flush=True)
    return results


def summary(slower: float, seconds: float, results: list[PairedResult]) -> Row:
    """Return how many were right, with a 95% interval (Clopper and Pearson)."""
    verdicts = Counter(result.verdict for result in results)
    low, high = binomtest(verdicts["slower"], len(results)).proportion_ci()
    counts = [f"{count} {verdict}" for verdict, count in verdicts.most_common()]
    return {
        "slower by": f"{slower:.1%}",
        "found within": f"{seconds:g} s",
        "share [95% interval]": f"{verdicts['slower'] / len(results):.0%} [{low:.0%}, {high:.0%}]",
        "median": f"{np.median([result.seconds for result in results]):.1f} s",
        "verdicts": ", ".join(counts),
    }


def main() -> None:
    """Try all cases, and leave how many tries of each were right."""
    benchmark = Benchmark("gate", __doc__)
    tries = 2 if benchmark.is_quick else TRIES
    rows = []
    for slower, seconds in CASES:
        print(f"{slower:.1%} slower, {seconds:g} s of measuring")
        with tempfile.TemporaryDirectory() as name:
            results = try_case(slower, seconds, tries, Path(name))
        rows.append(summary(slower, seconds, results))
        benchmark.probe()
    benchmark.write(markdown(rows))


if __name__ == "__main__":
    main()
