"""How step times are drawn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from harness.measure.summary import summarize
from harness.records.record import Record
from harness.records.series import Series
from harness.render.html.facts import CellFacts
from harness.render.html.steps import steps_of
from tests.factories import make_cell, make_record


def facts_of(seconds: list[float]) -> CellFacts:
    record = make_record(make_cell(steps=len(seconds)))
    ranks = [
        replace(rank, step_seconds=Series.pack(np.array(seconds)), step_phases={})
        for rank in record.ranks
    ]
    assert record.rank0
    summary = summarize(ranks, record.rank0, 64, 2)
    record = replace(record, ranks=ranks, summary=summary)
    return CellFacts(cell=record.trial.cell, name="a", number=0, records=[record], result=None)


def test_the_steady_state_is_where_warm_up_has_ended() -> None:
    found = steps_of(facts_of([0.05] * 40 + [0.01] * 160))
    assert found is not None
    ((begin, width),) = found.steady
    assert begin == 20.0
    assert width == 80.0
    assert "p50 10" in found.text
    assert "steady from step 40" in found.text


def test_what_never_settles_says_so() -> None:
    found = steps_of(facts_of([0.01 * 1.02**step for step in range(200)]))
    assert found is not None
    assert "never steady" in found.text


def test_a_straggling_step_is_seen_and_cut_off() -> None:
    found = steps_of(facts_of([0.01] * 500 + [1.0] + [0.01] * 499))
    assert found is not None
    heights = [float(point.partition(",")[2]) for point in found.course.split()]
    assert min(heights) == 0.0
    assert sorted(heights)[1] > 60


def test_too_few_steps_are_not_drawn() -> None:
    assert steps_of(facts_of([0.01] * 3)) is None


def test_failed_trials_have_none() -> None:
    failed: Record = make_record(status="failed")
    assert (
        steps_of(
            CellFacts(cell=failed.trial.cell, name="a", number=0, records=[failed], result=None)
        )
        is None
    )
