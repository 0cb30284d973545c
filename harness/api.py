"""The Python interface: what the names of `import harness` stand for, and how commands load a sweep.

`load` and `SweepData` give recorded sweeps as data frames, `plan` and `SweepPlan` what a sweep will run,
`run` runs it on this machine, `compare` and `Verdicts` say which of several results is better.

All functions raise HarnessError and print nothing, except `run` with its progress.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np

from harness.analysis import adaptive
from harness.analysis.compare import CellComparison, Rules, Side, compare_by
from harness.analysis.compare import compare as compare_sides
from harness.analysis.questions import ACCURACY_MARGIN, SPEED
from harness.analysis.result import COURSE, IDENTITY, ORIGIN, trial_row
from harness.analysis.selection import select as select_results
from harness.analysis.sweep_result import SweepResult
from harness.core.errors import BadInput
from harness.core.paths import Results, SweepFolder, results_folder
from harness.core.text import counted
from harness.launch import sweep as runner
from harness.measure.window import measured_window
from harness.records.files import read_record
from harness.records.numbers import in_order
from harness.records.record import Record
from harness.records.store import (
    RecordedSweep,
    read_recorded_sweep,
    read_spec_content,
    select_recorded,
)
from harness.slurm.queue import refuse_live_jobs
from harness.sweep import cluster as clusters
from harness.sweep.cell import Trial, axis_names
from harness.sweep.cluster import Profile, with_tolerance
from harness.sweep.selected import select
from harness.sweep.sweep import Sweep, find_sweep_file, load_sweep
from harness.tracking.follow import Follower
from harness.view.compare import comparison_rows
from harness.view.console import TerminalConsole
from harness.view.run import RunView

if TYPE_CHECKING:
    import pandas as pd

EVALUATION_COLUMNS = ["trial", "cell", "seed", "step", "epoch", "seconds"]  # before the metrics
CELL_COLUMNS = [
    "cell", "label", "trials", "throughput", "throughput_low", "throughput_high", "metric", "metric_low",
    "metric_high", "speedup", "speedup_low", "speedup_high", "verdict",
]  # fmt: skip
VERDICT_COLUMNS = [
    "cell", "reference", "b_side", "metric", "higher_is_better", "relative", "a", "b", "value", "low",
    "high", "confidence", "count", "paired", "verdict", "outcome", "p_change", "p_same", "min_detectable_effect",
]  # fmt: skip
# Key of a sweep file, or axis -> value, of which a list varies an axis; or texts as `--set` takes them.
Settings = Mapping[str, Any] | Sequence[str]
# One path for all workloads, or by label; or texts as `--data` takes them.
Data = str | Path | Mapping[str, str | Path] | Sequence[str]
Names = str | Sequence[str]  # of axes: one, several, or several in a text with commas


def load(
    sweep: str | Path,
    results: str | Path | None = None,
    *,
    only: Sequence[str] = (),
) -> SweepData:
    """Return what a sweep has recorded.

    `sweep` is its name, its folder below `results/runs`, or its sweep file. A name in `results` comes
    before a path. `only` are terms that choose a part of its trials, as `--only` does.

    Raises BadInput for a sweep that has left no records, and for a mistake in the choice.

    >>> import harness
    >>> sweep = harness.load("demo")
    >>> sweep
    demo: 6 trials of 2 cells, 6 done
    >>> sweep.trials[["precision", "seed", "throughput_samples_per_s"]].round()
      precision  seed  throughput_samples_per_s
    0      fp32     0                    6388.0
    1      bf16     0                    7985.0
    2      bf16     1                    8053.0
    3      fp32     1                    6443.0
    4      fp32     2                    6417.0
    5      bf16     2                    8022.0
    >>> harness.load("demo", only=["precision=bf16", "seed=0,1"])
    demo: 2 trials of 1 cell, 2 done
    """
    path = Path(sweep)
    spec_path = SweepFolder(path).spec_path
    folder = results_folder(results)
    name = str(sweep)
    if folder.sweep_folder(name).spec_path.is_file():
        pass  # the working directory may have a folder of the same name, of other results
    elif os.path.isfile(spec_path):  # noqa: PTH113  # False where `Path` raises: for a long name
        folder = Results(path.absolute().parent.parent)
        name = read_spec_content(spec_path).get("name", path.name)
    elif path.suffix in (".yaml", ".yml"):
        name = load_sweep(find_sweep_file(str(path))).name
    recorded = select_recorded(read_recorded_sweep(folder, name), only)
    return SweepData(results=folder, recorded=recorded)


@dataclass(frozen=True, kw_only=True)
class SweepData:
    """A sweep's records, as data frames and as the objects that commands show."""

    results: Results
    recorded: RecordedSweep
    trouble: str | None = None  # what MLflow failed with, where the sweep has just run

    @property
    def name(self) -> str:
        """Return the sweep's name."""
        return self.recorded.sweep.name

    @property
    def records(self) -> Sequence[Record]:
        """Return the records of all trials, in the order in which they run."""
        return self.recorded.records

    @property
    def unreadable(self) -> Sequence[str]:
        """Return a line for each record that can't be read, which is in no table."""
        return self.recorded.unreadable

    @cached_property
    def trials(self) -> pd.DataFrame:
        """The trials, a row each.

        All axes of the harness are columns, whether they differ or not, so that tables of several sweeps
        can be joined; a number that no trial has is no column. Unknown numbers are NaN, so that a column
        of integers with an unknown one is of floats; unknown texts are missing values. Times are
        timestamps in UTC.
        """
        import pandas as pd

        cells = self.recorded.sweep.cells
        levels = {cell.id: cell.levels for cell in cells}
        facts = (*IDENTITY, *COURSE, *ORIGIN)
        numbers: set[str] = set()  # the names of those that any trial has
        rows: list[dict[str, Any]] = []
        for record in self.records:
            trial = trial_row(record)
            numbers |= trial.numbers.keys()
            row = {**levels[trial.cell], **trial.numbers}
            for name in facts:
                row[name] = getattr(trial, name)
            rows.append(row)
        columns: dict[str, Any] = {}
        axes = axis_names(cells)
        for name in (*IDENTITY, *axes, *COURSE, *in_order(numbers), *ORIGIN):
            values = [row.get(name) for row in rows]
            columns[name] = _series(values)
        columns["started"] = pd.to_datetime(columns["started"], unit="s", utc=True)
        return pd.DataFrame(columns)

    @cached_property
    def steps(self) -> pd.DataFrame:
        """The optimizer steps of all ranks, a row each.

        | column | meaning |
        | --- | --- |
        | `trial`, `cell`, `seed`, `rank` | whose step it is |
        | `step` | optimizer steps done after it, from 1 |
        | `seconds` | its duration at this rank, in seconds |
        | `loss` | the rank's mean loss over its share of the batch |
        | `measured` | whether it is in the measured window |
        | `<phase>_s` | seconds of it in a phase such as `data_wait` or `forward` |

        Steps of trials that failed are there as far as their ranks recorded them.

        >>> import harness
        >>> steps = harness.load("demo").steps
        >>> steps[["seed", "rank", "step", "measured"]].values.tolist()[0]
        [0, 0, 1, False]
        >>> steps[steps.measured].groupby("seed").seconds.median().round(4).to_dict()
        {0: 0.0089, 1: 0.0089, 2: 0.009}
        """
        import pandas as pd

        frames = []
        for record in self.records:
            measured: Any = False
            if record.is_complete:
                measured = measured_window(record.ranks, record.trial.cell).mask
            for rank in record.ranks:
                if rank.step_seconds is None:
                    continue
                columns: dict[str, Any] = {
                    "trial": record.trial.id,
                    "cell": record.trial.cell.id,
                    "seed": record.trial.seed,
                    "rank": rank.rank,
                    "step": np.arange(1, len(rank.step_seconds) + 1),
                    "seconds": rank.step_seconds,
                    "loss": np.nan,
                    "measured": measured,
                }
                if rank.loss is not None:
                    columns["loss"] = rank.loss
                for phase, series in rank.step_phases.items():
                    columns[f"{phase}_s"] = series
                frames.append(pd.DataFrame(columns))
        if not frames:
            return pd.DataFrame()
        return pd.concat(frames, ignore_index=True)

    @cached_property
    def evaluations(self) -> pd.DataFrame:
        """The evaluations of all trials: trial, cell, seed, step, epoch, seconds and every metric.

        >>> import harness
        >>> evaluations = harness.load("demo").evaluations
        >>> evaluations.loc[:1, ["step", "epoch", "accuracy"]].round(2).values.tolist()
        [[10.0, 1.0, 0.45], [20.0, 2.0, 0.9]]
        """
        import pandas as pd

        rows: list[dict[str, Any]] = []
        for record in self.records:
            trial = record.trial
            if record.rank0 is None:
                continue
            for evaluation in record.rank0.evaluations:
                row = {
                    "trial": trial.id,
                    "cell": trial.cell.id,
                    "seed": trial.seed,
                    "step": evaluation.step,
                    "epoch": evaluation.step / record.rank0.steps_per_epoch,
                    "seconds": evaluation.seconds,
                }
                rows.append({**row, **evaluation.metrics})
        if not rows:
            return pd.DataFrame(columns=EVALUATION_COLUMNS)
        return pd.DataFrame(rows)

    @cached_property
    def result(self) -> SweepResult:
        """The cells with their intervals and verdicts, as the report shows them."""
        return SweepResult.of_records(self.recorded.sweep, self.records)

    @cached_property
    def cells(self) -> pd.DataFrame:
        """The cells, a row each: means with their 95% intervals, and the verdict on throughput.

        The interval of the speedup is that of the test behind the verdict.

        | column | meaning |
        | --- | --- |
        | `cell`, `label` | the cell's id, and its axes in words |
        | `trials` | trials that are done |
        | `throughput`, `throughput_low`, `throughput_high` | geometric mean and interval, samples/s |
        | `metric`, `metric_low`, `metric_high` | mean and interval of the target metric at the end |
        | `speedup`, `speedup_low`, `speedup_high` | ratio to the first cell of the workload |
        | `verdict` | faster, slower, same or inconclusive; none for the first cell |

        >>> import harness
        >>> cells = harness.load("demo").cells
        >>> cells[["trials", "speedup", "verdict"]].round(2).values.tolist()[1]
        [3, 1.25, 'faster']
        """
        import pandas as pd

        rows: list[dict[str, Any]] = []
        for cell in self.result.cells:
            row: dict[str, Any] = {
                "cell": cell.cell.id,
                "label": cell.cell.label,
                "trials": len(cell.trials),
                **self.result.answers(cell),
            }
            verdict = self.result.speed(cell.cell)
            if verdict is not None:
                row["verdict"] = verdict.label
            rows.append(row)
        return pd.DataFrame(rows, columns=CELL_COLUMNS)

    @cached_property
    def side(self) -> Side:
        """The sweep as one side of a comparison; raises BadInput if a record can't be read."""
        if self.unreadable:  # a judgment is of all trials or of none
            raise BadInput(self.unreadable[0])
        return self.result.side

    def __repr__(self) -> str:
        trials = counted(len(self.records), "trial")
        cells = counted(len(self.recorded.sweep.cells), "cell")
        counts = Counter(record.status for record in self.records)
        statuses = ", ".join(f"{count} {status}" for status, count in counts.items())
        text = f"{self.name}: {trials} of {cells}, {statuses or 'none recorded'}"
        if self.unreadable:
            text += f", {counted(len(self.unreadable), 'record')} unreadable"
        return text


def _series(values: Sequence[Any]) -> pd.Series:
    """Return a column: of texts where a value is one, or none is known; lists and mappings as JSON."""
    import pandas as pd

    plain: list[Any] = []
    for value in values:
        is_plain = value is None or isinstance(value, str | int | float | bool)
        plain.append(value if is_plain else json.dumps(value))
    known = [value for value in plain if value is not None]
    if known and not any(isinstance(value, str) for value in known):
        return pd.Series(plain)
    texts = [None if value is None else str(value) for value in plain]
    return pd.Series(texts, dtype=object)


class Choices(TypedDict, total=False):
    """What chooses a sweep's cells and trials, and where they run."""

    settings: Settings  # keys of the file, or axes with a value or a list of values
    data: Data  # where the data are, for all workloads or by label
    only: Sequence[str]  # terms that select a part (`strategy=ddp`)
    cluster: str  # a profile's name or file, by default `local`
    results: str | Path | None  # the folder of records


@dataclass(frozen=True, kw_only=True)
class SweepPlan:
    """The cells and trials that a sweep will run, with how long earlier ones took."""

    sweep: Sweep
    profile: Profile
    results: Results

    @property
    def trials(self) -> list[Trial]:
        """Return the trials in the order in which they run."""
        return self.sweep.trials()

    @cached_property
    def estimates(self) -> Mapping[str, float]:
        """The seconds that a trial takes, by the id of its cell, of cells that have records."""
        paths_by_cell = self.results.record_paths_by_cell()
        estimates = {}
        for cell in self.sweep.cells:
            seconds = []
            for path in paths_by_cell.get(cell.id, ()):
                with suppress(BadInput):  # the others will do for a plan
                    record = read_record(path)
                    if record.status == "done":
                        seconds.append(whole_seconds(record))
            if seconds:
                estimates[cell.id] = fmean(seconds)
        return estimates

    @property
    def seconds(self) -> float | None:
        """Return the seconds that all trials take one after the other, None where any is unknown."""
        cell_ids = [trial.cell.id for trial in self.trials]
        unknown = set(cell_ids).difference(self.estimates)
        if unknown:
            return None
        return sum(self.estimates[cell_id] for cell_id in cell_ids)

    @cached_property
    def cells(self) -> pd.DataFrame:
        """The cells, a row each: id, label, trials, seconds that a trial takes, and all axes."""
        import pandas as pd

        rows = []
        axes = axis_names(self.sweep.cells)
        for cell in self.sweep.cells:
            facts: dict[str, Any] = {
                "cell": cell.id,
                "label": cell.label,
                "workload": cell.workload.label,
                "trials": self.sweep.count_trials(cell),
                "trial_s": self.estimates.get(cell.id),
            }
            for axis in axes:
                facts[axis] = cell.level(axis)
            rows.append(facts)
        return pd.DataFrame(rows)

    def __repr__(self) -> str:
        trials = counted(len(self.trials), "trial")
        cells = counted(len(self.sweep.cells), "cell")
        text = f"{self.sweep.name}: {trials} of {cells}"
        if self.seconds is not None:
            text += f", about {self.seconds:.0f} s"
        return text


def whole_seconds(record: Record) -> float:
    """Return the seconds that a trial takes which is not interrupted: one that was by its phases."""
    if record.interruptions:
        return sum(record.phases.values())
    return record.ended - record.started


def plan(sweep: str | Path, **choices: Unpack[Choices]) -> SweepPlan:
    """Return what a sweep will run; nothing is started and nothing is written.

    `sweep` is a sweep file or the name of a ready sweep; `choices` are those of `Choices`.

    Raises BadInput for a mistake in any of them.

    >>> import harness
    >>> plan = harness.plan("quickstart", settings={"seeds": [0, 1]}, only=["workload=mlp"])
    >>> plan
    quickstart: 10 trials of 5 cells
    >>> plan.cells[["label", "trials", "strategy"]].values.tolist()[1]
    ['mlp eager fp32 ddp×2 w0 b64 t1', 2, 'ddp']
    """
    return _planned(sweep, choices, launcher="")


def _planned(sweep: str | Path, choices: Choices, launcher: str) -> SweepPlan:
    """Return what a sweep will run on a profile with a launcher, any if it is empty."""
    settings = choices.get("settings", ())
    data = choices.get("data", ())
    folder = results_folder(choices.get("results"))
    texts = list(settings)
    if isinstance(settings, Mapping):  # JSON is YAML, and keeps the types of values
        texts = []
        for key, value in settings.items():
            text = json.dumps(value, default=_as_list)
            texts.append(f"{key}={text}")
    if isinstance(data, Mapping):
        data = [f"{label}={path}" for label, path in data.items()]
    elif isinstance(data, str | Path):
        data = [str(data)]
    loaded, profile = load_planned(
        str(sweep),
        texts,
        data,
        choices.get("cluster", "local"),
        only=choices.get("only", ()),
        results=folder,
        launcher=launcher,
    )
    return SweepPlan(sweep=loaded, profile=profile, results=folder)


def _as_list(value: object) -> object:
    """Return what JSON has no notation for in a way that it has: a range as a list, a path as text."""
    if isinstance(value, range):
        return list(value)
    return str(value)


def load_planned(
    sweep: str,
    settings: Sequence[str],
    data: Sequence[str],
    cluster: str,
    *,
    only: Sequence[str] = (),
    results: Results | None = None,
    timed: bool = True,
    launcher: str = "torchrun",
) -> tuple[Sweep, Profile]:
    """Return a sweep with its `--set` and `--data` options applied, and the profile it runs on.

    `settings` are texts such as `execution=eager,compile`, `data` such as `DIR` or `LABEL=DIR`, and
    `cluster` is a profile's name or file. `only` are terms that select a part of the sweep. `results`
    remember the digests of large data files, so that they need not be read again. Where no trial is
    `timed`, more ranks than cores will do. `launcher` is the one that the profile must have, if any.
    Nothing else is written, and nothing is started.

    Raises BadInput for a mistake in any of them, and for a selected cell that the profile can't run.
    """
    profile = load_profile(cluster, launcher)
    path = find_sweep_file(sweep)
    digests = results.file_digests if results else None
    whole = load_sweep(path, settings, data, digests)
    loaded = select(whole, only)
    clusters.check_fits(profile, loaded.cells, loaded.source, timed=timed)
    return loaded, profile


def load_profile(cluster: str, launcher: str = "torchrun") -> Profile:
    """Return a profile; raises BadInput for one with another launcher, of any if `launcher` is empty.

    With torchrun, ranks start on this machine.
    """
    profile = clusters.load_profile(cluster)
    if launcher and profile.launcher != launcher:
        raise BadInput(
            f"--cluster {cluster}: launcher: found {profile.launcher!r}; allowed: {launcher}"
        )
    return profile


def run(
    sweep: str | Path,
    *,
    tracking_uri: str | None = None,
    force: bool = False,
    fail_fast: bool = False,
    until: str = "",
    budget: str = "",
    tolerate_load: bool = False,
    progress: bool = True,
    **choices: Unpack[Choices],
) -> SweepData:
    """Run a sweep on this machine, or resume it, and return what it has recorded.

    The arguments are the options of `harness run`; `choices` are those of `plan`, and what they leave
    out is not in the result either: `load` returns all of a sweep. `budget` is text such as `30m`. With
    `progress`, a bar and a line for each trial are printed. A trial that fails raises nothing: its
    `status` says so.

    Raises BadInput before anything starts for a mistake in any argument, and KeyboardInterrupt once
    the running trial is saved.

    >>> import harness
    >>> sweep = harness.run("quickstart", settings={"seeds": [0]})  # doctest: +SKIP
    >>> harness.run("quickstart", settings={"precison": "bf16"})
    Traceback (most recent call last):
    ...
    harness.core.errors.BadInput: --set precison="bf16": unknown axis; did you mean 'precision'?
    """
    # All that can be refused is refused before the first trial: options, sweep and profile.
    goal = adaptive.goal(until, budget)
    planned = _planned(sweep, choices, launcher="torchrun")
    loaded = planned.sweep
    results = planned.results
    profile = planned.profile
    if tolerate_load:
        profile = with_tolerance(profile)
    sweep_folder = results.sweep_folder(loaded.name)
    console = TerminalConsole(quiet=not progress)
    view = RunView(loaded, console, planned.estimates)
    redo: runner.Redo = "all" if force else "failed"

    def run_pending(sweep: Sweep, is_further_repeat: bool) -> list[Record]:
        """Run the trials of the sweep that are pending, and return all of its records."""
        from_repeat = 0
        if is_further_repeat:  # what this command has just run, it must not run once more
            from_repeat = sweep.repeats - 1
        return runner.run(
            sweep,
            profile,
            sweep_folder,
            view,
            redo=redo,
            from_repeat=from_repeat,
            fail_fast=fail_fast,
            # A job in Slurm's queue may have the same trials, and would write the same folders.
            check=refuse_live_jobs,
        )

    follower = Follower(results, [sweep_folder], tracking_uri)  # before anything is shown
    with view:
        with follower as delivery:
            adaptive.run_until(goal, loaded, run_pending, fail_fast=fail_fast)
            view.show_delivery()
        if delivery.trouble is not None:
            view.on_message(delivery.trouble)
    only = choices.get("only", ())
    recorded = load(loaded.name, results.path, only=only)
    return replace(recorded, trouble=delivery.trouble)


@dataclass(frozen=True, kw_only=True)
class Verdicts(CellComparison):
    """A comparison of results, A being the reference and B what is judged.

    Each of its `verdicts` is on one metric of a pair of cells; `matches` has them by pair.
    """

    a: str  # the name of A
    b: Sequence[str]  # the names of what is compared with it

    @cached_property
    def table(self) -> pd.DataFrame:
        """The verdicts, a row each.

        | column | meaning |
        | --- | --- |
        | `cell`, `reference` | the labels of B's cell and of A's |
        | `b_side` | the name of B's side |
        | `metric` | samples/s, the target metric, or the steps to a goal |
        | `a`, `b` | both means, in the metric's unit; geometric for samples/s |
        | `value` | B over A where `relative`, else B - A |
        | `low`, `high`, `confidence` | its interval, as the test behind the verdict has it |
        | `verdict` | faster, slower, `better NAME` or `worse NAME`, converges faster or slower, same, inconclusive |
        | `outcome` | the same in one word for all metrics: better, worse, same, inconclusive |
        | `p_change`, `p_same` | p-values, corrected for all questions together |
        | `min_detectable_effect` | the change that would be detected 80% of the time |
        | `count`, `paired` | pairs of trials, and whether they are pairs |
        """
        import pandas as pd

        return pd.DataFrame(comparison_rows(self), columns=VERDICT_COLUMNS)

    def __repr__(self) -> str:
        lines = [f"{', '.join(self.b)} against {self.a}"]
        for match in self.matches:
            for verdict in match.verdicts:
                text = f"{verdict.metric.name} {verdict.label} ({verdict.effect:.3g})"
                lines.append(f"  {match.b.cell.label}: {text}")
        lines += [f"  missing {text}" for text in self.missing]
        return "\n".join(lines)


def compare(
    *sides: str | Path | SweepData,
    by: Names = (),
    across: Names = (),
    min_effect: float = SPEED.min_effect,
    accuracy_margin: float = ACCURACY_MARGIN,
    to_reach: float | None = None,
    results: str | Path | None = None,
) -> Verdicts:
    """Compare results with the first of them, or the values of an axis within one.

    A side is a name that `harness compare` takes (a sweep, a cell, a trial, a baseline, a path)
    or what `load` returns. `by` are the axes whose values are compared within one side.
    `across` are the differences between sides that are the question, such as `hardware` or an axis.
    `min_effect` is a fraction of throughput, `accuracy_margin` in the metric's unit, and `to_reach` a
    value of the target metric, the steps to which are compared too.

    Raises BadInput for results of other hardware, data or settings, unless that is the question, and
    for a mistake in an argument.

    >>> import harness
    >>> verdicts = harness.compare("demo", by="precision")
    >>> speed = verdicts.verdicts[0]
    >>> speed.label, round(speed.effect, 2), speed.p_change < 0.05
    ('faster', 1.25, True)
    >>> verdicts.table[["metric", "verdict"]].values.tolist()
    [['samples/s', 'faster'], ['accuracy', 'same']]
    >>> harness.compare("demo")
    Traceback (most recent call last):
    ...
    harness.core.errors.BadInput: compare: found 1 side; allowed: several, or one with `by`
    """
    axes = _listed(by)
    is_within_one = bool(axes) and len(sides) == 1
    is_of_several = not axes and len(sides) > 1
    if not is_within_one and not is_of_several:
        found = counted(len(sides), "side")
        if axes:
            found += " with `by`"
        raise BadInput(f"compare: found {found}; allowed: several, or one with `by`")
    if not 0 <= min_effect < 1:
        allowed = "a fraction of at least 0 and below 1, such as 0.05"
        raise BadInput(f"compare: min_effect: found {min_effect}; allowed: {allowed}")
    if not accuracy_margin >= 0:  # as NaN is not
        raise BadInput(f"compare: accuracy_margin: found {accuracy_margin}; allowed: at least 0")
    first, *others = _select_sides(sides, results_folder(results))
    rules = Rules(
        across=_listed(across),
        min_effect=min_effect,
        accuracy_margin=accuracy_margin,
        goal=to_reach,
    )
    if axes:  # both A and B are cells of the one side
        comparison = compare_by(first, axes, rules)
        names = [f"{first.name} by {','.join(axes)}"]
    else:
        comparison = compare_sides(first, others, rules)
        names = [side.name for side in others]
    return Verdicts(**vars(comparison), a=first.name, b=names)


def _select_sides(sides: Sequence[str | Path | SweepData], results: Results) -> list[Side]:
    """Return the sides, each of which is a name or a sweep that was loaded.

    All names are looked up together: what `baseline` means depends on the others.
    """
    loaded = [side.side for side in sides if isinstance(side, SweepData)]
    names = [str(side) for side in sides if not isinstance(side, SweepData)]
    named = iter(select_results(results, names, loaded))
    selected: list[Side] = []
    for side in sides:
        selected.append(side.side if isinstance(side, SweepData) else next(named))
    return selected


def _listed(names: Names) -> list[str]:
    """Return names as a list, each without blanks."""
    if isinstance(names, str):
        names = names.split(",")
    stripped = [name.strip() for name in names]
    return list(filter(None, stripped))
