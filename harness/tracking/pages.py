"""How MLflow's own pages open on a sweep: its cells side by side, with columns for what tells them apart."""

from __future__ import annotations

import json
from collections.abc import Sequence
from urllib.parse import quote

from harness.tracking.contents import RATE, Outline, params

VIEW = "harness"
VIEW_TAG = f"mlflow.sharedViewState.{VIEW}"  # MLflow keeps a shared view in a tag of the experiment
INTERVAL = ("harness.ci_low", "harness.ci_high", "harness.count")
VERDICT = {
    "tags.`harness.verdict`": "harness.verdict",
    "metrics.`harness.speedup`": "harness.speedup",
}
METRICS = ("step_time_p50_ms", "data_wait_share", "trials_done", "trials_failed")
LETTER, MARGIN = 7, 40  # pixels


def page(experiment_id: str, run_id: str | None = None, base: str = "http://127.0.0.1:5000") -> str:
    """The address of a sweep's cells in MLflow's pages, or of one run."""
    runs, view = (
        f"{base.rstrip('/')}/#/experiments/{quote(experiment_id)}/runs",
        "workflowType=machine_learning",
    )
    return f"{runs}/{quote(run_id)}?{view}" if run_id else f"{runs}?viewStateShareKey={VIEW}&{view}"


def experiment_tags(outlines: Sequence[Outline]) -> dict[str, str]:
    """What makes `page` show cells by name, what they measured, the verdicts, and the params that differ between them.

    MLflow folds runs under their parents as long as they are sorted by time; by name they are all there to see.
    """
    cells = {outline.cell_id: outline.cell for outline in outlines}
    settings = [params(cell) for cell in cells.values()]
    names = dict.fromkeys(
        name for mine in settings for name in mine if "." not in name and name != "uses"
    )
    differing = [name for name in names if len({mine.get(name) for mine in settings}) > 1]
    targets = sorted(
        {key for outline in outlines for key in outline.scalars if key.startswith("final_")}
    )
    columns = {f"metrics.`{name}`": name for name in (RATE, *INTERVAL)} | VERDICT
    columns |= {f"metrics.`{name}`": name for name in targets} | {
        f"params.`{name}`": name for name in differing
    }
    columns |= {f"metrics.`{name}`": name for name in METRICS}
    name_column = "attributes.`Run Name`"
    view = {
        "searchFilter": "tags.`harness.kind` = 'cell'",
        "orderByKey": "tags.`mlflow.runName`",
        "orderByAsc": True,
        "selectedColumns": list(columns),
        "columnOrder": [name_column, *columns],
        "columnWidths": {column: MARGIN + LETTER * len(name) for column, name in columns.items()}
        | {name_column: 2 * MARGIN + LETTER * max(len(cell.label) for cell in cells.values())},
        "runsHiddenMode": "FIRST_20_RUNS",
        "compareRunSections": [
            {
                "uuid": section,
                "name": name,
                "display": True,
                "isReordered": False,
                "deleted": False,
                "isGenerated": True,
            }
            for section, name in (("harness", "At a glance"), ("rest", "Model metrics"))
        ],
        "compareRunCharts": [
            {
                "uuid": f"harness-{name}",
                "type": "BAR",
                "metricKey": name,
                "displayName": name,
                "runsCountToCompare": 20,
            }
            | {"metricSectionId": "harness", "deleted": False, "isGenerated": False}
            for name in (RATE, "harness.speedup", *targets, *METRICS[:2])
        ],
    }
    return {VIEW_TAG: json.dumps(view), "mlflow.experimentKind": "custom_model_development"}
