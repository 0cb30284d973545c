"""How soon `harness gate` finds what is slower: `python -m tests.programs.perf.gate`, and with `--busy` beside
a process that takes a core. Nothing else should run meanwhile.

Each try is a whole gate of one cell. The slower side spins in every step for so much of the time
that its steps take anyway, about a millisecond. How often equal code is told apart is what `harness
certify` measures.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
from scipy.stats import binomtest

from harness.core.errors import parse_percentage
from harness.core.worktree import Tree
from harness.gate.paired import Budget, PairedResult, measure
from harness.statistics.verdict import ALPHA
from harness.sweep.cluster import Profile
from harness.sweep.sweep import load_sweep
from tests.support.repository import Repository

SMALL = {"uses": "own.py:Slowed", "data": {"source": "digits"}, "options": {"hidden": []}}
# How much slower, and seconds of measuring.
CASES = [("2%", 10.0), ("5%", 2.0), ("2.5%", 30.0)]
BUSY_CASES = [("2.5%", 30.0)]


@contextmanager
def busy_core() -> Iterator[None]:
    """Have a process compute without a pause for as long as the context lasts."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def tries(
    slower: float, seconds: float, count: int, min_effect: float, folder: Path
) -> list[PairedResult]:
    """As many contests of a workload with itself, the second slower by this share."""
    keys = {"workloads": {"own": SMALL}, "matrix": {"batch_size": 16}}
    before, now = Repository(folder / "before", **keys), Repository(folder / "now", **keys)
    now.write(slower)
    trees = {
        "a": Tree(name="before", top=before.path, path=before.path),
        "b": Tree(name="now", top=before.path, path=now.path),
    }
    sweep = load_sweep(before.sweep)
    budget = Budget(min_effect=min_effect, seconds=seconds, alpha=ALPHA)
    results = []
    for number in range(count):
        result = measure(sweep, sweep.cells[0], trees, Profile(device="cpu"), budget)
        results.append(result)
        print(
            f"  {number + 1:3}  {result.verdict:12} {(result.ratio or 1) - 1:+.2%}"
            f"  {result.seconds:4.1f} s, {result.pairs} pairs",
            flush=True,
        )
    return results


def summary(slower: float, results: list[PairedResult], seconds: float) -> str:
    """How many were right, with a 95% interval (Clopper and Pearson)."""
    verdicts = Counter(result.verdict for result in results)
    low, high = binomtest(verdicts["slower"], len(results)).proportion_ci()
    spent = np.median([result.seconds for result in results])
    return (
        f"{slower:.1%} slower found within {seconds:g} s:"
        f" {verdicts['slower']} of {len(results)} ({low:.0%} to {high:.0%});"
        f" median {spent:.1f} s; {dict(verdicts)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.programs.perf.gate", description=__doc__)
    parser.add_argument("--tries", type=int, default=20, help="of each case (default 20)")
    parser.add_argument("--slower", help="one case only, as in 2%%")
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="of measuring, for --slower (default 10)"
    )
    parser.add_argument("--min-effect", default="1%", help="change that matters (default 1%%)")
    parser.add_argument(
        "--busy", action="store_true", help="measure beside a process that takes a core"
    )
    options = parser.parse_args()
    cases = BUSY_CASES if options.busy else CASES
    if options.slower:
        cases = [(options.slower, options.seconds)]
    min_effect = parse_percentage(options.min_effect, "--min-effect")
    lines = []
    with busy_core() if options.busy else nullcontext():
        for text, seconds in cases:
            slower = parse_percentage(text, "--slower")
            print(f"{text} slower, {seconds:g} s of measuring, load {os.getloadavg()[0]:.1f}")
            with tempfile.TemporaryDirectory() as name:
                results = tries(slower, seconds, options.tries, min_effect, Path(name))
            lines.append(summary(slower, results, seconds))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
