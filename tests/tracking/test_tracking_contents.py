"""What runs show of records: names, params, tags and metrics, without MLflow."""

from __future__ import annotations

import json
import posixpath
import re
from dataclasses import replace

import numpy as np
import pytest

from harness.analysis.cells import group_by_cell
from harness.analysis.parity import SweepParity
from harness.analysis.result import aggregate
from harness.analysis.sweep_result import SweepResult
from harness.records.record import Interruption, Record, Status
from harness.sweep.cell import StopRule
from harness.tracking.contents import (
    CURVE_POINTS,
    RunContents,
    cell_contents,
    curves,
    trial_contents,
)
from harness.tracking.pages import VIEW_TAG, experiment_tags
from harness.tracking.runs import DESCRIPTION_TAG, note_tags
from harness.view.run import stop_note
from tests.factories import BEGUN, make_cell, make_record, with_ranks
from tests.support.parity import OTHER, REFERENCE, make_parity


def contents_of(*records: Record, parity: SweepParity | None = None) -> list[RunContents]:
    """Return what the runs of the cells of some records show."""
    cells = aggregate(records)
    by_cell = group_by_cell(records)
    result = SweepResult(name="demo", cells=cells, records=by_cell)
    shown = []
    for cell in cells:
        of_cell = by_cell[cell.cell.id]
        shown.append(cell_contents(result, cell, of_cell, name=cell.cell.label, parity=parity))
    return shown


def test_a_long_loss_curve_is_thinned_and_ends_where_the_training_ended() -> None:
    record = make_record(make_cell(steps=3000))
    points = [point for point in curves(record) if point.key == "loss"]
    assert record.loss is not None
    assert len(points) == CURVE_POINTS
    assert (points[0].step, points[-1].step) == (1, 3000)
    assert set(np.diff([point.step for point in points])) <= {3, 4}
    assert points[-1].value == record.loss[-1]


@pytest.mark.parametrize("steps", [[], [9, 19, 29]])
def test_steps_without_a_reported_loss_have_no_point(steps: list[int]) -> None:
    record = make_record(make_cell(steps=40))
    losses = np.full(40, np.nan)
    losses[steps] = 0.5
    points = curves(with_ranks(record, [replace(record.ranks[0], loss=losses)]))
    loss_points = [(point.step, point.value) for point in points if point.key == "loss"]
    assert loss_points == [(step + 1, 0.5) for step in steps]


def test_curves_run_in_the_time_of_the_record() -> None:
    record = make_record(make_cell(steps=100), step_seconds=0.1)
    points = [point for point in curves(record) if point.key == "loss"]
    times = [point.timestamp / 1000 - record.started for point in points]
    assert times == sorted(times)
    assert times[0] == pytest.approx(2.5 + 0.1, abs=0.02)  # after start-up and building
    assert times[-1] == pytest.approx(2.5 + 10, abs=0.3)  # without the nine evaluations in between


def test_metrics_of_any_name_have_names_that_mlflow_takes_and_that_differ() -> None:
    record = make_record()
    assert record.rank0
    reported = ["acc@5", "acc#5", "top@5", "../up", "a//b", "/", "", "loss", "test_loss", "x" * 300]
    metrics = {name: float(at) for at, name in enumerate(reported)}
    (last,) = record.rank0.evaluations[-1:]
    evaluations = (replace(last, metrics=metrics),)
    record = replace(record, rank0=replace(record.rank0, evaluations=evaluations))
    points = {point.key: point.value for point in curves(record)}
    assert set(metrics.values()) <= set(points.values())
    assert (points["top_5"], points["test_loss"]) == (2.0, metrics["loss"])
    assert points["loss"] not in metrics.values()
    for name in points:
        assert re.fullmatch(r"[\w./ -]{1,250}", name), name
        assert posixpath.normpath(name) == name.removeprefix("/") != "..", name


def test_compilation_and_loss_scaling_have_numbers() -> None:
    record = make_record(make_cell(strategy="ddp", world_size=2))
    ranks = []
    for rank, graphs in zip(record.ranks, (1.0, 3.0), strict=True):
        ranks.append(replace(rank, numbers={"compile_graphs": graphs, "loss_scale": 1024.0}))
    numbers = with_ranks(record, ranks).numbers
    assert (numbers["compile_graphs"], numbers["loss_scale"]) == (3, 1024)
    assert not {"compile_graphs", "loss_scale"} & set(record.numbers)


def test_a_checkpoint_that_was_passed_over_is_described() -> None:
    record = make_record()
    rank = replace(record.ranks[0], refused_checkpoints=["resume/step-000000200: damaged"])
    contents = trial_contents(with_ranks(record, [rank]), "a cell", 1)
    assert "not resumed from resume/step-000000200: damaged" in contents.description


def test_interruptions_are_described_and_counted() -> None:
    """A trial without interruptions does not mention them."""
    taken_up = [
        Interruption(step=8, at=BEGUN, signal="SIGUSR2", lost_seconds=1.5),
        Interruption(step=12, at=BEGUN, signal=None, lost_seconds=2),
    ]
    calm = make_record()
    twice = with_ranks(calm, [replace(calm.ranks[0], interruptions=taken_up)])
    assert twice.numbers["harness.interruptions"] == 2
    assert twice.numbers["harness.interruptions_lost_s"] == 3.5
    contents = trial_contents(twice, "a cell", 1)
    note = "interrupted by SIGUSR2 after step 8: 1.5 s lost"
    assert f"**resumed**\n- {note}\n- ended without a signal after step 12" in contents.description
    assert "interruptions" not in str(trial_contents(calm, "a cell", 1))


def test_a_trial_that_stopped_says_when_and_why() -> None:
    cell = replace(make_cell(steps=60), stop=StopRule(patience=2))
    record = make_record(cell)
    contents = trial_contents(record, "a cell", 1)
    note = "stopped by patience of accuracy: 3 epochs (step 30), best accuracy at 3"
    assert note in contents.description
    assert record.rank0 is not None
    assert record.rank0.stop is not None
    whole = replace(
        record, rank0=replace(record.rank0, stop=replace(record.rank0.stop, reason="length"))
    )
    assert str(stop_note(whole)).startswith("trained for its whole length: 3 epochs (step 30), ")
    assert contents.params["stop_patience"] == "2"
    numbers = record.numbers
    assert (numbers["epochs"], numbers["epochs_to_best"]) == (3, 3)
    names = {metric.key for metric in contents.metrics}
    assert {"validation_loss", "validation_accuracy", "test_loss"} <= names


@pytest.mark.parametrize(
    ("status", "expected"),
    [("done", "FINISHED"), ("failed", "FAILED"), ("interrupted", "KILLED"), ("invalid", "KILLED")],
)
def test_a_cell_looks_finished_if_all_its_trials_are_done(status: Status, expected: str) -> None:
    (contents,) = contents_of(make_record(), make_record(seed=1, status=status))
    assert contents.status == expected


def test_a_cell_has_about_twenty_metrics_the_answer_first() -> None:
    fast = make_cell(precision="bf16")
    records = []
    for seed in range(3):
        records.append(make_record(seed=seed, started=BEGUN + 200 * seed))
        later = BEGUN + 200 * seed + 100
        records.append(make_record(fast, seed=seed, step_seconds=0.005, started=later))
    _, contents = contents_of(*records)
    names = [metric.key for metric in contents.metrics]
    assert names[:4] == [
        "throughput_samples_per_s", "speedup", "speedup_low", "speedup_high",
    ]  # fmt: skip
    assert {"final_accuracy", "step_time_p50_ms", "memory_training_mib", "trials_done"} < set(names)
    assert len(names) <= 20
    assert contents.tags["harness.verdict"] == "faster"
    assert contents.tags["harness.speed"] == "2.000× (2.000 to 2.000)"


def test_a_speedup_of_two_seeds_that_decide_nothing_has_no_bounds() -> None:
    """As in the table of the terminal, and not of nine orders of magnitude to either side."""
    other = make_cell(precision="bf16")
    records = []
    for seed, step_seconds in enumerate((0.005, 0.012)):
        started = BEGUN + 200 * seed
        records.append(make_record(seed=seed, started=started))
        records.append(
            make_record(other, seed=seed, step_seconds=step_seconds, started=started + 100)
        )
    _, contents = contents_of(*records)
    names = {metric.key for metric in contents.metrics}
    assert contents.tags["harness.verdict"] == "inconclusive"
    assert contents.tags["harness.speed"] == "1.29×"
    assert "speedup" in names
    assert names.isdisjoint({"speedup_low", "speedup_high", "harness.ci_low", "harness.ci_high"})


def test_the_page_opens_on_the_answers_and_then_the_params_that_differ() -> None:
    records = [make_record(), make_record(make_cell(precision="bf16", num_workers=2))]
    result = SweepResult(name="demo", cells=aggregate(records))
    tags = experiment_tags(result, has_parity=True)
    view = json.loads(tags[VIEW_TAG])
    assert [name.split("`")[1] for name in view["selectedColumns"]][:9] == [
        "harness.verdict", "harness.speed", "throughput_samples_per_s", "final_accuracy",
        "speedup", "speedup_low", "speedup_high", "harness.parity", "precision",
    ]  # fmt: skip
    assert "tags.`harness.planned` = 'yes'" in view["searchFilter"]
    assert (view["orderByKey"], view["orderByAsc"]) == ("metrics.`throughput_samples_per_s`", False)


def test_a_description_is_ours_until_somebody_writes_another() -> None:
    tags = note_tags({}, "what it has shown")
    assert note_tags(tags, "more")[DESCRIPTION_TAG] == "more"
    assert note_tags(tags | {DESCRIPTION_TAG: "a user's"}, "more") == {}


def test_a_cells_run_shows_its_rung_once_parity_was_measured() -> None:
    records = make_record(REFERENCE), make_record(OTHER)
    assert "harness.parity" not in contents_of(*records)[1].tags
    reference, other = contents_of(*records, parity=make_parity(tensor_rung="rounding"))
    assert reference.tags["harness.parity"] == "reference"
    assert other.tags["harness.parity"] == "rounding"


def test_a_trial_says_how_to_run_it_again() -> None:
    record = make_record()
    command = f"    harness reproduce {record.trial.id}"
    assert command in str(trial_contents(record, "a cell", 1).description)
    failed = trial_contents(make_record(status="failed"), "a cell", 1)
    assert "reproduce" not in str(failed.description)
