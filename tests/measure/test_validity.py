"""Tests of the validity rules: what violates one, what does not, and the line that says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.measure.validity import load_of_others, violations
from harness.records.record import Telemetry
from harness.sweep.cluster import ValidityRules
from tests.factories import make_cell, make_record

RECORD = make_record(make_cell(strategy="ddp", world_size=2))


def telemetry(readings: Mapping[str, float] | None = None, **shares: float) -> Telemetry:
    """Return the telemetry of a rank with a sample of each reading."""
    arrays = {name: np.array([value]) for name, value in (readings or {}).items()}
    return Telemetry(readings=arrays, shares={"cpu_steal": 0.0, **shares})


DEFAULT_RULES = ValidityRules()


def violations_of(
    rules: ValidityRules = DEFAULT_RULES, *, data_wait: float = 0.1, **changes: Any
) -> list[str]:
    """Return the violations when the telemetry of rank 1 of two has these changes."""
    ranks = [replace(result, telemetry=telemetry()) for result in RECORD.ranks]
    ranks[1] = replace(ranks[1], telemetry=telemetry(**changes))
    return violations(ranks, {"data_wait_share": data_wait}, rules)


THROTTLED = {"readings": {"gpu_throttled": 0.2}}
FOREIGN = {"readings": {"gpu_foreign_processes": 1}}


@pytest.mark.parametrize(
    ("measured", "line"),
    [
        (
            THROTTLED,
            "throttled: rank 1 on node1: by heat or its board: found 20.0%; allowed: at most 5.0%",
        ),
        (
            FOREIGN,
            "foreign_processes: rank 1 on node1: of others on its GPU: found 1; allowed: at most 0",
        ),
        (
            {"cpu_steal": 0.07},
            "steal: rank 1 on node1: CPU time taken by other machines: found 7.0%; allowed: at most 5.0%",
        ),
        ({"data_wait": 0.95}, "data_wait: the loader starved: found 95.0%; allowed: at most 90.0%"),
    ],
    ids=["throttled", "foreign", "steal", "starved"],
)
def test_a_violation_has_its_rank_its_value_and_its_limit(
    measured: dict[str, Any], line: str
) -> None:
    assert violations_of(**measured) == [line]


@pytest.mark.parametrize(
    ("rules", "measured"),
    [
        (ValidityRules(), {}),
        (ValidityRules(steal=0.1), {"cpu_steal": 0.07}),
        (ValidityRules(steal=None), {"cpu_steal": 0.9}),
        (ValidityRules(throttled=None), THROTTLED),
        (ValidityRules(foreign_processes=1), FOREIGN),
        (ValidityRules(foreign_processes=None), FOREIGN),
    ],
    ids=str,
)
def test_limits_come_from_the_profile_and_null_means_no_limit(
    rules: ValidityRules, measured: dict[str, Any]
) -> None:
    assert violations_of(rules, **measured) == []


def test_a_rank_without_telemetry_violates_no_rule() -> None:
    assert violations(RECORD.ranks, {}, ValidityRules()) == []


def contended(others: float, *, waited: float = 0.3) -> dict[str, Any]:
    """Return the telemetry of a rank that waited for cores of which others used so many.

    Each of the two ranks of the trial had nine tenths of a core.
    """
    return {"cpu_wait": waited, "host_cpu": 1.8 + others, "process_cpu": 0.9}


def violated_contention(rules: ValidityRules = DEFAULT_RULES, **shares: Any) -> list[str]:
    """Return the violations of two ranks with the same telemetry."""
    both = [replace(result, telemetry=telemetry(**shares)) for result in RECORD.ranks]
    return violations(both, {}, rules)


def test_a_rank_that_waited_for_cores_of_others_is_named() -> None:
    lines = violated_contention(**contended(others=0.8))
    assert lines[1] == (
        "contention: rank 1 on node1: waited for a core of others: found 30.0%;"
        " allowed: at most 5.0%"
    )
    assert violated_contention(ValidityRules(contention=None), **contended(others=0.8)) == []


def test_ranks_may_wait_for_each_other_and_others_may_use_idle_cores() -> None:
    assert violated_contention(**contended(others=0.04)) == []
    assert violated_contention(**contended(others=8.0, waited=0.01)) == []
    one_is_unknown = [replace(result, telemetry=telemetry()) for result in RECORD.ranks]
    alone = telemetry(**contended(others=0.8))
    one_is_unknown[0] = replace(one_is_unknown[0], telemetry=alone)
    assert violations(one_is_unknown, {}, DEFAULT_RULES) == []


@pytest.mark.parametrize(
    ("loadavg", "load"),
    [
        ("12.00 9.00 5.00 14/320 4711\n", 12.0),
        ("12.00 9.00 5.00 1/320 4711\n", 0.0),  # what caused it has ended
        ("0.20 0.10 0.05 9/320 4711\n", 0.2),  # a burst
        ("unreadable", None),
    ],
)
def test_load_of_others_is_that_of_the_last_minute_and_of_now(
    monkeypatch: pytest.MonkeyPatch, loadavg: str, load: float | None
) -> None:
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: loadavg)
    assert load_of_others() == load
