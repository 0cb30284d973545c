"""The trials of a sweep as one flat table: their identity, conditions and measurements.

`harness show --format`, data frames (`harness.load(…).trials`) and MLflow's `trials.csv` are this
table. A row is a trial that has left a record; a number that no trial has is no column.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.hardware.machine import machine_key
from harness.records.numbers import NUMBERS, row_of
from harness.records.record import Record
from harness.spec.axes import AXES, HELP
from harness.spec.cell import Cell, axis_names, setting_of
from harness.spec.environment import variable_of

Value = str | int | float | bool | None
# time: seconds since the epoch in a row, to be shown as a date and a time in UTC.
Kind = Literal["text", "integer", "number", "boolean", "time"]


@dataclass(frozen=True, kw_only=True)
class TableColumn:
    """A column of the table."""

    name: str
    kind: Kind
    unit: str = ""  # empty for names, counts and shares
    meaning: str


@dataclass(frozen=True, kw_only=True)
class TrialTable:
    """Trials in rows, in the order in which they are shown."""

    columns: Sequence[TableColumn]
    rows: Sequence[Mapping[str, Value]]  # by the columns' names; None for what is unknown


# Columns that identify a trial, before the axes.
IDENTITY = (
    TableColumn(name="sweep", kind="text", meaning="the sweep that ran the trial"),
    TableColumn(name="trial", kind="text", meaning="the trial's id"),
    TableColumn(name="cell", kind="text", meaning="the cell's id"),
    TableColumn(name="workload", kind="text", meaning="the sweep's name for the workload"),
)
COURSE = (
    TableColumn(name="seed", kind="integer", meaning="seed of parameters, data order and dropout"),
    TableColumn(
        name="repeat", kind="integer", meaning="tells trials of a cell and seed apart, from 0"
    ),
    TableColumn(name="status", kind="text", meaning="done, invalid, failed or interrupted"),
)
# Columns after the numbers. All are there, so that scripts can ask for `failure` where nothing failed.
ORIGIN = (
    TableColumn(name="attempt", kind="integer", meaning="how often it was started, from 1"),
    TableColumn(name="started", kind="time", unit="UTC", meaning="when the last attempt began"),
    TableColumn(
        name="duration_s", kind="number", unit="s", meaning="time from its start to its end"
    ),
    TableColumn(name="nodes", kind="integer", meaning="how many machines its ranks ran on"),
    TableColumn(
        name="hardware", kind="text", meaning="kind of hardware, as baselines are filed by"
    ),
    TableColumn(name="torch", kind="text", meaning="version of torch"),
    TableColumn(name="commit", kind="text", meaning="commit of the sweep's repository, if any"),
    TableColumn(name="harness_commit", kind="text", meaning="commit of the harness, if any"),
    TableColumn(name="parameter_digest", kind="text", meaning="SHA-256 of the final parameters"),
    TableColumn(name="order_digest", kind="text", meaning="digest of the order of all samples"),
    TableColumn(name="violations", kind="text", meaning="rules of validity that it broke"),
    TableColumn(name="failure", kind="text", meaning="why it failed"),
)


def trial_row(record: Record) -> dict[str, Value]:
    """Return the row of one trial; what was not measured is absent."""
    return join_row(trial_facts(record), record.trial.cell, record.numbers)


def join_row(
    facts: Mapping[str, Value], cell: Cell, numbers: Mapping[str, float]
) -> dict[str, Value]:
    """Return a row from its parts: `trial_facts`, the axes of the cell and the trial's `numbers`."""
    axes = {axis: _plain(level) for axis, level in cell.levels.items()}
    return {**facts, **axes, **numbers}


def trial_facts(record: Record) -> dict[str, Value]:
    """Return the columns of a trial other than its axes and numbers."""
    trial = record.trial
    facts: dict[str, Value] = {
        "sweep": record.sweep,
        "trial": trial.id,
        "cell": trial.cell.id,
        "workload": trial.cell.workload.label,
        "seed": trial.seed,
        "repeat": trial.repeat,
        "status": record.status,
        "attempt": record.attempt,
        "started": record.started,
        "duration_s": record.ended - record.started,
        "nodes": record.nodes,
        "order_digest": record.order_digest,
        "violations": "; ".join(record.violations) or None,
        "failure": None if record.failure is None else str(record.failure),
    }
    if record.environment is not None:
        environment = record.environment
        facts["hardware"] = machine_key(environment.hardware, record.device)
        facts["torch"] = environment.software.torch
        if environment.repository is not None:
            facts["commit"] = environment.repository.commit
        if environment.code is not None:
            facts["harness_commit"] = environment.code.commit
    if record.rank0 is not None:
        facts["parameter_digest"] = record.rank0.parameter_digest
    return facts


def _plain(level: object) -> Value:
    """Return the value of an axis for a table: lists and mappings as JSON."""
    if level is None or isinstance(level, str | int | float | bool):
        return level
    return json.dumps(level)


def trial_table(cells: Iterable[Cell], rows: Iterable[Mapping[str, Value]]) -> TrialTable:
    """Return the table of rows of `trial_row`, of trials of these cells.

    All axes of the harness are columns, whether they differ or not, so that tables of several sweeps
    can be joined.
    """
    rows = list(rows)
    present: dict[str, None] = {}  # an ordered set
    for row in rows:
        present.update(dict.fromkeys(name for name, value in row.items() if value is not None))
    axes = [_axis_column(axis, rows) for axis in axis_names(cells)]
    leading = [*IDENTITY, *axes, *COURSE]
    labels = {column.name for column in (*leading, *ORIGIN)}
    positions = {scalar.name: position for position, scalar in enumerate(NUMBERS)}
    names = [name for name in present if name not in labels]
    numbers = []  # in the order of `NUMBERS`
    for name in sorted(names, key=lambda name: positions[row_of(name).name]):
        scalar = row_of(name)
        numbers.append(
            TableColumn(name=name, kind="number", unit=scalar.unit, meaning=scalar.meaning)
        )
    return TrialTable(columns=[*leading, *numbers, *ORIGIN], rows=rows)


def _axis_column(axis: str, rows: Sequence[Mapping[str, Value]]) -> TableColumn:
    """Return the column of an axis, with the kind that all of its values have."""
    kinds = {_kind(row[axis]) for row in rows if row.get(axis) is not None}
    kind: Kind = "text"
    if len(kinds) == 1:
        (kind,) = kinds
    elif kinds == {"integer", "number"}:
        kind = "number"
    return TableColumn(name=axis, kind=kind, meaning=_axis_meaning(axis))


def _kind(value: Value) -> Kind:
    """Return the kind of one value; a boolean, an integer in Python, is not one here."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    return "number" if isinstance(value, float) else "text"


def _axis_meaning(axis: str) -> str:
    """Return the description of an axis, as in `harness axes`."""
    if axis in AXES:
        return HELP[axis]
    setting = setting_of(axis)
    if setting is not None:
        return f"the workload's {setting.section} {setting.name}"
    return f"environment variable {variable_of(axis)}; none where it is unset"
