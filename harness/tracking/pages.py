"""How MLflow's own pages open on a sweep: its cells side by side, and the columns that differ.

MLflow keeps a view that somebody shares as JSON in a tag of the experiment, and opens it for an
address that names it. The format is not documented, so that a browser test opens the page.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from harness.analysis.scalars import RATE
from harness.spec.cell import Cell
from harness.tracking.contents import TrialOutline, params

VIEW = "harness"
VIEW_TAG = f"mlflow.sharedViewState.{VIEW}"  # MLflow keeps a shared view in an experiment's tag
INTERVAL = ("harness.ci_low", "harness.ci_high", "harness.count")
VERDICT_COLUMNS = {
    "tags.`harness.verdict`": "harness.verdict",
    "metrics.`harness.speedup`": "harness.speedup",
}
PARITY_COLUMN = {"tags.`harness.parity`": "harness.parity"}
LAST_METRICS = ("step_time_p50_ms", "data_wait_share", "trials_done", "trials_failed")
CHARTED_METRICS = ("step_time_p50_ms", "data_wait_share")
RUNS_IN_CHARTS = 20
NAME_COLUMN = "attributes.`Run Name`"
LETTER_WIDTH = 7  # pixels of a column for each letter
MARGIN = 40  # pixels of a column besides its letters


def page(experiment_id: str, run_id: str | None = None, base: str = "http://127.0.0.1:5000") -> str:
    """Return the address of a sweep's cells in MLflow's pages, or of one run.

    `base` is the address of the server. Without `run_id`, the page opens on the view that
    `experiment_tags` has stored with the experiment.
    """
    runs = f"{base.rstrip('/')}/#/experiments/{quote(experiment_id)}/runs"
    workflow = "workflowType=machine_learning"
    if run_id is not None:
        return f"{runs}/{quote(run_id)}?{workflow}"
    return f"{runs}?viewStateShareKey={VIEW}&{workflow}"


def experiment_tags(
    outlines: Sequence[TrialOutline], *, has_parity: bool = False
) -> dict[str, str]:
    """Return the tags of an experiment that make `page` open on the cells of its sweep.

    `has_parity` is whether cells have a rung, which then has a column.

    The view is sorted by name, because MLflow folds runs under their parents as long as they are
    sorted by time. Its filter leaves out the runs of trials and of the sweep.
    """
    cells: dict[str, Cell] = {}
    for outline in outlines:
        cells[outline.cell_id] = outline.cell
    targets = _target_metrics(outlines)
    columns = _columns(list(cells.values()), targets, has_parity=has_parity)
    widths = _column_widths(columns, list(cells.values()))
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
    """Return the names of what trials ended at, sorted: the target metrics and the loss."""
    names = set().union(*(outline.scalars for outline in outlines))
    return sorted(filter(lambda name: name.startswith("final_"), names))


def _columns(cells: Sequence[Cell], targets: Sequence[str], *, has_parity: bool) -> dict[str, str]:
    """Return MLflow's keys of the table's columns with their names, in their order.

    First comes what was measured, then the verdicts, then the params in which the cells differ.
    """
    columns = _metric_columns((RATE, *INTERVAL))
    columns |= VERDICT_COLUMNS
    if has_parity:
        columns |= PARITY_COLUMN
    columns |= _metric_columns(targets)
    for name in _varying_params(cells):
        columns[f"params.`{name}`"] = name
    columns |= _metric_columns(LAST_METRICS)
    return columns


def _column_widths(columns: Mapping[str, str], cells: Sequence[Cell]) -> dict[str, int]:
    """Return the width of each column in pixels, so that no name is cut off.

    MLflow gives every column the same width by default.
    """
    widths = {}
    for column, name in columns.items():
        widths[column] = MARGIN + LETTER_WIDTH * len(name)
    longest_label = max(cells, key=lambda cell: len(cell.label)).label
    widths[NAME_COLUMN] = 2 * MARGIN + LETTER_WIDTH * len(longest_label)
    return widths


def _metric_columns(names: Sequence[str]) -> dict[str, str]:
    """Return MLflow's keys of metrics' columns with their names."""
    return {f"metrics.`{name}`": name for name in names}


def _varying_params(cells: Sequence[Cell]) -> list[str]:
    """Return the params that differ between cells, in the order of the first cell's params.

    Options, data settings and `uses` are left out: they follow from the workload's label.
    """
    values: dict[str, set[str]] = {}  # by param
    for cell in cells:
        for name, value in params(cell).items():
            values.setdefault(name, set()).add(value)
    varying = []
    for name, different in values.items():
        is_axis = "." not in name and name != "uses"
        if is_axis and len(different) > 1:
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
