"""Reading what is in MLflow, and interrupting whoever writes to it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.tracking.connect import connect, quiet

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

WRITES = (
    "create_experiment", "create_run", "delete_run", "log_artifact", "log_artifacts", "log_batch",
    "log_text", "restore_experiment", "set_experiment_tag", "set_tag", "set_terminated", "update_run",
)  # fmt: skip
RUN_ID = re.compile(r"\b[0-9a-f]{32}\b")


class Killed(BaseException):
    """Stands for the end of a process between two calls."""


class Meddler:
    """A client that calls `meddle` before its `at`-th writing call, and counts such calls."""

    def __init__(self, client: MlflowClient, at: int, meddle: Callable[[], None]) -> None:
        self.client, self.at, self.meddle, self.calls = client, at, meddle, 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.client, name)
        if name not in WRITES:
            return method

        def call(*arguments: Any, **keywords: Any) -> Any:
            if self.calls == self.at:
                self.meddle()
            self.calls += 1
            return method(*arguments, **keywords)

        return call


def runs_of(uri: str, sweep: str) -> list[Run]:
    """Return every run of a sweep's experiment that is not deleted."""
    with quiet():
        client = connect(uri)
        experiment = client.get_experiment_by_name(sweep)
        if experiment is None:
            return []
        return list(client.search_runs([experiment.experiment_id], max_results=5000))


def by_label(uri: str, sweep: str) -> dict[str, Run]:
    """Return the runs of a sweep that hold now by the whole label, which the sweep's own is without.

    Fail if two have the same one, or the same name.
    """
    runs = [run for run in runs_of(uri, sweep) if "harness.superseded" not in run.data.tags]
    labelled = {run.data.tags.get("harness.label", run.info.run_name): run for run in runs}
    names = [run.info.run_name for run in runs]
    assert len(labelled) == len(set(names)) == len(runs), sorted(names)
    return labelled


def everything(uri: str, sweep: str) -> dict[str, Any]:
    """Return all that MLflow shows of a sweep, by the labels of its runs.

    Ids and moments are left out: they differ between two deliveries of the same records.
    """
    runs = by_label(uri, sweep)
    names = {run.info.run_id: name for name, run in runs.items()}
    with quiet():
        client = connect(uri)
        return {name: _describe(client, run, names) for name, run in runs.items()}


def _describe(client: MlflowClient, run: Run, names: dict[str, str]) -> dict[str, Any]:
    """Return all that one run shows; `names` are those of the runs by id."""
    tags = dict(run.data.tags)
    tags.pop("harness.origin")
    parent = tags.pop("mlflow.parentRunId", None)
    for name, tag in tags.items():
        tags[name] = RUN_ID.sub(lambda match: names.get(match[0], match[0]), tag)
    trial = tags["harness.kind"] == "trial"
    history = {
        key: [
            (m.step, m.value, m.timestamp if trial else 0)
            for m in client.get_metric_history(run.info.run_id, key)
        ]
        for key in run.data.metrics
    }
    return {
        "parent": parent and names[parent],
        "status": run.info.status,
        "times": (run.info.start_time, run.info.end_time),
        "params": run.data.params,
        "tags": tags,
        "metrics": history,
        "artifacts": artifacts(client, run.info.run_id),
    }


def artifacts(client: MlflowClient, run_id: str, path: str | None = None) -> list[str]:
    """Return the paths of all files that are stored with a run, sorted."""
    paths = []
    for item in client.list_artifacts(run_id, path):
        paths += artifacts(client, run_id, item.path) if item.is_dir else [item.path]
    return sorted(paths)


def artifact_text(uri: str, run: Run, path: str, folder: Path) -> str:
    """Return the text of a file that is stored with a run."""
    with quiet():
        folder.mkdir(exist_ok=True)
        file = connect(uri).download_artifacts(run.info.run_id, path, str(folder))
        return Path(file).read_text(encoding="utf-8")


def stored_files(uri: str, run: Run) -> list[str]:
    """Return the paths of all files that are stored with a run."""
    with quiet():
        return artifacts(connect(uri), run.info.run_id)
