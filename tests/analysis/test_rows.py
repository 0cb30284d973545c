"""The facts and numbers of trials."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.analysis import baseline
from harness.analysis.result import trial_row
from harness.api import compare
from harness.api import load as load_results
from harness.cli.pytest_cells import extra_info
from harness.core.paths import Results
from harness.records.environment import Repository
from harness.records.numbers import RATE
from harness.records.record import TargetMetric
from harness.records.store import write_spec
from harness.tracking.contents import cell_contents, trial_contents
from tests.factories import BEGUN, ENVIRONMENT, make_cell, make_record, with_ranks, write_trial
from tests.support.commands import harness
from tests.support.sweeps import load


def test_a_target_that_is_a_loss_is_not_taken_for_that_of_training() -> None:
    record = make_record()
    assert record.rank0 is not None
    target = TargetMetric(name="loss", higher_is_better=False)
    evaluations = []
    for evaluation, loss in zip(record.rank0.evaluations, (0.6, 0.7), strict=True):
        evaluations.append(replace(evaluation, metrics={"loss": loss}))
    rank0 = replace(record.rank0, target=target, evaluations=tuple(evaluations))
    numbers = with_ranks(record, rank0=rank0).numbers
    assert (numbers["final_test_loss"], numbers["best_test_loss"]) == (0.7, 0.6)
    assert numbers["final_loss"] == record.numbers["final_loss"]
    assert "best_loss" not in numbers


def test_a_row_has_the_users_commit_and_the_nodes() -> None:
    record = make_record(make_cell(strategy="ddp", world_size=2))
    ranks = [replace(rank, host=host) for rank, host in zip(record.ranks, "qp", strict=True)]
    repository = Repository(commit="c0ffee", dirty=False)
    environment = replace(ENVIRONMENT, repository=repository)
    row = trial_row(with_ranks(record, ranks, environment=environment))
    assert (row.commit, row.hosts, row.nodes) == ("c0ffee", ("p", "q"), 2)
    assert row.harness_commit != "c0ffee"


def test_a_number_is_the_same_wherever_it_is_shown(tmp_path: Path) -> None:
    """In data frames, tables, MLflow, baselines and pytest, to the last digit."""
    matrix = {"precision": ["fp32", "bf16"]}
    sweep = load(tmp_path, length={"steps": 60}, warmup=2, matrix=matrix, seeds=[0, 1, 2])
    results = Results(tmp_path / "results")
    for number, trial in enumerate(sweep.trials()):
        record = make_record(trial.cell, seed=trial.seed, started=BEGUN + 20 * number)
        write_trial(results.sweep_folder("demo"), record)
    write_spec(sweep, results.sweep_folder("demo"))
    data = load_results("demo", results.path)
    frame = data.trials.set_index("trial")
    for record in data.records:
        row = trial_row(record)
        metrics = trial_contents(record, cell_name="a cell", repeats=1).metrics
        of_mlflow = {metric.key: metric.value for metric in metrics if metric.step == 0}
        assert row.throughput == record.numbers["throughput_samples_per_s"]
        assert row.metric == record.numbers["final_accuracy"]
        for name, value in row.numbers.items():
            assert (frame.loc[row.trial, name], of_mlflow[name]) == (value, value)
    saved = list(baseline.save(results, data.side.cells))
    compared = compare("baseline", data, results=results.path)
    shown = harness("show", "demo", "--results", str(results.path), "--wide").out
    page = results.path / "report.html"
    harness("report", "demo", "--results", str(results.path), "--output", str(page))
    report = page.read_text(encoding="utf-8")
    for position, cell in enumerate(data.result.cells):
        records = data.result.done_records(cell.cell)
        again = baseline.read(saved[position])
        assert again.trials == cell.trials
        assert (again.throughput, again.metric) == (cell.throughput, cell.metric)
        assert cell.throughput is not None
        assert cell.metric is not None
        in_frame = data.cells.iloc[position]
        assert (in_frame.throughput, in_frame.metric) == (cell.throughput.mean, cell.metric.mean)
        info = extra_info(cell.cell, records, ())
        assert info["samples_per_second"] == [trial.throughput for trial in cell.trials]
        contents = cell_contents(data.result, cell, records, name="a cell")
        of_cell = {metric.key: metric.value for metric in contents.metrics}
        rounded = {name: float(f"{value:.6g}") for name, value in cell.numbers.items()}
        assert of_cell["step_time_p50_ms"] == rounded["step_time_p50_ms"]
        assert of_cell[RATE] == float(f"{cell.throughput.mean:.6g}")
        assert of_cell["final_accuracy"] == float(f"{cell.metric.mean:.6g}")
        speed, accuracy = compared.verdicts[2 * position : 2 * position + 2]
        assert speed.mean_b == pytest.approx(cell.throughput.mean, rel=1e-12)
        assert accuracy.mean_b == pytest.approx(cell.metric.mean, rel=1e-12)
        texts = [f"{cell.throughput.mean:,.0f}", f"{cell.metric.mean:.4f}"]
        texts.append(f"{cell.numbers['step_time_p50_ms']:.2f}")
        for text in texts:
            assert text in shown
            assert text in report
