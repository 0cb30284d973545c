"""Says what a sweep has shown, and what to know before believing it: for terminal, report and MLflow.

The model of results decides which cell won and whether that is certain. Here it is only said, so
that every renderer says the same of the same result. Texts are plain: escaping is up to the
renderer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean

from harness.analysis.compare import NOT_INTERLEAVED
from harness.analysis.result import CellResult
from harness.analysis.sweep_result import SweepResult
from harness.core.text import counted, listed
from harness.measure.steady import MIN_STEPS_TO_SETTLE
from harness.records.differences import shown
from harness.records.record import Record, Status
from harness.render import format as fmt
from harness.render.plan import QUIET_MACHINE
from harness.render.table import Look, Ratio, Styled
from harness.spec.cell import Cell
from harness.statistics.verdict import ALPHA

MAX_NAMES = 3  # cells that a sentence names; of more, only the number
CHANGED_LOAD = 2.0  # how many times the lowest load of a block the highest one is, where it matters
LEAST_CHANGE = 1.0  # and by how many processes a core it is higher

# How a renderer calls a cell: by the axes that differ, or by the whole label.
CellName = Callable[[Cell], str]


def conclusions(result: SweepResult, name: CellName) -> list[str]:
    """Return a sentence on each workload of which a cell was measured: its fastest cell.

    `name` need only tell the cells of a workload apart.
    """
    measured = filter(result.ranking, result.workloads)
    return [_fastest_sentence(result, workload, name) for workload in measured]


def _fastest_sentence(result: SweepResult, workload: str, name: CellName) -> str:
    """Say which cell is the fastest, by how much, and whether that is certain."""
    fastest, *others = result.ranking(workload)
    assert fastest.throughput is not None  # a cell without one has no rank
    speed = f"{fmt.samples_per_second(fastest.throughput.mean)} {fastest.throughput_unit}"
    if not others:
        return f"{workload}: {name(fastest.cell)} reaches {speed}; no other cell was measured."
    sentence = f"{workload}: fastest is {name(fastest.cell)} with {speed}"
    row = result.throughput_row(fastest.cell)
    if row is not None:
        ratio = Ratio(row.verdict.effect, fmt.shown_effect_bounds(row.verdict))
        sentence += f", {ratio} {name(row.a.cell)}"
    return f"{sentence}; {_certainty(result, workload, name)}."


def _certainty(result: SweepResult, workload: str, name: CellName) -> str:
    """Return whether the fastest cell is certain to be it, and if not, which may be as fast."""
    if result.is_winner_certain(workload):
        return f"certain at {1 - ALPHA:.0%}"
    if result.has_single_trials(workload):
        return "not certain with one trial a cell"
    names = [name(cell.cell) for cell in result.contenders(workload)]
    return f"not certain: {listed(names, MAX_NAMES)} may be as fast"


def remarks(result: SweepResult, records: Sequence[Record], name: CellName) -> list[Styled]:
    """Return what to know before believing a sweep's numbers, what matters most first."""
    texts: list[tuple[Look, Iterable[str]]] = [
        ("worse", _load_remarks(records)),
        ("open", _status_remarks(records)),
        ("open", _mixture_remarks(result.cells)),
        ("open", _pairing_remarks(result)),
        ("open", _unsettled_remarks(records, name)),
        ("open", _script_remarks(records, name)),
        ("open", _clock_remarks(records)),
        ("quiet", _too_few_remarks(result.cells)),
    ]
    return [Styled(text, look) for look, of_kind in texts for text in of_kind]


def _load_remarks(records: Sequence[Record]) -> list[str]:
    """Say that the load of the machine changed from block to block, if it did.

    The trials of a block, which have a seed and a repeat in common, ran next to each other: blocks
    have the same cells, so that their own load is the same.
    """
    loads: dict[str, list[float]] = {}  # by the block
    for record in records:
        load = record.numbers.get("load_per_core")
        if record.status == "done" and load is not None:
            trial = record.trial
            block = f"seed {trial.seed}" + (f" repeat {trial.repeat}" if trial.repeat else "")
            loads.setdefault(block, []).append(load)
    means = {block: fmean(of_block) for block, of_block in loads.items()}
    if not means:
        return []
    lowest, highest = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
    low, high = means[lowest], means[highest]
    if high < CHANGED_LOAD * low or high - low < LEAST_CHANGE:
        return []
    return [
        f"The load changed during the sweep: {low:.1f} per core at {lowest}, {high:.1f} at {highest}."
        " The machine, not the cells, makes these intervals; repeat on a quiet machine."
    ]


def _status_remarks(records: Sequence[Record]) -> list[str]:
    """Return how many trials call for another run, and why they are invalid if others are to blame."""
    verbs: dict[Status, str] = {"failed": "retry", "interrupted": "resume", "invalid": "repeat"}
    counts = Counter(record.status for record in records)
    problems = [status for status in verbs if counts[status]]
    if not problems:
        return []
    found = ", ".join(f"{counts[status]} {status}" for status in problems)
    actions = " and ".join(verbs[status] for status in problems)
    remark = f"{found}, in no mean; run or submit the sweep again to {actions} them"
    if any(map(fmt.is_contended, records)):
        remark += f"; other programs used the cores: {QUIET_MACHINE}"
    return [remark]


def _mixture_remarks(cells: Sequence[CellResult]) -> list[str]:
    """Say of how many cells the trials ran under different versions, settings or hardware."""
    counts: Counter[str] = Counter()
    for cell in cells:
        for name, values in cell.mixed.items():
            counts[f"{name}: {' and '.join(map(shown, values))}"] += 1
    return [
        f"The means of {counted(count, 'cell')} are over trials of different {text}."
        for text, count in counts.items()
    ]


def _pairing_remarks(result: SweepResult) -> list[str]:
    """Say which throughputs are compared without pairs, or next to other trials than their reference."""
    if result.comparison is None:
        return []
    notes = []
    for row in result.comparison.rows:
        estimate = row.verdict.estimate
        if row.is_throughput and estimate.standard_error is not None and not estimate.paired:
            notes = [f"unpaired: {NOT_INTERLEAVED}"]
    unlike = sum(match.has_other_lanes for match in result.comparison.matches)
    if unlike:
        notes.append(
            f"{counted(unlike, 'cell')} ran next to other trials than the cell that it is compared"
            " with; --parallel 1 measures each alone"
        )
    return notes


def _unsettled_remarks(records: Sequence[Record], name: CellName) -> list[str]:
    """Say which trials never reached a steady state; of short ones that can't be told."""
    measured = [record for record in records if record.summary is not None]
    unsettled = []
    for record in measured:
        summary = record.summary
        assert summary is not None
        if summary.settled is False and summary.window_steps >= MIN_STEPS_TO_SETTLE:
            unsettled.append(record)
    if not unsettled:
        return []
    names = list(dict.fromkeys(name(record.trial.cell) for record in unsettled))
    return [
        f"{len(unsettled)} of {counted(len(measured), 'trial')} never settled"
        f" ({listed(names, MAX_NAMES)}); raise length or warmup"
    ]


def _script_remarks(records: Sequence[Record], name: CellName) -> list[str]:
    """Say of which scripts seeds had no effect, and whose trials took other numbers of steps."""
    by_cell: dict[str, list[Record]] = {}
    for record in records:
        if record.status == "done" and record.trial.cell.workload.is_script:
            by_cell.setdefault(record.trial.cell.id, []).append(record)
    remarks = []
    for trials in by_cell.values():
        cell = name(trials[0].trial.cell)
        reports = [record.rank0 for record in trials if record.rank0 is not None]
        seeds = {record.trial.seed for record in trials}
        if len(seeds) > 1 and len({report.parameter_digest for report in reports}) == 1:
            remarks.append(
                f"{cell}: all {len(seeds)} seeds computed the same bits: the script seeds itself; hand it"
                " {seed}"
            )
        steps = sorted({report.steps_per_epoch for report in reports})
        if len(steps) > 1:
            remarks.append(
                f"{cell}: its trials took {steps[0]} to {steps[-1]} steps; where they go on from files of"
                " an earlier one, hand it {folder} for what it writes"
            )
    return remarks


def _clock_remarks(records: Sequence[Record]) -> list[str]:
    """Say in how many trials the clock of a GPU moved while it trained, and what holds it."""
    done = [record for record in records if record.status == "done"]
    moved = [text for text in map(fmt.clock_movement_text, done) if text is not None]
    if not moved:
        return []
    return [
        f"{len(moved)} of {counted(len(done), 'trial')}: the clock of a GPU moved while it trained,"
        f" {'of one ' if len(moved) > 1 else ''}{moved[0]}; nvidia-smi --lock-gpu-clocks holds it"
    ]


def _too_few_remarks(cells: Sequence[CellResult]) -> list[str]:
    """Say that trials, or seeds, are too few for an interval, if that is so for any cell.

    Cells of a single trial do not count: nobody misses their interval.
    """
    intervals = {
        "trial": [cell.throughput for cell in cells],
        "seed": [cell.metric for cell in cells],
    }
    for noun, means in intervals.items():
        for mean in means:
            if mean is not None and 1 < mean.count < fmt.FEWEST_VALUES:
                return [f"{counted(mean.count, noun)}: {fmt.TOO_FEW}"]
    return []
