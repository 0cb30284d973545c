"""The one model of a sweep's results that the terminal, the report and MLflow show."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from harness.analysis.result import CellResult
from harness.analysis.sweep_result import SweepResult, contenders
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


@pytest.mark.parametrize("number", ["throughput", "metric"])
def test_repeats_do_not_narrow_an_interval(number: str) -> None:
    once, often = (getattr(repeated(repeats), number) for repeats in (1, 20))
    assert (once.count, often.count) == (SEEDS, SEEDS)
    assert often.half_width == pytest.approx(once.half_width, rel=0.1)
    if number == "metric":
        assert once.half_width == pytest.approx(mean_interval([0.9, 0.91, 0.92]).half_width)


def test_one_seed_has_no_interval_however_many_repeats() -> None:
    template = make_result([1000.0]).trials[0]
    trials = []
    for repeat in range(5):
        row = replace(template, repeat=repeat)
        trials.append(with_numbers(row, throughput=1000.0 + repeat))
    throughput = make_result([], trials=trials).throughput
    assert throughput is not None
    assert (throughput.count, throughput.bounds) == (1, None)


class TestSweepResult:
    def test_every_planned_cell_is_there_with_the_state_of_its_trials(self, tmp_path: Path) -> None:
        sweep = load(tmp_path, matrix={"precision": ["fp32", "bf16"]}, seeds=[0, 1])
        fp32, bf16 = sweep.cells
        records = [make_record(fp32, seed=0), make_record(fp32, seed=1, status="failed")]
        result = SweepResult.of_records(sweep, records)
        assert [cell.cell.id for cell in result.cells] == [fp32.id, bf16.id]
        states = [(cell.status, cell.planned, len(cell.trials)) for cell in result.cells]
        assert states == [("failed", 2, 1), ("unrecorded", 2, 0)]
        assert [len(result.done_records(cell)) for cell in sweep.cells] == [1, 0]
        # A cell without records takes no part in comparisons.
        assert result.comparison.matches == []
        assert [cell.cell.id for cell in result.side.cells] == [fp32.id]

    def test_cells_are_judged_against_the_first_measured_of_their_workload(self) -> None:
        unmeasured = make_result([None], cell=make_cell(precision="fp16"))
        slow = make_result([100.0, 101.0, 102.0], cell=make_cell())
        fast = make_result([200.0, 202.0, 204.0], cell=make_cell(precision="bf16"))
        result = SweepResult(name="demo", cells=[unmeasured, slow, fast])
        assert result.is_reference(slow.cell)
        assert result.speed(slow.cell) is None
        row = result.speed(fast.cell)
        assert row is not None
        assert row.label == "faster"
        assert row.effect == pytest.approx(2.0)
        assert result.speed(unmeasured.cell) is None

    def test_winner_is_open_where_the_two_sided_interval_holds_1(self) -> None:
        """One-sided, this winner would be significant at 5%."""
        slow = make_result([100.0, 101.0, 99.0], cell=make_cell())
        fast = make_result([103.0, 105.0, 107.0], cell=make_cell(precision="bf16"))
        result = SweepResult(name="demo", cells=[slow, fast])
        row = result.speed(fast.cell)
        assert row is not None
        assert row.estimate.p_change() / 2 < 0.05
        assert row.interval is not None
        assert row.interval[0] < 1 < row.interval[1]
        assert row.label == "inconclusive"
        assert result.contenders("mlp") == [slow]


BATCH_SIZES = (16, 32, 64, 128, 256, 512)


def test_a_contender_is_not_clearly_slower_or_by_too_little_to_matter() -> None:
    fastest = make_result([200.0, 201.0, 199.0], cell=make_cell(batch_size=1))
    slow = make_result([100.0, 102.0, 98.0], cell=make_cell(batch_size=2))
    close = make_result([199.0, 203.0, 195.0], cell=make_cell(batch_size=4))
    assert contenders(fastest, [slow, close]) == [close]
    fastest = make_result([200.2, 200.2001, 200.2002], cell=make_cell(batch_size=1))
    other = make_result([200.0, 200.0001, 200.0002], cell=make_cell(batch_size=2))
    assert contenders(fastest, [other]) == [other]


def test_the_luckiest_of_equal_cells_is_rarely_certain() -> None:
    """Two cells are equally best and the others far behind.

    Picking the winner by the data misleads most in that case.
    """
    rng = np.random.default_rng(7)
    rounds = 600
    false_winners = 0
    true_speeds = np.array([200.0, 200.0, 100.0, 100.0, 100.0, 100.0])
    for _ in range(rounds):
        noise = np.exp(rng.normal(0, 0.03, (len(true_speeds), 4)))
        speeds = true_speeds[:, None] * noise
        cells = []
        for cell_speeds, batch_size in zip(speeds, BATCH_SIZES, strict=True):
            cells.append(make_result(list(cell_speeds), cell=make_cell(batch_size=batch_size)))
        fastest = cells.pop(int(np.log(speeds).mean(axis=1).argmax()))
        false_winners += not contenders(fastest, cells)
    assert false_winners / rounds <= 0.05
