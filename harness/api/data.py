"""Recorded sweeps as data frames."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.analysis.compare import Side
from harness.analysis.result import trial_row
from harness.analysis.sweep_result import SweepResult
from harness.api.tables import trial_frame
from harness.core.errors import BadInput
from harness.core.paths import Results, SweepFolder, results_folder
from harness.core.text import counted
from harness.measure.summary import measured_window
from harness.records.record import Record
from harness.records.store import (
    RecordedSweep,
    read_recorded_sweep,
    read_spec_content,
    select_recorded,
)
from harness.sweep.sweep import find_sweep_file, load_sweep

if TYPE_CHECKING:
    import pandas as pd

EVALUATION_COLUMNS = ["trial", "cell", "seed", "step", "epoch", "seconds"]  # before the metrics
CELL_COLUMNS = [
    "cell", "label", "trials", "throughput", "throughput_low", "throughput_high", "metric", "metric_low",
    "metric_high", "speedup", "speedup_low", "speedup_high", "verdict",
]  # fmt: skip


def load(
    sweep: str | Path, results: str | Path | None = None, *, only: Sequence[str] = ()
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
        """The trials, a row each."""
        return trial_frame(self.recorded.sweep.cells, list(map(trial_row, self.records)))

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
            if record.summary is not None:
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
                    "loss": np.nan if rank.loss is None else rank.loss,
                    "measured": measured,
                }
                phases = {f"{phase}_s": series for phase, series in rank.step_phases.items()}
                frames.append(pd.DataFrame(columns | phases))
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()

    @cached_property
    def evaluations(self) -> pd.DataFrame:
        """The evaluations of all trials: trial, cell, seed, step, epoch, seconds and every metric.

        >>> import harness
        >>> evaluations = harness.load("demo").evaluations
        >>> evaluations.loc[:1, ["step", "epoch", "accuracy"]].round(2).values.tolist()
        [[10.0, 1.0, 0.45], [20.0, 2.0, 0.9]]
        """
        import pandas as pd

        rows = []
        for record in self.records:
            trial = record.trial
            names = {"trial": trial.id, "cell": trial.cell.id, "seed": trial.seed}
            for evaluation in record.rank0.evaluations if record.rank0 is not None else ():
                times = {
                    "step": evaluation.step,
                    "epoch": evaluation.epoch,
                    "seconds": evaluation.seconds,
                }
                rows.append({**names, **times, **evaluation.metrics})
        return pd.DataFrame(rows or None, columns=None if rows else EVALUATION_COLUMNS)

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
            }
            for name, interval in {"throughput": cell.throughput, "metric": cell.metric}.items():
                if interval is not None:
                    row[name] = interval.mean
                    low, high = interval.bounds or (None, None)
                    row |= {f"{name}_low": low, f"{name}_high": high}
            verdict = self.result.speed(cell.cell)
            if verdict is not None:
                row["speedup"] = verdict.effect
                if verdict.interval is not None:
                    row["speedup_low"], row["speedup_high"] = verdict.interval
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
