"""What delivering trials to MLflow takes beside a script that logs the same, one `log_metric` at a time.

    python -m tests.programs.perf.one_by_one

The script logs what a delivered trial has in MLflow: its parameters and tags in one call each, and
every point of its metrics in a call of its own, as a training loop does. Both write to SQLite, in turn.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import mlflow
from mlflow.entities import Metric, Run
from mlflow.tracking import MlflowClient

from harness.core.paths import Results, SweepFolder
from harness.records.record import Record
from harness.tracking import Tracker
from tests.factories import write_sweep, write_trial
from tests.programs.perf.comparison import compare, leave_rows, markdown_table
from tests.programs.perf.tracking import STEPS, Records

BATCH = 8  # trials that are delivered at once
ROUNDS = 8


def deliver(tracker: Tracker, folder: SweepFolder, records: list[Record]) -> float:
    """Return the seconds that a trial of those takes."""
    for record in records:
        write_trial(folder, record)
    start = time.perf_counter()
    tracker.deliver(folder, [record.trial.id for record in records], in_passing=True)
    return (time.perf_counter() - start) / len(records)


def newest_trial(client: MlflowClient) -> tuple[Run, list[Metric]]:
    """Return the run of a trial that was delivered, and all points of its metrics."""
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    runs = client.search_runs(
        experiments,
        "tags.`harness.kind` = 'trial'",
        order_by=["attributes.start_time DESC"],
        max_results=1,
    )
    (run,) = runs
    points = []
    for name in run.data.metrics:
        points += client.get_metric_history(run.info.run_id, name)
    return run, points


def log_one_by_one(run: Run, points: list[Metric]) -> float:
    """Log the same as a script would; return the seconds that it takes."""
    start = time.perf_counter()
    with mlflow.start_run():
        mlflow.log_params(run.data.params)
        mlflow.set_tags(run.data.tags)
        for point in points:
            mlflow.log_metric(point.key, point.value, step=point.step)
    return time.perf_counter() - start


@contextmanager
def script_store(folder: Path) -> Iterator[None]:
    """Have MLflow's functions write to a database of their own, which has a run already."""
    mlflow.set_tracking_uri(f"sqlite:///{folder}/script.db")
    with mlflow.start_run():
        mlflow.log_metric("first", 0.0)
    yield


def main() -> None:
    """Print the row."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.programs.perf.one_by_one", description=__doc__
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"(default {ROUNDS})")
    options = parser.parse_args()
    planned = Records()
    records = [planned.record(number) for number in range(1 + options.rounds * BATCH)]
    first, later = records[:1], records[1:]
    ours: list[float] = []
    theirs: list[float] = []
    with tempfile.TemporaryDirectory() as name, script_store(Path(name)):
        results = Results(Path(name))
        folder = results.sweep_folder("demo")
        write_sweep(folder, first, planned=[record.trial for record in later])
        tracker = Tracker(results)
        tracker.deliver(folder, [record.trial.id for record in first])
        for number in range(options.rounds):
            ours.append(deliver(tracker, folder, later[number * BATCH :][:BATCH]))
            run, points = newest_trial(MlflowClient(tracker.uri))
            theirs.append(log_one_by_one(run, points))
    row = compare(f"a trial of {STEPS} steps in MLflow", "one log_metric at a time", ours, theirs)
    leave_rows([row])
    print(markdown_table([row]))
    print(f"{len(points)} points of metrics a trial; {BATCH} trials are delivered at once.")
    print(f"MLflow {mlflow.__version__}, SQLite, load {os.getloadavg()[0]:.1f}.")


if __name__ == "__main__":
    main()
