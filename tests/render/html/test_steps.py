"""How step times are drawn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from harness.analysis.result import aggregate
from harness.measure.summary import summarize
from harness.records.across import in_memory_ranks
from harness.records.record import Record
from harness.records.series import Series
from harness.render.html.plots import step_times
from harness.render.html.report import ReportCell
from tests.factories import make_cell, make_record


def record_of(seconds: list[float]) -> Record:
    """Return a record of a trial whose steps took these seconds at every rank."""
    record = make_record(make_cell(steps=len(seconds)))
    packed = Series.pack(np.array(seconds))
    ranks = [replace(rank, step_seconds=packed, step_phases={}) for rank in record.ranks]
    assert record.rank0
    summary = summarize(ranks, record.rank0, batch_size=64, warmup=2)
    return replace(record, ranks=in_memory_ranks(ranks), summary=summary)


def report_cell(record: Record) -> ReportCell:
    (result,) = aggregate([record])
    done = [record] if record.status == "done" else []
    return ReportCell(result=result, name="a", number=0, done=done)


def test_the_steady_state_begins_where_the_warm_up_ends() -> None:
    steps = step_times(report_cell(record_of([0.05] * 40 + [0.01] * 160)))
    assert steps is not None
    ((start, width),) = steps.steady
    assert start == 20.0
    assert width == 80.0
    assert "p50 10" in steps.text
    assert "steady from step 40" in steps.text


def test_steps_that_never_settle_are_called_never_steady() -> None:
    steps = step_times(report_cell(record_of([0.01 * 1.02**step for step in range(200)])))
    assert steps is not None
    assert "never steady" in steps.text


def test_a_straggling_step_is_visible_and_cut_off() -> None:
    steps = step_times(report_cell(record_of([0.01] * 500 + [1.0] + [0.01] * 499)))
    assert steps is not None
    heights = [float(point.partition(",")[2]) for point in steps.course.split()]
    assert min(heights) == 0.0
    assert sorted(heights)[1] > 60


def test_too_few_steps_are_not_drawn() -> None:
    assert step_times(report_cell(record_of([0.01] * 3))) is None


def test_failed_trials_have_no_step_times() -> None:
    assert step_times(report_cell(make_record(status="failed"))) is None
