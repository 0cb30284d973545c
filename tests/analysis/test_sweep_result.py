"""The one model of a sweep's results that the terminal, the report and MLflow show."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness.analysis.result import CellResult, aggregate
from harness.analysis.sweep_result import SweepResult
from harness.statistics.interval import mean_interval
from tests.factories import make_cell, make_record
from tests.support.results import make_result, with_numbers
from tests.support.sweeps import load

SEEDS = 3
SEED_SPREAD = 10.0  # samples/s, between seeds
REPEAT_SPREAD = 0.1  # and between repeats of one


def repeated(repeats: int) -> CellResult:
    """A cell of which seeds differ much and the repeats of a seed hardly."""
    rng = np.random.default_rng(0)
    of_seeds = rng.normal(1000, SEED_SPREAD, SEEDS)
    template = make_result([1000.0]).trials[0]
    trials = []
    for seed in range(SEEDS):
        for repeat in range(repeats):
            throughput = of_seeds[seed] + rng.normal(0, REPEAT_SPREAD)
            metric = 0.9 + 0.01 * seed
            row = replace(template, seed=seed, repeat=repeat)
            trials.append(with_numbers(row, throughput=throughput, metric=metric))
    return make_result([], trials=trials)


class TestIntervalsCountSeeds:
    def test_repeats_do_not_narrow_the_interval_of_throughput(self) -> None:
        once, often = repeated(1).throughput, repeated(20).throughput
        assert once is not None
        assert often is not None
        assert (once.count, often.count) == (SEEDS, SEEDS)
        assert once.half_width is not None
        assert often.half_width == pytest.approx(once.half_width, rel=0.1)

    def test_repeats_do_not_narrow_the_interval_of_the_target_metric(self) -> None:
        once, often = repeated(1).metric, repeated(20).metric
        assert once is not None
        assert often is not None
        assert (once.count, often.count) == (SEEDS, SEEDS)
        assert often.half_width == pytest.approx(once.half_width)
        assert once.half_width == pytest.approx(mean_interval([0.9, 0.91, 0.92]).half_width)

    def test_seeds_do_narrow_it(self) -> None:
        speeds = np.random.default_rng(1).normal(1000, SEED_SPREAD, 40).tolist()
        few, many = make_result(speeds[:4]).throughput, make_result(speeds).throughput
        assert few is not None
        assert many is not None
        assert few.half_width is not None
        assert many.half_width is not None
        assert many.half_width < few.half_width / 2

    def test_one_seed_has_no_interval_however_many_repeats(self) -> None:
        template = make_result([1000.0]).trials[0]
        trials = [
            with_numbers(replace(template, repeat=repeat), throughput=1000.0 + repeat)
            for repeat in range(5)
        ]
        throughput = make_result([], trials=trials).throughput
        assert throughput is not None
        assert throughput.count == 1
        assert throughput.bounds is None


class TestSweepResult:
    def test_every_planned_cell_is_there_with_the_state_of_its_trials(self, tmp_path: Path) -> None:
        sweep = load(tmp_path, matrix={"precision": ["fp32", "bf16"]}, seeds=[0, 1])
        fp32, bf16 = sweep.cells
        records = [make_record(fp32, seed=0), make_record(fp32, seed=1, status="failed")]
        result = SweepResult.of_records(sweep, records)
        assert [cell.cell.id for cell in result.cells] == [fp32.id, bf16.id]
        failed, unrecorded = result.cells
        assert (failed.status, failed.planned, len(failed.trials)) == ("failed", 2, 1)
        assert (unrecorded.status, unrecorded.planned, len(unrecorded.trials)) == (
            "unrecorded",
            2,
            0,
        )
        assert [len(result.done_records(cell)) for cell in sweep.cells] == [1, 0]

    def test_cells_are_judged_against_the_first_measured_of_their_workload(self) -> None:
        unmeasured = make_result([None], cell=make_cell(precision="fp16"))
        slow = make_result([100.0, 101.0, 102.0], cell=make_cell())
        fast = make_result([200.0, 202.0, 204.0], cell=make_cell(precision="bf16"))
        result = SweepResult(name="demo", cells=[unmeasured, slow, fast])
        assert result.is_reference(slow.cell)
        assert result.throughput_row(slow.cell) is None
        row = result.throughput_row(fast.cell)
        assert row is not None
        assert row.verdict.label == "faster"
        assert row.verdict.effect == pytest.approx(2.0)
        assert result.throughput_row(unmeasured.cell) is None

    def test_winner_is_open_where_the_two_sided_interval_holds_1(self) -> None:
        """One-sided, this winner would be significant at 5%."""
        slow = make_result([100.0, 101.0, 99.0], cell=make_cell())
        fast = make_result([103.0, 105.0, 107.0], cell=make_cell(precision="bf16"))
        result = SweepResult(name="demo", cells=[slow, fast])
        row = result.throughput_row(fast.cell)
        assert row is not None
        assert row.verdict.estimate.p_change() / 2 < 0.05
        assert row.verdict.interval is not None
        assert row.verdict.interval[0] < 1 < row.verdict.interval[1]
        assert row.verdict.label == "inconclusive"
        assert not result.is_winner_certain("mlp")
        assert result.contenders("mlp") == [slow]

    def test_the_fastest_and_the_most_accurate_cell(self) -> None:
        accurate = make_result([100.0, 101.0], metrics=[0.95, 0.96], cell=make_cell())
        fast = make_result([200.0, 202.0], cell=make_cell(precision="bf16"))
        result = SweepResult(name="demo", cells=[accurate, fast])
        assert [cell.cell.id for cell in result.ranking("mlp")] == [fast.cell.id, accurate.cell.id]

    def test_cells_without_records_take_no_part_in_comparisons(self, tmp_path: Path) -> None:
        sweep = load(tmp_path, matrix={"precision": ["fp32", "bf16"]})
        records = [make_record(sweep.cells[0])]
        assert SweepResult.of_records(sweep, records).comparison is None
        assert SweepResult.of_records(sweep, records).side.cells == aggregate(records)
