"""How MLflow's own pages open on a sweep: its cells side by side, and the columns that differ.

MLflow keeps a view that somebody shares as JSON in a tag of the experiment, and opens it for an
address that names it. The format is not documented, so that a browser test opens the page.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from harness.analysis.cells import naming_axes
from harness.analysis.scalars import RATE, RATES, metric_name, target_name
from harness.render.format import cell_names
from harness.spec.cell import Cell
from harness.tracking.contents import TrialOutline, params, text_digest
from harness.tracking.markdown import DESCRIPTION_TAG
from harness.tracking.verdicts import LETTERS

VIEW = "harness"
OUR_DESCRIPTION_TAG = "harness.description"  # the digests of descriptions that we have written
VIEW_TAG = f"mlflow.sharedViewState.{VIEW}"  # MLflow keeps a shared view in an experiment's tag
RATIO_AND_INTERVAL = ("harness.speedup", "harness.ci_low", "harness.ci_high", "harness.ci_count")
INTERVAL_COLUMN = "tags.`harness.interval`"
# The answer to which cell is fastest, and whether that is certain. With the throughput, the target
# metric and the axes that vary after it, it fits next to the name at 1,280 pixels, so that nobody has to
# scroll.
ANSWER_COLUMNS = {
    "tags.`harness.verdict`": "harness.verdict",
    INTERVAL_COLUMN: "harness.interval",
}
PARITY_COLUMN = {"tags.`harness.parity`": "harness.parity"}
LAST_METRICS = ("step_time_p50_ms", "data_wait_share", "trials_done", "trials_failed")
CHARTED_METRICS = ("step_time_p50_ms", "data_wait_share")
RUNS_IN_CHARTS = 20
NAME_COLUMN = "attributes.`Run Name`"
CREATED_COLUMN = "runDateAndNestInfo"  # stays next to the name; its icon is that of the status
CREATED_WIDTH = 40  # pixels: the icon alone
LETTER_WIDTH = 7  # pixels of a column for each letter
MARGIN = 24  # pixels of a column besides its letters
NAME_MARGIN = 44  # pixels of the column of names, which has a color and a button too
BAR_WIDTH = MARGIN + 9 * LETTERS + 10 * LETTER_WIDTH  # Braille is wider; two numbers
RATE_WIDTH = 100  # pixels: enough for the numbers, not for the long name above them


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

    The view is sorted by throughput, the fastest cell first. Its filter leaves out the runs of trials
    and of the sweep.
    """
    cells: dict[str, Cell] = {}
    for outline in outlines:
        cells[outline.cell_id] = outline.cell
    # What trials ended at: the target metrics and the loss.
    names = set().union(*(outline.scalars for outline in outlines))
    final = sorted(name for name in names if name.startswith("final_"))
    own = {
        metric_name(f"final_{target_name(outline.target)}")
        for outline in outlines
        if outline.target is not None
    }
    rate = RATES["steps/s"] if names & {*RATES.values()} == {RATES["steps/s"]} else RATE
    targets = [name for name in final if name in own]
    others = [name for name in final if name not in own]
    columns = _columns(list(cells.values()), [rate, *targets], others, has_parity=has_parity)
    widths = _column_widths(columns, list(cells.values()))
    widths[f"metrics.`{rate}`"] = RATE_WIDTH
    view = {
        "searchFilter": "tags.`harness.kind` = 'cell'",
        "orderByKey": f"metrics.`{rate}`",
        "orderByAsc": False,
        "selectedColumns": list(columns),
        "columnOrder": [NAME_COLUMN, CREATED_COLUMN, *columns],
        "columnWidths": widths,
        "runsHiddenMode": f"FIRST_{RUNS_IN_CHARTS}_RUNS",
        "compareRunSections": [
            _section("harness", "At a glance"),
            _section("rest", "Model metrics"),
        ],
        "compareRunCharts": [
            _bar_chart(name)
            for name in (rate, "harness.speedup", *targets, *others, *CHARTED_METRICS)
        ],
    }
    return {VIEW_TAG: json.dumps(view), "mlflow.experimentKind": "custom_model_development"}


def description_tags(tags: Mapping[str, str], description: str) -> dict[str, str]:
    """Return the tags that give an experiment its description, none if somebody has written another.

    `tags` are those that the experiment has. The digests of the description that we have written and
    of the one that replaces it are a tag too, written before it: so a delivery that dies between the
    two leaves a description that is known to be ours.
    """
    digests = {text_digest(description)}
    present = tags.get(DESCRIPTION_TAG)
    if present:
        if text_digest(present) not in tags.get(OUR_DESCRIPTION_TAG, ""):
            return {}
        digests.add(text_digest(present))
    return {OUR_DESCRIPTION_TAG: " ".join(sorted(digests)), DESCRIPTION_TAG: description}


def _columns(
    cells: Sequence[Cell], targets: Sequence[str], others: Sequence[str], *, has_parity: bool
) -> dict[str, str]:
    """Return MLflow's keys of the table's columns with their names, in their order.

    First come verdict and throughput, then the target metrics and the axes that vary, then whatever
    else was measured, `others` among it, or differs.
    """
    columns = ANSWER_COLUMNS | _metric_columns(targets)
    columns |= _param_columns(map(metric_name, naming_axes(cells)))
    columns |= _metric_columns(RATIO_AND_INTERVAL)
    if has_parity:
        columns |= PARITY_COLUMN
    columns |= _metric_columns(others)
    columns |= _param_columns(_varying_params(cells))
    columns |= _metric_columns(LAST_METRICS)
    return columns


def _column_widths(columns: Mapping[str, str], cells: Sequence[Cell]) -> dict[str, int]:
    """Return the width of each column in pixels, so that no name of a run is cut off.

    MLflow gives every column the same width by default.
    """
    widths = {}
    for column, name in columns.items():
        widths[column] = MARGIN + LETTER_WIDTH * len(name)
    names = cell_names(cells, with_workload=True)
    longest_name = max(map(len, names.values()))
    widths[INTERVAL_COLUMN] = BAR_WIDTH
    widths[CREATED_COLUMN] = CREATED_WIDTH
    widths[NAME_COLUMN] = NAME_MARGIN + LETTER_WIDTH * longest_name
    return widths


def _metric_columns(names: Sequence[str]) -> dict[str, str]:
    """Return MLflow's keys of metrics' columns with their names."""
    return {f"metrics.`{name}`": name for name in names}


def _param_columns(names: Iterable[str]) -> dict[str, str]:
    """Return MLflow's keys of params' columns with their names."""
    return {f"params.`{name}`": name for name in names}


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


def _bar_chart(metric: str) -> dict[str, Any]:
    """Return a chart of the first section with a bar for each run, as MLflow keeps it."""
    return {
        "uuid": f"harness-{metric}",
        "type": "BAR",
        "metricKey": metric,
        "displayName": metric,
        "runsCountToCompare": RUNS_IN_CHARTS,
        "metricSectionId": "harness",
        "deleted": False,
        "isGenerated": False,
    }
