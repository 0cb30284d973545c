"""The facts and numbers of trials."""

from __future__ import annotations

from dataclasses import replace

from harness.analysis.rows import trial_row
from harness.records.code import Repository
from harness.records.record import TargetMetric
from tests.factories import make_record, with_ranks


def test_a_target_that_is_a_loss_is_not_taken_for_that_of_training() -> None:
    record = make_record()
    assert record.summary is not None
    assert record.rank0 is not None
    target = TargetMetric(name="loss", higher_is_better=False)
    summary = replace(record.summary, final_loss=0.5, final_metric=0.7, best_metric=0.6)
    rank0 = replace(record.rank0, target=target)
    numbers = with_ranks(record, summary=summary, rank0=rank0).numbers
    assert (numbers["final_loss"], numbers["final_test_loss"]) == (0.5, 0.7)
    assert numbers["best_test_loss"] == 0.6
    assert "best_loss" not in numbers


def test_a_throughput_in_steps_has_a_name_of_its_own() -> None:
    record = make_record()
    assert record.summary is not None
    in_steps = with_ranks(record, summary=replace(record.summary, throughput_unit="steps/s"))
    assert "throughput_samples_per_s" not in in_steps.numbers
    assert in_steps.numbers["throughput_steps_per_s"] == record.summary.throughput
    assert "throughput_steps_per_s" not in record.numbers


def test_the_commit_is_that_of_the_users_repository() -> None:
    record = make_record()
    assert record.environment is not None
    repository = Repository(commit="c0ffee", dirty=False)
    environment = replace(record.environment, repository=repository)
    row = trial_row(replace(record, environment=environment))
    assert row.commit == "c0ffee"
    assert row.harness_commit != "c0ffee"
