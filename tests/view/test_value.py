"""How numbers, verdicts and the names of cells read, wherever they are shown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.gate.answer import describe_verdict
from harness.statistics.estimate import paired
from harness.statistics.interval import Interval
from harness.statistics.verdict import Metric, MetricVerdict, Question, judge
from harness.view.names import axis_levels, cell_name, cell_names
from harness.view.reproduce import differing_settings
from harness.view.value import Effect, Kind, Styled, Value, byte_size, duration, effect_of, write
from tests.factories import make_cell

SPEED = Metric(name="samples/s", higher_is_better=True, relative=True, min_effect=0.01)
ACCURACY = Metric(name="accuracy", higher_is_better=True, relative=False, min_effect=0.01)


def verdict(metric: Metric, *differences: float) -> MetricVerdict:
    question = Question(metric=metric, estimate=paired(differences), mean_a=1.0, mean_b=1.0)
    (judged,) = judge([question])
    return judged


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (42, "42 s"), (200, "3 min 20 s"), (59.7, "1 min 0 s"), (7500, "2 h 5 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (None, "rate", "–"),
        (Interval(12345.6, (12222.2, 12469.0), 3), "rate", "12,346 ±1.0%"),
        (Interval(100.0, (20.0, 500.0), 3), "rate", "100 (20 to 500)"),
        (Interval(12345.6, None, 1), "rate", "12,346"),
        (Interval(0.91234, (0.91111, 0.91357), 3), "metric", "0.9123 ±0.0012"),
        (2.345, "rate", "2.35"),
        (0.49512, "percent", "49.5%"),
        (1234567, "count", "1,234,567"),
        ([Styled("a", "open"), " b"], "text", "a b"),
        (Effect(1.13, (1.02, 1.24)), "text", "1.13× (1.02 to 1.24)"),
        (Effect(1.13, (1.12, 1.14)), "text", "1.130× (1.120 to 1.140)"),
        (Effect(0.95, (0.94, 0.96), "change"), "text", "-5.0% (-6.0% to -4.0%)"),
        (Effect(0.01, (-0.02, 0.04), "difference"), "text", "+0.0100 (-0.0200 to +0.0400)"),
        (0.001234, "number", "0.00123"),
        (999.7, "number", "1,000"),
        (989_456.0, "number", "989,456"),
    ],
)
def test_values_are_written_by_their_kind(value: Value, kind: Kind, text: str) -> None:
    assert write(value, kind) == text


def test_two_values_have_an_interval_only_where_they_decide_a_verdict() -> None:
    undecided = verdict(SPEED, -0.2, 0.3)
    assert undecided.interval is None
    assert effect_of(undecided).bounds is None
    assert " to " not in describe_verdict(undecided)
    assert effect_of(verdict(SPEED, -0.2, 0.3, 0.1)).bounds is not None
    decided = verdict(SPEED, 0.7, 0.7001)
    assert decided.outcome == "better"
    assert effect_of(decided).bounds is not None


def test_effects_are_ratios_of_throughput_and_differences_of_other_metrics() -> None:
    assert str(effect_of(verdict(SPEED, 0.0, 0.0))) == "1.000× (1.000 to 1.000)"
    assert str(effect_of(verdict(ACCURACY, 0.01, 0.01))) == "+0.0100 (+0.0100 to +0.0100)"


def test_sizes_and_rounding_up_reaches_the_next_unit() -> None:
    sizes = [byte_size(size) for size in (4, 1023, 1536, 2**20 - 1, 2**20, 2**30)]
    assert sizes == ["4 B", "1023 B", "1.5 KiB", "1 MiB", "1 MiB", "1 GiB"]


def test_values_of_axes_are_spelled_as_in_a_sweep_file() -> None:
    assert axis_levels({"precision": "bf16", "num_workers": 2}) == "bf16 with num_workers=2"
    assert axis_levels({"stack": "new", "cache": "cold"}) == "stack=new with cache=cold"
    cells = make_cell(deterministic=True), make_cell()
    assert differing_settings(*cells) == ["deterministic (true, false)"]


def test_a_cells_name_spells_axes_as_its_label_does() -> None:
    cell = make_cell(strategy="ddp", world_size=2, precision="bf16", num_workers=4)
    cell = replace(cell, axes=replace(cell.axes, compile_fullgraph=True))
    name = cell_name(cell, ["precision", "strategy", "num_workers", "batch_size"])
    assert name == "bf16 ddp×2 w4 b64"
    assert name in cell.label
    assert cell_name(cell, ["compile.fullgraph"]) == "compile.fullgraph=true"
    assert cell_name(make_cell(), ["strategy"]) == "single"


def test_cells_that_differ_in_what_no_name_tells_have_their_id() -> None:
    cell = make_cell()
    changed = replace(cell, workload=replace(cell.workload, identity={"uses": "other"}))
    assert set(cell_names([cell, changed]).values()) == {cell.id, changed.id}
    (name,) = cell_names([cell]).values()
    assert name == cell.label
