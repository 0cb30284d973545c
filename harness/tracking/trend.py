"""The trend of a sweep as a run of its experiment in MLflow: a curve for each series, and the page."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from harness.analysis.trend import Trend
from harness.render.trend import headline, label
from harness.statistics.interval import exp
from harness.tracking.markdown import DESCRIPTION_TAG
from harness.tracking.runs import search

if TYPE_CHECKING:
    from mlflow import MlflowClient

NOT_IN_NAMES = re.compile(r"[^\w.\- ]")  # of the characters of a label, as MLflow names metrics
BATCH_SIZE = 1000  # metrics that MLflow takes at a time


def write_trend(
    client: MlflowClient, experiment_id: str, trend: Trend, files: Mapping[str, str]
) -> str:
    """Write the trend as a new run in place of the last one; return its id.

    Each series is a metric, `trend/CELL on HARDWARE`, with a value a night: samples/s, or the ratio to
    the control's. The steps are nights. `files` are texts that are stored with the run, by name.
    """
    from mlflow.entities import Metric

    previous = list(search(client, experiment_id, "tags.`harness.kind` = 'trend'"))
    metrics = []
    for series in trend.series:
        name = NOT_IN_NAMES.sub("-", f"{label(series)} on {series.hardware}")
        for point in series.points:
            milliseconds = round(1000 * point.started)
            metrics.append(Metric(f"trend/{name}", exp(point.value), milliseconds, point.night))
    tags = {
        "harness.kind": "trend",
        "harness.sweep": trend.name,
        DESCRIPTION_TAG: headline(trend),
        "harness.new_slowdowns": str(len(trend.new_slowdowns)),
    }
    started = round(1000 * time.time())
    run_id: str = client.create_run(
        experiment_id, start_time=started, tags=tags, run_name="trend"
    ).info.run_id
    for start in range(0, len(metrics), BATCH_SIZE):
        client.log_batch(run_id, metrics[start : start + BATCH_SIZE], synchronous=True)
    for name, text in files.items():
        client.log_text(run_id, text, name)
    client.set_terminated(run_id)
    for run in previous:
        client.delete_run(run.info.run_id)
    return run_id
