"""Measures what delivering a sweep to MLflow costs while it runs, and at its end.

No trial runs: records are written, eight at a time, and delivered as the process does that delivers
for `harness run`. What a trial takes is shown for the first and for the last of them, which must be
alike. The last one brings the verdicts on all cells.

After each eight, another database gets their params, metrics and tags by MLflow's own three calls: the
least that a trial's run takes on this machine at this hour, and the measure of its speed.

    python -m tests.programs.perf.tracking [TRIALS]
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import mean

from harness.core.paths import Results, SweepFolder
from harness.records.files import write_record
from harness.records.record import Record
from harness.sweep.cell import Trial
from harness.tracking import Tracker
from harness.tracking.contents import RunContents, trial_contents
from tests.factories import make_cell, make_record, write_spec_of

CELLS, STEPS = 100, 20
BATCH = 8  # trials that are delivered at once
SHOWN = 96  # of the first and of the last trials whose mean is shown
TRIALS = 500


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What was spent on something, in seconds."""

    wall: float
    cpu: float  # of this process

    def for_each(self, count: int) -> Spent:
        """Return what each of `count` things took."""
        return Spent(wall=self.wall / count, cpu=self.cpu / count)


@dataclass(frozen=True, kw_only=True)
class SweepDelivery:
    """What the deliveries of a sweep took."""

    opening: Spent  # loading MLflow and making a database
    trials: Sequence[Spent]  # a trial of each delivery while the sweep runs
    # The same trials by `create_run`, `log_batch` and `set_terminated` alone.
    calls: Sequence[Spent]
    end: Spent  # the last trial, with all verdicts and pictures
    again: Spent  # all once more, which writes nothing
    running_mib: float  # the peak of this process's resident memory while the sweep runs
    mib: float  # and its peak once all was delivered


def deliver_sweep(trials: int) -> SweepDelivery:
    """Deliver a sweep of so many trials as `harness run` does, and return what that took."""
    planned = Records()
    ids = [planned.trial(number).id for number in range(trials)]
    with ExitStack() as stack:
        aside = stack.enter_context(tempfile.TemporaryDirectory())
        results = Results(Path(aside))
        folder = results.sweep_folder("demo")
        folder.path.mkdir(parents=True)
        write_spec_of(folder, "demo", [planned.trial(number) for number in range(trials)])
        tracker = Tracker(results)
        opening = measure(tracker.prepare)
        caller = stack.enter_context(ProcessPoolExecutor(1, get_context("spawn")))
        caller.submit(time_three_calls, Path(aside), []).result()
        while_it_runs, by_calls = [], []
        for start in range(0, trials - 1, BATCH):
            batch = range(start, min(start + BATCH, trials - 1))
            records = [planned.record(number) for number in batch]
            write(folder, records)
            new = ids[batch.start : batch.stop]
            spent = measure(partial(tracker.deliver_trials, folder, new))
            while_it_runs.append(spent.for_each(len(batch)))
            contents = [trial_contents(record, "a cell", 1) for record in records]
            spent = caller.submit(time_three_calls, Path(aside), contents).result()
            by_calls.append(spent.for_each(len(batch)))
        running_mib = peak_mib()
        write(folder, [planned.record(trials - 1)])
        return SweepDelivery(
            opening=opening,
            trials=while_it_runs,
            calls=by_calls,
            end=measure(partial(tracker.deliver, folder)),
            running_mib=running_mib,
            mib=peak_mib(),
            again=measure(partial(tracker.deliver, folder)),
        )


def peak_mib() -> float:
    """Return the peak of this process's resident memory so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def time_three_calls(folder: Path, contents: Sequence[RunContents]) -> Spent:
    """Return what it takes to make the runs of some trials, in a database in `folder`.

    To be called in one other process, whose memory does not count.
    """
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param, RunTag

    client = MlflowClient(f"sqlite:///{folder / 'calls.db'}")
    found = client.get_experiment_by_name("calls")
    experiment = client.create_experiment("calls") if found is None else found.experiment_id

    def send() -> None:
        for run_contents in contents:
            run = client.create_run(experiment, run_contents.started)
            params = [Param(name, value) for name, value in run_contents.params.items()]
            tags = [RunTag(name, value) for name, value in run_contents.tags.items()]
            metrics = [Metric(*point) for point in run_contents.metrics]
            client.log_batch(run.info.run_id, metrics, params, tags)
            client.set_terminated(run.info.run_id, run_contents.status, run_contents.ended)

    return measure(send)


class Records:
    """Records of trials that follow each other, a seed of each cell after the other."""

    def __init__(self) -> None:
        self._templates: list[Record] = []
        for number in range(CELLS):
            cell = make_cell(batch_size=8 * (number + 1), steps=STEPS)
            self._templates.append(make_record(cell))

    def trial(self, number: int) -> Trial:
        """Return a trial by its number, counted from 0."""
        return replace(self._templates[number % CELLS].trial, seed=number // CELLS)

    def record(self, number: int) -> Record:
        """Return the record of a trial by its number."""
        template = self._templates[number % CELLS]
        return replace(template, trial=self.trial(number), started=template.started + number)


def write(folder: SweepFolder, records: Sequence[Record]) -> None:
    """Leave records in the folders of their trials, without waiting for the disk."""
    for record in records:
        trial_folder = folder.trial_folder(record.trial.id)
        trial_folder.path.mkdir(parents=True)
        write_record(trial_folder.record_path, record, durable=False)


def measure(action: Callable[[], object]) -> Spent:
    """Return what an action takes."""
    wall, cpu = time.perf_counter(), time.process_time()
    action()
    return Spent(wall=time.perf_counter() - wall, cpu=time.process_time() - cpu)


def average(spent: Sequence[Spent]) -> Spent:
    """Return the mean of what several things took."""
    return Spent(
        wall=mean(single.wall for single in spent), cpu=mean(single.cpu for single in spent)
    )


def show(title: str, spent: Spent) -> None:
    """Print one row."""
    print(f"{title:45}{1000 * spent.wall:10,.1f} ms wall{1000 * spent.cpu:10,.1f} ms CPU")


def main() -> None:
    """Print what the deliveries took."""
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else TRIALS
    delivery = deliver_sweep(trials)
    deliveries = SHOWN // BATCH
    show("opening a new database", delivery.opening)
    show(f"each of the first {SHOWN}", average(delivery.trials[:deliveries]))
    show(f"each of the last {SHOWN}", average(delivery.trials[-deliveries:]))
    show("each by MLflow's three calls alone", average(delivery.calls))
    show("the last one, with all verdicts", delivery.end)
    show("all again: nothing is written", delivery.again)
    print(
        f"{trials:,} trials of {CELLS} cells; at most {delivery.running_mib:,.0f} MiB while they run,"
        f" {delivery.mib:,.0f} MiB with the last one"
    )


if __name__ == "__main__":
    main()
