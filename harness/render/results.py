"""Shows the results of a sweep: the table of its cells, their verdicts, and what to do next."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence

from rich.markup import escape

from harness.analysis.cells import shown_seeds, varying_axes
from harness.analysis.compare import unpaired_notes
from harness.analysis.cost import currency, epoch_cost, stop_cost
from harness.analysis.result import CellResult
from harness.analysis.scalars import of_summary
from harness.analysis.stopping import mean_over, summarize_stops
from harness.analysis.sweep_result import SweepResult
from harness.core.paths import Results, SweepFolder, tracking_flag
from harness.core.text import counted
from harness.measure.steady import MIN_STEPS_TO_SETTLE
from harness.records.record import Record, Status
from harness.render import format as fmt
from harness.render.console import TerminalConsole, fits, narrowed, next_lines, show_table, styled
from harness.render.findings import (
    conclusions,
    mixture_sentences,
    too_few_notes,
)
from harness.render.plan import QUIET_MACHINE
from harness.render.roofline import roofline_lines, sweep_roofline, with_measured_peaks
from harness.render.table import Content, Styled, Table
from harness.spec.cell import Trial
from harness.spec.sweep import Sweep
from harness.statistics.verdict import ALPHA

MORE_SEEDS = 2  # that are suggested, or more where that makes ENOUGH_SEEDS
MOST_SEEDS = 12  # that a suggestion lists; of a sweep with more, it is a further repeat
VERDICT_COLUMNS = ["workload", "cell", "against", "speed", "interval", "pairs", "verdict"]
VERDICT_NUMBERS = ["speed", "interval", "pairs"]
# Of tables that would be wider than the terminal, in the order in which they are left out.
OPTIONAL_COLUMNS = ["best at", "epochs", "MFU", "step ms", "MFU measured"]
OPTIONAL_VERDICT_COLUMNS = ["against", "pairs"]
MFU_COLUMNS = {  # how each column is read from a record; shown where a record has it
    "MFU": of_summary(lambda summary: summary.mfu),
    "MFU measured": of_summary(lambda summary: summary.mfu_measured),
}
STATUS_LABELS = {"unrecorded": "missing"}  # as people call it; the others are called as they are
CERTAIN = "★"  # marks the fastest cell of a workload, if every other one is slower for certain
HIGHEST = "☆"  # marks the best mean of a workload: another cell may truly be as good


def result_table(sweep: Sweep, result: SweepResult) -> Table:
    """Return a table with one row a cell: means over its trials that are done.

    A cell is identified by its id, its workload and its axes. Means have their 95% interval where
    there are three or more independent values (`harness.statistics.trials`). The highest means of
    each workload are marked, and the fastest cell with another mark if that is certain. Model FLOPs
    utilization has a column where any trial has one. Where workloads have different target metrics,
    each value has its metric's name before it. Where trials have a rule for stopping, there are the
    mean epochs that they trained, and those until their best evaluation. Where a cluster profile
    states a price, there is the cost of an epoch, and of trials that reached the goal of such a rule
    that of the goal.
    """
    records = result.all_records
    axes = varying_axes(sweep.cells)
    mfu_columns = {}
    for title, read in MFU_COLUMNS.items():
        if mean_over(records, read) is not None:
            mfu_columns[title] = read
    targets = {record.rank0.target.name for record in records if record.rank0}
    metric_column = "metric"
    if len(targets) == 1:
        (metric_column,) = targets
    unit = fmt.common_unit(result.cells)
    more_columns = _stop_columns(result) | _cost_columns(result)
    numbers = [unit, "step ms", *mfu_columns, metric_column, *more_columns]
    table = Table(["cell", "workload", *axes, *numbers, "trials"], [*numbers, *fmt.NUMERIC_AXES])
    throughput_marks, metric_marks = _marks(result)
    for cell_result in result.cells:
        cell = cell_result.cell
        done = result.done_records(cell)
        step_seconds = mean_over(done, of_summary(lambda summary: summary.step_p50))
        metric = fmt.metric(cell_result.metric)
        if len(targets) > 1 and cell_result.metric and cell_result.target:
            metric = f"{cell_result.target.name} {metric}"
        throughput = fmt.in_column(fmt.throughput(cell_result.throughput), cell_result, unit)
        row: list[Content] = [cell.id, cell.workload.label, *fmt.axis_texts(cell, axes)]
        row.append(_marked(throughput, throughput_marks.get(cell.id)))
        row.append(fmt.milliseconds(step_seconds))
        for read in mfu_columns.values():
            utilization = mean_over(done, read)
            # Three significant digits: on CPUs it can be a small fraction of a percent.
            row.append(fmt.MISSING if utilization is None else f"{utilization * 100:.3g}%")
        row.append(_marked(metric, metric_marks.get(cell.id)))
        row += [texts.get(cell.id, fmt.MISSING) for texts in more_columns.values()]
        row.append(_trial_counts(result, cell_result))
        table.add_row(*row)
    return table


def _trial_counts(result: SweepResult, cell_result: CellResult) -> Styled:
    """Return how many of a cell's trials are done."""
    status = STATUS_LABELS.get(cell_result.status, cell_result.status)
    text = f"{len(cell_result.trials)}/{cell_result.planned} {status}"
    return Styled(text, fmt.STATUS_LOOKS[status])


def narrow_table(table: Table, result: SweepResult, names: Mapping[str, str]) -> Table:
    """Return the table of results with names of cells instead of ids and axes, at most MAX_WIDTH wide.

    The columns that matter least are left out. `names` are by the id of the cell.
    """
    start = table.columns.index(fmt.common_unit(result.cells))
    columns = ["workload", "cell", *table.columns[start:]]
    narrow = Table(columns, table.numbers, wrapped=["cell"])
    for cell, row in zip(result.all_cells, table.rows, strict=True):
        narrow.add_row(cell.workload.label, names[cell.id], *row[start:])
    return narrowed(narrow, [*OPTIONAL_COLUMNS, *_cost_columns(result)])


def _stop_columns(result: SweepResult) -> dict[str, dict[str, str]]:
    """Return the columns of the mean epochs that trials trained, and those until their best evaluation.

    Each has its texts by the id of the cell. There is none where no trial has a rule for stopping.
    """
    columns: dict[str, dict[str, str]] = {}
    for cell in result.all_cells:
        summary = summarize_stops(result.done_records(cell))
        if summary is None:
            continue
        columns.setdefault("epochs", {})[cell.id] = fmt.three_digits(summary.epochs)
        best_texts = columns.setdefault("best at", {})
        if summary.epochs_to_best is not None:
            best_texts[cell.id] = fmt.three_digits(summary.epochs_to_best)
    return columns


def _cost_columns(result: SweepResult) -> dict[str, dict[str, str]]:
    """Return the columns of costs by their titles, each with its texts by the id of the cell.

    There is none without a price in the cluster profile.
    """
    columns: dict[str, dict[str, str]] = {}
    for cell in result.cells:
        unit = currency(cell)
        if unit is None:
            continue
        to_goal = stop_cost(result.done_records(cell.cell))
        for purpose, cost in (("/epoch", epoch_cost(cell)), (" to goal", to_goal)):
            if cost is not None:
                columns.setdefault(f"{unit}{purpose}", {})[cell.cell.id] = fmt.cost(cost)
    return columns


def _marks(result: SweepResult) -> tuple[dict[str, str], dict[str, str]]:
    """Return the marks of each workload's highest throughput and metric, by the id of their cell.

    A workload of which a single cell was measured has none. Of the target metric there is no test
    among all cells of a workload, so its highest mean is never called certain.
    """
    throughput_marks: dict[str, str] = {}
    metric_marks: dict[str, str] = {}
    for workload, cells in result.workloads.items():
        ranking = result.ranking(workload)
        if len(ranking) > 1:
            mark = CERTAIN if result.is_winner_certain(workload) else HIGHEST
            throughput_marks[ranking[0].cell.id] = mark
        best = result.most_accurate(workload)
        evaluated = sum(cell.metric is not None for cell in cells)
        if best is not None and evaluated > 1:
            metric_marks[best.cell.id] = HIGHEST
    return throughput_marks, metric_marks


def _marked(text: str, mark: str | None) -> Styled:
    """Return the text with its mark, or with room for one so that columns stay aligned."""
    if mark is None:
        return Styled(f"{text}  ", "plain")
    return Styled(f"{text} {mark}", "best" if mark == CERTAIN else "plain")


def marks_legend(sweep: Sweep) -> str:
    """Return what the marks of a table of results mean."""
    if len(sweep.cells) < 2:
        return ""
    return f"{CERTAIN} certainly the fastest of its workload, {HIGHEST} the best mean; "


def show_verdicts(
    console: TerminalConsole, result: SweepResult, names: Mapping[str, str], *, wide: bool
) -> None:
    """Print a row for each cell that has a reference: its speed as a ratio, an interval, a verdict.

    Prints nothing where no workload has two cells of several trials. `names` are by the id of the
    cell. Unless it is `wide`, the table has no more columns than fit.
    """
    if result.comparison is None or not result.comparison.rows:
        return
    # The column of the target metric: none without a metric, `metric` for several.
    targets = {row.metric.name for row in result.comparison.rows if row.is_target_metric}
    metric_column = ["metric"] if len(targets) > 1 else list(targets)
    wrapped = [] if wide else ["cell"]
    table = Table([*VERDICT_COLUMNS, *metric_column], VERDICT_NUMBERS, wrapped=wrapped)
    for workload, cells in result.workloads.items():
        _add_workload(table, result, workload, cells, names, has_metric=bool(metric_column))
    if not table.rows:
        return
    if not wide:
        table = narrowed(table, OPTIONAL_VERDICT_COLUMNS)
    console.print()
    show_table(console, table)
    notes = unpaired_notes(result.comparison.rows)
    or_unpaired = " or unpaired" if notes else ""
    legend = (
        "speed: throughput of the cell over that of the cell it is compared with, the first measured"
        f" one of its workload, in pairs of trials that ran with the same seed{or_unpaired}; verdicts"
        " control false alarms over the whole table"
        f" (Holm, {ALPHA:.0%}); {fmt.interval_legend(ALPHA)}"
    )
    console.print_prose(styled(legend, "quiet"))
    for note in notes:
        console.print_prose(f"[yellow]unpaired[/]: {escape(note)}")
    unlike = [match for match in result.comparison.matches if match.has_other_company]
    if unlike:
        companies: set[str] = set()
        for match in unlike:
            companies.update(match.a.companies, match.b.companies)
        console.print_prose(
            f"[yellow]{counted(len(unlike), 'cell')} with other company than the cell that it is"
            f" compared with[/] ({escape(', '.join(sorted(companies)))}): what ran at the same time"
            " counts as a difference; --parallel 1 measures each alone"
        )


def _add_workload(
    table: Table,
    result: SweepResult,
    workload: str,
    cells: Sequence[CellResult],
    names: Mapping[str, str],
    *,
    has_metric: bool,
) -> None:
    """Add a row for each cell of a workload that is compared with its reference.

    `names` are by the id of the cell. `has_metric` says whether the table has a column for the
    target metric.
    """
    for cell_result in cells:
        cell = cell_result.cell
        speed = result.throughput_row(cell)
        if speed is None:  # the reference itself, or a cell that was not measured
            continue
        if cell_result.planned == 1:  # a single trial has no interval
            continue
        texts: list[Content] = [
            workload,
            names[cell.id],
            names[speed.a.cell.id],
            fmt.effect(speed.verdict),
            fmt.effect_interval(speed.verdict),
            fmt.pair_count(speed.verdict),
            fmt.verdict_badge(speed),
        ]
        if has_metric:
            texts.append(fmt.verdict_badge(result.metric_row(cell)))
        table.add_row(*texts)


def show_results(
    sweep: Sweep,
    records: Sequence[Record],
    results: Results,
    *,
    trouble: str | None = None,
    tracking_uri: str | None = None,
    verbose: bool = False,
    wide: bool = False,
    run_command: str = "",
) -> None:
    """Print what a sweep has shown, its results, verdicts, what to beware of, and what to do next.

    `trouble` is what MLflow at `tracking_uri` failed with. `verbose` adds remarks on trials that are too short for a
    steady state, and the labels of those that never reached one. Tables have all columns if they are
    `wide`. `run_command` is the command that has run the sweep, for the suggestion of more trials; it
    may be unknown.
    """
    console = TerminalConsole()
    records, peaks = with_measured_peaks(records, results)
    result = SweepResult.of_records(sweep, records)
    names = fmt.cell_names(result.all_cells)
    long_names = fmt.cell_names(result.all_cells, with_workload=True)
    sentences = conclusions(result, lambda cell: long_names[cell.id])
    for sentence in sentences:
        console.print_prose(escape(sentence))
    if sentences:
        console.print()
    table = result_table(sweep, result)
    is_narrow = not wide and not fits(table)
    show_table(console, narrow_table(table, result, names) if is_narrow else table)
    folder = results.sweep_folder(sweep.name)
    roofline = sweep_roofline(sweep, result.all_records, peaks)
    cells_by_trial = {trial.id: trial.cell.id for trial in sweep.trials()}
    for record in records:
        cells_by_trial[record.trial.id] = record.trial.cell.id
    has_intervals = max(Counter(cells_by_trial.values()).values()) > 1
    means = "means over trials ± 95% interval" if has_intervals else "means over trials"
    lines = [
        f"\n{marks_legend(sweep)}{means}. Records: {escape(str(folder.path))}",
        *too_few_notes(result.cells),
        *_stop_lines(records),
        *roofline_lines(roofline, folder.roofline_path),
    ]
    for line in lines + _earlier_lines(sweep, records):
        console.print_prose(line)
    if has_intervals:
        show_verdicts(console, result, names, wide=wide)
    _show_parity(console, result, folder)
    remarks = _status_lines(records)
    remarks += [f"[yellow]{escape(text)}[/]" for text in mixture_sentences(result.cells)]
    remarks += _steady_state_lines(records, verbose=verbose)
    remarks += _clock_lines(records)
    if trouble:
        command = escape(results.collect_command(sweep.name, tracking_uri))
        remarks.append(f"[yellow]MLflow is missing trials[/]; deliver it later: {command}")
    for line in remarks:
        console.print_prose(line)
    commands = _next_commands(
        sweep,
        result,
        records,
        results,
        run_command,
        ui_command=f"harness ui{results.flag}{tracking_flag(tracking_uri)}",
        has_roofline=roofline is not None,
        is_narrow=is_narrow,
    )
    for line in next_lines(commands):
        console.print_markup(line)


def _show_parity(console: TerminalConsole, result: SweepResult, folder: SweepFolder) -> None:
    """Print how alike the cells compute, if `harness parity` has measured it."""
    from harness.analysis.parity import read_parity, with_seeds

    parity = read_parity(folder)
    if parity is None:
        return
    # Only now, because it loads torch, which takes as long as many a sweep.
    from harness.render.parity import show_parity

    console.print()
    show_parity(console, with_seeds(parity, result.cells))


def _earlier_lines(sweep: Sweep, records: Sequence[Record]) -> list[str]:
    """Return which of the trials the last command asked for, if earlier ones have left others."""
    asked_for = {trial.id for trial in sweep.trials()}
    earlier = [record.trial for record in records if record.trial.id not in asked_for]
    if not earlier:
        return []
    latest = [record.trial for record in records if record.trial.id in asked_for]
    return [
        f"{counted(len(records), 'trial')}: {len(latest)} of the last command ({_seeds(latest)}),"
        f" {len(earlier)} of earlier ones ({_seeds(earlier)})"
    ]


def _stop_lines(records: Sequence[Record]) -> list[str]:
    """Return how to read trials of different lengths, if a rule for stopping has made some."""
    summary = summarize_stops(record for record in records if record.status == "done")
    if summary is None:
        return []
    return [
        f"Ended: {fmt.stop_counts(summary)}. Throughput is that of steady steps, however many there"
        " were; metrics are those of the parameters that each trial ended with."
    ]


def _seeds(trials: Sequence[Trial]) -> str:
    """Return the seeds of trials, and their repeats if there are any besides the first."""
    seeds = ",".join(str(seed) for seed in sorted({trial.seed for trial in trials}))
    repeats = sorted({trial.repeat for trial in trials})
    text = f"seeds={seeds or 'none'}"
    if repeats not in ([], [0]):
        text += f", repeats {','.join(map(str, repeats))}"
    return text


def _status_lines(records: Sequence[Record]) -> list[str]:
    """Return a line for each status that calls for another run, with the number of its trials."""
    remarks: dict[Status, str] = {
        "failed": "[red]{} failed[/]; run or submit the sweep again to retry them",
        "interrupted": "[yellow]{} interrupted[/]; run or submit the sweep again to resume them",
        "invalid": "[magenta]{} invalid[/], left out of all means;"
        " run or submit the sweep again to repeat them",
    }
    counts = Counter(record.status for record in records)
    lines: list[str] = []
    for status, remark in remarks.items():
        if counts[status]:
            lines.append(remark.format(counts[status]))
    if any(map(fmt.is_contended, records)):
        lines.append(f"other programs used the cores: {QUIET_MACHINE}")
    return lines


def _steady_state_lines(records: Sequence[Record], *, verbose: bool) -> list[str]:
    """Return what to know about trials whose step times never settled, once for all of them.

    A trial with too few steps after its warm-up can't show a steady state, so nothing is said of it
    unless `verbose`.
    """
    measured = [record for record in records if record.summary is not None]
    unsettled: list[Record] = []
    short: list[Record] = []
    for record in measured:
        assert record.summary is not None
        if record.summary.window_steps < MIN_STEPS_TO_SETTLE and not record.summary.settled:
            short.append(record)
        elif record.summary.settled is False:
            unsettled.append(record)
    lines: list[str] = []
    if unsettled:
        lines.append(
            f"{len(unsettled)} of {counted(len(measured), 'trial')} never reached a steady state:"
            " their step times kept changing, so their means depend on how long they ran;"
            " train longer (length), or start to measure later (warmup)"
        )
        if verbose:
            lines += _label_lines(unsettled)
    if short and verbose:
        lines.append(
            f"{len(short)} of {counted(len(measured), 'trial')} are too short to show a steady state:"
            f" fewer than {MIN_STEPS_TO_SETTLE} steps after the warm-up"
        )
        lines += _label_lines(short)
    return lines


def _clock_lines(records: Sequence[Record]) -> list[str]:
    """Return for how many trials the clock of a GPU moved while it trained, and what holds it."""
    done = [record for record in records if record.status == "done"]
    moved = [text for text in map(fmt.clock_movement_text, done) if text is not None]
    if not moved:
        return []
    return [
        f"{len(moved)} of {counted(len(done), 'trial')}: the clock of a GPU moved while it trained,"
        f" {'of one ' if len(moved) > 1 else ''}{moved[0]}; nvidia-smi --lock-gpu-clocks holds it"
    ]


def _label_lines(records: Sequence[Record]) -> list[str]:
    """Return a line for each trial with the label of its cell and its seed."""
    lines: list[str] = []
    for record in records:
        lines.append(f"    {escape(record.trial.cell.label)} seed {record.trial.seed}")
    return lines


def _next_commands(
    sweep: Sweep,
    result: SweepResult,
    records: Sequence[Record],
    results: Results,
    run_command: str,
    *,
    ui_command: str,
    has_roofline: bool,
    is_narrow: bool,
) -> dict[str, str]:
    """Return the commands to try next with what each shows.

    If no trial is done, they are about what went wrong. `has_roofline` says whether the peaks of
    the trials' machine are known, `is_narrow` whether the tables lack columns.
    """
    name = shlex.quote(sweep.name)
    if not any(record.status == "done" for record in records):
        failed = [record.trial.id for record in records if record.failure is not None]
        if failed:
            logs = results.sweep_folder(sweep.name).trial_folder(failed[0]).path / "logs"
            return {f"ls {logs}": "what the first trial that failed has printed"}
        return {ui_command: "curves of the trials in MLflow"}
    purposes = {
        ui_command: "curves and comparisons in MLflow",
        f"harness show {name} --phases{results.flag}": "where the time of a step goes",
    }
    if is_narrow:
        purposes[f"harness show {name} --wide{results.flag}"] = "all columns, ids of cells included"
    if not has_roofline and result.records:
        purposes[f"harness peak{results.flag}"] = "MFU and a roofline for these cells"
    if run_command:
        more = _with_more_trials(run_command, sweep, records)
        purposes[more] = "more trials; finished ones are not repeated"
    return purposes


def _with_more_trials(command: str, sweep: Sweep, records: Sequence[Record]) -> str:
    """Return the command that adds trials to a sweep: further seeds, or a repeat if there are many."""
    seeds = shown_seeds(sweep, records)
    count = max(MORE_SEEDS, fmt.ENOUGH_SEEDS - len(seeds))
    seeds += [max(seeds) + number for number in range(1, count + 1)]
    if len(seeds) > MOST_SEEDS:
        return f"{_without_setting(command, 'repeats')} --set repeats={sweep.repeats + 1}"
    text = ",".join(map(str, seeds))
    if seeds == list(range(len(seeds))):
        text = str(len(seeds))
    return f"{_without_setting(command, 'seeds')} --seeds {text}"


def _without_setting(command: str, key: str) -> str:
    """Return a command without its options `--set` of a key."""
    arguments = shlex.split(command)
    others: list[str] = []
    while arguments:
        argument = arguments.pop(0)
        if argument == "--set" and arguments[0].startswith(f"{key}="):
            arguments.pop(0)
        else:
            others.append(argument)
    return shlex.join(others)
