"""How MLflow's own pages open on a sweep: its cells side by side, and the columns that differ.

MLflow keeps a view that somebody shares as JSON in a tag of the experiment, and opens it for an
address that names it. The format is not documented, so that a browser test opens the page.
"""

from __future__ import annotations

import json
from urllib.parse import quote

from harness.analysis.cells import naming_axes
from harness.analysis.sweep_result import SweepResult
from harness.records.numbers import RATES, final_name, metric_name
from harness.tracking.contents import CELL_METRICS, SPEED_TAG
from harness.tracking.runs import PLANNED_TAG
from harness.view.names import cell_names
from harness.view.sweep import common_unit

VIEW = "harness"
VIEW_TAG = f"mlflow.sharedViewState.{VIEW}"  # MLflow keeps a shared view in an experiment's tag
NAME_COLUMN = "attributes.`Run Name`"
CREATED_COLUMN = "runDateAndNestInfo"  # stays next to the name; its icon is that of the status
CREATED_WIDTH = 40  # pixels: the icon alone
LETTER_WIDTH = 8  # pixels of a column for each letter
MARGIN = 32  # pixels of a column besides its letters
MOST_LETTERS = 15  # of a name that is shown whole: what follows should be in sight too
LONGEST_SPEED = 18  # letters, of which some are narrow, as in `1.35× (1.21 to 1.49)`
NAME_MARGIN = 60  # pixels of the column of names, which has a color and a button too


def page(experiment_id: str, base: str) -> str:
    """Return the address of a sweep's cells in MLflow's pages, on the server at `base`.

    The page opens on the view that `experiment_tags` has stored with the experiment.
    """
    runs = f"{base.rstrip('/')}/#/experiments/{quote(experiment_id)}/runs"
    return f"{runs}?viewStateShareKey={VIEW}&workflowType=machine_learning"


def experiment_tags(result: SweepResult, *, has_parity: bool) -> dict[str, str]:
    """Return the tags of an experiment that make `page` open on the cells of its sweep.

    The view is sorted by throughput, the fastest cell first, with the answer before the axes. Its filter
    leaves out trials, the sweep, and cells that it no longer has.
    """
    columns = _columns(result, has_parity=has_parity)
    rate = RATES[common_unit(result.cells)]
    names = cell_names(result.all_cells, with_workload=True)
    longest_name = max(map(len, names.values()))
    widths = {}
    for key, name in columns.items():
        letters = min(len(name), MOST_LETTERS)
        widths[key] = MARGIN + LETTER_WIDTH * letters
    widths[f"tags.`{SPEED_TAG}`"] = MARGIN + LETTER_WIDTH * LONGEST_SPEED
    widths[CREATED_COLUMN] = CREATED_WIDTH
    widths[NAME_COLUMN] = NAME_MARGIN + LETTER_WIDTH * longest_name
    view = {
        "searchFilter": f"tags.`harness.kind` = 'cell' AND tags.`{PLANNED_TAG}` = 'yes'",
        "orderByKey": f"metrics.`{rate}`",
        "orderByAsc": False,
        "selectedColumns": list(columns),
        "columnOrder": [NAME_COLUMN, CREATED_COLUMN, *columns],
        "columnWidths": widths,
    }
    return {VIEW_TAG: json.dumps(view), "mlflow.experimentKind": "custom_model_development"}


def _columns(result: SweepResult, *, has_parity: bool) -> dict[str, str]:
    """Return MLflow's keys of the table's columns with their names, in their order."""
    targets = {cell.target.name for cell in result.cells if cell.target is not None}
    metrics = [
        RATES[common_unit(result.cells)],
        *map(final_name, sorted(targets)),
        "speedup",
        "speedup_low",
        "speedup_high",
    ]
    axes = map(metric_name, naming_axes(result.all_cells))
    columns = {f"tags.`{name}`": name for name in ("harness.verdict", SPEED_TAG)}
    columns |= {f"metrics.`{name}`": name for name in metrics}
    if has_parity:
        columns["tags.`harness.parity`"] = "harness.parity"
    columns |= {f"params.`{axis}`": axis for axis in axes}
    return columns | {f"metrics.`{name}`": name for name in CELL_METRICS}
