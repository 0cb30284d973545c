"""ValidityRules of validity: what breaks one, what does not, and what a reader is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from harness.measure.validity import clock_drift, violations
from harness.records.record import RankResult, Summary, Telemetry
from harness.records.series import Series
from harness.spec.validity import ValidityRules
from tests.factories import make_cell, make_record

RECORD = make_record(make_cell(strategy="ddp", world_size=2))


def telemetry(**changes: Any) -> Telemetry:
    nothing = Series.pack(np.empty(0))
    quiet = Telemetry(
        seconds=10.0,
        steps=20,
        sample_times=nothing,
        readings={},
        shares={"cpu_steal": 0.0},
        throttled={},
        foreign_processes=[],
    )
    return replace(quiet, **changes)


DEFAULT_RULES = ValidityRules()


def judged(
    rules: ValidityRules = DEFAULT_RULES, *, waits: float = 0.1, **changes: Any
) -> list[str]:
    """What is found when rank 1 of two saw `changes`."""
    assert RECORD.summary is not None
    summary: Summary = replace(RECORD.summary, shares={"data_wait": waits})
    ranks = [replace(result, telemetry=telemetry()) for result in RECORD.ranks]
    ranks[1] = replace(ranks[1], telemetry=telemetry(**changes))
    return violations(ranks, summary, rules)


def test_a_quiet_machine_breaks_no_rule() -> None:
    assert judged() == []


@pytest.mark.parametrize(
    ("seen", "line"),
    [
        (
            {"throttled": {"hw_thermal": 0.2}},
            "throttled: rank 1 on node1: hw_thermal: found 20.0%; allowed: at most 5.0%",
        ),
        (
            {"foreign": ["pid 7 python"]},
            "foreign_processes: rank 1 on node1: pid 7 python on its GPU; allowed: 0",
        ),
        (
            {"shares": {"cpu_steal": 0.07}},
            "steal: rank 1 on node1: CPU time taken by others: found 7.0%; allowed: at most 5.0%",
        ),
        ({"waits": 0.95}, "data_wait: the loader starved: found 95.0%; allowed: at most 90.0%"),
    ],
    ids=["throttled", "foreign", "steal", "starved"],
)
def test_what_breaks_a_rule_is_told_with_its_limit(seen: dict[str, Any], line: str) -> None:
    assert judged(**seen) == [line]


def test_limits_come_from_the_profile_and_null_is_none() -> None:
    assert judged(ValidityRules(steal=0.1), shares={"cpu_steal": 0.07}) == []
    assert judged(ValidityRules(steal=None), shares={"cpu_steal": 0.9}) == []
    assert judged(ValidityRules(throttled=None), throttled={"hw_thermal": 1.0}) == []
    assert judged(ValidityRules(foreign_processes=1), foreign=["pid 7 python"]) == []
    assert judged(ValidityRules(foreign_processes=None), foreign=["pid 7 python"]) == []
    assert judged(ValidityRules(data_wait=0.2), waits=0.21)


def test_what_could_not_be_read_breaks_no_rule() -> None:
    assert judged(foreign=None, throttled=None, shares={}) == []
    assert RECORD.summary is not None
    assert violations(RECORD.ranks, replace(RECORD.summary, shares={}), ValidityRules()) == []


def elapsed(*seconds: float | None) -> list[RankResult]:
    return [
        replace(RECORD.ranks[0], rank=rank, elapsed=value) for rank, value in enumerate(seconds)
    ]


def test_clocks_that_disagree_are_found() -> None:
    assert clock_drift(elapsed(100.0, 98.0, 99.0)) == pytest.approx(0.02)
    assert RECORD.summary is not None
    assert violations(elapsed(100.0, 98.0), RECORD.summary, ValidityRules()) == [
        "clock_drift: between ranks: found 2.0%; allowed: at most 1.0%"
    ]


def test_a_moment_is_too_short_to_judge_clocks_by() -> None:
    assert clock_drift(elapsed(0.01, 0.02)) is None
    assert clock_drift(elapsed(5.0)) is None
    assert clock_drift(elapsed(5.0, None)) is None
