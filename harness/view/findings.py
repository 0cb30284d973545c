"""Says what a sweep has shown, and what to know before believing it: for terminal, report and MLflow.

The model of results decides which cell won and whether that is certain; here it is only said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from harness.analysis.cells import group_by_cell
from harness.analysis.compare import NOT_INTERLEAVED, is_throughput
from harness.analysis.result import CellResult
from harness.analysis.sweep_result import SweepResult
from harness.core.text import counted, listed
from harness.records.differences import shown
from harness.records.record import Record, Status
from harness.statistics.interval import FEWEST_VALUES
from harness.statistics.verdict import ALPHA
from harness.view.names import cell_names
from harness.view.plan import QUIET_MACHINE
from harness.view.run import is_contended
from harness.view.value import Styled, effect_of, three_digits

MAX_NAMES = 3  # cells that a sentence names; of more, only the number
CHANGED_LOAD = 2.0  # how many times the lowest load of a block the highest one is, where it matters
LEAST_CHANGE = 1.0  # and by how many processes a core it is higher
MOVING_CLOCK = 0.02  # of a GPU's lowest clock, whose steps of 15 MHz are about 1%
PROBLEMS: Sequence[Status] = ("failed", "interrupted", "invalid")  # that another run may mend


def conclusions(result: SweepResult) -> list[str]:
    """Return a sentence on each workload of which a cell was measured: its fastest cell."""
    names = cell_names(result.all_cells)
    measured = filter(result.ranking, result.workloads)
    return [_fastest_sentence(result, workload, names) for workload in measured]


def _fastest_sentence(result: SweepResult, workload: str, names: Mapping[str, str]) -> str:
    """Say which cell is the fastest, by how much, and whether that is certain."""
    fastest, *others = result.ranking(workload)
    assert fastest.throughput is not None  # a cell without one has no rank
    name = names[fastest.cell.id]
    speed = f"{three_digits(fastest.throughput.mean)} {fastest.throughput_unit}"
    if not others:
        subject = f"{workload}: {name}"
        if name.startswith(f"{workload} "):
            subject = name
        return f"{subject} reaches {speed}; no other cell was measured."
    sentence = f"{workload}: fastest is {name} with {speed}"
    match = result.match_of(fastest.cell)
    if match is not None and match.speed is not None:
        sentence += f", {effect_of(match.speed)} {names[match.a.cell.id]}"
    if match is not None and match.accuracy is not None:  # speed at the cost of accuracy is no win
        sentence += f", {match.accuracy.metric.name} {match.accuracy.outcome}"
    if result.has_single_trials(workload):
        return f"{sentence}; not certain with one trial a cell."
    rivals = [names[cell.cell.id] for cell in result.contenders(workload)]
    if rivals:
        return f"{sentence}; not certain: {listed(rivals, MAX_NAMES)} may be as fast."
    certainty = f"certain at {1 - ALPHA:.0%}"
    if _is_unpaired(result):
        certainty += " if the machine stayed the same, as they were not measured side by side"
    return f"{sentence}; {certainty}."


def remarks(result: SweepResult, records: Sequence[Record]) -> list[Styled]:
    """Return what to know before believing a sweep's numbers, what matters most first."""
    found = [Styled(text, "worse") for text in _load_remarks(records)]
    texts = [
        *_status_remarks(records),
        *_mixture_remarks(result.cells),
        *_pairing_remarks(result),
        *_unsettled_remarks(result, records),
        *_script_remarks(records),
        *_clock_remarks(records),
    ]
    for text in texts:
        found.append(Styled(text, "open"))
    for text in _too_few_remarks(result.cells):
        found.append(Styled(text, "quiet"))
    return found


def _load_remarks(records: Sequence[Record]) -> Iterator[str]:
    """Say that the load of the machine changed from block to block, if it did.

    The trials of a block, which have a seed and a repeat in common, ran next to each other: blocks
    have the same cells, so that their own load is the same.
    """
    loads: dict[str, list[float]] = {}  # by the block
    for record in records:
        load = record.numbers.get("load_per_core")
        if record.status == "done" and load is not None:
            block = f"seed {record.trial.seed}"
            if record.trial.repeat:
                block += f" repeat {record.trial.repeat}"
            loads.setdefault(block, []).append(load)
    if not loads:
        return
    means = {}
    for block, of_block in loads.items():
        means[block] = sum(of_block) / len(of_block)
    by_load = sorted(means, key=means.__getitem__)
    lowest, highest = by_load[0], by_load[-1]
    low, high = means[lowest], means[highest]
    if high >= CHANGED_LOAD * low and high - low >= LEAST_CHANGE:
        yield (
            f"The load changed during the sweep: {low:.1f} per core at {lowest}, {high:.1f} at"
            f" {highest}. The machine, not the cells, makes these intervals; repeat on a quiet machine."
        )


def _status_remarks(records: Sequence[Record]) -> Iterator[str]:
    """Say how many trials call for another run, and why they are invalid if others are to blame."""
    counts = Counter(record.status for record in records)
    problems = []
    for status in PROBLEMS:
        if counts[status]:
            problems.append(f"{counts[status]} {status}")
    if not problems:
        return
    busy = ""
    if any(map(is_contended, records)):
        busy = f"; other programs used the cores: {QUIET_MACHINE}"
    yield (
        f"{', '.join(problems)}, in no mean; harness status says why; run or submit the sweep again to"
        f" mend them{busy}"
    )


def _mixture_remarks(cells: Sequence[CellResult]) -> Iterator[str]:
    """Say of how many cells the trials ran under different versions, settings or hardware."""
    counts: Counter[str] = Counter()
    for cell in cells:
        for name, values in cell.mixed.items():
            mixture = " and ".join(map(shown, values))
            counts[f"{name}: {mixture}"] += 1
    for text, count in counts.items():
        yield f"The means of {counted(count, 'cell')} are over trials of different {text}."


def _pairing_remarks(result: SweepResult) -> Iterator[str]:
    """Say which throughputs are compared without pairs, or next to other trials than their reference."""
    if _is_unpaired(result):
        yield f"unpaired: {NOT_INTERLEAVED}"
    unlike = sum(match.has_other_lanes for match in result.comparison.matches)
    if unlike:
        yield (
            f"{counted(unlike, 'cell')} ran next to other trials than the cell that it is compared"
            " with; `parallel: 1` in the profile measures each alone"
        )


def _is_unpaired(result: SweepResult) -> bool:
    """Return whether throughputs are compared that were not measured in pairs."""
    for verdict in filter(is_throughput, result.comparison.verdicts):
        estimate = verdict.estimate
        if estimate.standard_error and not estimate.paired:
            return True
    return False


def _unsettled_remarks(result: SweepResult, records: Sequence[Record]) -> Iterator[str]:
    """Say which trials never reached a steady state; of short ones that can't be told."""
    unsettled = [record.trial.cell for record in records if record.settled is False]
    if not unsettled:
        return
    names = cell_names(result.all_cells, with_workload=True)
    cells = dict.fromkeys(names.get(cell.id, cell.label) for cell in unsettled)
    remedy = "raise length or warmup"
    if records[0].trial.cell.workload.is_script:
        remedy = "let the script train longer"
    yield (
        f"{counted(len(unsettled), 'trial')} never settled ({listed(list(cells), MAX_NAMES)}), so warm-up"
        f" may count; {remedy}"
    )


def _script_remarks(records: Sequence[Record]) -> Iterator[str]:
    """Say of which scripts seeds had no effect, and whose trials took other numbers of steps."""
    done = [record for record in records if record.status == "done"]
    for trials in group_by_cell(done).values():
        cell = trials[0].trial.cell
        if not cell.workload.is_script:
            continue
        seeds = set()
        digests = set()
        steps = set()
        for record in trials:
            seeds.add(record.trial.seed)
            if record.rank0 is not None:
                digests.add(record.rank0.parameter_digest)
                steps.add(record.rank0.steps_per_epoch)
        if len(seeds) > 1 and len(digests) == 1:
            yield (
                f"{cell.label}: all {len(seeds)} seeds computed the same bits: the script seeds"
                " itself; hand it {seed}"
            )
        if len(steps) > 1:
            yield (
                f"{cell.label}: its trials took {min(steps)} to {max(steps)} steps; where they go on"
                " from files of an earlier one, hand it {folder} for what it writes"
            )


def _clock_remarks(records: Sequence[Record]) -> Iterator[str]:
    """Say in how many trials the clock of a GPU moved while it trained, and what holds it."""
    moved = []
    for record in records:
        lowest = record.numbers.get("gpu_sm_clock_lowest_mhz")
        highest = record.numbers.get("gpu_sm_clock_highest_mhz")
        if record.status != "done" or not lowest or not highest:
            continue
        if highest / lowest > 1 + MOVING_CLOCK:
            moved.append(f"{lowest:,.0f} to {highest:,.0f} MHz")
    if moved:
        yield (
            f"the clock of a GPU moved during {counted(len(moved), 'trial')}, as from {moved[0]};"
            " nvidia-smi --lock-gpu-clocks holds it"
        )


def _too_few_remarks(cells: Sequence[CellResult]) -> Iterator[str]:
    """Say that trials are too few for an interval, if that is so for any cell.

    Cells of a single trial do not count: nobody misses their interval.
    """
    for cell in cells:
        for mean in (cell.throughput, cell.metric):
            if mean is not None and 1 < mean.count < FEWEST_VALUES:
                yield f"{counted(mean.count, 'seed')}: too few for an interval; 5 seeds suffice"
                return
