"""Decides the race of a sweep from its records: which cells have left it, and which trials it needs.

The cells of each workload race with each other, block by block in the order in which blocks run, and
the error rate is shared out evenly between workloads. A block counts once every cell that is still in
has a record of it, whatever its status. So what is decided follows from the records alone: a race
that was interrupted goes on as if it had not been, and whoever shows it decides it again.

A trial that is invalid counts for no pair. A cell with a trial that failed leaves; it is in again once
the trial was repeated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from harness.core.errors import BadInput
from harness.core.paths import SweepFolder
from harness.core.text import counted
from harness.records.files import CommonParts, read_record_if_exists
from harness.records.record import Record
from harness.spec.cell import Cell, Trial
from harness.spec.race import RaceMetric, RaceRules
from harness.spec.sweep import Sweep
from harness.statistics.racing import Mask, Race

# Returns the record of a trial, None without one.
ReadRecord = Callable[[Trial], Record | None]


def throughput_value(record: Record) -> float | None:
    """Return the logarithm of a trial's samples/s."""
    if record.summary is None or not record.summary.throughput:
        return None
    return math.log(record.summary.throughput)


def time_value(record: Record) -> float | None:
    """Return the negative logarithm of a trial's seconds, None for one that had to be resumed."""
    if record.summary is None or record.ranks.across.interruptions:
        return None
    return -math.log(record.ended - record.started)


def target_value(record: Record) -> float | None:
    """Return the target metric at the end, negative where lower is better."""
    if record.summary is None or record.rank0 is None or record.summary.final_metric is None:
        return None
    return record.rank0.target.score(record.summary.final_metric)


VALUES: Mapping[RaceMetric, Callable[[Record], float | None]] = {  # more is better
    "throughput": throughput_value,
    "time": time_value,
    "target": target_value,
}


@dataclass(frozen=True, kw_only=True)
class Departure:
    """That a cell has left its race, and why."""

    blocks: int  # after how many
    cause: str

    def __str__(self) -> str:
        return f"left after {counted(self.blocks, 'block')}"


class WorkloadRace:
    """The race of the cells of one workload."""

    def __init__(
        self, sweep: Sweep, rules: RaceRules, cells: Sequence[Cell], error_rate: float
    ) -> None:
        """Begin before the first block of a sweep."""
        self.rules = rules
        self.error_rate = error_rate
        self.cells = cells
        self.label = cells[0].workload.label
        self.seeds = list(sweep.seeds_of(cells[0]))
        self.blocks = [
            (seed, repeat)
            for repeat in range(sweep.repeats)
            for seed in sweep.all_seeds
            if seed in self.seeds
        ]
        self._block_numbers = {block: number for number, block in enumerate(self.blocks)}
        self.departures: dict[str, Departure] = {}  # by cell id
        self.judged = 0  # blocks
        self._race = Race(
            len(cells),
            keep=rules.keep,
            error_rate=error_rate,
            with_goal=rules.reach is not None,
        )
        self._values = np.full((len(cells), len(self.blocks)), np.nan)
        self._margins = np.full((len(cells), len(self.seeds)), np.nan)
        self._done: dict[str, Record] = {}  # of the block to be judged next, by trial id

    @property
    def is_decided(self) -> bool:
        """Whether it is over, with no more cells than were to be kept."""
        return self._race.is_over

    @property
    def fewest_blocks(self) -> int:
        """The number of blocks before which no cell can leave."""
        return self._race.fewest_blocks()

    @property
    def cells_in(self) -> list[Cell]:
        """The cells that have not left."""
        return [cell for cell in self.cells if cell.id not in self.departures]

    def advance(self, read: ReadRecord) -> None:
        """Judge the blocks of which `read` has the records, up to the first that lacks one."""
        while self.judged < len(self.blocks) and not self.is_decided:
            records = self._records(*self.blocks[self.judged], read)
            if records is None:
                return
            self._judge(records)

    def _records(self, seed: int, repeat: int, read: ReadRecord) -> dict[int, Record] | None:
        """Return the records of a block by the number of their cell, None while one is missing."""
        records = {}
        for number, cell in enumerate(self.cells):
            if cell.id in self.departures:
                continue
            trial = Trial(cell=cell, seed=seed, repeat=repeat)
            record = self._done.get(trial.id) or read(trial)
            if record is None or record.status == "interrupted":
                return None
            if record.status == "done":
                self._done[trial.id] = record
            records[number] = record
        return records

    def _judge(self, records: Mapping[int, Record]) -> None:
        """Let the cells leave that have to after a block."""
        seed, repeat = self.blocks[self.judged]
        has_failed = np.zeros(len(self.cells), dtype=bool)
        for number, record in records.items():
            has_failed[number] = record.status == "failed"
            # What a trial learns depends on its seed alone, so that a repeat is no further value.
            is_known = record.status == "done" and (repeat == 0 or self.rules.metric != "target")
            value = VALUES[self.rules.metric](record) if is_known else None
            if value is not None:
                self._values[number, self.judged] = value
            if self.rules.reach is not None and record.status == "done" and repeat == 0:
                self._margins[number, self.seeds.index(seed)] = self._margin(record)
        self.judged += 1
        self._done.clear()
        self._leave(has_failed, "a trial failed")
        self._race.drop(has_failed)
        margins = None if self.rules.reach is None else self._margins
        is_worse, misses = self._race.look(self._values[:, : self.judged], margins)
        self._leave(misses, f"it does not reach {self.rules.reach}")
        others = "another cell is" if self.rules.keep == 1 else f"{self.rules.keep} other cells are"
        better = {"throughput": "faster", "time": "done sooner", "target": "better"}
        self._leave(is_worse & ~misses, f"{others} certainly {better[self.rules.metric]}")

    def _margin(self, record: Record) -> float:
        """Return by how much a trial's target metric exceeds the value to be reached."""
        value = target_value(record)
        if value is None or record.rank0 is None or self.rules.reach is None:
            return math.nan
        return value - record.rank0.target.score(self.rules.reach)

    def _leave(self, leaves: Mask, cause: str) -> None:
        """Note that cells have left after the last block."""
        for cell, has_left in zip(self.cells, leaves, strict=True):
            if has_left:
                self.departures[cell.id] = Departure(blocks=self.judged, cause=cause)

    def reason_to_skip(self, trial: Trial) -> str | None:
        """Return why a trial of one of its cells is not needed, None if it is."""
        block = self._block_numbers.get((trial.seed, trial.repeat))
        if block is None:  # of an earlier version of the sweep
            return None
        departure = self.departures.get(trial.cell.id)
        if departure is not None:
            return f"{departure}: {departure.cause}" if block >= departure.blocks else None
        if self.is_decided and block >= self.judged:
            return f"the race was decided after {counted(self.judged, 'block')}"
        return None

    def refuse_too_few(self, sweep: Sweep) -> None:
        """Raise BadInput if it has so few blocks, or seeds, that nothing can ever be decided."""
        fewest = self.fewest_blocks
        source = f"{sweep.source}: race"
        if self.rules.needs_seeds:
            fewest_seeds = max(fewest, self._race.fewest_seeds())
            if len(self.seeds) < fewest_seeds:
                raise BadInput(
                    f"{source}: found {counted(len(self.seeds), 'seed')} of {self.label}; allowed:"
                    f" {fewest_seeds} or more (--seeds {fewest_seeds}): with fewer, nothing is"
                    " certain of what its cells learn"
                )
        if len(self.blocks) < fewest:
            raise BadInput(
                f"{source}: found {counted(len(self.blocks), 'block')} of {self.label}; allowed:"
                f" {fewest} or more, as with --set repeats={-(-fewest // len(self.seeds))}: with"
                f" fewer, none of {counted(len(self.cells), 'cell')} can leave"
            )


def refuse_part(sweep: Sweep) -> None:
    """Raise BadInput for a part of a sweep whose whole is a race."""
    whole = sweep.whole()
    if whole.race is not None and sweep is not whole:
        raise BadInput(
            f"{sweep.source}: race: found with --only or --cell, which leave out trials that decide it;"
            " allowed: the whole sweep (exclude: leaves cells out of it; harness show --format prints"
            " trials of a part)"
        )


class SweepRace:
    """The race of a sweep: those of its workloads, as far as the records decide them."""

    def __init__(self, sweep: Sweep) -> None:
        """Begin before the first block; a sweep without a race needs all of its trials."""
        self.sweep = sweep
        by_label: dict[str, list[Cell]] = {}
        for cell in sweep.cells if sweep.race else ():
            by_label.setdefault(cell.workload.label, []).append(cell)
        self.races: dict[str, WorkloadRace] = {}  # by the label of the workload
        for label, cells in by_label.items():
            assert sweep.race is not None
            error_rate = sweep.race.error_rate / len(by_label)
            self.races[label] = WorkloadRace(sweep, sweep.race, cells, error_rate)

    @staticmethod
    def of_records(sweep: Sweep, records: Iterable[Record]) -> SweepRace:
        """Return the race of a whole sweep as its records decide it; raises BadInput for a part of it."""
        refuse_part(sweep)
        race = SweepRace(sweep.whole())
        by_trial = {record.trial.id: record for record in records} if race.races else {}
        race.advance(lambda trial: by_trial.get(trial.id))
        return race

    @staticmethod
    def of_folder(sweep: Sweep, folder: SweepFolder) -> SweepRace:
        """Return the race of a whole sweep as the records in its folder decide it."""
        race = SweepRace(sweep.whole())
        race.advance_by_folder(folder)
        return race

    def advance(self, read: ReadRecord) -> None:
        """Judge the blocks of which `read` has the records."""
        for race in self.races.values():
            race.advance(read)

    def advance_by_folder(self, folder: SweepFolder) -> None:
        """Judge the blocks of which a sweep's folder has the records; one that is broken is missing."""

        common = CommonParts()

        def read(trial: Trial) -> Record | None:
            with suppress(BadInput):
                return read_record_if_exists(folder.trial_folder(trial.id).record_path, common)
            return None

        self.advance(read)

    @property
    def is_decided(self) -> bool:
        """Whether the race of every workload is; True without a race."""
        return all(race.is_decided for race in self.races.values())

    def records_in(self, records: Sequence[Record]) -> list[Record]:
        """Return the records of cells that have not left."""
        return [record for record in records if self.departure(record.trial.cell) is None]

    def departure(self, cell: Cell) -> Departure | None:
        """Return when and why a cell has left, None if it has not."""
        race = self.races.get(cell.workload.label)
        return None if race is None else race.departures.get(cell.id)

    def reason_to_skip(self, trial: Trial) -> str | None:
        """Return why a trial is not needed, None if it is."""
        race = self.races.get(trial.cell.workload.label)
        return None if race is None else race.reason_to_skip(trial)

    def fewest_blocks(self) -> int:
        """Return the number of blocks before which no cell can leave, the largest of all workloads."""
        return max(race.fewest_blocks for race in self.races.values())

    def refuse_too_few(self) -> None:
        """Raise BadInput if the sweep has so few blocks that nothing can ever be decided."""
        for race in self.races.values():
            race.refuse_too_few(self.sweep)
