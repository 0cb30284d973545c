"""A history has a series for each cell and hardware, and sorts what changed."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from harness.analysis.trend import make_trend
from harness.core.errors import BadInput
from harness.records.record import Record
from tests.factories import make_cell
from tests.support.nights import make_night
from tests.support.sweeps import DIGITS, load


def test_a_slowdown_with_a_commit_is_new_in_the_night_that_shows_it() -> None:
    nights = [make_night(number, 1.0 if number < 15 else 0.95) for number in range(30)]
    trend = make_trend("nightly", nights)
    (change,) = trend.series[0].changes
    assert change.first.commit == f"{15:040x}"
    assert change.causes == ["code"]
    assert change.bounds[0] < 0.95 < change.bounds[1]
    assert (trend.nights, trend.exit_code) == (30, 0)  # it was seen long ago
    seen = change.seen.night
    assert make_trend("nightly", nights[: seen + 1]).exit_code == 1
    assert make_trend("nightly", nights[:seen]).exit_code == 0
    # The results folder keeps trials of the first night, whose archive has them too.
    kept = [*nights[0], *nights[seen]]
    assert make_trend("nightly", [kept, *nights[:seen]]).exit_code == 1


def test_a_slowdown_is_not_new_again_after_a_night_without_a_measurement() -> None:
    nights = [make_night(number, 1.0 if number < 15 else 0.95) for number in range(30)]
    (change,) = make_trend("nightly", nights).series[0].changes
    after = [replace(record, status="invalid") for record in nights[change.seen.night + 1]]
    trend = make_trend("nightly", [*nights[: change.seen.night + 1], after])
    assert trend.exit_code == 0
    assert len(trend.series[0].changes) == 1


def test_a_speedup_is_a_change_that_fails_nothing() -> None:
    nights = [make_night(number, 1.0 if number < 15 else 1.05) for number in range(23)]
    trend = make_trend("nightly", nights)
    assert [change.is_slower for change in trend.series[0].changes] == [False]
    assert trend.exit_code == 0


def test_other_hardware_is_another_series() -> None:
    nights = []
    for number in range(40):
        is_old = number < 20
        nights.append(make_night(number, 1.0 if is_old else 0.5, cpu="Old" if is_old else "New"))
    old, new = make_trend("nightly", nights).series
    assert (len(old.points), len(new.points)) == (20, 20)
    assert (old.changes, new.changes) == ([], [])
    assert old.previous is None
    assert new.previous is old.points[-1]


def test_machines_that_take_turns_are_two_series() -> None:
    nights = []
    for number in range(60):
        machine = number % 2
        factor = (1.0, 0.5)[machine] * (1.0 if number < 30 else 0.9)
        nights.append(make_night(number, factor, cpu=f"CPU {machine}"))
    for series in make_trend("nightly", nights).series:
        (change,) = series.changes
        assert change.first.night in (30, 31)
    assert make_trend("nightly", nights).threshold == 365, "each night has one value"


def test_what_came_with_another_version_is_sorted_so() -> None:
    nights = []
    for number in range(30):
        night = make_night(
            number, 1.0 if number < 15 else 0.95, torch="2.13.0" if number < 15 else "2.14.0"
        )
        nights.append([without_commit(record) for record in night])
    (change,) = make_trend("nightly", nights).series[0].changes
    assert change.causes == ["versions"]
    assert change.version_changes == ["software.torch: 2.13.0 → 2.14.0"]


def test_a_change_without_a_cause_is_noise_and_fails_nothing() -> None:
    nights = []
    for number in range(23):
        night = make_night(number, 1.0 if number < 15 else 0.95)
        nights.append([without_commit(record) for record in night])
    trend = make_trend("nightly", nights)
    (change,) = trend.series[0].changes
    assert change.causes == []
    assert trend.exit_code == 0


def without_commit(record: Record) -> Record:
    assert record.environment is not None
    environment = replace(record.environment, repository=None)
    return replace(record, environment=environment)


def drifting_nights(step: float) -> list[list[Record]]:
    """Nights of a machine that becomes slower and faster by 10%, with an old commit next to the cell's."""
    nights = []
    for number in range(30):
        drift = 1 + 0.1 * math.sin(number / 4)
        night = make_night(number, 1.0 if number < 15 else 1 - step, drift=drift)
        night += make_night(number, 0.8, cell=make_cell("before"), drift=drift)
        nights.append(night)
    return nights


def test_a_control_takes_out_what_the_machine_does() -> None:
    trend = make_trend("nightly", drifting_nights(0.04), control="before")
    series, control = trend.series
    assert (series.is_control, control.is_control) == (False, True)
    (change,) = series.changes
    assert change.first.night == 15
    assert change.ratio == pytest.approx(0.96, abs=0.005)
    assert make_trend("nightly", drifting_nights(0.0), control="before").series[0].changes == []


def test_a_night_without_its_control_is_left_out() -> None:
    nights = drifting_nights(0.0)
    nights[3] = nights[3][:2]
    trend = make_trend("nightly", nights, control="before")
    assert len(trend.series[0].points) == 29
    assert trend.notes == ["left out 1 point without a control of the same night"]


@pytest.mark.parametrize("has_option", [True, False])
def test_a_cell_is_divided_by_the_control_with_its_settings(
    tmp_path: Path, has_option: bool
) -> None:
    """Whichever ran first, and also by a control that lacks an option of the cell."""
    before = {**DIGITS["mlp"], "uses": "mlp", "options": {"hidden": [64]}}
    matrix = {"options.dropout": [0.0, 0.1], "env.SPEED": ["1", "2"]}
    sweep = load(tmp_path, {**DIGITS, "before": before}, length={"steps": 30}, matrix=matrix)
    nights = []
    for number in range(4):
        night = []
        for position, cell in enumerate(sweep.cells):
            speed = float(str(cell.level("env.SPEED")))
            if has_option and cell.level("options.dropout"):
                speed /= 4
            if cell.workload.label == "mlp":
                speed *= 0.8
            elif not has_option:
                if cell.level("options.dropout"):
                    continue
                cell = replace(cell, workload=replace(cell.workload, axes=()))
            for record in make_night(number, speed, cell=cell):
                order = position if number % 2 else -position
                night.append(replace(record, started=record.started + order))
        nights.append(night)
    divided = [
        series
        for series in make_trend("demo", nights, control="before").series
        if not series.is_control
    ]
    assert len(divided) == 4
    for series in divided:
        ratios = [math.exp(point.value) for point in series.points]
        assert ratios == pytest.approx([0.8] * 4, rel=0.02)


@pytest.mark.parametrize("control", ["mlp", "after"])
def test_a_control_is_another_workload(control: str) -> None:
    nights = [make_night(number, 1.0) for number in range(3)]
    with pytest.raises(BadInput, match=f"--control {control}: found no such workload"):
        make_trend("nightly", nights, control=control)


def test_a_trial_that_two_nights_hold_counts_once() -> None:
    first, second = make_night(0, 1.0), make_night(1, 1.0)
    trend = make_trend("nightly", [first, [*first, *second], second])
    assert [point.night for point in trend.series[0].points] == [0, 1]
    assert trend.nights == 2


def test_the_threshold_grows_with_the_cells() -> None:
    one = make_trend("nightly", [make_night(0, 1.0)])
    two = make_trend("nightly", [make_night(0, 1.0) + make_night(0, 1.0, cell=make_cell("cnn"))])
    assert (one.threshold, two.threshold) == (365, 730)
    of_control = make_trend("nightly", drifting_nights(0.0), control="before")
    assert of_control.threshold == 730
    assert 10 < one.nights_needed < two.nights_needed < 20


def test_nights_without_a_measurement_are_refused() -> None:
    with pytest.raises(BadInput, match="nightly: found no measured trial"):
        make_trend("nightly", [])
