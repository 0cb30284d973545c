"""Turns numbers, intervals, verdicts and settings into text: the one place that decides units and
digits.

The terminal, the HTML report and MLflow all format through this module, so that a number reads the
same everywhere. It returns plain text; escaping for a page or a terminal is up to the caller. It
loads neither NumPy nor SciPy, because `harness plan` uses it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from harness.analysis.cells import naming_axes
from harness.render.table import Look, Styled
from harness.spec.axes import AXES, DEFAULTS
from harness.spec.cell import LABEL_AXES, ThroughputUnit, axis_value, short_axis

if TYPE_CHECKING:
    from harness.analysis.compare import MetricRow
    from harness.analysis.result import CellResult
    from harness.hardware.machine import Machine
    from harness.records.record import Interruption, Record
    from harness.spec.cell import Cell
    from harness.statistics.attribution import Effect
    from harness.statistics.interval import Interval
    from harness.statistics.verdict import MetricVerdict, Outcome

MISSING = "–"  # stands for what was not measured
MOST_NAMED = 4  # axes of which a cell's name has all values
SHORT_COMMIT = 7  # characters, as git abbreviates
BINARY_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
SI_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
ABBREVIATIONS = {"num_workers": "w", "batch_size": "b", "num_threads": "t"}  # as in a cell's label
NUMERIC_AXES = ("num_workers", "world_size", "batch_size", "num_threads")  # aligned to the right
STATUS_LOOKS: Mapping[str, Look] = {  # by the status of a trial, or the worst of a cell's
    "done": "better",
    "failed": "failed",
    "invalid": "invalid",
    "interrupted": "open",
    "missing": "open",
}
OUTCOME_LOOKS: Mapping[Outcome, Look] = {  # by what a verdict means for B
    "better": "better",
    "worse": "worse",
    "same": "same",
    "inconclusive": "open",
}
WIDEST_SYMMETRIC = 0.5  # the half width of an interval, up to which it is written with ±
STOP_REASONS = {
    "patience": "stopped: no better {metric} after",
    "goal": "stopped: reached the goal of {metric} after",
    "length": "trained for its whole length,",
}
MOVING_CLOCK = 0.02  # of a GPU's lowest clock, whose steps of 15 MHz are about 1%
# Of two values, Student's interval reaches nine standard deviations to either side.
FEWEST_VALUES = 3  # that an interval is shown of
ENOUGH_SEEDS = 5  # that are recommended where there are fewer
TOO_FEW = f"too few for an interval; {ENOUGH_SEEDS} seeds suffice"
LARGEST_EFFECT = 10.0  # a detectable change above it, 1,000%, is not worth its digits


# Counts, times and sizes.


def counts(occurrences: Iterable[str]) -> str:
    """Return how often each text occurs, in order of appearance: `3 done, 1 failed`."""
    return ", ".join(f"{count} {text}" for text, count in Counter(occurrences).items())


def duration(seconds: float) -> str:
    """Return a duration in its two largest units: `42 s`, `3 min 20 s`, `2 h 5 min`."""
    whole_minutes, whole_seconds = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(whole_minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    if minutes:
        return f"{minutes} min {whole_seconds} s"
    return f"{whole_seconds} s"


def byte_size(size: float) -> str:
    """Return a number of bytes in binary units: `4 B`, `64 KiB`, `8 MiB`."""
    for factor, unit in BINARY_UNITS:
        if size / factor >= 0.99995:  # which four digits show as 1
            return f"{size / factor:.4g} {unit}"
    return f"{size:g} B"


def rate(value: float, unit: str) -> str:
    """Return a rate per second with an SI prefix: `208 GFLOP/s`, `3.35 TB/s`."""
    return f"{si_prefixed(value)}{unit}/s"


def si_prefixed(value: float) -> str:
    """Return three significant digits with an SI prefix, ready for a unit: `208 G`, `3.35 T`."""
    rounded = float(f"{value:.3g}")
    for factor, prefix in SI_PREFIXES:
        if rounded >= factor:
            return f"{rounded / factor:.3g} {prefix}"
    return f"{value:.3g} "


def three_digits(value: float) -> str:
    """Return three significant digits, and all digits of 1,000 and more: `0.00123`, `12.3`, `1,234`."""
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"


def interruption_note(interruption: Interruption) -> str:
    """Say where an attempt ended and what that cost, by which signal if there was one."""
    cause = "ended without a signal"
    if interruption.signal:
        cause = f"interrupted by {interruption.signal}"
    return f"{cause} after step {interruption.step}: {interruption.lost_seconds:.1f} s lost"


def checkpoint_notes(record: Record) -> list[str]:
    """Return a sentence for each interruption, and each checkpoint that was passed over or not saved.

    All ranks are interrupted at the same step.
    """
    notes = [interruption_note(interruption) for interruption in record.interruptions]
    return [*notes, *record.checkpoint_problems]


def stop_note(record: Record) -> str | None:
    """Say after how many epochs a trial was stopped, and why.

    None for a trial without a rule for stopping, or that says nothing that its length does not.
    """
    report = record.rank0
    if report is None or report.stop is None or report.best_evaluation is None:
        return None
    stop, best = report.stop, report.best_evaluation
    reason = STOP_REASONS[stop.reason].format(metric=stop.metric.name)
    epochs = stop.step / report.steps_per_epoch
    note = f"{reason} {three_digits(epochs)} epochs (step {stop.step})"
    if stop.reason != "goal":
        note += f", best {stop.metric.name} at {three_digits(best.epoch)}"
    return note


def is_contended(record: Record) -> bool:
    """Return whether a trial is invalid because other programs used its cores."""
    return any(violation.startswith("contention") for violation in record.violations)


def clock_movement_text(record: Record) -> str | None:
    """Return between which clocks a GPU of a trial trained, None if it stayed at one or is not known."""
    lowest = record.numbers.get("gpu_sm_clock_lowest_mhz")
    highest = record.numbers.get("gpu_sm_clock_highest_mhz")
    if not lowest or not highest or highest / lowest - 1 <= MOVING_CLOCK:
        return None
    return f"between {lowest:,.0f} and {highest:,.0f} MHz"


# Measured quantities and their intervals.


FEW_A_SECOND = 10.0  # samples or steps, below which a throughput has decimals


def samples_per_second(value: float | None) -> str:
    """Return a throughput in whole samples/s, `12,345`, or in three digits if it is small: `2.35`."""
    return _number(value, ",.0f" if value is None or value >= FEW_A_SECOND else ".3g")


def shown_bounds(interval: Interval) -> tuple[float, float] | None:
    """Return the bounds of a mean, None where there are too few values for bounds that say anything."""
    return interval.bounds if interval.count >= FEWEST_VALUES else None


def throughput(interval: Interval | None) -> str:
    """Return a mean throughput with the half width of its interval in percent: `12,345 ±1.2%`."""
    return _with_relative_interval(interval, samples_per_second)


def _with_relative_interval(interval: Interval | None, written: Callable[[float], str]) -> str:
    """Return a mean with the half width of its interval in percent, each number as `written`.

    A wide interval is far from symmetric, so its bounds are written out.
    """
    if interval is None:
        return MISSING
    mean = written(interval.mean)
    shown = shown_bounds(interval)
    if shown is None or interval.half_width is None:
        return mean
    relative_half_width = interval.half_width / interval.mean
    if relative_half_width <= WIDEST_SYMMETRIC:
        return f"{mean} ±{relative_half_width:.1%}"
    low, high = shown
    return f"{mean} ({written(low)} to {written(high)})"


def common_unit(cells: Iterable[CellResult]) -> ThroughputUnit:
    """Return the unit of a column of throughputs: steps/s if no cell has its samples counted."""
    units = {cell.throughput_unit for cell in cells if cell.trials}
    return "steps/s" if units == {"steps/s"} else "samples/s"


def in_column(throughput: str, cell: CellResult, unit: ThroughputUnit) -> str:
    """Return a throughput for a column in `unit`: with its unit where the cell has another one."""
    if throughput == MISSING or cell.throughput_unit == unit:
        return throughput
    return f"{throughput} {cell.throughput_unit.removesuffix('/s')}"


def metric_value(value: float | None) -> str:
    """Return a value of the target metric: `0.9123`."""
    return _number(value, ".4f")


def metric(interval: Interval | None) -> str:
    """Return a mean target metric with the half width of its interval: `0.9123 ±0.0012`."""
    if interval is None:
        return MISSING
    mean = metric_value(interval.mean)
    if shown_bounds(interval) is None:
        return mean
    return f"{mean} ±{metric_value(interval.half_width)}"


def _number(value: float | None, specification: str) -> str:
    """Return a number by a format specification, a dash where it was not measured."""
    if value is None:
        return MISSING
    return format(value, specification)


def milliseconds(seconds: float | None) -> str:
    """Return a step time in milliseconds, without the unit: `12.34`."""
    if seconds is None:
        return MISSING
    return f"{seconds * 1e3:.2f}"


def share(fraction: float | None, digits: int = 1) -> str:
    """Return a fraction in percent: `12.3%`."""
    return _number(fraction, f".{digits}%")


def ratio(value: float, digits: int = 3) -> str:
    """Return a ratio: `1.234×`."""
    return f"{value:.{digits}f}×"


def bounds(low: float, high: float, digits: int = 3) -> str:
    """Return the bounds of a ratio: `1.100 to 1.300`."""
    return f"{low:.{digits}f} to {high:.{digits}f}"


# Verdicts.


def effect(verdict: MetricVerdict) -> str:
    """Return the size of a difference: a ratio of throughputs, or a signed difference of metrics."""
    if verdict.metric.relative:
        return ratio(verdict.effect)
    return f"{verdict.effect:+.4f}"


def shown_effect_bounds(verdict: MetricVerdict) -> tuple[float, float] | None:
    """Return the bounds of `effect`, None where there are too few values for bounds that say anything.

    Two values that were enough for a verdict have bounds that show why.
    """
    if verdict.estimate.count < FEWEST_VALUES and verdict.outcome == "inconclusive":
        return None
    return verdict.interval


def effect_interval(verdict: MetricVerdict) -> str:
    """Return the interval of `effect`: `1.100 to 1.300`, `+0.0012 to +0.0034`."""
    shown = shown_effect_bounds(verdict)
    if shown is None:
        return MISSING
    low, high = shown
    if verdict.metric.relative:
        return bounds(low, high)
    return f"{low:+.4f} to {high:+.4f}"


def pair_count(verdict: MetricVerdict) -> str:
    """Return what was compared: pairs of trials, two groups of trials, or sessions of measuring.

    Groups have wider intervals: trials without a partner of the same seed, or that were not
    measured in turn.
    """
    names = {"pairs": "", "trials": " unpaired", "sessions": " sessions"}
    return f"{verdict.estimate.count}{names[verdict.estimate.unit]}"


def interval_legend(alpha: float) -> str:
    """Return what the intervals of verdicts are, for tests that are right with 1 - `alpha`."""
    return (
        "an interval is that of the test behind its verdict, corrected likewise:"
        f" {1 - alpha:.0%} for a change, {1 - 2 * alpha:.0%} for the same"
    )


def mean_values(row: MetricRow) -> tuple[str, str]:
    """Return the means of A and of B that a row compares, in the unit of its metric."""
    if row.metric.relative:
        return samples_per_second(row.verdict.mean_a), samples_per_second(row.verdict.mean_b)
    return metric_value(row.verdict.mean_a), metric_value(row.verdict.mean_b)


def detectable_effect(verdict: MetricVerdict) -> str:
    """Return the smallest effect that would have been detected: `1.2%`, `0.0034`."""
    size = verdict.min_detectable_effect
    if size is None:
        return MISSING
    if not verdict.metric.relative:
        return metric_value(size)
    if size > LARGEST_EFFECT:
        return f">{LARGEST_EFFECT:,.0%}"
    return share(size)


def verdict_badge(row: MetricRow | None) -> Styled:
    """Return the verdict of a row with its look; a dash where nothing was compared."""
    if row is None:
        return Styled(MISSING, "plain")
    return Styled(row.verdict.label, OUTCOME_LOOKS[row.verdict.outcome])


# Attribution.


def certainty(effect: Effect) -> str:
    """Return whether an effect is significant over all effects together: `yes` or `no`."""
    return "yes" if effect.is_certain else "no"


# Axes and cells.


def axis_level(axis: str, value: Any) -> str:
    """Return a value that can stand without its axis, as in the label of a cell: `bf16`.

    All others have the name: `num_workers=2`, `stack=new`, `NCCL_ALGO=Ring`.
    """
    if isinstance(value, str) and axis in LABEL_AXES:
        return value
    return f"{short_axis(axis)}={axis_value(value)}"


def short_axis_levels(levels: Mapping[str, Any]) -> str:
    """Return levels of axes as short as they are clear: `bf16 with num_workers=2`."""
    return " with ".join(axis_level(axis, value) for axis, value in levels.items())


def changed_axes(axes: Mapping[str, Any]) -> str:
    """Return the axes that differ from their defaults: `strategy=ddp world_size=2`."""
    changed = []
    for name, value in axes.items():
        default = DEFAULTS.get(name, value)
        if name not in AXES:
            default = None
        if value != default:
            changed.append(f"{name}={axis_value(value)}")
    return " ".join(changed) or "all defaults"


def axis_texts(cell: Cell, axes: Sequence[str]) -> list[str]:
    """Return the values of some axes of a cell, for columns that are headed by the axes' names."""
    return [axis_value(cell.level(axis)) for axis in axes]


def cell_name(cell: Cell, axes: Sequence[str]) -> str:
    """Return a cell by some of its axes, as its label spells them: `compile bf16 ddp×2 w0`.

    Of many axes, `name=value` is left out where the value is the default.
    """
    parts = []
    for axis in axes:
        part = _label_part(cell, axis)
        is_default = cell.level(axis) == DEFAULTS.get(axis)  # None for a variable that is not set
        if len(axes) <= MOST_NAMED or "=" not in part or not is_default:
            parts.append(part)
    return " ".join(parts)


def cell_names(cells: Iterable[Cell], *, with_workload: bool = False) -> dict[str, str]:
    """Return a short name for each cell by its id: the axes in which those of its workload differ.

    `with_workload`, the workload's label comes first if there are several workloads. The only cell of
    all has its whole label. Cells that differ in their length alone, or in what no name tells, as merged
    ones may, have their length or their id too.
    """
    by_workload: dict[str, list[Cell]] = {}
    for cell in cells:
        by_workload.setdefault(cell.workload.label, []).append(cell)
    names = {}
    for workload, cells_of_workload in by_workload.items():
        axes = naming_axes(cells_of_workload)
        prefix = f"{workload} " if with_workload and len(by_workload) > 1 else ""
        for cell in cells_of_workload:
            names[cell.id] = f"{prefix}{cell_name(cell, axes)}".rstrip() or cell.label
        alike: dict[str, dict[str, Cell]] = {}
        for cell in cells_of_workload:
            alike.setdefault(names[cell.id], {})[cell.id] = cell
        for name, cells_by_id in alike.items():
            if len(cells_by_id) == 1:
                continue
            lengths = {cell.length_text for cell in cells_by_id.values()}
            is_told_by_length = len(lengths) == len(cells_by_id)
            for cell in cells_by_id.values():
                names[cell.id] = f"{name} {cell.length_text if is_told_by_length else cell.id}"
    return names


def _label_part(cell: Cell, axis: str) -> str:
    """Return the value of one axis as a cell's label spells it."""
    if axis in ("strategy", "world_size"):
        if cell.workload.is_script:
            return f"script×{cell.axes.world_size}"
        if cell.axes.strategy == "single":
            return "single"
        return f"{cell.axes.strategy}×{cell.axes.world_size}"
    value = cell.level(axis)
    if axis in ABBREVIATIONS:
        return f"{ABBREVIATIONS[axis]}{value}"
    return axis_level(axis, value)


def machine_title(machine: Machine) -> str:
    """Return the machine's GPUs or its CPU, and the version of torch.

    As in `8 × NVIDIA H100 80GB HBM3 · torch 2.9.0`.
    """
    if machine.device == "cuda":
        names = [gpu.name for gpu in machine.hardware.gpus]
        hardware = ", ".join(f"{names.count(name)} × {name}" for name in sorted(set(names)))
    else:
        hardware = f"{machine.hardware.cpu}, {machine.hardware.usable_cores} cores"
    return f"{hardware} · torch {machine.software.torch}"
