"""How numbers, verdicts and settings read, wherever they are shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.core.paths import Results
from harness.core.text import counted
from harness.render import format as fmt
from harness.render.divergence import differing_settings
from harness.render.format import cell_names
from harness.spec.axes import CompileParameters
from harness.spec.cell import axis_value
from harness.statistics.estimate import paired
from harness.statistics.interval import Interval
from harness.statistics.verdict import Metric, MetricVerdict, Question, judge
from tests.factories import make_cell, make_record
from tests.support.commands import harness
from tests.support.reports import write_run
from tests.support.sweeps import load

SPEED = Metric(name="samples/s", higher_is_better=True, relative=True, min_effect=0.01)
ACCURACY = Metric(name="accuracy", higher_is_better=True, relative=False, min_effect=0.01)


def verdict(metric: Metric, *differences: float) -> MetricVerdict:
    (judged,) = judge(
        [Question(metric=metric, estimate=paired(differences), mean_a=1.0, mean_b=1.0)]
    )
    return judged


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (42, "42 s"), (200, "3 min 20 s"), (59.7, "1 min 0 s"), (7500, "2 h 5 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert fmt.duration(seconds) == text


def test_counts() -> None:
    assert [counted(count, "cell") for count in (0, 1, 2)] == ["0 cells", "1 cell", "2 cells"]
    assert fmt.counts(["done", "failed", "done"]) == "2 done, 1 failed"


def test_means_have_an_interval_where_it_is_known() -> None:
    assert fmt.throughput(Interval(12345.6, (12222.2, 12469.0), 3)) == "12,346 ±1.0%"
    assert fmt.throughput(Interval(100.0, (20.0, 500.0), 3)) == "100 (20 to 500)"
    assert fmt.throughput(Interval(12345.6, None, 1)) == "12,346"
    assert fmt.metric(Interval(0.91234, (0.91111, 0.91357), 3)) == "0.9123 ±0.0012"
    assert fmt.metric(Interval(0.91234, None, 1)) == "0.9123"


def test_two_values_are_too_few_for_an_interval() -> None:
    assert fmt.throughput(Interval(100.0, (0.3, 23722.7), 2)) == "100"
    assert fmt.metric(Interval(0.91234, (0.1, 1.7), 2)) == "0.9123"
    assert fmt.effect_interval(verdict(SPEED, -0.2, 0.3)) == fmt.MISSING
    assert fmt.effect_interval(verdict(SPEED, -0.2, 0.3, 0.1)) != fmt.MISSING


def test_two_values_that_decide_a_verdict_have_an_interval() -> None:
    decided = verdict(SPEED, 0.7, 0.7001)
    assert decided.outcome == "better"
    assert fmt.effect_interval(decided).startswith("2.0")


def test_what_was_not_measured_is_a_dash() -> None:
    missing = [
        fmt.throughput(None),
        fmt.metric(None),
        fmt.samples_per_second(None),
        fmt.metric_value(None),
        fmt.milliseconds(None),
        fmt.share(None),
        fmt.effect_interval(verdict(SPEED, 0.1)),
        fmt.detectable_effect(verdict(SPEED, 0.1)),
    ]
    assert set(missing) == {fmt.MISSING}


def test_effects_are_ratios_of_throughput_and_differences_of_other_metrics() -> None:
    assert fmt.effect(verdict(SPEED, 0.0, 0.0)) == "1.000×"
    assert fmt.effect_interval(verdict(SPEED, 0.0, 0.0)) == "1.000 to 1.000"
    assert fmt.effect(verdict(ACCURACY, 0.01, 0.01)) == "+0.0100"
    assert fmt.effect_interval(verdict(ACCURACY, -0.01, -0.01)) == "-0.0100 to -0.0100"


def test_a_detectable_effect_is_a_share_or_in_the_metrics_unit() -> None:
    assert fmt.detectable_effect(verdict(SPEED, 0.0, 0.0)) == "1.0%"
    assert fmt.detectable_effect(verdict(ACCURACY, 0.0, 0.0)) == "0.0100"
    assert fmt.detectable_effect(verdict(SPEED, -5.0, 5.0)) == ">1,000%"


def test_values_of_axes_are_spelled_as_in_a_sweep_file() -> None:
    assert [axis_value(value) for value in ("bf16", 2, True, None)] == [
        "bf16",
        "2",
        "true",
        "null",
    ]
    levels = {"precision": "bf16", "num_workers": 2}
    assert fmt.short_axis_levels(levels) == "bf16 with num_workers=2"
    assert fmt.short_axis_levels({"stack": "new", "cache": "cold"}) == "stack=new with cache=cold"
    cells = make_cell(deterministic=True), make_cell()
    assert differing_settings(*cells) == ["deterministic (true, false)"]


def test_cells_are_compared_under_values_of_a_sweep_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    results = Results(tmp_path / "results")
    sweep = load(tmp_path, matrix={"deterministic": [False, True]}, seeds=[0, 1, 2])
    records = [make_record(trial.cell, seed=trial.seed) for trial in sweep.trials()]
    write_run(results, sweep, records)
    ended = harness("compare", "demo", "--by", "deterministic", "--results", str(results.path))
    assert " deterministic=true against deterministic=false " in ended.out


def test_a_cells_name_spells_axes_as_its_label_does() -> None:
    cell = make_cell(
        strategy="ddp",
        world_size=2,
        precision="bf16",
        num_workers=4,
        compile=CompileParameters(fullgraph=True),
    )
    name = fmt.cell_name(cell, ["precision", "strategy", "num_workers", "batch_size"])
    assert name == "bf16 ddp×2 w4 b64"
    assert name in cell.label
    assert fmt.cell_name(cell, ["compile.fullgraph"]) == "compile.fullgraph=true"
    assert fmt.cell_name(make_cell(), ["strategy"]) == "single"


def test_cells_that_differ_in_what_no_name_tells_have_their_length_or_id() -> None:
    """Merged sweeps have such cells."""
    short, long = make_cell(steps=10), make_cell(steps=20)
    assert cell_names([short, long]) == {
        short.id: f"{short.label} 10 steps",
        long.id: f"{long.label} 20 steps",
    }
    changed = replace(short, workload=replace(short.workload, identity={"uses": "other"}))
    assert cell_names([short, changed]) == {
        short.id: f"{short.label} {short.id}",
        changed.id: f"{short.label} {changed.id}",
    }


def test_rounding_up_reaches_the_next_unit() -> None:
    assert [fmt.si_prefixed(value) for value in (999.4e9, 999.7e9, 3.35e12)] == [
        "999 G",
        "1 T",
        "3.35 T",
    ]
    assert [fmt.byte_size(size) for size in (1023, 2**20 - 1, 2**20, 2**29)] == [
        "1023 B",
        "1 MiB",
        "1 MiB",
        "512 MiB",
    ]


def test_large_numbers_have_no_exponent() -> None:
    values = (0.001234, 12.34, 999.4, 999.7, 989_456.0)
    assert [fmt.three_digits(value) for value in values] == [
        "0.00123",
        "12.3",
        "999",
        "1,000",
        "989,456",
    ]
