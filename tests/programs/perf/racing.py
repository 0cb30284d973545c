"""Races on this machine: how often equal cells leave, and what a race of 48 cells saves.

    python -m tests.programs.perf.racing                    20 races of equal cells, then the 48; about half an hour
    python -m tests.programs.perf.racing --races 2 --repeats 6   a try
    python -m tests.programs.perf.racing --races 0 --folder FOLDER   the 48 cells; run again to go on

Equal cells differ in the learning rate, by thousandths, which takes no time. The 48 cells race first, and
then all trials run that the race did without. So the full sweep has the race's trials too, and the share of
its time is that of the seconds of all trials.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from harness.analysis.sweep_result import SweepResult
from harness.core.paths import Results
from harness.launch import sweep as runner
from harness.launch.race import SweepRace
from harness.records.record import Record
from harness.render.findings import race_sentences
from harness.render.format import cell_names
from harness.spec.cluster import load_profile, with_tolerance
from harness.spec.sweep import Sweep, load_sweep
from harness.statistics.interval import share_interval
from tests.support.running import RecordCollector

EQUAL_CELLS, EQUAL_BLOCKS = 3, 8
MATRIX = {
    "batch_size": [16, 32, 64, 128],  # larger ones take seconds in bf16 on a CPU
    "precision": ["fp32", "bf16"],
    "optimizer_impl": ["for-loop", "foreach", "fused"],
    "activation_checkpointing": [False, True],
}


@dataclass(frozen=True, kw_only=True)
class RecordedRun:
    """A sweep with its records."""

    sweep: Sweep
    records: Sequence[Record]


def run(
    folder: Path, steps: int, repeats: int, matrix: Mapping[str, Any], *, race: bool
) -> RecordedRun:
    """Run what is missing of a sweep of the MLP on digits, in a folder of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "name": folder.name,
        "workloads": {"mlp": {"data": {"source": "digits"}}},
        "length": {"steps": steps},
        "evaluate": {"steps": steps},
        "repeats": repeats,
        "matrix": dict(matrix),
        "race": {} if race else None,
    }
    path = folder / "sweep.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    sweep = load_sweep(path)
    profile = with_tolerance(load_profile("local"), tolerate_load=True)
    results = Results(folder / "results").sweep_folder(sweep.name)
    records = runner.run(
        sweep, profile, results, RecordCollector(), redo="missing", fail_fast=False
    )
    return RecordedRun(sweep=sweep, records=records)


def equal_races(folder: Path, count: int, steps: int) -> None:
    """Print how many of some races of equal cells let a cell leave, after each race."""
    rates = [1e-3 * (1 + number / 1000) for number in range(EQUAL_CELLS)]
    races_with_departures = 0
    for number in range(count):
        ended = run(folder / f"equal-{number}", steps, EQUAL_BLOCKS, {"lr": rates}, race=True)
        race = SweepRace.of_records(ended.sweep, ended.records)
        races_with_departures += any(race.departure(cell) for cell in ended.sweep.cells)
        low, high = share_interval(races_with_departures, number + 1)
        print(
            f"{number + 1} races of {EQUAL_CELLS} equal cells in {EQUAL_BLOCKS} blocks: a cell left"
            f" {races_with_departures} [{low:.0%}, {high:.0%}]",
            flush=True,
        )


def compare_with_full(folder: Path, steps: int, repeats: int) -> None:
    """Print the winner of the 48 cells in a race and in full, and what share of the time the race took."""
    raced = run(folder, steps, repeats, MATRIX, race=True)
    race = SweepRace.of_records(raced.sweep, raced.records)
    of_race = [record for record in raced.records if race.reason_to_skip(record.trial) is None]
    names = cell_names(raced.sweep.cells)
    raced_result = SweepResult.of_records(raced.sweep, of_race)
    for sentence in race_sentences(raced_result, raced.sweep, of_race, lambda cell: names[cell.id]):
        print(sentence, flush=True)
    full = run(folder, steps, repeats, MATRIX, race=False)
    result = SweepResult.of_records(full.sweep, full.records)
    fastest, second = result.ranking("mlp")[:2]
    certainty = "certain" if result.is_winner_certain("mlp") else "not certain"
    print(
        f"in full, {len(full.records)} trials in {trial_seconds(full.records):.0f} s; fastest is"
        f" {names[fastest.cell.id]}, {certainty}; second is {names[second.cell.id]}"
    )
    share = trial_seconds(of_race) / trial_seconds(full.records)
    print(
        f"the race took {len(of_race)} trials ({len(of_race) / len(full.records):.0%}) in"
        f" {trial_seconds(of_race):.0f} s ({share:.0%} of the time)"
    )


def trial_seconds(records: Sequence[Record]) -> float:
    """Return the seconds of all trials together."""
    return sum(record.ended - record.started for record in records)


def main() -> None:
    """Run both parts, and print what they show."""
    parser = argparse.ArgumentParser(description="Races of equal and of different cells.")
    parser.add_argument("--races", type=int, default=20, help="of equal cells")
    parser.add_argument("--repeats", type=int, default=24, help="of the 48 cells; 0: none")
    parser.add_argument("--steps", type=int, default=80, help="of each trial")
    parser.add_argument("--folder", type=Path, help="for the results; a temporary one by default")
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f} at the start")
    with tempfile.TemporaryDirectory() as name:
        folder = (options.folder or Path(name)).resolve()
        equal_races(folder, options.races, options.steps)
        if options.repeats:
            compare_with_full(folder / "matrix", options.steps, options.repeats)


if __name__ == "__main__":
    main()
