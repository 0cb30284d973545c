"""The trend of a sweep as a run of its experiment in MLflow: a curve for each series, and the page."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from harness.analysis.scalars import distinct_names, metric_name
from harness.analysis.trend import Trend
from harness.render.trend import headline, label
from harness.statistics.interval import exp
from harness.tracking.markdown import DESCRIPTION_TAG
from harness.tracking.runs import log_batches, search

if TYPE_CHECKING:
    from mlflow import MlflowClient


def write_trend(
    client: MlflowClient, experiment_id: str, trend: Trend, files: Mapping[str, str]
) -> str:
    """Write the trend as a new run in place of the last one; return its id.

    Each series is a metric, `trend/CELL on HARDWARE`, with a value a night: samples/s, or the ratio to
    the control's. The steps are nights. `files` are texts that are stored with the run, by name.
    """
    from mlflow.entities import Metric

    previous = list(search(client, experiment_id, "tags.`harness.kind` = 'trend'"))
    titles = [f"{label(series)} on {series.hardware}" for series in trend.series]
    names = distinct_names(
        {title: metric_name(f"trend/{title.replace('/', '-')}") for title in titles}
    )
    metrics = []
    for title, series in zip(titles, trend.series, strict=True):
        for point in series.points:
            milliseconds = round(1000 * point.started)
            metrics.append(Metric(names[title], exp(point.value), milliseconds, point.night))
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
    log_batches(client, run_id, metrics)
    for name, text in files.items():
        client.log_text(run_id, text, name)
    client.set_terminated(run_id)
    for run in previous:
        client.delete_run(run.info.run_id)
    return run_id
