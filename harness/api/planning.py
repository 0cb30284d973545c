"""What a sweep will run, before anything runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from harness.core.errors import BadInput
from harness.core.paths import Results, results_folder
from harness.core.text import counted
from harness.records.files import read_record
from harness.records.record import Record
from harness.sweep import cluster as clusters
from harness.sweep.cell import Cell, Trial, axis_names
from harness.sweep.cluster import Profile
from harness.sweep.selected import select
from harness.sweep.sweep import Sweep, find_sweep_file, load_sweep

if TYPE_CHECKING:
    import pandas as pd

# Key of a sweep file, or axis -> value, of which a list varies an axis; or texts as `--set` takes them.
Settings = Mapping[str, Any] | Sequence[str]
# One path for all workloads, or by label; or texts as `--data` takes them.
Data = str | Path | Mapping[str, str | Path] | Sequence[str]


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
    digests = None if results is None else results.file_digests
    loaded = load_sweep(path, settings, data, digests)
    loaded = select(loaded, only)
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
        return estimate_cells(self.sweep.cells, self.results)

    @property
    def seconds(self) -> float | None:
        """Return the seconds that all trials take one after the other, None where any is unknown."""
        if any(cell.id not in self.estimates for cell in self.sweep.cells):
            return None
        return sum(self.estimates[trial.cell.id] for trial in self.trials)

    @cached_property
    def cells(self) -> pd.DataFrame:
        """The cells, a row each: id, label, trials, seconds that a trial takes, and all axes."""
        import pandas as pd

        rows = []
        axes = axis_names(self.sweep.cells)
        for cell in self.sweep.cells:
            facts = {
                "cell": cell.id,
                "label": cell.label,
                "workload": cell.workload.label,
                "trials": self.sweep.count_trials(cell),
                "trial_s": self.estimates.get(cell.id),
            }
            rows.append(facts | {axis: cell.level(axis) for axis in axes})
        return pd.DataFrame(rows)

    def __repr__(self) -> str:
        trials = counted(len(self.trials), "trial")
        text = f"{self.sweep.name}: {trials} of {counted(len(self.sweep.cells), 'cell')}"
        if self.seconds is not None:
            text += f", about {self.seconds:.0f} s"
        return text


def plan(
    sweep: str | Path,
    *,
    settings: Settings = (),
    data: Data = (),
    only: Sequence[str] = (),
    cluster: str = "local",
    results: str | Path | None = None,
) -> SweepPlan:
    """Return what a sweep will run; nothing is started and nothing is written.

    `sweep` is a sweep file or the name of a ready sweep. `settings` are keys of the file, or axes
    with a value or a list of values; `data` is where the data are, for all workloads or by label.
    `only` are terms that select a part (`strategy=ddp`), `cluster` is a profile's name or file.

    Raises BadInput for a mistake in any of them.

    >>> import harness
    >>> plan = harness.plan("quickstart", settings={"seeds": [0, 1]}, only=["workload=mlp"])
    >>> plan
    quickstart: 10 trials of 5 cells
    >>> plan.cells[["label", "trials", "strategy"]].values.tolist()[1]
    ['mlp eager fp32 ddp×2 w0 b64 t1', 2, 'ddp']
    """
    folder = results_folder(results)
    texts = settings_texts(settings), data_texts(data)
    loaded, profile = load_planned(
        str(sweep), *texts, cluster, only=only, results=folder, launcher=""
    )
    return SweepPlan(sweep=loaded, profile=profile, results=folder)


def settings_texts(settings: Settings) -> list[str]:
    """Return settings as texts of `--set`; JSON is YAML, and keeps the types of values."""
    if not isinstance(settings, Mapping):
        return list(settings)
    texts = []
    for key, value in settings.items():
        value = list(value) if isinstance(value, range) else value
        texts.append(f"{key}={json.dumps(value, default=str)}")
    return texts


def data_texts(data: Data) -> list[str]:
    """Return where the data are as texts of `--data`."""
    if isinstance(data, Mapping):
        return [f"{label}={path}" for label, path in data.items()]
    return [str(data)] if isinstance(data, str | Path) else list(data)


def estimate_cells(cells: Sequence[Cell], results: Results) -> dict[str, float]:
    """Return the estimated seconds of a trial, by the id of its cell, of the cells that have records."""
    paths_by_cell = results.record_paths_by_cell()
    estimates: dict[str, float] = {}
    for cell in cells if paths_by_cell else ():  # the ids of a hundred thousand cells take seconds
        # Of whole trials, from their start to their end, not of training alone. Those that were
        # interrupted count by their phases: they started again.
        seconds = []
        for path in paths_by_cell.get(cell.id, ()):
            with suppress(BadInput):  # the others will do for a plan
                record = read_record(path)
                if record.status == "done":
                    seconds.append(whole_seconds(record))
        if seconds:
            estimates[cell.id] = fmean(seconds)
    return estimates


def whole_seconds(record: Record) -> float:
    """Return the seconds that a trial takes which is not interrupted: one that was by its phases."""
    if record.interruptions:
        return sum(record.phases.values())
    return record.ended - record.started
