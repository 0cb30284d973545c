"""What it costs to run trials side by side: their speed, and how often equal cells are told apart.

    python -m tests.programs.perf.side_by_side                        8 rounds of 4 pairs of cells, some 15 minutes
    python -m tests.programs.perf.side_by_side --rounds 1 --steps 300  a try

The cells of a pair differ in the learning rate, by thousandths, which takes no time: every verdict on
their speed other than `same` and `inconclusive` is a false alarm. Each round runs all cells alone, then side by side.
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from rich.console import Console
from rich.table import Table
from scipy.stats import binomtest

from harness.analysis.questions import SPEED, throughput_difference
from harness.analysis.result import CellResult, aggregate
from harness.core.cores import usable_cores
from harness.core.paths import Results
from harness.launch import sweep as runner
from harness.records.environment import describe_hardware
from harness.spec.cluster import Parallel, load_profile, with_parallel
from harness.spec.sweep import load_sweep
from harness.statistics.estimate import paired
from harness.statistics.verdict import MetricVerdict, judge
from tests.support.running import RecordCollector

PAIRS = 4  # of cells in a round
SEEDS = 5  # of each cell
LEARNING_RATE = 1e-3
MODES: tuple[Parallel, ...] = (1, "auto")


@dataclass(frozen=True, kw_only=True)
class Round:
    """The cells of one sweep, all of them alike."""

    cells: Sequence[CellResult]
    seconds: float  # that the sweep took

    @property
    def log_throughput(self) -> float:
        """The mean logarithm of samples/s over all of its trials."""
        values = [value for cell in self.cells for value in cell.log_throughputs]
        return math.fsum(values) / len(values)

    @property
    def left_out(self) -> int:
        """The number of trials that were invalid, or failed."""
        return sum(sum(cell.left_out.values()) for cell in self.cells)

    @property
    def with_empty_lanes(self) -> int:
        """The number of trials that had less company than others."""
        return sum("empty" in trial.company for cell in self.cells for trial in cell.trials)

    def verdicts(self) -> list[MetricVerdict]:
        """Return the verdict on each pair of cells, as though it were the only question."""
        verdicts = []
        for a, b in zip(self.cells[::2], self.cells[1::2], strict=True):
            difference = throughput_difference(a, b, SPEED.min_effect, {})
            if difference is not None:
                verdicts += judge([difference.question])
        return verdicts


def run_round(folder: Path, parallel: Parallel, steps: int) -> Round:
    """Run the cells alone or side by side, in a folder of their own."""
    folder.mkdir()
    rates = [LEARNING_RATE * (1 + number / 1000) for number in range(2 * PAIRS)]
    content = {
        "name": "equal",
        "workloads": {"mlp": {"length": {"steps": steps}, "evaluate": {"steps": steps}}},
        "seeds": list(range(SEEDS)),
        "matrix": {"lr": rates},
    }
    path = folder / "equal.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    sweep = load_sweep(path)
    profile = with_parallel(load_profile("local"), str(parallel))
    results = Results(folder / "results").sweep_folder(sweep.name)
    start = time.monotonic()
    records = runner.run(
        sweep, profile, results, RecordCollector(), redo="missing", fail_fast=False
    )
    return Round(cells=aggregate(records), seconds=time.monotonic() - start)


def show(rounds: Sequence[tuple[Round, Round]], console: Console) -> None:
    """Print what is known after some rounds, each alone and side by side."""
    table = Table(
        "trials", "pairs of equal cells", "false alarms", "95% interval", "seconds", box=None
    )
    table.add_column("left out")
    table.add_column("with empty lanes")
    for name, mode_rounds in zip(("alone", "side by side"), zip(*rounds, strict=True), strict=True):
        verdicts = [verdict for one_round in mode_rounds for verdict in one_round.verdicts()]
        alarms = sum(verdict.outcome in ("better", "worse") for verdict in verdicts)
        interval = binomtest(alarms, len(verdicts)).proportion_ci(method="exact")
        table.add_row(
            name,
            str(len(verdicts)),
            f"{alarms} ({alarms / len(verdicts):.1%})",
            f"{interval.low:.1%} to {interval.high:.1%}",
            f"{sum(one_round.seconds for one_round in mode_rounds):.0f}",
            str(sum(one_round.left_out for one_round in mode_rounds)),
            str(sum(one_round.with_empty_lanes for one_round in mode_rounds)),
        )
    console.print(table)
    ratios = [beside.log_throughput - alone.log_throughput for alone, beside in rounds]
    text = f"{math.exp(math.fsum(ratios) / len(ratios)):.3f}"
    if len(ratios) > 1:
        interval_of_ratio = paired(ratios).interval(0.95)
        text += f" [{math.exp(interval_of_ratio[0]):.3f}, {math.exp(interval_of_ratio[1]):.3f}]"
    console.print(f"samples/s of a trial, side by side : alone: {text}")


def main() -> None:
    """Run the rounds, and print what is known after each."""
    parser = argparse.ArgumentParser(description="Equal cells, alone and side by side.")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=800, help="of each trial")
    options = parser.parse_args()
    console = Console()
    hardware = describe_hardware()
    load = os.getloadavg()[0]
    console.print(
        f"{hardware.cpu}, {len(usable_cores())} cores, load {load:.1f} at the start;"
        f" mlp, {options.steps} steps, {SEEDS} seeds"
    )
    rounds: list[tuple[Round, Round]] = []
    with tempfile.TemporaryDirectory() as name:
        for number in range(options.rounds):
            alone, beside = [
                run_round(Path(name) / f"{number}-{mode}", mode, options.steps) for mode in MODES
            ]
            rounds.append((alone, beside))
            show(rounds, console)


if __name__ == "__main__":
    main()
