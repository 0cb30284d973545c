"""How MLflow's own pages open on a sweep: its cells side by side, and the columns that differ."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from harness.spec.cell import Cell
from harness.tracking.contents import TrialOutline, params
from harness.tracking.scalars import RATE

VIEW = "harness"
VIEW_TAG = f"mlflow.sharedViewState.{VIEW}"  # MLflow keeps a shared view in an experiment's tag
INTERVAL = ("harness.ci_low", "harness.ci_high", "harness.count")
VERDICT_COLUMNS = {
    "tags.`harness.verdict`": "harness.verdict",
    "metrics.`harness.speedup`": "harness.speedup",
}
LAST_METRICS = ("step_time_p50_ms", "data_wait_share", "trials_done", "trials_failed")
CHARTED_METRICS = ("step_time_p50_ms", "data_wait_share")
RUNS_IN_CHARTS = 20
NAME_COLUMN = "attributes.`Run Name`"
LETTER_WIDTH = 7  # pixels of a column for each letter
MARGIN = 40  # pixels of a column besides its letters


def page(experiment_id: str, run_id: str | None = None, base: str = "http://127.0.0.1:5000") -> str:
    """Return the address of a sweep's cells in MLflow's pages, or of one run.

    `base` is the address of the server.
    """
    runs = f"{base.rstrip('/')}/#/experiments/{quote(experiment_id)}/runs"
    workflow = "workflowType=machine_learning"
    if run_id is not None:
        return f"{runs}/{quote(run_id)}?{workflow}"
    return f"{runs}?viewStateShareKey={VIEW}&{workflow}"


def experiment_tags(outlines: Sequence[TrialOutline]) -> dict[str, str]:
    """Return the tags of an experiment that make `page` open on the cells of its sweep.

    The view is sorted by name, because MLflow folds runs under their parents as long as they are
    sorted by time.
    """
    cells = {outline.cell_id: outline.cell for outline in outlines}
    targets = _target_metrics(outlines)
    columns = _columns(list(cells.values()), targets)
    widths = {column: MARGIN + LETTER_WIDTH * len(name) for column, name in columns.items()}
    longest_label = max(len(cell.label) for cell in cells.values())
    widths[NAME_COLUMN] = 2 * MARGIN + LETTER_WIDTH * longest_label
    view = {
        "searchFilter": "tags.`harness.kind` = 'cell'",
        "orderByKey": "tags.`mlflow.runName`",
        "orderByAsc": True,
        "selectedColumns": list(columns),
        "columnOrder": [NAME_COLUMN, *columns],
        "columnWidths": widths,
        "runsHiddenMode": f"FIRST_{RUNS_IN_CHARTS}_RUNS",
        "compareRunSections": [
            _section("harness", "At a glance"),
            _section("rest", "Model metrics"),
        ],
        "compareRunCharts": [
            _bar_chart(name, "harness")
            for name in (RATE, "harness.speedup", *targets, *CHARTED_METRICS)
        ],
    }
    return {VIEW_TAG: json.dumps(view), "mlflow.experimentKind": "custom_model_development"}


def _target_metrics(outlines: Sequence[TrialOutline]) -> list[str]:
    """Return the names of what trials ended at: the target metrics and the loss."""
    names = {name for outline in outlines for name in outline.scalars}
    return sorted(name for name in names if name.startswith("final_"))


def _columns(cells: Sequence[Cell], targets: Sequence[str]) -> dict[str, str]:
    """Return MLflow's keys of the table's columns with their names, in their order."""
    columns = _metric_columns((RATE, *INTERVAL))
    columns |= VERDICT_COLUMNS
    columns |= _metric_columns(targets)
    columns |= {f"params.`{name}`": name for name in _varying_params(cells)}
    columns |= _metric_columns(LAST_METRICS)
    return columns


def _metric_columns(names: Sequence[str]) -> dict[str, str]:
    return {f"metrics.`{name}`": name for name in names}


def _varying_params(cells: Sequence[Cell]) -> list[str]:
    """Return the params that differ between cells, without options, data settings and `uses`."""
    settings: list[Mapping[str, str]] = [params(cell) for cell in cells]
    names = dict.fromkeys(name for cell_settings in settings for name in cell_settings)
    varying = []
    for name in names:
        if "." in name or name == "uses":
            continue
        values = {cell_settings.get(name) for cell_settings in settings}
        if len(values) > 1:
            varying.append(name)
    return varying


def _section(id_: str, name: str) -> dict[str, Any]:
    """Return a section of the page with charts, as MLflow keeps it."""
    return {
        "uuid": id_,
        "name": name,
        "display": True,
        "isReordered": False,
        "deleted": False,
        "isGenerated": True,
    }


def _bar_chart(metric: str, section: str) -> dict[str, Any]:
    """Return a chart with a bar for each run, as MLflow keeps it."""
    return {
        "uuid": f"harness-{metric}",
        "type": "BAR",
        "metricKey": metric,
        "displayName": metric,
        "runsCountToCompare": RUNS_IN_CHARTS,
        "metricSectionId": section,
        "deleted": False,
        "isGenerated": False,
    }
