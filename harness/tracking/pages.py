"""How MLflow's own pages open on a sweep: which columns, what is unfolded, where."""

from __future__ import annotations

import json
from collections.abc import Sequence
from urllib.parse import quote

from harness.tracking.contents import Outline, params

VIEW = "harness"
VIEW_TAG = f"mlflow.sharedViewState.{VIEW}"  # where MLflow keeps a view that has been shared
METRICS = ("throughput_samples_per_s", "step_time_p50_ms", "wait_share", "trials_done", "trials_failed")


def page(experiment_id: str, run_id: str | None = None, base: str = "http://127.0.0.1:5000") -> str:
    """The address of a sweep's experiment, or of one run in it, in MLflow's pages."""
    runs = f"{base.rstrip('/')}/#/experiments/{quote(experiment_id)}/runs"
    return f"{runs}/{quote(run_id)}" if run_id else f"{runs}?viewStateShareKey={VIEW}"


def experiment_tags(outlines: Sequence[Outline], sweep_run: str) -> dict[str, str]:
    """Opens the page with the sweep's run unfolded, and columns for what differs between cells and what they measure."""
    settings = [params(outline.cell) for outline in outlines]
    names = list(dict.fromkeys(name for mine in settings for name in mine))
    differing = [name for name in names if len({mine.get(name) for mine in settings}) > 1]
    own = [name for name in differing if not name.startswith(("options.", "data."))] or ["workload"]
    targets = {key for outline in outlines for key in outline.scalars if key.startswith("final_")}
    columns = [f"params.`{name}`" for name in own if name != "uses"]
    columns += [f"metrics.`{name}`" for name in (METRICS[0], *sorted(targets), *METRICS[1:])]
    view = {"selectedColumns": columns, "runsExpanded": {sweep_run: True}}
    return {
        VIEW_TAG: json.dumps(view),
        "mlflow.experimentKind": "custom_model_development",
        "mlflow.experiment.primaryMetric.name": METRICS[0],
    }
