"""Costs follow from the price in the profile, the ranks and the time that they took, and from nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.analysis.compare import Rules, Side, compare_by
from harness.analysis.cost import cost_to_goal, currency, epoch_cost
from harness.analysis.result import CellResult, aggregate
from harness.analysis.scalars import scalars
from harness.records.record import Interruption, Record, StopOutcome, TargetMetric
from harness.records.settings import run_settings
from harness.spec.cell import Cell
from harness.spec.cluster import Profile
from tests.factories import BEGUN, make_cell, make_record
from tests.support.sweeps import load

DDP = make_cell(strategy="ddp", world_size=2)


def priced(
    folder: Path,
    cell: Cell | None = None,
    *,
    price: str | None = "3.60 USD",
    seed: int = 0,
    step_seconds: float = 0.01,
) -> Record:
    """Return a trial that trained from BEGUN on, and was evaluated each second from then on."""
    record = make_record(cell, seed=seed, step_seconds=step_seconds)
    assert record.rank0 is not None
    evaluations = []
    for number, evaluation in enumerate(record.rank0.evaluations, start=1):
        evaluations.append(replace(evaluation, started_at=BEGUN + number - 0.25, seconds=0.25))
    report = replace(record.rank0, training_began_at=BEGUN, evaluations=tuple(evaluations))
    settings = run_settings(load(folder), Profile(price_per_hour=price))
    return replace(record, rank0=report, settings=settings)


def cell_result(*records: Record) -> CellResult:
    """Return the result of one cell's records."""
    (result,) = aggregate(records)
    return result


def test_an_epoch_costs_its_steady_steps_at_all_ranks(tmp_path: Path) -> None:
    """At 3.60 USD an hour a rank costs 0.001 USD a second."""
    for cell, ranks in ((make_cell(), 1), (DDP, 2)):
        record = priced(tmp_path, cell)
        assert record.rank0 is not None
        seconds = record.rank0.steps_per_epoch * 0.01
        assert scalars(record)["cost_per_epoch_usd"] == pytest.approx(
            0.001 * ranks * seconds, rel=0.01
        )
        cost = epoch_cost(cell_result(record))
        assert cost is not None
        assert cost.mean == pytest.approx(0.001 * ranks * seconds, rel=0.01)


def test_a_goal_costs_the_time_until_the_evaluation_that_shows_it_has_ended(tmp_path: Path) -> None:
    records = [priced(tmp_path, seed=seed) for seed in range(3)]
    cell = cell_result(*records)
    points = cell.trials[0].improvements
    assert [point.seconds for point in points] == pytest.approx(range(1, len(points) + 1))
    goal = max(trial.improvements[0].value for trial in cell.trials)
    cost = cost_to_goal(cell, goal)
    assert cost is not None
    assert 0.001 <= cost.mean <= 0.002
    assert cost_to_goal(cell, 2.0) is None, "no seed ever reached it"


def test_a_goal_that_was_reached_before_training_has_no_cost(tmp_path: Path) -> None:
    """A script may evaluate before its first step, from which on its training counts."""
    record = priced(tmp_path)
    assert record.rank0 is not None
    report = replace(record.rank0, training_began_at=BEGUN + 1.5)
    cell = cell_result(replace(record, rank0=report))
    first, second = cell.trials[0].improvements[:2]
    assert first.seconds is None
    assert second.seconds == pytest.approx(0.5)
    assert cost_to_goal(cell, first.value) is None
    assert cost_to_goal(cell, second.value) is not None


def test_what_an_interruption_cost_is_not_guessed(tmp_path: Path) -> None:
    record = priced(tmp_path)
    pause = Interruption(step=3, at=BEGUN + 1, signal="SIGUSR2", lost_seconds=9.0)
    across = replace(record.ranks.across, interruptions=(pause,))
    record.ranks.across = across
    cell = cell_result(record)
    assert cell.trials[0].improvements[0].seconds is None
    assert cost_to_goal(cell, 0.0) is None
    assert epoch_cost(cell) is not None, "steady steps cost what they did"


def test_the_goal_of_a_rule_for_stopping_has_numbers_in_mlflow(tmp_path: Path) -> None:
    record = priced(tmp_path)
    assert record.rank0 is not None
    second = record.rank0.evaluations[1]
    metric = TargetMetric(name="accuracy", higher_is_better=True)
    stop = StopOutcome(reason="goal", step=second.step, metric=metric, restored=False)
    numbers = scalars(replace(record, rank0=replace(record.rank0, stop=stop)))
    assert numbers["seconds_to_goal"] == pytest.approx(2.0)
    assert numbers["cost_to_goal_usd"] == pytest.approx(0.002)
    failed = make_record(status="failed")
    failed = replace(failed, rank0=replace(record.rank0, stop=stop), settings=record.settings)
    assert not {"seconds_to_goal", "cost_to_goal_usd"} & {*scalars(failed)}


def test_without_a_price_there_are_no_costs_anywhere(tmp_path: Path) -> None:
    record = priced(tmp_path, price=None)
    assert not [name for name in scalars(record) if name.startswith("cost")]
    assert currency(cell_result(record)) is None


def test_a_comparison_has_the_costs_of_both_cells(tmp_path: Path) -> None:
    """Two ranks that take the same time cost twice as much."""
    records = []
    for seed in range(3):
        records += [priced(tmp_path, cell, seed=seed) for cell in (make_cell(), DDP)]
    side = Side(name="demo", cells=aggregate(records))
    (match,) = compare_by(side, ["strategy", "world_size"], Rules(goal=0.0)).matches
    assert [row.name for row in match.costs] == ["USD/epoch", "USD to accuracy 0"]
    assert [row.ratio for row in match.costs] == pytest.approx([2.0, 2.0], rel=0.01)


def test_costs_in_two_currencies_are_not_compared(tmp_path: Path) -> None:
    records = [priced(tmp_path), priced(tmp_path, DDP, price="3.60 EUR")]
    side = Side(name="demo", cells=aggregate(records))
    (match,) = compare_by(side, ["strategy", "world_size"], Rules()).matches
    assert match.costs == []
